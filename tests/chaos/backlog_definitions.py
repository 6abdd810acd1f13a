"""What the code server of `test_backlog_heals.py` loads: the tables of its folder, and the upkeep sensor, switched on.

Its hour of budgets is as long as `BACKLOG_HOUR_SECONDS` says. With `BACKLOG_JVM` runs start a subprocess and Spark in
it, as they do outside of tests.
"""

from __future__ import annotations

import os
from pathlib import Path

from dagster import DefaultSensorStatus, Definitions, SensorDefinition, in_process_executor

from assets.checks import build_table_checks
from assets.launcher import LAUNCHER, InProcessLauncher, PipesLauncher
from assets.shown import Project
from pipelines.catalog import build_assets
from pipelines.jobs import assets_of_jobs, build_jobs
from pipelines.tables import load_tables
from pipelines.upkeep import NAME, STEPS, Bounds, Upkeep
from tests.support.spark_in_process import SparkInProcess

_declared = load_tables(Path("tables").resolve())
_tables = [each.declaration for each in _declared.tables]
_jobs = build_jobs(_tables)
_bounds = Bounds(hour_seconds=float(os.environ["BACKLOG_HOUR_SECONDS"]))
_upkeep = Upkeep(_tables, assets_of_jobs(_tables), bounds=_bounds, root=_declared.root)

defs = Definitions(
    executor=in_process_executor,
    resources={
        LAUNCHER: PipesLauncher(_declared.root)
        if os.environ.get("BACKLOG_JVM")
        else InProcessLauncher(SparkInProcess())
    },
    assets=[asset for table in _declared.tables for asset in build_assets(table, (), None, Project())],
    asset_checks=[check for table in _tables for check in build_table_checks(table)],
    jobs=_jobs,
    sensors=[
        SensorDefinition(
            name=NAME,
            evaluation_fn=_upkeep.tick,
            jobs=[job for job in _jobs if job.name in STEPS],
            minimum_interval_seconds=1,
            default_status=DefaultSensorStatus.RUNNING,
        )
    ],
)
