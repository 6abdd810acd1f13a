"""All Dagster definitions, made by a loop over the declared tables."""

from __future__ import annotations

from dagster import AssetSpec, Definitions, in_process_executor

from assets.checks import build_table_checks
from assets.distribution import distributed_key
from assets.factory import build_table_assets
from assets.forgetting import build_forget_job
from assets.launcher import LAUNCHER, Launcher
from pipelines.cataloguing import build_catalog
from pipelines.distribution import build_raw_log
from pipelines.housekeeping import build_housekeeping
from pipelines.jobs import build_jobs
from pipelines.raw_logs import DeclaredRawLogs
from pipelines.schedules import build_schedules
from pipelines.sensors import build_sensors
from pipelines.tables import DeclaredTable, DeclaredTables, Problem
from storage_core.clock import Clock

INVALID = "invalid_declarations"
NO_RAW_LOGS = DeclaredRawLogs()


def build_definitions(
    declared: DeclaredTables,
    launcher: Launcher,
    clock: Clock | None = None,
    *,
    raw_logs: DeclaredRawLogs = NO_RAW_LOGS,
    catalog: bool = False,
) -> Definitions:
    """Return the assets, checks, jobs, schedules and sensors of every table and raw log, and of a SQL `catalog`.

    A declaration that was left out is shown as an asset without a job; its description says what is wrong.
    """
    return Definitions.merge(
        Definitions(
            # Steps wait for their job's subprocess; a process of their own for each would only cost memory.
            executor=in_process_executor,
            resources={LAUNCHER: launcher},
            assets=[_left_out(problem) for problem in (*declared.problems, *raw_logs.problems)],
        ),
        build_housekeeping(),
        *(build_table(table, raw_logs, clock) for table in declared.tables),
        *map(build_raw_log, raw_logs.raw_logs),
        *([build_catalog(declared.tables)] if catalog else []),
    )


def _left_out(problem: Problem) -> AssetSpec:
    return AssetSpec([INVALID, problem.file.stem], group_name=INVALID, description=problem.message, kinds={"yaml"})


def build_table(table: DeclaredTable, raw_logs: DeclaredRawLogs, clock: Clock | None) -> Definitions:
    """Return the assets, checks, jobs, schedules and sensors of one table. They need the resource `launcher`."""
    declaration = table.declaration
    file = str(table.file) if table.file else None
    feeding = [each for each in raw_logs.raw_logs if each.declaration.feeds(declaration.name)]
    distributed = [distributed_key(each.declaration.name) for each in feeding]
    return Definitions.merge(
        Definitions(
            assets=build_table_assets(declaration, file=file, clock=clock, distributed=distributed),
            asset_checks=build_table_checks(declaration),
            schedules=build_schedules(declaration),
            sensors=build_sensors(declaration),
            jobs=[build_forget_job(declaration, [each.request for each in feeding])],
        ),
        build_jobs(declaration),
    )
