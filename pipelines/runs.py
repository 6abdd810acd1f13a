"""Queries about runs in Dagster's history, and changes of these runs.

- `ActiveRuns`: the runs that wait or run now.
- `spent_bytes`: the largest number of bytes that runs may have read within the last hour.
- `end_dead_runs`: mark a run as failed if the process of the run has died.
- `unfinished`: the partitions that are missing because their last run did not succeed.
- `purge`: delete old runs.

A tag of each run contains its process. This module therefore finds dead runs without the health check of Dagster.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dagster import (
    AssetKey,
    AssetRecordsFilter,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    EventRecordsFilter,
    RunRecord,
    RunRequest,
    RunsFilter,
)
from dagster._core.storage.dagster_run import FINISHED_STATUSES, NOT_FINISHED_STATUSES

from assets.launcher import COMMITS_STAY
from assets.run_tags import (
    ALL_WINDOWS,
    MODE_TAG,
    PARTITION,
    PRIORITY,
    PROCESS,
    RANGE_END,
    RANGE_START,
    REASON,
    TABLE,
    TABLES,
    WINDOWS_TAG,
    granted_bytes,
)
from pipelines.jobs import BACKFILL
from storage_core.base.clock import Clock
from storage_core.base.errors import Held, Unavailable
from storage_core.base.process import holder_of, is_dead, process_in
from storage_core.base.text import fitted
from storage_core.change.declaration_parts import USUAL_PRIORITY
from storage_core.data.settings.layout import Mode
from storage_core.data.steps import STEPS

# Assets of runs.


NO_JOBS: Mapping[str, Collection[AssetKey]] = {}


def assets_of(run: DagsterRun, assets_of_jobs: Mapping[str, Collection[AssetKey]] = NO_JOBS) -> Collection[AssetKey]:
    """Return the assets of a run.

    A retry has only the assets that it materializes again. If a run selects no assets, it has all assets of its job.
    """
    keys = run.asset_selection or assets_of_jobs.get(run.job_name, ())
    steps = run.step_keys_to_execute
    return keys if steps is None else [key for key in keys if key.to_python_identifier() in steps]


def not_done(instance: DagsterInstance, run: DagsterRun, keys: Collection[AssetKey]) -> list[AssetKey]:
    """Return the assets with a step that did not succeed in this run. Cost: one query."""
    ended = instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_SUCCESS)
    steps = {each.dagster_event.step_key for each in ended if each.dagster_event}
    return [key for key in keys if key.to_python_identifier() not in steps]


# Runs that wait or run now.


REST_SECONDS = 900
"""The number of seconds after which the sensor requests a failed step again."""

LAUNCH_REST_SECONDS = 60
"""The number of seconds after which a run is requested again if it failed before it began.

