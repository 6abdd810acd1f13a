"""What upkeep reads now and read within the last hour, by table, from the tags of the runs in Dagster's history."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from dagster import DagsterInstance, RunRecord, RunsFilter
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

from assets.granted import granted_bytes
from storage_core.errors import Unavailable

HOUR: Final = dt.timedelta(hours=1)
LONGEST: Final = dt.timedelta(days=1)
PAGE: Final = 500
MOST_RUNS: Final = 20_000


def spent_bytes(instance: DagsterInstance, *, now_ms: int, hour: dt.timedelta = HOUR) -> Mapping[str, int]:
    """Return the granted bytes, by table, of runs that wait or work, or ended within the last hour.

    So what any hour reads is never more than what counts in it. A run that ended before it started read nothing, and
    one of which nothing was heard for a day is over. One query for each `PAGE` of runs that changed within the hour or
    are unfinished. Raises `Unavailable` when these are more than `MOST_RUNS`.
    """
    now = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
    begun = now - hour
    spent: Counter[str] = Counter()
    for each in _records(instance, begun, now - LONGEST):
        if not each.dagster_run.is_finished or _read_since(each, begun):
            spent.update(granted_bytes(each.dagster_run.tags))
    return spent


def _read_since(record: RunRecord, begun: dt.datetime) -> bool:
    if record.start_time is None:
        return False
    return record.end_time is None or record.end_time > begun.timestamp()


def _records(instance: DagsterInstance, begun: dt.datetime, long_ago: dt.datetime) -> Iterator[RunRecord]:
    """Each run once: those that changed within the hour, and those that were made within a day and are unfinished."""
    seen = set[str]()
    for bounds in (
        RunsFilter(updated_after=begun),
        RunsFilter(statuses=NOT_FINISHED_STATUSES, created_after=long_ago),
    ):
        cursor: str | None = None
        while page := instance.get_run_records(bounds, limit=PAGE, cursor=cursor):
            cursor = page[-1].dagster_run.run_id
            new = [each for each in page if each.dagster_run.run_id not in seen]
            seen.update(each.dagster_run.run_id for each in new)
            if len(seen) > MOST_RUNS:
                raise Unavailable(f"more than {MOST_RUNS:,} runs within an hour; their bytes cannot be counted in time")
            yield from new
            if len(page) < PAGE:
                break
