"""Runs whose process was killed, which Dagster takes for running.

Dagster's daemon can ask no run for its health that is in the process of a command, nor one whose code server was killed
with it. So a run carries its process as a tag, as a lease carries its holder; `end_dead_runs` ends it when
that process is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dagster import DagsterInstance, DagsterRun, RunsFilter
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

from assets.launcher import COMMITS_STAY
from assets.run_tags import PROCESS
from jobs.process.holder import holder_of, is_dead, process_in

_REPOSITORY = {".dagster/repository": "__repository__@tidemark"}

_ENDED = f"was killed or crashed; {COMMITS_STAY}"
INTERRUPTED = f"it was interrupted, as when the UI or the machine is stopped; {COMMITS_STAY}"
"""What is said of a step, or a run, that a signal ended."""


NO_TAGS: Mapping[str, str] = {}

_logger = logging.getLogger(__name__)


def process_tags() -> Mapping[str, str]:
    """Return the tags of a run of this process: its repository and its process.

    By the first the UI lists it with its job, as it does what it starts itself; by the second `end_dead_runs` knows,
    later and elsewhere, whether the run can go on.
    """
    return {**_REPOSITORY, PROCESS: holder_of(None)}


def process_of(run: DagsterRun) -> str:
    """Return the process that the run says it is in, as `jobs.process.holder` does; empty where it says none.

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
    for run in instance.get_runs(RunsFilter(job_name=job_name, tags=tags, statuses=NOT_FINISHED_STATUSES)):
        process = process_of(run)
        if is_dead(process):
            instance.report_run_failed(run, f"{process_in(process)}, which worked on this run, {_ENDED}")
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            _logger.info("run %s is marked as failed: its process %s is gone", run.run_id, process)
            ended.append(run.run_id)
    return ended