For example, the code server of this run may have been killed.
"""

_WAITING = (DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED)
_WORKING = (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)
_FAILED = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
_ENDED = (*_FAILED, DagsterRunStatus.SUCCESS)
_LONGEST = dt.timedelta(days=1)
_MOST_ENDED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRuns:
    """The runs that wait or run now, and the assets for which no new run may be requested.

    If the step of an asset succeeded in a run, a new run of the asset may be requested. The earlier run may still work
    on other assets. If the process of a run has died, the run still counts as working until `dead_runs_sensor` marks it
    as failed. Dagster then retries this run. An unfinished run that is older than a day is ignored, because Dagster
    probably did not record its end.

    Attributes:
        busy: The assets for which a run waits or works.
        resting: The assets whose last run failed recently.
        waiting: The waiting runs.
        working: The working runs.
    """

    busy: frozenset[AssetKey]
    resting: frozenset[AssetKey]
    waiting: tuple[DagsterRun, ...]
    working: tuple[DagsterRun, ...]

    @classmethod
    def of(
        cls, instance: DagsterInstance, assets_of_jobs: Mapping[str, Collection[AssetKey]], *, now_ms: int
    ) -> ActiveRuns:
        """Query the instance.

        Cost: two queries, and one query for each run of several assets that works or failed recently.
        """
        now = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
        unfinished = RunsFilter(statuses=[*_WAITING, *_WORKING], created_after=now - _LONGEST)
        runs = instance.get_runs(unfinished)
        lately = RunsFilter(statuses=list(_ENDED), updated_after=now - dt.timedelta(seconds=REST_SECONDS))
        ended = [each for each in instance.get_run_records(lately, limit=_MOST_ENDED) if not _is_over(each, now)]
        return cls(
            busy=frozenset(key for run in runs for key in _busy(instance, run, assets_of(run, assets_of_jobs))),
            resting=frozenset(_resting(instance, [each.dagster_run for each in ended], assets_of_jobs)),
            waiting=tuple(run for run in runs if run.status in _WAITING),
            working=tuple(run for run in runs if run.status in _WORKING),
        )

    def free(self, keys: Collection[AssetKey]) -> list[AssetKey]:
        """Return the assets for which a run may be requested now."""
        return [key for key in keys if key not in self.busy and key not in self.resting]


def _busy(instance: DagsterInstance, run: DagsterRun, keys: Collection[AssetKey]) -> Collection[AssetKey]:
    return not_done(instance, run, keys) if len(keys) > 1 and run.status not in _WAITING else keys


def _is_over(record: RunRecord, now: dt.datetime) -> bool:
    """Return whether a run may be requested again, because the run failed before it began and its pause is over."""
    if record.dagster_run.status is not DagsterRunStatus.FAILURE or record.start_time is not None:
        return False
    return record.update_timestamp.timestamp() + LAUNCH_REST_SECONDS < now.timestamp()


def _resting(
    instance: DagsterInstance, ended: Sequence[DagsterRun], assets_of_jobs: Mapping[str, Collection[AssetKey]]
) -> Iterator[AssetKey]:
    """Yield each asset that is missing because its newest run did not succeed.

    `ended` contains the runs with the newest run first.
    """
    known: set[AssetKey] = set()
    for run in ended:
        keys = assets_of(run, assets_of_jobs)
        if run.status in _FAILED:
            yield from set(not_done(instance, run, keys)) - known
        known.update(keys)


# Runs with a process that has died.


_REPOSITORY = {".dagster/repository": "__repository__@tidemark"}

_WHAT_BECOMES_OF_IT = f"was killed or crashed. {COMMITS_STAY}"
INTERRUPTED = f"the work was interrupted, for example because the UI or the machine was stopped. {COMMITS_STAY}"
"""The error message of a step or a run that a signal ended."""


NO_TAGS: Mapping[str, str] = {}

_logger = logging.getLogger(__name__)


def process_tags() -> Mapping[str, str]:
    """Return the tags of a run that this process executes. The tags contain the repository and this process.

    With the tag of the repository, the UI lists the run under its job. With the tag of the process, `end_dead_runs` can
    decide whether the process of the run is still alive.
    """
    return {**_REPOSITORY, PROCESS: holder_of(None)}


def process_of(run: DagsterRun) -> str:
    """Return the process of the run in the form of `storage_core.base.process`.

    If the run has no process tag of its own, return an empty text.

    A retry inherits the tags of the failed run. The process tag of a retry therefore names the process of the failed
    run until the retry sets its own tag.
    """
    process = run.tags.get(PROCESS, "")
    return process if run.parent_run_id is None or process.startswith(f"{run.run_id}@") else ""


def end_dead_runs(
    instance: DagsterInstance, job_name: str | None = None, tags: Mapping[str, str] = NO_TAGS
) -> list[str]:
    """Mark each run with a dead process as failed, and free its slots in pools. Return the ids of these runs.

    The function examines only runs of the given job with the given tags. Without a given job and tags, the function
    examines all runs. The function does not change runs without the tag `PROCESS` and runs of other machines. This
    machine cannot check the processes of these runs. Idempotent.
    """
    ended: list[str] = []
    for run in instance.get_runs(RunsFilter(job_name=job_name, tags=tags, statuses=NOT_FINISHED_STATUSES)):
        process = process_of(run)
        if is_dead(process):
            instance.report_run_failed(run, f"{process_in(process)}, which worked on this run, {_WHAT_BECOMES_OF_IT}")
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            _logger.info("run %s is marked as failed: its process %s is gone", run.run_id, process)
            ended.append(run.run_id)
    return ended


# The purge of old runs.


PAGE = 500


@dataclass(frozen=True, slots=True)
class Purged:
    """The number of deleted runs, and the number of old runs that remain because an asset shows their results."""

    deleted: int
    kept: int


def purge(instance: DagsterInstance, *, older_than_ms: int, clock: Clock) -> Purged:
    """Delete finished runs that were created more than `older_than_ms` ago. Idempotent.

    Cost: a few queries per deleted run, and one query per page of runs, per asset, and per 500 partitions of old runs.
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
    """Yield the ids of finished runs that were created more than `older_than_ms` ago. Cost: one query per 500 runs."""
    cursor: str | None = None
    before = datetime.fromtimestamp((clock.now_ms() - older_than_ms) / 1000, UTC)
    wanted = RunsFilter(statuses=list(FINISHED_STATUSES), created_before=before)
    while page := instance.get_runs(wanted, cursor=cursor, limit=PAGE):
        yield from (run.run_id for run in page)
        cursor = page[-1].run_id


