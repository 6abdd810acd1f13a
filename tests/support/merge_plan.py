"""The merges of one plan, as the compaction job executes them."""

from __future__ import annotations

from collections.abc import Collection

from storage_core.compaction.merge_parts import divide, is_too_large, locate, sample
from storage_core.compaction.merges import MOST_INPUTS
from storage_core.compaction.planner import choose
from storage_core.compaction.policy import Mode
from storage_core.compaction.work import CompactionTask
from storage_core.ids import Ids
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore


def plan(
    snapshot: Snapshot,
    *,
    windows: Collection[int | None] | None = None,
    now_ms: int | None = None,
    mode: Mode = Mode.FINALIZE,
    most_inputs: int = MOST_INPUTS,
) -> list[CompactionTask]:
    """Return what a run of the job would do now: the parts of `choose`, limited to `most_inputs`, one after another."""
    chosen = choose(snapshot, windows=windows, now_ms=now_ms, mode=mode).first(most_inputs)
    return [operation for part in chosen.parts() for operation in part]


def in_parts(store: ObjectStore, task: CompactionTask, *, ids: Ids) -> list[CompactionTask]:
    """Return the tasks of a merge: itself, or its parts where it is too large for one. Each travelled as JSON."""
    found = [task]
    if is_too_large(task):
        found = divide(
            task,
            lambda several: [sample(store, each, len(task.inputs)) for each in several],
            lambda several, keys: [locate(store, each, keys) for each in several],
            operation_id=ids.uuid(),
        )
    return [CompactionTask.from_json(each.to_json()) for each in found]
