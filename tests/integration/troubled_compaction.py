"""The job `compact` with trouble planted in the task of the large window: a driver for tests, and what its tasks run.

Each merge has a task of its own, however small it is.

python -m tests.integration.troubled_compaction straggle FOLDER --table-uri … --master …

The workers are processes of this machine; what they tell each other and the test is in FOLDER, by file names.
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

from jobs import compact
from jobs.compacting.group_plan import GroupLimits
from jobs.compacting.window_groups import compact_groups
from jobs.spark import tasks
from storage_core.compaction.work import CompactionTask

PATIENCE_S = 240.0


def straggle(folder: str, large: int, item: Mapping[str, Any]) -> dict[str, Any]:
    """The first attempt on the large window writes its files, and answers only when another has written its own."""
    answer = tasks.compact_several(item)
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
    """The first attempt on the large window writes its files, and then its executor is killed."""
    answer = tasks.compact_several(item)
    if _is_of(large, item) and _attempt(folder) == 1:
        os.kill(_parent_of(os.getppid()), signal.SIGKILL)
        time.sleep(PATIENCE_S)  # the end comes with that of the executor
    return answer


def _is_of(large: int, item: Mapping[str, Any]) -> bool:
    (task,) = item["tasks"]
    return CompactionTask.from_json(task).window == large


def _attempt(folder: str) -> int:
    """1 for the first process that asks, 2 for the next."""
    number = 1
    while True:
        try:
            (Path(folder) / f"begun {number}").touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return number


def _parent_of(process: int) -> int:
    """A task's Python is a child of a Python that starts them, which is a child of the executor."""
    output = subprocess.run(["ps", "-o", "ppid=", "-p", str(process)], capture_output=True, text=True, check=True)
    return int(output.stdout)


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def side_by_side(folder: str, large: int, item: Mapping[str, Any]) -> dict[str, Any]:
    """The task of the large window waits for one of a small window, which another executor of one core runs."""
    small = Path(folder) / "small"
    if _is_of(large, item):
        _wait_for(small)
    else:
        small.touch()
    return tasks.compact_several(item)


TROUBLES = {"side_by_side": side_by_side, "straggle": straggle, "lose_the_executor": lose_the_executor}

if __name__ == "__main__":
    trouble, place, window, *arguments = sys.argv[1:]
    troubled = partial(TROUBLES[trouble], place, int(window))
    vars(troubled)["__name__"] = trouble
    tasks.compact_several = troubled  # the driver's; workers import their own
    vars(compact)["compact_groups"] = partial(compact_groups, limits=GroupLimits(task_merges=1))
    sys.exit(compact.main(arguments))
