"""Partitions whose last run did not end well: what a backfill of what failed does again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dagster import (
    AssetKey,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    EventRecordsFilter,
    RunsFilter,
)

from assets.run_tags import PARTITION, RANGE_END, RANGE_START, TABLE
from pipelines.jobs import BACKFILL
from storage_core.errors import Held

_BAD_ENDS = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)


def unfinished(instance: DagsterInstance, keys: Iterable[AssetKey], names: Iterable[str]) -> set[str]:
    """Return those of the partitions whose last run of one of the assets failed or was cancelled without making it.

    Three queries per asset, whatever the number of partitions, and five for each run of `tidemark backfill` on them
    that did not end well. Raises `Held` when a run has one of them in work.
    """
    wanted = set(names)
    found: set[str] = set()
    for key in keys:
        events = instance.event_log_storage
        attempts = events.get_latest_asset_partition_materialization_attempts_without_materializations(key)
        by_name = {name: run_id for name, (run_id, _) in attempts.items() if name in wanted}
        runs = _runs(instance, set(by_name.values()))
        last = {name: runs[run_id] for name, run_id in by_name.items() if run_id in runs}
        for name, run in sorted({**last, **_unplanned(instance, key, wanted)}.items()):
            if not run.is_finished:
                raise _in_work(name, run)
            if run.status in _BAD_ENDS:
                found.add(name)
    return found


def _unplanned(instance: DagsterInstance, key: AssetKey, names: Collection[str]) -> dict[str, DagsterRun]:
    """The partitions that the tags of a run of a backfill name, and of which nothing has been heard since it began.

    Dagster writes down one by one which partitions a run is about; of one that is killed meanwhile only tags say it.
    """
    unheard: dict[str, DagsterRun] = {}
    for run in _backfills(instance, key):
        if about := _named(run, names):
            began = [each.timestamp for each in instance.get_records_for_run(run.run_id, limit=1).records]
            heard = _heard_since(instance, key, began[0]) if began else ()
            unheard = {name: run for name in about if name not in heard} | unheard  # the newest has the last word
    return unheard


def _heard_since(instance: DagsterInstance, key: AssetKey, at: float) -> Collection[str]:
    """The partitions that were made, or that Dagster wrote down as those of a run, since then. Four queries."""
    heard: set[str] = set()
    events = instance.event_log_storage
    for kind in (DagsterEventType.ASSET_MATERIALIZATION_PLANNED, DagsterEventType.ASSET_MATERIALIZATION):
        earlier = EventRecordsFilter(kind, asset_key=key, before_timestamp=at)
        last = [each.storage_id for each in events.get_event_records(earlier, limit=1)]
        heard.update(events.get_latest_storage_id_by_partition(key, kind, after_cursor=max(last, default=None)))
    return heard


def _backfills(instance: DagsterInstance, key: AssetKey) -> list[DagsterRun]:
    """The runs of `tidemark backfill` of the asset that did not end well, newest first."""
    statuses = [each for each in DagsterRunStatus if each != DagsterRunStatus.SUCCESS]
    runs = instance.get_runs(RunsFilter(job_name=BACKFILL, tags={TABLE: key.path[0]}, statuses=statuses))
    return [run for run in runs if key in (run.asset_selection or ())]


def _named(run: DagsterRun, names: Collection[str]) -> list[str]:
    one = run.tags.get(PARTITION, "")
    first, last = run.tags.get(RANGE_START, one), run.tags.get(RANGE_END, one)
    return [name for name in names if first <= name <= last]


def _runs(instance: DagsterInstance, run_ids: set[str]) -> Mapping[str, DagsterRun]:
    if not run_ids:
        return {}
    return {run.run_id: run for run in instance.get_runs(RunsFilter(run_ids=sorted(run_ids)))}


def _in_work(name: str, run: DagsterRun) -> Held:
    return Held(
        f"{name} is in work in the run {run.run_id}, which is {run.status.value}: whether it fails is not known yet; "
        "wait for its end, or, if its process is dead, mark the run as failed in the UI (`tidemark ui`)",
        partition=name,
        run_id=run.run_id,
    )
