"""The error of a failed run states fault, object and action in one line, for every kind of failure.

Each case is a run that really failed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance, ExecuteInProcessResult

from assets.launcher import PipesLauncher
from pipelines.catalog import build_definitions
from pipelines.last_failures import last_failures_in, said_by
from pipelines.tables import read_tables
from tidemark import Table

pytestmark = pytest.mark.dagster

COLUMNS = "columns: {n: long}\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Declare the tables `events` and `copies`. The rows of `copies` are ingested from the published table `events`."""
    (tmp_path / "tables").mkdir()
    events = f"name: events\nuri: {tmp_path}/events\n{COLUMNS}publish: delta\n"
    copies = f"name: copies\nuri: {tmp_path}/copies\n{COLUMNS}landing: {{uri: {tmp_path}/events, format: delta}}\n"
    for name, text in (("events", events), ("copies", copies)):
        (tmp_path / "tables" / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    for each in read_tables(tmp_path / "tables").tables:
        Table.declare(each.declaration)
    table = Table.open(str(tmp_path / "events"))
    table.append({"n": 1})
    table.publish("delta")
    return tmp_path


def run(root: Path, instance: DagsterInstance, table: str, step: str, job: str) -> ExecuteInProcessResult:
    job_def = build_definitions(read_tables(root / "tables"), PipesLauncher(root)).resolve_job_def(job)
    chosen = job_def.get_subset(asset_selection={AssetKey([table, step])})
    return chosen.execute_in_process(instance=instance, raise_on_error=False)


def said(result: ExecuteInProcessResult) -> str:
    (failure,) = result.get_step_failure_events()
    shown = failure.step_failure_data.user_failure_data
    assert shown is not None
    assert shown.description == said_by(failure)  # the complete error in one line
    return said_by(failure)


def test_a_job_that_is_killed_before_it_can_say_anything(
    root: Path, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = root / "python"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(killed))
        line = said(run(root, instance, "events", "checkpointed", "checkpoint"))
    assert line.startswith(
        "error: the job checkpoint ended without a report. The usual cause is that memory ran out. The output of the"
    )
    assert line.endswith("and the next run does the rest: External execution process failed with code -9")
    assert last_failures_in(instance, ["events"])["events"].message == line
    assert run(root, instance, "events", "checkpointed", "checkpoint").success


def test_a_machine_without_java(root: Path, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(root / "nowhere"))
    line = said(run(root, instance, "copies", "ingested", "ingest"))
    where = f"JAVA_HOME={root}/nowhere has no bin/java"
    assert line == f"unavailable: Spark needs Java 17 or newer, and {where}: correct it, or unset it"
