"""A schedule per step of a table, and a nightly one for its checks. Each requests what storage asks for, or skips.

Schedules never catch up on missed ticks and need not: the next tick asks storage again. All are stopped until somebody
starts them in the UI, so that opening the UI changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dagster import DagsterRunStatus, RunRequest, RunsFilter, ScheduleDefinition, ScheduleEvaluationContext, SkipReason

from assets.due_runs import due_runs
from assets.launcher import JobName
from pipelines.jobs import check_job_name, job_name, jobs_of
from pipelines.run_requests import answer
from storage_core.declaration import TableDeclaration
from storage_core.table import Table, exists

VERSION = "tidemark/version"

Tick = Callable[[ScheduleEvaluationContext], Iterator[RunRequest | SkipReason]]

_CHECK_CRON = "45 3 * * *"


def build_schedules(declaration: TableDeclaration) -> list[ScheduleDefinition]:
    """Return `<job>_schedule` for every step of the table, with the cron of its declaration (UTC), and its checks."""
    steps = [
        _schedule(
            job_name(declaration.name, job),
            getattr(declaration.schedule, job),
            _step_tick(declaration, job),
            f"Requests {job} runs for what storage asks for.",
        )
        for job in jobs_of(declaration)
    ]
    checks = _schedule(
        check_job_name(declaration.name), _CHECK_CRON, _check_tick(declaration), "Checks a version once, at night."
    )
    return [*steps, checks]


def _schedule(job: str, cron: str, tick: Tick, description: str) -> ScheduleDefinition:
    return ScheduleDefinition(
        name=f"{job}_schedule",
        job_name=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        execution_fn=tick,
        description=description,
    )


def _step_tick(declaration: TableDeclaration, job: JobName) -> Tick:
    def tick(context: ScheduleEvaluationContext) -> Iterator[RunRequest | SkipReason]:
        # A schedule keeps no cursor, so each tick begins its look somewhere else.
        yield from answer(declaration, job, due_runs(job, declaration, after=None), context.log)

    return tick


def _check_tick(declaration: TableDeclaration) -> Tick:
    def tick(context: ScheduleEvaluationContext) -> Iterator[RunRequest | SkipReason]:
        if not exists(declaration.uri):
            yield SkipReason("nothing to do: the table does not exist yet")
            return
        version, job = str(Table.open(declaration.uri).version), check_job_name(declaration.name)
        done = RunsFilter(job_name=job, tags={VERSION: version}, statuses=[DagsterRunStatus.SUCCESS])
        if context.instance.get_runs_count(done):
            yield SkipReason(f"nothing to do: version {version} was checked")
        else:
            yield RunRequest(run_key=f"{declaration.name} check v{version}", tags={VERSION: version})

    return tick
