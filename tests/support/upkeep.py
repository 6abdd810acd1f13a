"""The maintenance steps of a table, run in this process by the loop of jobs (`storage_core.log.job_run`).

The steps run without leases.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.base.clock import SystemClock
from storage_core.data.settings.layout import Mode
from storage_core.data.steps import options_for
from storage_core.log.job_run import JobReport, run_here
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.collect import CollectionReport
from storage_core.maintain.collect import collect as run_collector
from storage_core.table import Table
from storage_core.write.region import generation_write
from storage_core.write.region.generation_write import SortingTerms

ANY = SortingTerms(generations=0)
"""Conditions that allow a sort even if only one generation waits."""


@dataclass(frozen=True, slots=True)
class FixedClock:
    """A clock with a fixed time. Only `sleep` uses the real time of the machine."""

    at_ms: int

    def now_ms(self) -> int:
        """Return the fixed time."""
        return self.at_ms

    def sleep_ms(self, duration_ms: float) -> None:
        """Sleep in this thread."""
        SystemClock().sleep_ms(duration_ms)


@dataclass(frozen=True, slots=True)
class _Newest:
    log: TransactionLog
    snapshot: Snapshot


def run(step: str, table: Table, **options: object) -> JobReport:
    """Run a step on the newest version, and return its report."""
    log = table.log
    return run_here(options_for(step, table_uri=table.uri, **options), _Newest(log, log.snapshot()))


def merge(table: Table) -> bool:
    """Merge flushed records and records of silent writers. Return True if there were records to merge."""
    return run("merge", table).status == "committed"


def sort(table: Table, terms: SortingTerms = ANY) -> int:
    """Sort the waiting generations, and return the number of regions sorted."""
    log = table.log
    works = generation_write.plan_sort(table.store, log.snapshot(), terms=terms)
    for work in works:
        done = generation_write.execute_sort(table.store, work, clock=log.clock, ids=log.ids)
        generation_write.finish(table.store, work, done, clock=log.clock, writer_id=log.ids.uuid())
    return len(works)


def compact(table: Table) -> int:
    """Run the necessary compactions, and return the number of splits written."""
    return run("compact", table).metrics.splits_out


def rewindow(table: Table) -> int:
    """Rewrite the rows of windows with a former duration, and return the number of splits written."""
    return run("compact", table, mode=Mode.REWINDOW).metrics.splits_out


def checkpoint(table: Table) -> bool:
    """Write the state of the newest version. Return True if the version had no state."""
    return run("checkpoint", table).status == "committed"


def catch_up(table: Table) -> int:
    """Catch up the indexes of the table, merge small segments, and return the number of splits indexed."""
    return run("catch_up", table).metrics.splits_in


def collect(table: Table, *, at_ms: int, horizon_ms: int) -> CollectionReport:
    """Collect at this time."""
    return run_collector(table.store, table.log, clock=FixedClock(at_ms), horizon_ms=horizon_ms)
