"""All Dagster definitions: the assets and checks of each table, and the definitions for all tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dagster import AssetsDefinition, AssetSpec, Definitions, in_process_executor

from assets.checks import build_table_checks
from assets.factory import build_table_assets
from assets.launcher import LAUNCHER, Launcher
from assets.metadata import Project
from assets.raw_logs import build_forget_job, distributed_key
from pipelines.alerts.sensors import build_alerts
from pipelines.automation import Automation, load_automation
from pipelines.housekeeping import build_catalog, build_housekeeping, build_raw_log_assets, build_report
from pipelines.jobs import assets_of_jobs, build_jobs
from pipelines.maintenance.due_runs import DeclaredNow
from pipelines.maintenance.sensor import PendingWorkFinder, build_upkeep_sensor
from pipelines.schedules import build_schedules
from pipelines.tables import DeclaredRawLog, DeclaredRawLogs, DeclaredTable, DeclaredTables, Problem
from storage_core.base.clock import Clock
from storage_core.change.declaration import TableDeclaration
from storage_core.data.steps import OBSERVABLE

INVALID = "invalid_declarations"
NO_RAW_LOGS = DeclaredRawLogs()


def build_definitions(
    declared: DeclaredTables,
    launcher: Launcher,
    clock: Clock | None = None,
    *,
    raw_logs: DeclaredRawLogs = NO_RAW_LOGS,
    catalog: bool = False,
    report: str | None = None,
    alerts: bool = False,
) -> Definitions:
    """Return all definitions: assets, checks, jobs, schedules and sensors.

    An invalid declaration appears as an asset without a job, and the description of the asset contains the problem.

    Args:
        declared: The declared tables.
        launcher: Starts the jobs of assets.
        clock: The clock of the assets.
        raw_logs: The declared raw logs.
        catalog: Add the asset of the SQL catalog.
        report: The address of the report. Assets link to this address. With None, there is no report.
        alerts: Add the sensors of alerts.
    """
    fed_by = raw_logs.raw_logs
    known = [each.declaration for each in declared.tables]
    of_all, unsound = load_automation(declared.root)
    automation = Automation(known, [each.declaration for each in fed_by], of_all)
    assets = [
        asset
        for table in declared.tables
        for asset in build_assets(
            table, fed_by, clock, Project(automated=automation.of(table.declaration), report=report)
        )
    ]
    own = Definitions(
        # A step only waits for the process of its job, so a separate process for the step would waste memory.
        executor=in_process_executor,
        resources={LAUNCHER: launcher},
        assets=[
            *(_left_out(problem) for problem in (*declared.problems, *raw_logs.problems, *unsound)),
            *assets,
            *(asset for each in fed_by for asset in build_raw_log_assets(each)),
        ],
        asset_checks=[check for table in declared.tables for check in build_table_checks(table.declaration)],
    )
    once = build_once(known, fed_by, clock, automation, root=declared.root, folder=declared.folder)
    return Definitions.merge(
        own,
        once,
        *([build_catalog(declared.tables, automation)] if catalog else []),
        *([build_report(declared, automation)] if report else []),
        *([build_alerts(declared, automation, fed_by)] if alerts else []),
    )


def _left_out(problem: Problem) -> AssetSpec:
    return AssetSpec([INVALID, problem.file.stem], group_name=INVALID, description=problem.message, kinds={"yaml"})


def build_assets(
    table: DeclaredTable, raw_logs: Sequence[DeclaredRawLog], clock: Clock | None, project: Project
) -> list[AssetsDefinition]:
    """Return the assets of one table. These assets need the resource `launcher`.

    The assets of raw logs that feed the table run before the assets of the table.
    """
    file = str(table.file) if table.file else None
    distributed = [distributed_key(each.declaration.name) for each in _feeding(table.declaration, raw_logs)]
    return build_table_assets(table.declaration, file=file, clock=clock, distributed=distributed, project=project)


def build_once(
    tables: Sequence[TableDeclaration],
    raw_logs: Sequence[DeclaredRawLog],
    clock: Clock | None,
    automation: Automation,
    *,
    root: Path | None = None,
    folder: Path | None = None,
) -> Definitions:
    """Return the definitions for all tables together: jobs, schedules, the upkeep sensor and housekeeping.

    At each tick, the sensor reads the shared settings from `root`, and the declarations of tables from `folder`.
    """
    declared = [each.declaration for each in raw_logs]
    prefix = automation.prefix
    jobs, assets = build_jobs(tables, declared, prefix=prefix), assets_of_jobs(tables, declared, prefix=prefix)
    watched = [job for job in jobs if job.name.removeprefix(prefix) in OBSERVABLE]
    looked_after = [each for each in tables if automation.looks_after(each)]
    feeding = [(table, [each.files for each in _feeding(table, raw_logs)]) for table in tables]
    now = DeclaredNow(folder) if folder else None
    upkeep = PendingWorkFinder(looked_after, assets, clock, root=root, declared_now=now, prefix=prefix)
    own = Definitions(
        jobs=[*jobs, *([build_forget_job(feeding, prefix=prefix)] if tables else [])],
        schedules=build_schedules(tables, raw_logs, assets, automation),
        sensors=[build_upkeep_sensor(watched, upkeep, automation)] if watched else [],
    )
    return Definitions.merge(own, build_housekeeping(automation))


def _feeding(table: TableDeclaration, raw_logs: Sequence[DeclaredRawLog]) -> list[DeclaredRawLog]:
    return [each for each in raw_logs if each.declaration.feeds(table.name)]
