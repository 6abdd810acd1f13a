"""Sensors that look at storage every minute: landed files, generations, compaction debt, lagging indexes.

They ask the same question as the schedules. A run key says what a run is for, so what was requested is not requested
again while it waits in the queue, nor after it failed; then the schedule of the step asks again. The cursor is the
landed file that the last look ended with. All are stopped until somebody starts them in the UI.
"""

from __future__ import annotations

from collections.abc import Iterator

from dagster import RunRequest, SensorDefinition, SensorEvaluationContext, SkipReason

from assets.due_runs import due_runs
from assets.launcher import JobName
from pipelines.jobs import job_name, jobs_of
from pipelines.run_requests import answer
from storage_core.declaration import TableDeclaration

INTERVAL_SECONDS = 60
WATCHED: frozenset[JobName] = frozenset({"ingest", "merge", "sort", "compact", "catch_up"})


def build_sensors(declaration: TableDeclaration) -> list[SensorDefinition]:
    """Return `<job>_sensor` for every step of the table whose work piles up between two ticks of its schedule."""
    return [_sensor(declaration, job) for job in jobs_of(declaration) if job in WATCHED]


def _sensor(declaration: TableDeclaration, job: JobName) -> SensorDefinition:
    def tick(context: SensorEvaluationContext) -> Iterator[RunRequest | SkipReason]:
        found = due_runs(job, declaration, after=context.cursor or "")
        if found.cursor is not None:
            context.update_cursor(found.cursor)
        yield from answer(declaration, job, found, context.log)

    return SensorDefinition(
        name=f"{job_name(declaration.name, job)}_sensor",
        evaluation_fn=tick,
        job_name=job_name(declaration.name, job),
        minimum_interval_seconds=INTERVAL_SECONDS,
        description=f"Requests {job} runs as soon as storage asks for them.",
    )
