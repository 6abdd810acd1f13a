"""The `tidemark` command, also `python -m tidemark`: our packages are ours, whatever `PYTHONPATH` holds.

Python looks into `PYTHONPATH` before what is installed, and a user's project may have a folder `jobs` or `pipelines`.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
OURS = ("assets", "jobs", "pipelines", "storage_core")
GARBAGE_OBJECTS = 10_000
"""New objects between two searches for garbage. At Python's own 700, modules that load are searched again and again."""


class _Ours:
    """Finds our packages beside this one, before anybody else is asked."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [str(ROOT)]) if fullname in OURS else None


def main() -> int:
    """Run the command with the arguments of this process, and end it, or return its exit code while threads run."""
    sys.meta_path.insert(0, _Ours())
    gc.set_threshold(GARBAGE_OBJECTS)
    from pipelines.cli import main as run

    code = run()
    if threading.active_count() == 1:
        _end(code)
    return code


def _end(code: int) -> NoReturn:
    """End the process as Python does, but take no module apart first: all of them end with it."""
    atexit._run_exitfuncs()  # noqa: SLF001  # no public function ends a process so
    for each in filter(None, (sys.stdout, sys.stderr)):  # None where the process began without it
        each.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
