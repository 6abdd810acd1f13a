"""The definitions that `dagster dev` loads in the root of the repository (`workspace.yaml`).

The definitions contain the assets of each file in `tables/`.

An invalid file is ignored, so that the tables of the other files are loaded. `dagster definitions validate` fails if a
file is invalid.
"""

from __future__ import annotations

import os

from assets.launcher import PipesLauncher
from pipelines.catalog import build_definitions
from pipelines.report import REPORT_PATH
from pipelines.shared_config import problems_of_all
from pipelines.tables import load_tables, read_raw_logs, require_valid, tables_folder
from storage_core.catalog.opening import CATALOG_URL

VALIDATING = "DAGSTER_IS_DEFS_VALIDATION_CLI"
"""The name of an environment variable that Dagster sets during validation."""

_declared = load_tables(tables_folder())
_raw_logs = read_raw_logs(tables_folder())
if os.environ.get(VALIDATING):
    require_valid([*_declared.problems, *_raw_logs.problems, *problems_of_all(_declared.root)])

defs = build_definitions(
    _declared,
    PipesLauncher(_declared.root),
    raw_logs=_raw_logs,
    catalog=bool(os.environ.get(CATALOG_URL)),
    report=REPORT_PATH,
    alerts=True,
)
