"""Dagster definitions that do not belong to a single table.

The definitions are the purge of old runs, the sensor for dead runs, and the assets `report/written` and
`catalog/refreshed`. The schedule of a raw log also calls this module to check whether the raw log has rows to
distribute.
"""

# This module omits `from __future__ import annotations`, because Dagster rejects a context with a text annotation.

from collections.abc import Sequence
from dataclasses import replace

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    DagsterInstance,
    DefaultSensorStatus,
    Definitions,
    Field,
    JobDefinition,
    MaterializeResult,
    MetadataValue,
    OpExecutionContext,
    ResourceParam,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    asset,
    job,
    op,
)

from assets.failures import typed_failures
from assets.launcher import Launcher
from assets.metadata import entries_in, metadata_of
from assets.raw_logs import build_distributed_asset, build_raw_asset, gaps_of, raw_steps, recorded_gaps
from assets.steps import asset_key
from jobs.spark.spark import Spark
from pipelines.automation import Automation
from pipelines.jobs import scheduled
from pipelines.last_failures import last_failures_in
from pipelines.report import REPORT_PATH, report_file, write_report
from pipelines.runs import end_dead_runs, old_runs, purge
from pipelines.status import State, status_targets
from pipelines.tables import DeclaredRawLog, DeclaredTable, DeclaredTables
from storage_core.base.clock import SystemClock
from storage_core.base.text import counted
from storage_core.data.settings.setting import parse_milliseconds
from storage_core.data.steps import Distribute, RefreshCatalog, Step, step_of
from storage_core.log.job_run import run

# Old runs and dead runs.


PURGE = "purge_history"
DEAD_RUNS = "dead_runs_sensor"
HISTORY_CRON = "20 4 * * *"
OLDER_THAN = "90d"
LOOK_SECONDS = 60


def build_housekeeping(automation: Automation) -> Definitions:
    """Return the job `purge_history`, its nightly schedule, and the sensor for dead runs. This sensor is on by default.

    The sensor does not request runs and does not access tables.
    """
    prefix = automation.prefix
    purge_history = build_purge_job(prefix)
    schedule = ScheduleDefinition(
        name=f"{prefix}{PURGE}_schedule",
        job=purge_history,
        cron_schedule=HISTORY_CRON,
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
        description="Marks a run as failed if its process on this machine was killed. The slot of the run is "
        "then free.",
    )
    return Definitions(jobs=[purge_history], schedules=[schedule], sensors=[sensor])


