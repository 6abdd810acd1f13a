"""The asset of a raw log in a real Dagster instance: its metadata, its checks, and the requests for its runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import DagsterInstance, Definitions, ExecuteInProcessResult, SkipReason

from assets.launcher import InProcessLauncher
from assets.metadata import METADATA
from jobs.spark.spark import Spark
from pipelines.catalog import build_definitions
from pipelines.housekeeping import waiting_chunks
from pipelines.tables import read_raw_logs, read_tables
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


def test_the_schedule_asks_until_everything_is_distributed_and_a_gap_fails_the_check(
    root: Path, spark: Spark, instance: DagsterInstance
) -> None:
    (raw_log,) = read_raw_logs(root / "tables").raw_logs
    chunks = sorted((root / "raw" / "live").rglob("*.avro"), key=lambda each: each.name)
    chunks[2].unlink()
    assert waiting_chunks(raw_log) == "2 chunks waiting"
    result = materialized(root, spark, instance)
    assert verdicts(result)["nothing_is_missing"] is False
    (event,) = result.asset_materializations_for_node("all_rows__distributed")
    assert event.metadata.keys() == METADATA - {"debt_left"} | {"gaps"}  # missing chunks are not work of windows
    assert event.metadata["gaps"].value == 1
    skipped = waiting_chunks(raw_log)
    assert isinstance(skipped, SkipReason)
    assert "held back by missing chunks" in str(skipped.skip_message)
