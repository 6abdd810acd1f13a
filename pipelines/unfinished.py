"""Partitions whose last run did not end well, and runs whose process was killed, which Dagster takes for running.

Dagster's daemon can ask no run for its health that is in the process of a command, nor one whose code server was killed
with it. So a run carries its process as a tag, as a lease carries its holder; who finds that process gone ends the run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from assets.launcher import COMMITS_STAY, PROCESS
from jobs.running.holder import holder_of, is_dead, process_in
from storage_core.errors import Held

_REPOSITORY = {".dagster/repository": "__repository__@tidemark"}

_ENDED = f"was killed or crashed; {COMMITS_STAY}"
INTERRUPTED = f"it was interrupted, as when the UI or the machine is stopped; {COMMITS_STAY}"
"""What is said of a step, or a run, that a signal ended."""

_BAD_ENDS = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
_ENDS = (*_BAD_ENDS, DagsterRunStatus.SUCCESS)
_RUNNING = tuple(each for each in DagsterRunStatus if each not in _ENDS)

NO_TAGS: Mapping[str, str] = {}

_logger = logging.getLogger(__name__)


def process_tags() -> Mapping[str, str]:
    """Return the tags of a run of this process: by one the UI lists it with its job, as it does what it starts itself;

    by the other `end_dead_runs` knows, later and elsewhere, whether the run can go on.
    """
    return {**_REPOSITORY, PROCESS: holder_of(None)}


def process_of(run: DagsterRun) -> str:
    """Return the process that the run says it is in, as `jobs.running.holder` does; empty where it says none.

    A run in the place of one that failed has the tags of that, which name a dead process until it names its own.
    """
    process = run.tags.get(PROCESS, "")
    return process if run.parent_run_id is None or process.startswith(f"{run.run_id}@") else ""


def end_dead_runs(
    instance: DagsterInstance, job_name: str | None = None, tags: Mapping[str, str] = NO_TAGS
) -> list[str]:
    """Mark the runs of the job with these tags, or of all, whose process is gone as failed; free their places in pools.

    Returns their ids. Runs without the tag `PROCESS`, and those of other machines, stay as they are: nobody here can
    tell. Idempotent.
    """
    ended: list[str] = []
    for run in instance.get_runs(RunsFilter(job_name=job_name, tags=tags, statuses=list(_RUNNING))):
        process = process_of(run)
        if is_dead(process):
            instance.report_run_failed(run, f"{process_in(process)}, which worked on this run, {_ENDED}")
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            _logger.info("run %s is marked as failed: its process %s is gone", run.run_id, process)
            ended.append(run.run_id)
    return ended


def unfinished(instance: DagsterInstance, keys: Iterable[AssetKey], names: Iterable[str]) -> set[str]:
    """Return those of the partitions whose last run of one of the assets failed or was cancelled without making it.

    Three queries per asset, whatever the number of partitions. Raises `Held` when a run has one of them in work.
    """
    wanted = set(names)
    found: set[str] = set()
    for key in keys:
        events = instance.event_log_storage
        attempts = events.get_latest_asset_partition_materialization_attempts_without_materializations(key)
        by_name = {name: run_id for name, (run_id, _) in attempts.items() if name in wanted}
        runs = _runs(instance, set(by_name.values()))
        for name, run_id in sorted(by_name.items()):
            run = runs.get(run_id)
            if run is not None and run.status not in _ENDS:
                raise _in_work(name, run)
            if run is not None and run.status in _BAD_ENDS:
                found.add(name)
    return found


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
