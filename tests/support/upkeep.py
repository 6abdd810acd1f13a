"""The upkeep of a table, each step planned, executed and committed in this process as the jobs do it on Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage_core.clock import SystemClock
from storage_core.compaction import planner
from storage_core.compaction import rewindow as rewindowing
from storage_core.compaction.carry_over import CarryOver
from storage_core.compaction.execute import execute as compact_execute
from storage_core.compaction.work import OPERATION
from storage_core.gc.collect import CollectionReport
from storage_core.gc.collect import collect as run_collector
from storage_core.index import catch_up as indexing
from storage_core.index import segment_merge
from storage_core.index.segment_merge_work import MergedSegments, SegmentMerge
from storage_core.region import idle, sorting
from storage_core.region import merge as merging
from storage_core.region.sorting import SortingTerms
from storage_core.table import Table

ANY = SortingTerms(generations=0)
"""Sort also where a single generation waits."""


@dataclass(frozen=True, slots=True)
class FixedClock:
    """A clock that stands still; who waits waits by that of the machine."""

    at_ms: int

    def now_ms(self) -> int:
        """Return the time it stands at."""
        return self.at_ms

    def sleep_ms(self, duration_ms: float) -> None:
        """Sleep in this thread."""
        SystemClock().sleep_ms(duration_ms)


def merge(table: Table) -> dict[str, int]:
    """Merge what is flushed, or left by a silent writer, and return the last generation by region that was merged."""
    log = table.log
    snapshot = log.snapshot()
    found = idle.merge_due(table.store, snapshot).idle
    for error in idle.flush_idle(table.store, snapshot, found, clock=log.clock, ids=log.ids):
        raise error
    works = merging.plan(table.store, snapshot)
    if not works:
        return {}
    now_ms = log.clock.now_ms()
    results = [merging.execute(table.store, work, ids=log.ids, now_ms=now_ms) for work in works]
    merging.commit(log, snapshot, works, results)
    return {each.merged.region: each.merged.generation for each in results}


def sort(table: Table, terms: SortingTerms = ANY) -> int:
    """Sort the generations that wait, and return of how many regions."""
    log = table.log
    works = sorting.plan(table.store, log.snapshot(), terms=terms)
    for work in works:
        done = sorting.execute(table.store, work, clock=log.clock, ids=log.ids)
        sorting.finish(table.store, work, done, clock=log.clock, writer_id=log.ids.uuid())
    return len(works)


def compact(table: Table) -> int:
    """Compact what there is to compact, and return the number of merges."""
    log = table.log
    snapshot = log.snapshot()
    chosen = planner.choose(snapshot, now_ms=log.clock.now_ms())
    operations = [each for part in chosen.parts() for each in part]
    if not operations:
        return 0
    now_ms = log.clock.now_ms()
    results = [compact_execute(table.store, each, ids=log.ids, now_ms=now_ms) for each in operations]
    actions = [action for each in results for action in each.actions]
    carry_over = CarryOver(table.store, list(zip(operations, results, strict=True)), ids=log.ids)
    log.commit(snapshot, actions, operation=OPERATION, rebase=carry_over)
    return len(operations)


def rewindow(table: Table) -> int:
    """Write what lies in windows of former durations anew, and return in how many tasks."""
    log, snapshot = table.log, table.log.snapshot()
    works = rewindowing.plan(snapshot, windows=None, now_ms=log.clock.now_ms())
    done = [rewindowing.execute(table.store, work, ids=log.ids, now_ms=log.clock.now_ms()) for work in works]
    if done:
        log.commit(snapshot, [action for each in done for action in each.actions], operation=rewindowing.OPERATION)
    return len(done)


def checkpoint(table: Table) -> bool:
    """Write the state of the newest version, and tell whether there was none."""
    return table.log.checkpoint(table.log.snapshot()).written


def catch_up(table: Table) -> int:
    """Index what the indexes of the table lack, merge small segments, and return how many were built."""
    return caught_up(table)()


def caught_up(table: Table) -> Callable[[], int]:
    """Do the work of `catch_up` now, and return what commits it."""
    log = table.log
    snapshot = log.snapshot()
    plans = [indexing.plan(snapshot, each.name) for each in snapshot.config.indexes]
    built = [indexing.execute(table.store, work, ids=log.ids) for plan in plans for work in plan.work]

    def merged(items: Sequence[SegmentMerge]) -> list[MergedSegments]:
        return [MergedSegments(item, segment_merge.execute(table.store, item, ids=log.ids)) for item in items]

    done, idle = indexing.merge_all(snapshot, plans, built, merged)
    actions = indexing.actions_of(plans, built, done, idle)

    def commit() -> int:
        if actions:
            log.commit(snapshot, actions, operation="CATCH UP")
        return len(built)

    return commit


def collect(table: Table, *, at_ms: int, horizon_ms: int) -> CollectionReport:
    """Collect at this time."""
    return run_collector(table.store, table.log, clock=FixedClock(at_ms), horizon_ms=horizon_ms)
