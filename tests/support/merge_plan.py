"""The compaction tasks of one plan, in the form in which the job executes them."""

from __future__ import annotations

from collections.abc import Collection

from storage_core.base.clock import Ids
from storage_core.compact.execute import divide, is_too_large, locate, sample
from storage_core.compact.planner import choose
from storage_core.compact.work import MOST_INPUTS, CompactionTask
from storage_core.data.settings.layout import Mode
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore


def plan(
    snapshot: Snapshot,
    *,
    windows: Collection[int | None] | None = None,
    now_ms: int | None = None,
    mode: Mode = Mode.FINALIZE,
    most_inputs: int = MOST_INPUTS,
) -> list[CompactionTask]:
    """Return the work of a job that runs now.

    The work is all parts that `choose` returns, each limited to `most_inputs`.
    """
    chosen = choose(snapshot, windows=windows, now_ms=now_ms, mode=mode).first(most_inputs)
    return [operation for part in chosen.parts() for operation in part]


def in_parts(store: ObjectStore, task: CompactionTask, *, ids: Ids) -> list[CompactionTask]:
    """Return the tasks of a merge: the task itself, or its parts if it is too large.

    Each task made a round trip through JSON.
    """
    found = [task]
    if is_too_large(task):
        found = divide(
            task,
            lambda several: [sample(store, each, len(task.inputs)) for each in several],
            lambda several, keys: [locate(store, each, keys) for each in several],
            operation_id=ids.uuid(),
        )
    return [CompactionTask.from_json(each.to_json()) for each in found]
