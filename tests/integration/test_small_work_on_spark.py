"""Small work in the job's own process leads to the same tables and reports as work on Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobs.command import to_arguments
from jobs.spark.java import ROOT
from jobs.spark.spark import Spark
from storage_core.change.declaration import load
from storage_core.data.steps import RunOptions, options_for
from storage_core.log.job_run import run
from tidemark import Table

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("name", pa.string()), ("size", pa.int64())])
APART = {"seconds", "spark_seconds", "ran", "commit_id", "commits", "landing", "quarantine"}
"""Fields that differ between two runs of one job: times, ids, and the folder of the table."""

DECLARATION = """
name: events
uri: {root}/events
columns: {{at: timestamp, name: string, size: long}}
time_column: at
window: 1h
sort_schema: name|timestamp/V2
indexes: [{{name: words, kind: fulltext, columns: [name]}}]
landing: {{uri: {root}/landing, format: ndjson}}
"""


def rows(first: int, count: int) -> list[dict[str, object]]:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return [
        {"at": start + dt.timedelta(minutes=each), "name": f"name {each % 7}", "size": each}
        for each in range(first, first + count)
    ]


def make(root: Path) -> None:
    """Make a table of splits and landed files, and a keyed table of generations. The two tables have pending work."""
    (root / "landing").mkdir(parents=True)
    for number in range(3):
        lines = [json.dumps(each, default=dt.datetime.isoformat) for each in rows(200 * number, 100)]
        (root / "landing" / f"{number}.ndjson").write_text("\n".join([*lines, "no row"]), encoding="utf-8")
    (root / "events.yaml").write_text(DECLARATION.format(root=root), encoding="utf-8")
    events = Table.declare(load(root / "events.yaml"))
    for first in range(0, 240, 40):
        events.append(rows(first, 80))
    keyed = Table.create(str(root / "keyed"), SCHEMA, primary_key="size")
    keyed.append(rows(0, 90))
    keyed.append(rows(60, 90))


def moved(root: Path, to: Path) -> Path:
    """Copy everything, and adapt the declaration to the new location."""
    shutil.copytree(root, to)
    (to / "events.yaml").write_text(DECLARATION.format(root=to), encoding="utf-8")
    return to


def in_a_process_of_its_own(job: str, options: RunOptions) -> dict[str, Any]:
    """Return the report of a job that cannot use a running session. The job also has no Java to start a session."""
    command = [sys.executable, "-m", "jobs", job, *to_arguments(options), "--json"]
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "TIDEMARK_SPARK": "auto"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def on_spark(options: RunOptions, spark: Spark) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run(options, spark).to_json())
    return report


def shared(report: dict[str, Any]) -> dict[str, Any]:
    details = {name: value for name, value in report["details"].items() if name not in APART}
    return {name: value for name, value in report.items() if name not in APART} | {"details": details}


def contents(uri: str) -> tuple[list[Any], list[tuple[object, ...]]]:
    """Return the sorted rows, and the window, the number of rows and the size of every split."""
    table = Table.open(uri)
    found = table.scan().to_arrow().to_pylist()
    splits = [(each.windowStart, each.numRecords, each.size) for each in table.snapshot.splits.values()]
    return sorted(found, key=str), sorted(splits, key=str)


def test_tables_and_reports_are_those_of_spark(tmp_path: Path, spark: Spark) -> None:
    make(tmp_path / "made")
    here, there = (moved(tmp_path / "made", tmp_path / name) for name in ("here", "away"))
    for job, table in (("ingest", "events"), ("compact", "events"), ("catch_up", "events"), ("merge", "keyed")):
        reports = []
        for root in (here, there):
            declaration = str(root / "events.yaml") if job == "ingest" else None
            options = options_for(job, table_uri=str(root / table), declaration=declaration)
            reports.append(in_a_process_of_its_own(job, options) if root == here else on_spark(options, spark))
        small, large = reports
        assert (small["status"], small["ran"], small["spark_seconds"]) == ("committed", "driver", 0.0), job
        assert large["ran"].startswith("spark "), job
        assert large["spark_seconds"] > 0, job
        assert shared(small) == shared(large), job
        assert contents(str(here / table)) == contents(str(there / table)), job