def _shown_by_assets(instance: DagsterInstance, before: float) -> set[str]:
    """Return the ids of runs with results older than `before` that are the newest of an asset or partition."""
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


# Requests of runs.


_LONGEST_REASON = 60

FRESH = 10
USUAL = -10
"""Priorities of runs.

Runs for fresh data have the highest priority. Runs that a person requests, including backfills, have the priority 0.
Maintenance runs have the lowest priority.
"""


def run_request(
    job: str,
    name: str | Sequence[str],
    assets: Sequence[AssetKey],
    reason: str,
    *,
    is_late: bool = False,
    partition: str | None = None,
    table_priority: int = USUAL_PRIORITY,
) -> RunRequest:
    """Return a request for a run of a job. The run is for one table or raw log, or for several tables.

    The request has no run key, because the sensor itself checks whether such a run is already waiting (`ActiveRuns`).
    The run covers all windows.

    Args:
        job: The name of the job.
        name: The name of the table or raw log, or the names of several tables.
        assets: The assets to make.
        reason: The reason for the request.
        is_late: True if the work has waited so long that the run gets the priority of fresh data.
        partition: The partition of the run. Dagster requires a partition if assets depend on partitioned assets.
        table_priority: The priority of the table, added to the priority of the run.
    """
    is_first = is_late or (job in STEPS and STEPS[job].is_fresh)
    priority = (FRESH if is_first else USUAL) + table_priority - USUAL_PRIORITY
    about = {TABLE: name} if isinstance(name, str) else {TABLES: str(len(name))}
    tags = {**reason_tags(reason), **about, PRIORITY: str(priority)}
    tags |= {MODE_TAG: Mode.POLICY.value} if job == "compact" else {}
    tags |= {PARTITION: partition, WINDOWS_TAG: ALL_WINDOWS} if partition else {}
    return RunRequest(job_name=job, tags=tags, asset_selection=list(assets))


def reason_tags(reason: str) -> dict[str, str]:
    """Return the tag with the reason for a run. The text is cut to the width of its column in a list of runs."""
    return {REASON: fitted(reason, _LONGEST_REASON)}


def range_tags(first: str | None, last: str | None) -> dict[str, str]:
    """Return the tags of a run for a range of partitions.

    Return no tags for a single partition, because Dagster gets a single partition as a partition key.
    """
    return {RANGE_START: first, RANGE_END: last} if first and last and first != last else {}


# Bytes of runs.


HOUR: Final = dt.timedelta(hours=1)
MOST_RUNS: Final = 20_000


