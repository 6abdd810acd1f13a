"""Coarse windows of 2 to 24 hours: refused without `coarse_window: true`, and otherwise handled like any window."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from storage_core.base.errors import InvalidInput
from storage_core.change.declaration import TableDeclaration, load
from storage_core.compact.execute import execute
from storage_core.log.actions import Action
from storage_core.read.predicate import col
from tests.support import merge_plan
from tidemark import Table

if TYPE_CHECKING:
    from jobs.spark.spark import Spark

HOUR = 3600
HOURS = (2, 3, 4, 6, 8, 12, 24)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NOON = 1_431_864_000  # 2015-05-17T12:00Z, at which a window starts, except with windows of 8 or 24 hours

coarse = pytest.mark.parametrize("hours", HOURS)


def declared(root: Path, window: str, *, mark: str = "coarse_window: true\n", more: str = "") -> TableDeclaration:
    file = root / "t.yaml"
    columns = "columns: {at: timestamp, id: int}\ntime_column: at\n"
    file.write_text(f"name: t\nuri: {root}/t\n{columns}{mark}window: {window}\n{more}", encoding="utf-8")
    return load(file)


def row(second: int, number: int) -> dict[str, object]:
    return {"at": EPOCH + dt.timedelta(seconds=second), "id": number}


@coarse
def test_a_coarse_window_is_refused_without_its_mark_wherever_a_table_is_made(tmp_path: Path, hours: int) -> None:
    schema, shown = declared(tmp_path, "1h").schema(), "1d" if hours == 24 else f"{hours}h"
    with pytest.raises(InvalidInput, match=rf"window`? is {shown}, which is longer"):
        declared(tmp_path, f"{hours}h", mark="")
    with pytest.raises(InvalidInput, match=rf"window`? is {shown}, which is longer"):
        Table.create(str(tmp_path / "t"), schema, time_column="at", window=f"{hours}h")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("window", ["5h", "7h", "9h", "48h", "90m"])
def test_the_mark_admits_no_other_duration(tmp_path: Path, window: str) -> None:
    with pytest.raises(InvalidInput, match="With coarse_window: true, also 2, 3, 4, 6, 8, 12 or 24 hours"):
        declared(tmp_path, window)


@coarse
def test_rows_lie_in_windows_aligned_to_the_epoch_and_a_compaction_leaves_one_split_in_each(
    tmp_path: Path, hours: int
) -> None:
    table, seconds = Table.declare(declared(tmp_path, f"{hours}h")), hours * HOUR
    assert Table.open(table.uri).config.coarse_window
    edges = [number * seconds + off for number in (-1, 0, 1, 365) for off in (-1, 0)]
    for part in range(2):
        table.append([row(second, part) for second in edges])
    windows = sorted({second // seconds * seconds for second in edges})
    assert [each["window_start"] for each in table.files()] == sorted(windows * 2)

    operations = merge_plan.plan(table.snapshot)
    assert [each.window for each in operations] == windows
    results = [execute(table.store, each, ids=table.log.ids, now_ms=1) for each in operations]
    actions: list[Action] = [action for each in results for action in each.actions]
    table.log.commit(table.snapshot, actions, operation="COMPACT")

    assert [each["window_start"] for each in table.refresh().files()] == windows
    assert table.scan().to_arrow().num_rows == 2 * len(edges)
    last = EPOCH + dt.timedelta(seconds=365 * seconds)
    assert table.scan(filter=col("at") >= last).to_arrow()["id"].to_pylist() == [0, 1]


@coarse
def test_a_coarse_window_leaves_at_its_own_end_plus_the_retention(tmp_path: Path, hours: int) -> None:
    from storage_core.compact.planner import plan_expiry

    table = Table.declare(declared(tmp_path, f"{hours}h", more="retention: 1d\n"))
    table.append([row(NOON, 1), row(NOON + hours * HOUR, 2)])
    due = (NOON // (hours * HOUR) + 1) * hours * HOUR + 24 * HOUR
    retention_ms = table.config.retention_ms
    assert plan_expiry(table.snapshot, retention_ms=retention_ms, now_ms=due * 1000 - 1).splits == ()
    assert len(plan_expiry(table.snapshot, retention_ms=retention_ms, now_ms=due * 1000).splits) == 1


# Dagster.


@pytest.mark.dagster
@coarse
def test_partitions_are_the_coarse_windows_also_those_before_1970(tmp_path: Path, hours: int) -> None:
    from assets.steps import partition_key, partitions_of, span_of

    seconds = hours * HOUR
    more = "partitions: {start: 2015-05-17T00:00, end: 2015-05-19T00:00}\n"
    few, all_there_may_be = (span_of(declared(tmp_path, f"{hours}h", more=each)) for each in (more, ""))
    assert few is not None
    assert all_there_may_be is not None
    expected = [partition_key(start) for start in range(few.first, few.end, seconds)]
    assert partitions_of(few).get_partition_keys() == expected
    for span in (few, all_there_may_be):
        partitions = partitions_of(span)
        assert all(start % seconds == 0 for start in (span.first, span.end))
        bounds = (partitions.get_first_partition_key(), partitions.get_last_partition_key())
        assert bounds == (partition_key(span.first), partition_key(span.newest))
        window = partitions.time_window_for_partition_key(partition_key(span.first + seconds))
        assert (window.start.timestamp(), window.end.timestamp()) == (span.first + seconds, span.first + 2 * seconds)


@pytest.mark.dagster
@pytest.mark.parametrize(
    ("hours", "chunk", "windows"), [(2, "1d", 12), (4, "8h", 2), (12, "1d", 2), (24, "1d", 1), (24, "2d", 2)]
)
def test_chunks_of_a_backfill_hold_whole_coarse_windows(tmp_path: Path, hours: int, chunk: str, windows: int) -> None:
    from pipelines.backfill import chunks

    declaration = declared(tmp_path, f"{hours}h", more="partitions: {start: 2015-05-17T00:00, end: 2015-05-21T00:00}\n")
    found = chunks(declaration, "2015-05-17T00:00", "2015-05-21T00:00", chunk)
    assert {each.windows for each in found} == {windows}
    assert sum(each.windows for each in found) == 96 // hours
    with pytest.raises(InvalidInput, match="is not a multiple of the window"):
        chunks(declaration, "2015-05-17T00:00", "2015-05-21T00:00", "1h")
    with pytest.raises(InvalidInput, match="is not the start of a window"):
        chunks(declaration, "2015-05-17T01:00", "2015-05-21T00:00", chunk)


@pytest.mark.dagster
@pytest.mark.spark
def test_a_backfill_of_coarse_windows_ingests_compacts_and_passes_its_checks(
    tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster import DagsterInstance

    from assets.launcher import InProcessLauncher
    from pipelines.backfill import backfill
    from pipelines.catalog import build_definitions
    from pipelines.tables import DeclaredTable, DeclaredTables

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    more = "landing: {uri: " + str(tmp_path) + "/landing, format: ndjson}\n"
    more += "partitions: {start: 2015-05-17T00:00, end: 2015-05-19T00:00}\n"
    declaration = declared(tmp_path, "12h", more=more)
    (tmp_path / "landing").mkdir()
    for number in range(2):
        instants = [f"2015-05-17T{hour:02}:59:59Z" for hour in (0, 11, 12, 23)] + ["2015-05-18T00:00:00Z"]
        lines = [f'{{"at": "{instant}", "id": {number}}}\n' for instant in instants]
        (tmp_path / "landing" / f"{number}.ndjson").write_text("".join(lines), encoding="utf-8")

    with DagsterInstance.ephemeral() as instance:
        launcher = InProcessLauncher(spark)

        def fill() -> list[tuple[str, int, str | None]]:
            bounds = ("2015-05-17T00:00", "2015-05-19T00:00")
            done = backfill(declaration, *bounds, instance=instance, launcher=launcher)
            return [(each.chunk.first, each.chunk.windows, each.error) for each in done]

        assert fill() == [("2015-05-17T00:00", 2, None), ("2015-05-18T00:00", 2, None)]
        table = Table.open(declaration.uri)
        midnight = NOON - 12 * HOUR
        assert [(each["window_start"], each["rows"]) for each in table.files()] == [
            (midnight, 4),
            (NOON, 4),
            (midnight + 24 * HOUR, 2),
        ]
        version = table.version
        assert len(fill()) == 2
        assert table.refresh().version == version
        defs = build_definitions(DeclaredTables(tmp_path, (DeclaredTable(declaration, None),)), launcher, None)
        checks = defs.resolve_job_def("check").execute_in_process(instance=instance).get_asset_check_evaluations()
        assert checks
        assert all(each.passed for each in checks)
