"""Runs, their events and their logs that nobody needs any more leave Dagster's history; tables lose nothing by it.

Dagster tells which partitions of an asset are done by the events of runs. So a run stays, however old, as long as an
asset or a partition shows what it made last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from dagster import AssetKey, AssetRecordsFilter, DagsterEventType, DagsterInstance, RunsFilter
from dagster._core.storage.dagster_run import FINISHED_STATUSES

from storage_core.clock import Clock

PAGE = 500


@dataclass(frozen=True, slots=True)
class Purged:
    """How many runs left, and how many of that age stay because an asset shows what they made."""

    deleted: int
    kept: int


def purge(instance: DagsterInstance, *, older_than_ms: int, clock: Clock) -> Purged:
    """Delete the runs that ended and are older, by when they were made. Running it again deletes nothing more.

    Queries: a few per run that leaves, per page of runs, and per asset and 500 partitions that old runs made.
    """
    kept = _shown_by_assets(instance, (clock.now_ms() - older_than_ms) / 1000)
    deleted = stayed = 0
    for run_id in list(old_runs(instance, older_than_ms, clock)):
        if run_id in kept:
            stayed += 1
            continue
        instance.compute_log_manager.delete_logs(prefix=[run_id])
        instance.delete_run(run_id)
        deleted += 1
    return Purged(deleted, stayed)


def old_runs(instance: DagsterInstance, older_than_ms: int, clock: Clock) -> Iterator[str]:
    """Yield the ids of the runs that ended and are older, by when they were made; a query per 500."""
    cursor: str | None = None
    before = datetime.fromtimestamp((clock.now_ms() - older_than_ms) / 1000, UTC)
    wanted = RunsFilter(statuses=list(FINISHED_STATUSES), created_before=before)
    while page := instance.get_runs(wanted, cursor=cursor, limit=PAGE):
        yield from (run.run_id for run in page)
        cursor = page[-1].run_id


def _shown_by_assets(instance: DagsterInstance, before: float) -> set[str]:
    """The runs that made, before that second, what an asset or one of its partitions shows now."""
    return {run_id for key in instance.all_asset_keys() for run_id in _shown_by(instance, key, before)}


def _shown_by(instance: DagsterInstance, key: AssetKey, before: float) -> Iterator[str]:
    newest = instance.fetch_materializations(key, limit=1).records
    yield from (record.run_id for record in newest if record.timestamp < before)
    old = instance.fetch_materializations(AssetRecordsFilter(key, before_timestamp=before), limit=1).records
    if not old:
        return
    made = instance.event_log_storage.get_latest_storage_id_by_partition(key, DagsterEventType.ASSET_MATERIALIZATION)
    ids = sorted(each for each in made.values() if each <= old[0].storage_id)
    for first in range(0, len(ids), PAGE):
        wanted = AssetRecordsFilter(key, storage_ids=ids[first : first + PAGE])
        yield from (each.run_id for each in instance.fetch_materializations(wanted, limit=PAGE).records)
