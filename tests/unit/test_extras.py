"""A typed error without a traceback reports a missing extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Make the packages of the extra impossible to import, as if they were not installed.
WITHOUT = """
import sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name in ("dagster", "dagster_pipes", "dagster_webserver", "pandas", "py4j", "pyspark"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
"""

MAIN = "from pipelines.cli import main; sys.exit(main(sys.argv[1:]))"
SPARK = """
from jobs.spark.spark import Spark
from storage_core.base.errors import Unavailable
for ask in (lambda spark: spark.map(len, [{}]), lambda spark: spark.slots):
    try:
        ask(Spark())
    except Unavailable as error:
        print("unavailable:", error, file=sys.stderr)
sys.exit(5)
"""
PANDAS = """
import pyarrow as pa, tidemark as tm
rows = tm.Table.create("memory://rows", pa.schema([("n", pa.int64())])).scan()
try:
    rows.to_pandas()
except tm.errors.Unavailable as error:
    print("unavailable:", error, file=sys.stderr)
    sys.exit(error.exit_code)
"""
DAGSTER = """
import tidemark.dagster
from storage_core.base.errors import Unavailable
for name in ("TidemarkIOManager", "TableComponent"):
    try:
        getattr(tidemark.dagster, name)
    except Unavailable as error:
        print("unavailable:", error, file=sys.stderr)
sys.exit(5)
"""
REPORT = """
from jobs.process import report_to_dagster
report_to_dagster({})
print("unavailable:", file=sys.stderr)
"""


def _ended(program: str, folder: Path, *arguments: str) -> tuple[int, list[str]]:
    environment = {**os.environ, "TIDEMARK_TABLES": str(folder / "tables"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT + program, *arguments]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stderr.splitlines()


@pytest.mark.parametrize(
    ("program", "arguments", "lines"),
    [
        (MAIN, ("backfill", "--table", "events", "--from", "2024-01-01T00:00", "--to", "2024-01-01T01:00"), 1),
        (MAIN, ("ui",), 1),
        (SPARK, (), 2),
        (PANDAS, (), 1),
        (DAGSTER, (), 2),
    ],
    ids=["backfill", "ui", "spark", "to_pandas", "dagster"],
)
def test_the_extra_that_is_missing_is_named(
    tmp_path: Path, program: str, arguments: tuple[str, ...], lines: int
) -> None:
    (tmp_path / "tables").mkdir()
    declared = "name: events\nuri: events\ncolumns: {at: timestamp!}\ntime_column: at\nwindow: 1h\n"
    (tmp_path / "tables" / "events.yaml").write_text(declared)
    code, shown = _ended(program, tmp_path, *arguments)
    assert code == 5, shown
    assert len(shown) == lines, shown
    assert all(
        "unavailable: " in line and "pip install '.[pipeline]' in the folder of Tidemark's source (No module" in line
        for line in shown
    )


def test_a_job_outside_of_dagster_reports_without_it(tmp_path: Path) -> None:
    assert _ended(REPORT, tmp_path) == (0, ["unavailable:"])
