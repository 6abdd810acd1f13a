"""What `dagster dev` in the repository root loads (`workspace.yaml`): one set of assets per file in `tables/`."""

from __future__ import annotations

import os

from dagster import Definitions

from assets.launcher import PipesLauncher
from jobs.requests.catalog import CATALOG_URL
from pipelines.alerting import build_alerts
from pipelines.catalog import build_definitions
from pipelines.raw_logs import read_raw_logs
from pipelines.reporting import build_report
from pipelines.tables import load_tables, tables_folder

_declared = load_tables(tables_folder())

defs = Definitions.merge(
    build_definitions(
        _declared,
        PipesLauncher(_declared.root),
        raw_logs=read_raw_logs(tables_folder()),
        catalog=bool(os.environ.get(CATALOG_URL)),
    ),
    build_report(_declared),
    build_alerts(_declared),
)
