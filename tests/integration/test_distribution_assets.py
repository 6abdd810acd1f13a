"""The asset of a raw log in a real Dagster instance: its metadata, its checks, and the requests for its runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

import pytest
from dagster import (
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    RunRequest,
    SkipReason,
    build_schedule_context,
)

from assets.launcher import InProcessLauncher
from assets.metadata import METADATA
from jobs.spark.spark import Spark
from pipelines.alerts.sensors import failure_alert
from pipelines.catalog import build_definitions
from pipelines.housekeeping import distribution_reason
from pipelines.tables import read_raw_logs, read_tables
from storage_core.data.steps import Distribute
from storage_core.log.job_run import run
from storage_core.log.lease import acquire
from storage_core.table import Table
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds

pytestmark = [pytest.mark.dagster, pytest.mark.spark]

TABLE = "name: {name}\nuri: warehouse/{name}\ncolumns:\n  n: long!\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make two tables and a raw log of four chunks, with one record that fits no table."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "raw_logs").mkdir()
    for name in ("a", "b"):
        (tmp_path / "tables" / f"{name}.yaml").write_text(TABLE.format(name=name))
    (tmp_path / "raw_logs" / "all-rows.yaml").write_text("name: all-rows\nstores: [raw]\n")
    (tmp_path / "raw_logs" / "bad.yaml").write_text("name: bad\n")
    clock = ManualClock()
    with RawLog([str(tmp_path / "raw")], clock=clock, ids=SeededIds(1), limits=RawLimits(segment_ms=1_000)) as log:
        for n in range(4):
            log.append_many([RawRecord(table=name, fields={"n": n}) for name in ("a", "b")])
            clock.now += 1_000
        log.append("c", {"n": 1})
    return tmp_path


def definitions(root: Path, spark: Spark) -> Definitions:
    tables, raw_logs = read_tables(root / "tables"), read_raw_logs(root / "tables")
    return build_definitions(tables, InProcessLauncher(spark), raw_logs=raw_logs)


def materialized(root: Path, spark: Spark, instance: DagsterInstance) -> ExecuteInProcessResult:
    return definitions(root, spark).resolve_job_def("distribute").execute_in_process(instance=instance)


def verdicts(result: ExecuteInProcessResult) -> dict[str, bool]:
    return {each.check_name: each.passed for each in result.get_asset_check_evaluations()}


def test_a_raw_log_has_an_asset_a_job_and_a_schedule_and_a_broken_one_is_shown(root: Path, spark: Spark) -> None:
    found = definitions(root, spark).get_repository_def()
    keys = {key.to_user_string() for key in found.asset_graph.get_all_asset_keys()}
    assert {"all-rows/distributed", "invalid_declarations/bad", "a/compacted"} <= keys
    assert found.get_schedule_def("distribute_schedule").cron_schedule == "*/15 * * * *"


def test_what_a_raw_log_brings_is_merged_or_compacted_after_it_was_distributed(root: Path, spark: Spark) -> None:
    (root / "tables" / "keyed.yaml").write_text(TABLE.format(name="keyed") + "primary_key: n\n")
    (root / "raw_logs" / "keyed-rows.yaml").write_text("name: keyed-rows\nstores: [raw-2]\ntables: [keyed]\n")
    graph = definitions(root, spark).get_repository_def().asset_graph
    parents = {
        key.to_user_string(): sorted(each.to_user_string() for each in graph.get(key).parent_keys)
        for key in graph.get_all_asset_keys()
    }
    assert parents["a/compacted"] == ["all-rows/distributed"]
    assert parents["keyed/merged"] == ["all-rows/distributed", "keyed-rows/distributed"]
    assert parents["keyed/compacted"] == ["keyed/merged"]
    assert parents["all-rows/distributed"] == []


def test_the_asset_distributes_and_shows_what_was_rejected(root: Path, spark: Spark, instance: DagsterInstance) -> None:
    result = materialized(root, spark, instance)
    assert result.success
    assert verdicts(result) == {"nothing_is_missing": True, "no_rejected_records": False}
    (event,) = result.asset_materializations_for_node("all_rows__distributed")
    assert (event.metadata["rows_in"].value, event.metadata["rows_out"].value) == (9, 8)
    assert event.metadata["gaps"].value == 0
    for name in ("a", "b"):
        rows = Table.open(str(root / "warehouse" / name)).scan(["n"]).to_arrow()
        assert sorted(rows.column("n").to_pylist()) == [0, 1, 2, 3]


def test_a_table_that_is_held_fails_the_step_which_shows_what_was_distributed_to_the_others(
    root: Path, spark: Spark, instance: DagsterInstance
) -> None:
    tables = read_tables(root / "tables")
    declared = {each.declaration.name: each.declaration for each in tables.tables}
    table = Table.declare(declared["a"])
    acquire(table.log, table.snapshot, "distribute.all-rows", "somebody@elsewhere")
    job = definitions(root, spark).resolve_job_def("distribute")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    (failed,) = result.get_step_failure_events()
    shown = failed.step_failure_data.user_failure_data
    assert shown is not None
    assert (shown.metadata["kind"].value, shown.metadata["rows_out"].value) == ("held", 4)


def ticked(root: Path, spark: Spark, instance: DagsterInstance) -> Sequence[RunRequest]:
    """Evaluate the schedule at a time long after all other runs, and return the requested runs."""
    repository = definitions(root, spark).get_repository_def()
    noon = dt.datetime(2050, 1, 1, 12, tzinfo=dt.UTC)
    with build_schedule_context(instance, repository_def=repository, scheduled_execution_time=noon) as context:
        return repository.get_schedule_def("distribute_schedule").evaluate_tick(context).run_requests or []


def distributed(root: Path, spark: Spark, instance: DagsterInstance) -> ExecuteInProcessResult:
    job = definitions(root, spark).resolve_job_def("distribute")
    return job.execute_in_process(instance=instance, raise_on_error=False)


def test_the_schedule_asks_until_everything_is_distributed_and_a_gap_fails_the_check(
    root: Path, spark: Spark, instance: DagsterInstance
) -> None:
    (raw_log,) = read_raw_logs(root / "tables").raw_logs
    chunks = sorted((root / "raw" / "live").rglob("*.avro"), key=lambda each: each.name)
    chunks[2].unlink()
    assert distribution_reason(raw_log, instance) == "2 chunks waiting"
    result = distributed(root, spark, instance)
    assert verdicts(result)["nothing_is_missing"] is False
    (event,) = result.asset_materializations_for_node("all_rows__distributed")
    assert event.metadata.keys() == METADATA - {"debt_left"} | {"gaps"}  # a missing chunk is not pending work
    assert event.metadata["gaps"].value == 1
    skipped = distribution_reason(raw_log, instance)
    assert isinstance(skipped, SkipReason)
    assert "Records wait for missing chunks" in str(skipped.skip_message)


def test_a_gap_that_holds_everything_back_is_checked_and_fails_one_run_which_sends_an_alert(
    root: Path, spark: Spark, kept_instance: DagsterInstance
) -> None:
    assert materialized(root, spark, kept_instance).success
    assert ticked(root, spark, kept_instance) == []
    with RawLog([str(root / "raw")], clock=ManualClock(), ids=SeededIds(2), limits=RawLimits(segment_ms=1)) as log:
        for n in (7, 8):
            log.append("a", {"n": n})
    first, _ = sorted((each for each in (root / "raw" / "live").rglob("*.avro") if log.writer_id in str(each)), key=str)
    content = first.read_bytes()
    first.unlink()
    (request,) = ticked(root, spark, kept_instance)
    assert request.job_name == "distribute"

    result = distributed(root, spark, kept_instance)
    assert verdicts(result)["nothing_is_missing"] is False
    assert len(result.asset_materializations_for_node("all_rows__distributed")) == 1
    (failed,) = result.get_step_failure_events()
    alert = failure_alert(result.dagster_run, [failed], [], at=1)
    assert f"tidemark distribute all-rows --skip-gap {log.writer_id}:1" in alert.text
    assert ticked(root, spark, kept_instance) == []
    assert distributed(root, spark, kept_instance).success, "the gap is known, so no other alert is sent"

    first.write_bytes(content)
    assert len(ticked(root, spark, kept_instance)) == 1
    result = distributed(root, spark, kept_instance)
    assert (result.success, verdicts(result)["nothing_is_missing"]) == (True, True)


def test_a_gap_that_was_given_up_by_hand_is_checked_again(
    root: Path, spark: Spark, kept_instance: DagsterInstance
) -> None:
    (raw_log,) = read_raw_logs(root / "tables").raw_logs
    chunks = sorted((root / "raw" / "live").rglob("*.avro"), key=lambda each: each.name)
    writer = chunks[0].parent.name.partition(".")[2]
    chunks[0].unlink()
    assert not distributed(root, spark, kept_instance).success
    run(raw_log.options(Distribute, skip_gaps=(f"{writer}:1",)), spark)
    assert len(ticked(root, spark, kept_instance)) == 1
    result = distributed(root, spark, kept_instance)
    assert (result.success, verdicts(result)["nothing_is_missing"]) == (True, True)
    assert ticked(root, spark, kept_instance) == []