def build_purge_job(prefix: str = "") -> JobDefinition:
    """Return the job `purge_history`. The job deletes old runs of its own Dagster instance."""

    @op(
        name=f"{prefix}purge_runs",
        config_schema={"older_than": Field(str, default_value=OLDER_THAN)},
        description="Deletes older runs with their events and logs. Keeps runs that an asset or a partition refers to.",
    )
    def purge_runs(context: OpExecutionContext) -> None:
        with typed_failures():
            older_than_ms = parse_milliseconds(context.op_config["older_than"])
        done = purge(context.instance, older_than_ms=older_than_ms, clock=SystemClock())
        context.add_output_metadata({"deleted": done.deleted, "kept": done.kept})

    @job(
        name=f"{prefix}{PURGE}",
        description="Purges old runs, events and logs. Tables do not change.",
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


# The report.


WRITTEN = AssetKey(["report", "written"])
REPORT_JOB = "report"
REPORT_CRON = "15 5 * * *"


def build_report(declared: DeclaredTables, automation: Automation) -> Definitions:
    """Return the asset of the report, the job `report`, and its schedule.

    The report is about all tables and runs daily at 05:15 UTC.
    """
    return scheduled(
        _written(declared),
        automation.schedule_status,
        job=REPORT_JOB,
        cron=REPORT_CRON,
        description="Requests the report of all tables.",
    )


def _written(declared: DeclaredTables) -> AssetsDefinition:
    @asset(
        key=WRITTEN,
        deps=[asset_key(each.declaration.name, "checkpointed") for each in declared.tables],
        description="One HTML file about all tables, for a browser.",
        group_name="report",
        kinds={"html"},
    )
    def written(context: AssetExecutionContext) -> MaterializeResult:  # type: ignore[type-arg]  # Dagster recognises the bare class only
        places = status_targets(declared)
        file = report_file(declared.root)
        with typed_failures():
            failures = last_failures_in(context.instance, [each.name for each in places])
            done = write_report(file, places, failures=failures)
        counts = {state.value: list(done.states.values()).count(state) for state in State}
        return MaterializeResult(
            metadata={
                "report": MetadataValue.url(REPORT_PATH),
                "path": MetadataValue.path(str(file)),
                "bytes": MetadataValue.int(done.bytes),
                **{f"tables_{state}": MetadataValue.int(count) for state, count in counts.items()},
            }
        )

    return written


# The SQL catalog.


CATALOG_JOB = "catalog_refresh"
CATALOG_CRON = "*/10 * * * *"


def build_catalog(tables: Sequence[DeclaredTable], automation: Automation) -> Definitions:
    """Return the asset of the SQL catalog, the job `catalog_refresh`, and its schedule (every 10 minutes).

    A refresh without changes costs only three requests per table. The schedule therefore requests the refresh and does
    not check for work first.
    """
    declared = [each.declaration for each in tables]
    options = RefreshCatalog(tables=tuple(f"{each.name}={each.uri}" for each in declared))
    return scheduled(
        _refreshed(options, step_of(options), after=[asset_key(each.name, "checkpointed") for each in declared]),
        automation.schedule_status,
        job=CATALOG_JOB,
        cron=CATALOG_CRON,
        description="Requests a refresh of the SQL catalog.",
    )


def _refreshed(options: RefreshCatalog, step: Step, *, after: Sequence[AssetKey]) -> AssetsDefinition:
    """Return the asset of the SQL catalog.

    The asset runs after the last step of each table, and it needs the resource `launcher`.
    """

    @asset(
        key=AssetKey(["catalog", step.asset]),
        deps=after,
        description=step.promise,
        group_name="catalog",
        kinds=set(step.kinds),
        metadata={"job": f"python -m jobs {step.name}"},
    )
    def shown(context: AssetExecutionContext, launcher: ResourceParam[Launcher]) -> MaterializeResult:  # type: ignore[type-arg]  # Dagster recognises the bare class only
        return MaterializeResult(
            metadata=metadata_of(launcher.submit(context, replace(options, run_id=context.run.run_id)))
        )

    return shown


# Raw logs.


def build_raw_log_assets(raw_log: DeclaredRawLog) -> list[AssetsDefinition]:
    """Return `<raw log>/distributed`, and also `raw_healed` and `raw_collected` if the raw log has these steps."""
    declaration = raw_log.declaration
    upkeep = [build_raw_asset(declaration, step, raw_log.options(step.options)) for step in raw_steps(declaration)]
    return [build_distributed_asset(declaration, raw_log.options(Distribute)), *upkeep]


def distribution_reason(raw_log: DeclaredRawLog, instance: DagsterInstance) -> str | SkipReason:
    """Return the reason for a distribution, or a `SkipReason`. The function reads only listings and offsets.

    If no chunk waits, a run may still be needed to update the check `nothing_is_missing`. The run is needed if the gaps
    that the check reported differ from the current gaps in the stores.
    """
    with Spark() as spark:  # a dry run has no work for Spark, so Spark does not start
        planned = run(raw_log.options(Distribute, dry_run=True), spark)
    chunks, held = planned.details["chunks"], entries_in(planned.details, "held")
    if isinstance(chunks, int) and chunks:
        return f"{counted(chunks, 'chunk')} waiting"
    gaps = gaps_of(held)
    if gaps != recorded_gaps(instance, raw_log.declaration.name):
        return f"the check does not show {counted(len(gaps), 'gap')} of missing chunks yet"
    return SkipReason("nothing to do" + (f". Records wait for missing chunks: {held}" if held else ""))