def spent_bytes(instance: DagsterInstance, *, now_ms: int, hour: dt.timedelta = HOUR) -> Mapping[str, int]:
    """Return the number of bytes that runs of each table may read.

    The function counts runs that wait, runs that run now, and runs that ended within the last hour.

    The result is therefore never smaller than the number of bytes that runs really read in this hour. A run that ended
    while it waited to start counts as 0 bytes. If an unfinished run was created more than a day ago, it is ignored.

    Cost: one query per `PAGE` runs that changed within the hour or are not finished.

    Raises:
        Unavailable: More than `MOST_RUNS` runs changed within the hour or are unfinished.
    """
    now = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
    begun = now - hour
    spent: Counter[str] = Counter()
    for each in _records(instance, begun, now - _LONGEST):
        if not each.dagster_run.is_finished or _read_since(each, begun):
            spent.update(granted_bytes(each.dagster_run.tags))
    return spent


def _read_since(record: RunRecord, begun: dt.datetime) -> bool:
    if record.start_time is None:
        return False
    return record.end_time is None or record.end_time > begun.timestamp()


def _records(instance: DagsterInstance, begun: dt.datetime, long_ago: dt.datetime) -> Iterator[RunRecord]:
    """Yield each run that changed within the hour, and each unfinished run that was created within a day.

    No run occurs twice.
    """
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
                raise Unavailable(
                    f"there are more than {MOST_RUNS:,} runs within an hour. The bytes of these "
                    "runs cannot be counted in time"
                )
            yield from new
            if len(page) < PAGE:
                break


# Unfinished partitions.


def unfinished(instance: DagsterInstance, keys: Iterable[AssetKey], names: Iterable[str]) -> set[str]:
    """Return the partitions that were not made, because an asset's last run failed or was cancelled.

    Cost: three queries per asset, for any number of partitions. Each unsuccessful run of `tidemark backfill` on the
        given assets needs five more queries.

    Raises:
        Held: A run is working on one of the partitions.
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
            if run.status in _FAILED:
                found.add(name)
    return found


def _unplanned(instance: DagsterInstance, key: AssetKey, names: Collection[str]) -> dict[str, DagsterRun]:
    """Return the partitions of backfill runs that Dagster has not recorded since the run began.

    The tags of the run contain these partitions.

    Dagster records the partitions of a run one by one. If the run is killed before Dagster has recorded all partitions,
    only the run's tags contain all partitions of the run.
    """
    unheard: dict[str, DagsterRun] = {}
    for run in _backfills(instance, key):
        if about := _named(run, names):
            began = [each.timestamp for each in instance.get_records_for_run(run.run_id, limit=1).records]
            heard = _heard_since(instance, key, began[0]) if began else ()
            unheard = {name: run for name in about if name not in heard} | unheard  # the newest run has priority
    return unheard


def _heard_since(instance: DagsterInstance, key: AssetKey, at: float) -> Collection[str]:
    """Return the partitions that were made since `at`, or that Dagster recorded as part of a run since `at`.

    Cost: four queries.
    """
    heard: set[str] = set()
    events = instance.event_log_storage
    for kind in (DagsterEventType.ASSET_MATERIALIZATION_PLANNED, DagsterEventType.ASSET_MATERIALIZATION):
        earlier = EventRecordsFilter(kind, asset_key=key, before_timestamp=at)
        last = [each.storage_id for each in events.get_event_records(earlier, limit=1)]
        heard.update(events.get_latest_storage_id_by_partition(key, kind, after_cursor=max(last, default=None)))
    return heard


def _backfills(instance: DagsterInstance, key: AssetKey) -> list[DagsterRun]:
    """Return the runs of `tidemark backfill` for this asset that did not succeed, newest first."""
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
        f"the run {run.run_id} ({run.status.value}) works on {name}, so the outcome is not known yet. Wait until the "
        "run ends. If the process of the run is dead, mark the run as failed in the UI (`tidemark ui`).",
        partition=name,
        run_id=run.run_id,
    )
