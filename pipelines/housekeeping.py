"""What Dagster does for its own history, whatever tables there are: old runs are purged, and dead ones ended."""

# No `from __future__ import annotations`: Dagster refuses a context whose annotation is text.

from dagster import (
    DefaultSensorStatus,
    Definitions,
    Field,
    JobDefinition,
    OpExecutionContext,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    job,
    op,
)

from pipelines.automation import Automation
from pipelines.runs.dead import end_dead_runs
from pipelines.runs.purge import old_runs, purge
from storage_core.clock import SystemClock
from storage_core.rows.windows import parse_milliseconds
from storage_core.wording import counted
from tidemark.io_manager.failures import typed_failures

PURGE = "purge_history"
DEAD_RUNS = "dead_runs_sensor"
CRON = "20 4 * * *"
OLDER_THAN = "90d"
LOOK_SECONDS = 60


def build_housekeeping(automation: Automation) -> Definitions:
    """Return the job `purge_history` with its nightly schedule, and a sensor for dead runs, which is on.

    The sensor requests no run and asks no table.
    """
    prefix = automation.prefix
    purge_history = build_purge_job(prefix)
    schedule = ScheduleDefinition(
        name=f"{prefix}{PURGE}_schedule",
        job=purge_history,
        cron_schedule=CRON,
        execution_timezone="UTC",
        execution_fn=_purge_tick,
        description=f"Purges runs older than {OLDER_THAN}.",
        default_status=automation.schedule_status,
    )
    sensor = SensorDefinition(
        name=f"{prefix}{DEAD_RUNS}",
        evaluation_fn=_end_dead_runs,
        minimum_interval_seconds=LOOK_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description="Marks runs as failed whose process on this machine was killed, so that their places are free.",
    )
    return Definitions(jobs=[purge_history], schedules=[schedule], sensors=[sensor])


def build_purge_job(prefix: str = "") -> JobDefinition:
    """Return the job `purge_history`, which deletes old runs of the instance that runs it."""

    @op(
        name=f"{prefix}purge_runs",
        config_schema={"older_than": Field(str, default_value=OLDER_THAN)},
        description="Deletes older runs with their events and logs. Keeps runs that an asset or a partition shows.",
    )
    def purge_runs(context: OpExecutionContext) -> None:
        with typed_failures():
            older_than_ms = parse_milliseconds(context.op_config["older_than"])
        done = purge(context.instance, older_than_ms=older_than_ms, clock=SystemClock())
        context.add_output_metadata({"deleted": done.deleted, "kept": done.kept})

    @job(
        name=f"{prefix}{PURGE}",
        description="Purges runs, events and logs that nobody needs any more; tables lose nothing by it.",
    )
    def purge_history() -> None:
        purge_runs()

    return purge_history


def _purge_tick(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
    is_due = any(old_runs(context.instance, parse_milliseconds(OLDER_THAN), SystemClock()))
    return RunRequest() if is_due else SkipReason(f"nothing to do: no run is older than {OLDER_THAN}")


def _end_dead_runs(context: SensorEvaluationContext) -> SkipReason:
    ended = end_dead_runs(context.instance)
    return SkipReason(f"{counted(len(ended), 'dead run')} ended: {', '.join(ended)}" if ended else "nothing to do")
