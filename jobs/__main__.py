"""The command `python -m jobs STEP …`, which runs one step of `storage_core.data.steps` in a separate process."""

from __future__ import annotations

import argparse
import sys

from jobs.command import main
from storage_core.data.steps import STEPS

_PARSER = argparse.ArgumentParser(
    prog="python -m jobs", description="Run one step. Write --help after the step to show the options of the step."
)
_PARSER.add_argument("step", choices=sorted(STEPS))

if __name__ == "__main__":
    sys.exit(main(_PARSER.parse_args(sys.argv[1:2]).step, sys.argv[2:]))
