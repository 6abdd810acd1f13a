"""The merges of one plan, as the compaction job executes them."""

from __future__ import annotations

from collections.abc import Collection

from storage_core.compaction.merges import MOST_INPUTS
from storage_core.compaction.planner import choose
from storage_core.compaction.policy import Mode
from storage_core.compaction.work import CompactionTask
from storage_core.log.snapshot import Snapshot


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
