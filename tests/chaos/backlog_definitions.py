"""The code location for `test_backlog_heals.py`: the tables of a folder, with the maintenance sensor switched on.

Outside tests, the hourly budgets of Tidemark apply to 60 minutes. In this code location, the hourly budgets apply to
`BACKLOG_HOUR_SECONDS` seconds instead of one hour. If `BACKLOG_PROCESSES` is set, each job is a separate process, as in
the product. Otherwise each job runs in the process of its Dagster run.
"""

from __future__ import annotations

import os
from pathlib import Path

from dagster import Definitions, in_process_executor

from assets.checks import build_table_checks
from assets.launcher import LAUNCHER, InProcessLauncher, PipesLauncher
from assets.metadata import Project
from jobs.spark.spark import Spark
from pipelines.automation import Automation
from pipelines.catalog import build_assets
from pipelines.jobs import assets_of_jobs, build_jobs
from pipelines.maintenance.sensor import PendingWorkFinder, TickLimits, build_upkeep_sensor
from pipelines.tables import load_tables
from storage_core.change.declaration_parts import AutomationDeclaration
from storage_core.data.steps import OBSERVABLE

_declared = load_tables(Path("tables").resolve())
_tables = [each.declaration for each in _declared.tables]
_jobs = build_jobs(_tables)
_bounds = TickLimits(hour_seconds=float(os.environ["BACKLOG_HOUR_SECONDS"]))
_upkeep = PendingWorkFinder(_tables, assets_of_jobs(_tables), bounds=_bounds, root=_declared.root)

defs = Definitions(
    executor=in_process_executor,
    resources={
        LAUNCHER: PipesLauncher(_declared.root) if os.environ.get("BACKLOG_PROCESSES") else InProcessLauncher(Spark())
    },
    assets=[asset for table in _declared.tables for asset in build_assets(table, (), None, Project())],
    asset_checks=[check for table in _tables for check in build_table_checks(table)],
    jobs=_jobs,
    sensors=[
        build_upkeep_sensor(
            [job for job in _jobs if job.name in OBSERVABLE],
            _upkeep,
            Automation(_tables, of_all=AutomationDeclaration(default="on", interval=1_000)),
        )
    ],
)
