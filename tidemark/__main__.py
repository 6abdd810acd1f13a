"""The entry point of the command `tidemark` and of `python -m tidemark`.

Python searches `PYTHONPATH` before the installed packages. A user's project may have a folder `jobs` or `pipelines`.
This module therefore installs an import finder. The finder always loads Tidemark's own packages from its installation.
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
"""The number of new objects between two runs of Python's garbage collector.

The default is 700. With the default, imports start the garbage collector many times.
"""


class _Ours:
    """An import finder for Tidemark's packages in this installation. The finder runs before all other finders."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [str(ROOT)]) if fullname in OURS else None


def main() -> int:
    """Run the command with the arguments of this process. Then end the process.

    Returns:
        The exit code if other threads still run. If no other thread runs, the function ends the process itself.
    """
    sys.meta_path.insert(0, _Ours())
    gc.set_threshold(GARBAGE_OBJECTS)
    from pipelines.cli import main as run

    code = run()
    if threading.active_count() == 1:
        _end(code)
    return code


def _end(code: int) -> NoReturn:
    """End the process in the same way as Python, but without the cleanup of loaded modules."""
    atexit._run_exitfuncs()  # noqa: SLF001  # no public function does this
    for each in filter(None, (sys.stdout, sys.stderr)):  # a stream is None if the process has no stdout or stderr
        each.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
