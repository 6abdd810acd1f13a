"""The `tidemark` command, also `python -m tidemark`: our packages are ours, whatever `PYTHONPATH` holds.

Python looks into `PYTHONPATH` before what is installed, and a user's project may have a folder `jobs` or `pipelines`.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OURS = ("assets", "jobs", "pipelines", "storage_core")


class _Ours:
    """Finds our packages beside this one, before anybody else is asked."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [str(ROOT)]) if fullname in OURS else None


def main() -> int:
    """Run the command with the arguments of this process, and return its exit code."""
    sys.meta_path.insert(0, _Ours())
    from pipelines.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
