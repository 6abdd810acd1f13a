"""The job `compact` with a planted fault in the task of the large window.

The file contains the driver and the code of its tasks.

Each merge has its own task, even a small merge.

    python -m tests.integration.troubled_compaction straggle FOLDER --table-uri … --master …

The workers are processes of this machine. The workers signal each other and the test by files in FOLDER.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from jobs.command import main
from storage_core.compact import steps
from storage_core.compact.steps import GroupLimits, compact_groups
from storage_core.compact.work import CompactionTask

PATIENCE_S = 240.0


def straggle(folder: str, large: int, item: Mapping[str, Any]) -> dict[str, Any]:
    """Let the first attempt on the large window write its files, and wait until a second attempt has written."""
    answer = steps.merge_several(item)
    if _is_of(large, item):
        me = _attempt(folder)
        lines = ["wrote", *sorted(path.name for path in Path(folder).glob("small *"))]
        (Path(folder) / f"attempt {me}").write_text("\n".join(lines), encoding="utf-8")
        if me == 1:
            _wait_for(Path(folder) / "attempt 2")
    else:
        (Path(folder) / f"small {uuid4()}").touch()
    return answer


def lose_the_executor(folder: str, large: int, item: Mapping[str, Any]) -> dict[str, Any]:
    """Let the first attempt on the large window write its files, and then kill its executor."""
    answer = steps.merge_several(item)
    if _is_of(large, item) and _attempt(folder) == 1:
        os.kill(_parent_of(os.getppid()), signal.SIGKILL)
        time.sleep(PATIENCE_S)  # this process is killed when the executor ends
    return answer


def _is_of(large: int, item: Mapping[str, Any]) -> bool:
    (task,) = item["tasks"]
    return CompactionTask.from_json(task).window == large


def _attempt(folder: str) -> int:
    """Return 1 for the first process that calls this function, 2 for the second process, and so on."""
    number = 1
    while True:
        try:
            (Path(folder) / f"begun {number}").touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return number


def _parent_of(process: int) -> int:
    """Return the parent of a process.

    A task's Python is a child of a Python daemon, which is a child of the executor.
    """
    output = subprocess.run(["ps", "-o", "ppid=", "-p", str(process)], capture_output=True, text=True, check=True)
    return int(output.stdout)


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def side_by_side(folder: str, large: int, item: Mapping[str, Any]) -> dict[str, Any]:
    """Let the large window's task wait for a small window's task.

    The small task runs on another executor with one core.
    """
    small = Path(folder) / "small"
    if _is_of(large, item):
        _wait_for(small)
    else:
        small.touch()
    return steps.merge_several(item)


TROUBLES = {"side_by_side": side_by_side, "straggle": straggle, "lose_the_executor": lose_the_executor}

if __name__ == "__main__":
    trouble, place, window, *arguments = sys.argv[1:]
    troubled = partial(TROUBLES[trouble], place, int(window))
    vars(troubled)["__name__"] = trouble
    vars(steps)["merge_several"] = troubled  # only in the driver, because workers import their own module
    vars(steps)["compact_groups"] = partial(compact_groups, limits=GroupLimits(task_merges=1))
    sys.exit(main("compact", arguments))
