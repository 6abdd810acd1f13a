"""How merges of many windows are cut into groups, and a group into tasks (decision 0078).

A window is in one group, so all of its merges are in one commit, unless it has more than a part of a plan. The largest
windows come first: a huge one is alone in its group and has the longest time, while the others go on beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage_core.compaction.work import CompactionTask


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """A group ends with so many windows, or so many bytes of input, or one of `parts` of all input where that is more.

    So a commit stays small, a small run is one commit, a large one loses few of its parts with its driver, and the
    commits of a run stay few. A task takes one merge, and more while they are together within `task_merges` and
    `task_bytes`: beginning a task costs more than a merge of that size.
    """

    windows: int = 256
    bytes: int = 256 * 2**20
    parts: int = 32
    task_merges: int = 8
    task_bytes: int = 8 * 2**20


GROUP_LIMITS = GroupLimits()


def grouped(tasks: Sequence[CompactionTask], limits: GroupLimits = GROUP_LIMITS) -> list[list[CompactionTask]]:
    """Return all tasks in groups of whole windows, the windows with the most bytes first."""
    by_window: dict[int | None, list[CompactionTask]] = {}
    for task in tasks:
        by_window.setdefault(task.window, []).append(task)
    sizes = {window: sum(bytes_of(each) for each in merges) for window, merges in by_window.items()}
    full = max(limits.bytes, sum(sizes.values()) // limits.parts)
    groups: list[list[CompactionTask]] = []
    windows = size = 0
    for window in sorted(by_window, key=sizes.__getitem__, reverse=True):
        if not windows:
            groups.append([])
        groups[-1] += sorted(by_window[window], key=bytes_of, reverse=True)
        windows, size = windows + 1, size + sizes[window]
        if windows == limits.windows or size >= full:
            windows = size = 0
    return groups


def bundled(group: Sequence[CompactionTask], limits: GroupLimits = GROUP_LIMITS) -> list[list[CompactionTask]]:
    """Return the merges of a group, in their order, by the task that executes them."""
    bundles: list[list[CompactionTask]] = []
    size = 0
    for task in group:
        size += bytes_of(task)
        if not bundles or size > limits.task_bytes or len(bundles[-1]) == limits.task_merges:
            bundles.append([])
            size = bytes_of(task)
        bundles[-1].append(task)
    return bundles


def bytes_of(task: CompactionTask) -> int:
    """Return what a merge reads."""
    return sum(add.size for add in task.inputs)
