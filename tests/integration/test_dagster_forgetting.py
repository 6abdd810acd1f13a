"""The Dagster job by which rows of a table are forgotten: the condition is its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import DagsterInstance

from assets.launcher import InProcessLauncher
from jobs.spark.spark import Spark
from pipelines.alerts.sensors import failure_alert
from pipelines.catalog import build_definitions
from pipelines.tables import load_tables
from tests.support.forgetting import CANARY, WHERE
from tidemark import Table

DECLARATION = """\
name: people
uri: warehouse/people
columns: {id: long!, person: string}
"""

pytestmark = pytest.mark.dagster


def test_a_run_forgets_and_a_report_fails_while_something_holds_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: DagsterInstance
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "people.yaml").write_text(DECLARATION, encoding="utf-8")
    declared = load_tables(tmp_path / "tables")
    (table,) = declared.tables
    made = Table.declare(table.declaration)
    made.append([{"id": 1, "person": "ann"}, {"id": 2, "person": CANARY}])
    with Spark() as spark:
        job = build_definitions(declared, InProcessLauncher(spark)).get_job_def("forget")
        config = {"ops": {"forget_rows": {"config": {"table": "people", "where": WHERE}}}}
        assert job.execute_in_process(run_config=config, instance=instance).success
        config["ops"]["forget_rows"]["config"]["report"] = True  # type: ignore[assignment]
        failed = job.execute_in_process(run_config=config, instance=instance, raise_on_error=False)
    (event,) = failed.get_step_failure_events()
    run = instance.get_run_by_id(failed.run_id)
    assert run is not None
    alert = failure_alert(run, [event], ["people", "others"], at=0)
    assert alert.tables == ("people",)
    assert alert.text.startswith(f"run {failed.run_id} of forget of people failed\n")
    assert "still hold the rows" in alert.text
    assert made.refresh().scan(["id"]).to_arrow().to_pylist() == [{"id": 1}]
