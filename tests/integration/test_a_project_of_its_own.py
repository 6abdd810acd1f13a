"""Tidemark in a user's project whose folders have the names of Tidemark's packages.

None of these folders is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.spark.java import first_on_path

TIDEMARK = Path(sys.executable).parent / "tidemark"
OURS = ("jobs", "assets", "pipelines", "storage_core", "pyspark", "dagster")
DECLARATION = """\
name: events
uri: warehouse/events
columns: {at: timestamp!, text: string}
time_column: at
window: 1h
landing: {uri: landing/events, format: ndjson}
partitions: {start: 2024-01-01T00:00}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project with a table, two landed files, and packages with Tidemark's names that fail when imported."""
    for name in OURS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('{name} of the user was imported')\n")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "events.yaml").write_text(DECLARATION)
    (tmp_path / "landing" / "events").mkdir(parents=True)
    for number in range(2):
        line = json.dumps({"at": "2024-01-01T00:10:00Z", "text": str(number)})
        (tmp_path / "landing" / "events" / f"{number}.ndjson").write_text(line + "\n")
    return tmp_path


def tidemark(project: Path, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    ended = subprocess.run(
        [TIDEMARK, *words], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    return ended.stdout


@pytest.mark.parametrize("elsewhere", [False, True], ids=["folder", "PYTHONPATH"])
def test_a_job_that_we_start_is_ours(
    project: Path, tmp_path_factory: pytest.TempPathFactory, *, elsewhere: bool
) -> None:
    given = {**os.environ, "PYTHONPATH": str(project) if elsewhere else ""}
    command = [sys.executable, "-m", "jobs", "ingest", "--help"]
    ended = subprocess.run(
        command,
        cwd=tmp_path_factory.mktemp("cwd") if elsewhere else project,
        env=given | first_on_path(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "--table-uri" in ended.stdout


@pytest.mark.parametrize("start", [[TIDEMARK], [sys.executable, "-P", "-m", "tidemark"]], ids=["tidemark", "-m"])
def test_the_command_is_ours_whatever_the_path_holds(project: Path, start: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(project)}
    ended = subprocess.run(
        [*start, "init", "--json"], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads(ended.stdout)["name"] == "events"


@pytest.mark.spark
@pytest.mark.dagster
def test_a_backfill_runs_our_jobs_and_their_tasks_on_spark(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_SPARK", "always")  # use Spark even for two rows
    times = ("--from", "2024-01-01T00:00", "--to", "2024-01-01T01:00")
    done = json.loads(tidemark(project, "backfill", "--table", "events", *times, "--json"))
    assert (done["status"], done["rows"]["ingested"]) == ("done", 2)
