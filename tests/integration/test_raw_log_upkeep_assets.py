"""Tests of the assets that repair and collect a raw log, in real Dagster runs and as commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, ExecuteInProcessResult

from assets.launcher import InProcessLauncher
from jobs.command import from_arguments, to_arguments
from jobs.spark.spark import Spark
from pipelines.catalog import build_definitions
from pipelines.cli import main
from pipelines.tables import read_raw_logs, read_tables
from storage_core.data.steps import options_for
from storage_core.store.resolve import open_store
from storage_core.table import Table
from storage_core.write.raw_log.history import union
from storage_core.write.raw_log.records import RawLimits
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds

pytestmark = [pytest.mark.dagster, pytest.mark.spark]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a table and a raw log of three chunks that only one of two stores has."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "raw_logs").mkdir()
    (tmp_path / "tables" / "a.yaml").write_text("name: a\nuri: warehouse/a\ncolumns:\n  n: long!\n")
    (tmp_path / "raw_logs" / "all.yaml").write_text("name: all\nstores: [here, away]\nretention: 0\n")
    clock = ManualClock()
    with RawLog([str(tmp_path / "here")], clock=clock, ids=SeededIds(1), limits=RawLimits(segment_ms=1_000)) as log:
        for n in range(3):
            log.append("a", {"n": n})
            clock.now += 1_000
    return tmp_path


def run(root: Path, spark: Spark, instance: DagsterInstance, job: str) -> ExecuteInProcessResult:
    tables, raw_logs = read_tables(root / "tables"), read_raw_logs(root / "tables")
    found = build_definitions(tables, InProcessLauncher(spark), raw_logs=raw_logs)
    assert found.get_repository_def().get_schedule_def("heal_raw_schedule").cron_schedule == "40 3 * * *"
    return found.resolve_job_def(job).execute_in_process(instance=instance)


def verdicts(result: ExecuteInProcessResult) -> dict[str, bool]:
    return {each.check_name: each.passed for each in result.get_asset_check_evaluations()}


def test_options_travel_as_arguments() -> None:
    files = {"raw_log": "raw_logs/a b.yaml", "tables": ("tables/x.yaml",), "root": "/somewhere"}
    of_run = {"dry_run": True, "run_id": "run", "master": "local[1]"}
    collecting = options_for("collect_raw", horizon_ms=0, **files, **of_run)
    assert from_arguments("collect_raw", to_arguments(collecting)) == collecting
    healing = options_for("heal_raw", verify=True, **files, **of_run)
    assert from_arguments("heal_raw", to_arguments(healing)) == healing


def test_stores_are_healed_and_what_the_table_has_is_collected_later(
    root: Path, spark: Spark, instance: DagsterInstance
) -> None:
    healed = run(root, spark, instance, "heal_raw")
    assert verdicts(healed) == {"every_store_is_whole": True}
    assert len(union([root / "away"]).chunks) == 3
    assert run(root, spark, instance, "distribute").success
    collected = run(root, spark, instance, "collect_raw")
    assert verdicts(collected) == {"nothing_is_damaged": True}
    (event,) = collected.asset_materializations_for_node("all__raw_collected")
    assert event.metadata["status"].value == "nothing_to_do", "they are in the plan now"
    (chunk, *_) = union([root / "away"]).chunks
    (root / "away" / chunk.keys[0]).write_bytes(b"torn")
    (root / "here" / chunk.keys[0]).write_bytes(b"torn")
    assert verdicts(run(root, spark, instance, "heal_raw")) == {"every_store_is_whole": True}, "of one size"


def test_the_command_says_what_waits_heals_and_collects(
    root: Path,
    spark: Spark,
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def tidemark(*arguments: str) -> dict[str, Any]:
        capfd.readouterr()
        with monkeypatch.context() as there:  # the Spark session stays in its folder
            there.chdir(root)
            assert main([*arguments, "--json"]) == 0
        found: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[0])
        return found

    before = tidemark("raw", "all")
    assert (before["chunks"], before["tables"], before["retention_ms"]) == (3, {"a": 3}, 0)
    assert before["oldest_waiting_ms"] == ManualClock().now_ms()
    assert tidemark("raw", "all", "--heal", "--dry-run")["status"] == "planned"
    done = tidemark("raw", "all", "--heal")
    assert (done["status"], sum(done["copied"].values())) == ("healed", 3)
    assert tidemark("raw", "here", "--also", "away", "--heal")["status"] == "nothing_to_do"
    assert tidemark("raw", "all", "--collect", "--horizon", "0")["status"] == "nothing_to_do"
    assert run(root, spark, instance, "distribute").success
    assert tidemark("raw", "all", "--collect", "--dry-run")["details"]["candidates"] == {
        open_store(str(root / name)).uri: 3 for name in ("here", "away")
    }
    assert tidemark("raw", "all", "--collect", "--horizon", "0")["status"] == "committed"
    after = tidemark("raw", "all")
    assert (after["chunks"], after["tables"], after["missing_chunks"]) == (0, {}, [])
    assert sorted(Table.open(str(root / "warehouse" / "a")).scan(["n"]).to_arrow()["n"].to_pylist()) == [0, 1, 2]


def test_what_is_no_raw_log_or_contradicts_is_refused_and_a_store_that_is_no_folder_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    assert main(["raw", "./here", "--collect"]) == 2
    assert "raw_logs/*.yaml" in capfd.readouterr().err
    assert main(["raw", "all", "--collect", "--heal"]) == 2
    assert main(["raw", "all", "--also", "./x"]) == 2
    assert main(["raw", "all", "--dry-run"]) == 2
    assert main(["raw", "all", "--collect", "--horizon", "-1s"]) == 2
    (key,) = [each.keys[0] for each in union([root / "here"]).chunks][:1]
    (root / "here" / key).write_bytes(b"torn")
    shutil.rmtree(root / "away", ignore_errors=True)
    assert main(["raw", "all", "--heal"]) == 4
    assert "have no undamaged copy" in capfd.readouterr().err
