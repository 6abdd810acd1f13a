"""The Dagster job that erases rows of a table by the condition in its configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterEvent, DagsterInstance, ExecuteInProcessResult, MetadataValue

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
landing: {uri: landing, format: ndjson}
"""

pytestmark = pytest.mark.dagster


def landed_files(result: ExecuteInProcessResult) -> object:
    """Return the landed files in the metadata of a run."""
    (metadata,) = [found for each in result.all_events for found in _metadata(each)]
    details = metadata["details"].value
    assert isinstance(details, dict)
    return details["landed_files"]


def _metadata(event: DagsterEvent) -> Iterator[Mapping[str, MetadataValue[Any]]]:
    if event.is_successful_output:
        yield event.step_output_data.metadata
    if event.is_step_failure and event.step_failure_data.user_failure_data:
        yield event.step_failure_data.user_failure_data.metadata


def test_a_run_forgets_and_a_report_fails_while_something_holds_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: DagsterInstance
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "people.yaml").write_text(DECLARATION, encoding="utf-8")
    declared = load_tables(tmp_path / "tables")
    (table,) = declared.tables
    (tmp_path / "landing").mkdir()
    for name, person in (("ann", "ann"), ("held", CANARY)):
        (tmp_path / "landing" / f"{name}.ndjson").write_text(f'{{"id": 3, "person": "{person}"}}\n')
    made = Table.declare(table.declaration)
    made.append([{"id": 1, "person": "ann"}, {"id": 2, "person": CANARY}])
    with Spark() as spark:
        job = build_definitions(declared, InProcessLauncher(spark)).get_job_def("forget")
        config = {"ops": {"forget_rows": {"config": {"table": "people", "where": WHERE}}}}
        done = job.execute_in_process(run_config=config, instance=instance)
        assert done.success
        config["ops"]["forget_rows"]["config"]["report"] = True  # type: ignore[assignment]
        failed = job.execute_in_process(run_config=config, instance=instance, raise_on_error=False)
    for result in (done, failed):
        assert landed_files(result) == ["landing/held.ndjson"]
    (event,) = failed.get_step_failure_events()
    run = instance.get_run_by_id(failed.run_id)
    assert run is not None
    alert = failure_alert(run, [event], ["people", "others"], at=0)
    assert alert.tables == ("people",)
    assert alert.text.startswith(f"run {failed.run_id} of forget of people failed\n")
    assert "still contain the rows" in alert.text
    assert made.refresh().scan(["id"]).to_arrow().to_pylist() == [{"id": 1}]
