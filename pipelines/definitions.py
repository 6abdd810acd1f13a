"""What `dagster dev` in the repository root loads (`workspace.yaml`): one set of assets per file in `tables/`.

A file that is not sound is left out, so that the other tables go on; but `dagster definitions validate` fails.
"""

from __future__ import annotations

import os

from assets.launcher import PipesLauncher
from jobs.requests.catalog import CATALOG_URL
from pipelines.catalog import build_definitions
from pipelines.files_of_all import problems_of_all
from pipelines.raw_logs import read_raw_logs
from pipelines.report.written import REPORT_PATH
from pipelines.tables import load_tables, require_sound, tables_folder

VALIDATING = "DAGSTER_IS_DEFS_VALIDATION_CLI"
"""Set by Dagster while it validates."""

_declared = load_tables(tables_folder())
_raw_logs = read_raw_logs(tables_folder())
if os.environ.get(VALIDATING):
    require_sound([*_declared.problems, *_raw_logs.problems, *problems_of_all(_declared.root)])

defs = build_definitions(
    _declared,
    PipesLauncher(_declared.root),
    raw_logs=_raw_logs,
    catalog=bool(os.environ.get(CATALOG_URL)),
    report=REPORT_PATH,
    alerts=True,
)
