"""Tests of assets that are tables: all supported types as inputs and outputs, partitions, and real Dagster runs."""

# No `from __future__ import annotations`: Dagster reads the annotations of assets.

import datetime as dt
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from dagster import (
    AssetIn,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
    DynamicPartitionsDefinition,
    ExecuteInProcessResult,
    HourlyPartitionsDefinition,
    MultiPartitionKey,
    MultiPartitionsDefinition,
    Out,
    RetryPolicy,
    StaticPartitionsDefinition,
    asset,
    define_asset_job,
    job,
    op,
)
from pyspark.sql import DataFrame as SparkFrame

from assets.io_manager.manager import TidemarkIOManager as Defined
from assets.run_tags import RANGE_END, RANGE_START
from jobs.spark.spark import Spark
from tests.support.s3_server import S3Server
from tidemark import Table
from tidemark.dagster import TidemarkIOManager

pytestmark = pytest.mark.dagster

REPOSITORY = Path(__file__).resolve().parents[2]
DAYS = DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-05")
COUNTRIES = StaticPartitionsDefinition(["at", "de"])
BOTH = MultiPartitionsDefinition({"day": DAYS, "country": COUNTRIES})
BY_TIME = {"time_column": "at", "window": "1h"}

Make = Callable[[pa.Table], object]


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "warehouse")


def at(day: int, hour: int = 0) -> dt.datetime:
    return dt.datetime(2026, 1, day, hour, tzinfo=dt.UTC)


def rows(*numbers: int, day: int = 1, country: str = "at") -> pa.Table:
    """Return one row per number. The number modulo 24 is the hour of the row."""
    return pa.table(
        {
            "at": pa.array([at(day, number % 24) for number in numbers], pa.timestamp("us", "UTC")),
            "country": pa.array([country for _ in numbers], pa.string()),
            "n": pa.array(numbers, pa.int64()),
        }
    )


def read(root: str, name: str = "events") -> list[Any]:
    """Return the values of the column `n` of a table in ascending order."""
    found: list[Any] = Table.open(f"{root}/{name}").scan(["n"], consistency="latest").to_arrow()["n"].to_pylist()
    return sorted(found)


def run(
    instance: DagsterInstance,
    root: str,
    *assets: AssetsDefinition | AssetSpec,
    partition: str | None = None,
    between: tuple[str, str] | None = None,
    default_type: str = "arrow",
    ok: bool = True,
) -> ExecuteInProcessResult:
    """Materialize the assets for a partition, or for a range in one run."""
    made = [each for each in assets if isinstance(each, AssetsDefinition)]
    defs = Definitions(
        assets=assets,
        jobs=[define_asset_job("all", made)],
        resources={"io_manager": TidemarkIOManager(root=root, default_type=default_type)},
    )
    tags = {RANGE_START: between[0], RANGE_END: between[1]} if between else {}
    job = defs.resolve_job_def("all")
    result = job.execute_in_process(instance=instance, partition_key=partition, tags=tags, raise_on_error=False)
    assert result.success is ok, failures(result)
    return result


def failures(result: ExecuteInProcessResult) -> list[str]:
    return [
        str(data.user_failure_data.description if data.user_failure_data else data.error)
        for data in (event.step_failure_data for event in result.get_step_failure_events())
    ]


def metadata(result: ExecuteInProcessResult, name: str) -> dict[str, Any]:
    (event,) = result.asset_materializations_for_node(name)
    return {key: value.value for key, value in event.metadata.items()}


def events(value: object, **given: Any) -> AssetsDefinition:
    """Return the asset `events`. The asset's value is `value`, or the value computed for the partition of the run."""
    settings: dict[str, Any] = {"name": "events", "metadata": {"tidemark/create": BY_TIME}, **given}

    def stored(context):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  # of no type that Dagster would check
        return value(context) if callable(value) else value

    made: AssetsDefinition = asset(**settings)(stored)
    return made


def reading(kind: Any, seen: list[Any], **given: Any) -> AssetsDefinition:
    """Return an asset that loads the rows of `events` as a type. The asset adds the loaded value to `seen`."""
    loaded = AssetIn(key=given.pop("above", None), metadata=given.pop("input_metadata", {}))
    found: dict[str, Any] = {"ins": {"events": loaded}, **given}

    def taken(events):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  # annotated below
        seen.append(events.read_all() if isinstance(events, pa.RecordBatchReader) else events)

    taken.__annotations__ = {"return": None} if kind is None else {"events": kind, "return": None}
    made: AssetsDefinition = asset(name="taken", **found)(taken)
    return made


def numbers_of(value: Any) -> list[int]:
    """Return the values of the column `n` in ascending order. `value` can have any supported type of rows."""
    match value:
        case pa.Table():
            found = value["n"].to_pylist()
        case pd.DataFrame() | pl.DataFrame():
            found = list(value["n"])
        case pl.LazyFrame():
            found = list(value.collect()["n"])
        case duckdb.DuckDBPyRelation():
            found = [n for (n,) in value.select("n").fetchall()]
        case _:
            found = [row["n"] for row in value.select("n").collect()]
    return sorted(found)


TYPES: Mapping[str, tuple[Any, Make]] = {
    "arrow": (pa.Table, lambda table: table),
    "reader": (pa.RecordBatchReader, lambda table: table.to_reader()),
    "pandas": (pd.DataFrame, lambda table: table.to_pandas()),
    "polars": (pl.DataFrame, pl.DataFrame),
    "polars_lazy": (pl.LazyFrame, lambda table: pl.LazyFrame(pl.DataFrame(table))),
    "duckdb": (duckdb.DuckDBPyRelation, lambda table: duckdb.connect().from_arrow(table)),
}


# Types.


@pytest.mark.parametrize("name", TYPES)
def test_rows_of_every_type_are_stored_and_loaded_by_partition(instance: DagsterInstance, root: str, name: str) -> None:
    kind, make = TYPES[name]
    seen: list[Any] = []
    stored = events(lambda context: make(rows(1, 2, day=int(context.partition_key[-2:]))), partitions_def=DAYS)
    for day in ("2026-01-01", "2026-01-02"):
        run(instance, root, stored, partition=day)
    run(instance, root, stored, reading(kind, seen, partitions_def=DAYS), partition="2026-01-02")
    assert isinstance(seen[0], pa.Table if name == "reader" else kind)
    assert numbers_of(seen[0]) == [1, 2]
    assert Table.open(f"{root}/events").schema == rows().schema
    assert read(root) == [1, 1, 2, 2]


def test_what_is_loaded_as_pandas_is_stored_as_it_was(instance: DagsterInstance, root: str) -> None:
    columns = {
        "whole": pa.array([2**53 + 1, None], pa.int64()),
        "real": pa.array([float("nan"), None], pa.float64()),
        "list": pa.array([[1, None], None], pa.list_(pa.int64())),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"p": None}, None], pa.struct([("p", pa.int64())])),
        "late": pa.array([dt.datetime(9999, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
    }
    original = pa.table(columns)
    for name in ("source", "copy"):
        Table.create(f"{root}/{name}", original.schema)
    Table.open(f"{root}/source").append(original)

    @asset
    def copy(source: pd.DataFrame) -> pd.DataFrame:
        return source

    run(instance, root, AssetSpec("source"), copy)
    found, expected = (Table.open(f"{root}/{name}").scan().to_arrow() for name in ("copy", "source"))
    assert list(map(str, found.to_pylist())) == list(map(str, expected.to_pylist()))


def test_a_frame_of_pandas_that_was_filtered_is_stored_without_its_row_numbers(
    instance: DagsterInstance, root: str
) -> None:
    frame = rows(1, 2, 3).to_pandas()
    run(instance, root, events(frame[frame["n"] > 1]))
    assert read(root) == [2, 3]
    assert Table.open(f"{root}/events").schema.names == ["at", "country", "n"]


@pytest.mark.parametrize("made", [pl.DataFrame, pl.LazyFrame, pd.DataFrame])
def test_an_asset_may_give_times_as_text_and_without_a_zone(
    instance: DagsterInstance, root: str, made: Callable[[object], object]
) -> None:
    run(instance, root, events(rows(1)))
    for at in ("2026-01-01 02:00", dt.datetime(2026, 1, 1, 2)):  # noqa: DTZ001  # UTC, as the text is
        run(instance, root, events(made({"at": [at], "country": ["at"], "n": [2]})))
        assert Table.open(f"{root}/events").scan().to_arrow().to_pylist() == rows(2).to_pylist()


def test_outputs_of_ops_are_tables_where_they_say_which(instance: DagsterInstance, root: str) -> None:
    settings = {"tidemark/uri": f"{root}/events", "tidemark/create": {}}
    seen: list[Any] = []

    @op(out=Out(metadata=settings))
    def made() -> pa.Table:
        return rows(1, 2)

    @op
    def taken(events: pl.DataFrame) -> None:
        seen.append(events)

    @job(resource_defs={"io_manager": TidemarkIOManager(root=root)})
    def both() -> None:
        taken(made())

    assert both.execute_in_process(instance=instance).success
    assert numbers_of(seen[0]) == [1, 2]


@pytest.mark.spark
def test_frames_of_spark_are_stored_and_loaded(instance: DagsterInstance, root: str, spark: Spark) -> None:
    seen: list[Any] = []
    made = spark.session().createDataFrame(rows(1, 2))
    run(instance, root, events(made), reading(SparkFrame, seen))
    assert isinstance(seen[0], SparkFrame)
    assert numbers_of(seen[0]) == read(root) == [1, 2]
    assert Table.open(f"{root}/events").schema.field("at").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize("name", ["reader", "polars_lazy"])
def test_an_input_without_an_annotation_is_what_the_manager_says(
    instance: DagsterInstance, root: str, name: str
) -> None:
    seen: list[Any] = []
    run(instance, root, events(rows(1)), reading(None, seen), default_type=name)
    assert isinstance(seen[0], pa.Table if name == "reader" else TYPES[name][0])


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([1, 2], "the asset returned a list, which a table cannot store"),
        (None, "the asset returned a NoneType, which a table cannot store"),
        (pd.Series([1]), "the asset returned a pandas.core.series.Series, which a table cannot store"),
        (pd.DataFrame({"n": [1]}, index=["a"]), "To store the index as a column, use reset_index()"),
        (pd.DataFrame({"n": [1]}, index=pd.Index([7], name="id")), "To store the index as a column, use reset_index()"),
        (pd.DataFrame({"n": [1, "a"]}), "contains values of several types"),
    ],
)
def test_what_is_no_rows_is_refused_with_what_to_do(
    instance: DagsterInstance, root: str, value: object, found: str
) -> None:
    result = run(instance, root, events(value), ok=False)
    (failure,) = failures(result)
    assert failure.startswith("invalid_input: ")
    assert found in failure
    assert not Path(root).exists()


@pytest.mark.parametrize("kind", [list, dict[str, int], pa.Table | None, pa.RecordBatch, pd.Series])
def test_an_annotation_that_is_no_rows_is_refused_with_what_to_write(
    instance: DagsterInstance, root: str, kind: object
) -> None:
    seen: list[Any] = []
    result = run(instance, root, events(rows(1)), reading(kind, seen), ok=False)
    assert "Write pyarrow.Table, pyarrow.RecordBatchReader, pandas.DataFrame" in failures(result)[0]
    assert seen == []


# Partitions.


def test_a_partition_is_overwritten_exactly_and_a_rerun_changes_no_row(instance: DagsterInstance, root: str) -> None:
    for day, number in (("2026-01-01", 1), ("2026-01-02", 2), ("2026-01-03", 3)):
        run(instance, root, events(rows(number, day=number), partitions_def=DAYS), partition=day)
    again = events(rows(20, 21, day=2), partitions_def=DAYS)
    run(instance, root, again, partition="2026-01-02")
    result = run(instance, root, again, partition="2026-01-02")
    assert read(root) == [1, 3, 20, 21]
    assert [each.operation for each in Table.open(f"{root}/events").history(2)] == ["OVERWRITE", "OVERWRITE"]
    found = metadata(result, "events")
    assert (found["dagster/row_count"], found["dagster/partition_row_count"], found["tidemark/rows_written"]) == (
        4,
        2,
        2,
    )


def test_a_row_of_another_partition_is_refused_and_nothing_is_written(instance: DagsterInstance, root: str) -> None:
    run(instance, root, events(rows(1), partitions_def=DAYS), partition="2026-01-01")
    for wrong in (rows(2, day=2), rows(2, day=1).append_column("m", [[1]])):
        result = run(instance, root, events(wrong, partitions_def=DAYS), partition="2026-01-01", ok=False)
        assert failures(result)[0].startswith("invalid_input: ")
    assert read(root) == [1]


def test_a_range_of_partitions_is_stored_and_loaded_by_one_run(instance: DagsterInstance, root: str) -> None:
    three = pa.concat_tables([rows(day, day=day) for day in (2, 3)])
    run(instance, root, events(rows(1), partitions_def=DAYS), partition="2026-01-01")
    stored = events(three, partitions_def=DAYS, backfill_policy=BackfillPolicy.single_run())
    seen: list[Any] = []
    taken = reading(pa.Table, seen, partitions_def=DAYS, backfill_policy=BackfillPolicy.single_run())
    run(instance, root, stored, taken, between=("2026-01-02", "2026-01-03"))
    assert numbers_of(seen[0]) == [2, 3]
    assert read(root) == [1, 2, 3]
    assert instance.get_materialized_partitions(AssetKey("events")) == {f"2026-01-0{day}" for day in (1, 2, 3)}


def test_an_asset_without_partitions_loads_all_of_them(instance: DagsterInstance, root: str) -> None:
    seen: list[Any] = []
    stored = events(
        lambda context: rows(int(context.partition_key[-2:]), day=int(context.partition_key[-2:])), partitions_def=DAYS
    )
    for day in ("2026-01-01", "2026-01-03"):
        run(instance, root, stored, partition=day)
    outside = rows(99, day=9)
    Table.open(f"{root}/events").append(outside)
    spec = AssetSpec("events", partitions_def=DAYS, metadata={"tidemark/uri": f"{root}/events"})
    run(instance, root, spec, reading(pa.Table, seen))
    assert numbers_of(seen[0]) == [1, 3]


def test_hours_above_are_a_day_below(instance: DagsterInstance, root: str) -> None:
    table = Table.create(f"{root}/clicks", rows().schema, time_column="at", window="1h")
    table.append(pa.concat_tables([rows(0, 23, day=1), rows(0, 5, day=2), rows(0, day=3)]))
    hours = HourlyPartitionsDefinition(start_date="2026-01-01-00:00", end_date="2026-01-05-00:00")
    spec = AssetSpec("events", partitions_def=hours, metadata={"dagster/uri": table.uri})
    seen: list[Any] = []
    run(instance, root, spec, reading(pa.Table, seen, partitions_def=DAYS), partition="2026-01-02")
    assert numbers_of(seen[0]) == [0, 5]


def test_partitions_of_days_and_countries_are_both(instance: DagsterInstance, root: str) -> None:
    def store(day: int, country: str, *numbers: int) -> None:
        key = MultiPartitionKey({"day": f"2026-01-0{day}", "country": country})
        made = events(rows(*numbers, day=day, country=country), partitions_def=BOTH)
        run(instance, root, made, partition=key)

    store(1, "at", 1)
    store(1, "de", 2)
    store(2, "at", 3)
    store(1, "de", 20)
    assert read(root) == [1, 3, 20]
    seen: list[Any] = []
    spec = AssetSpec("events", partitions_def=BOTH)
    key = MultiPartitionKey({"day": "2026-01-01", "country": "at"})
    run(instance, root, spec, reading(pa.Table, seen, partitions_def=BOTH), partition=key)
    run(instance, root, spec, reading(pa.Table, seen, partitions_def=DAYS), partition="2026-01-01")
    run(instance, root, spec, reading(pa.Table, seen))
    assert [numbers_of(each) for each in seen] == [[1], [1, 20], [1, 3, 20]]


HOSTILE = ("x' OR '1'='1", "at'); DROP TABLE t; --", "%")


@pytest.mark.parametrize("key", HOSTILE)
def test_a_hostile_partition_key_stays_a_value(instance: DagsterInstance, root: str, key: str) -> None:
    countries = DynamicPartitionsDefinition(name="countries")
    instance.add_dynamic_partitions("countries", ["safe", key])
    given = {"tidemark/create": BY_TIME}
    by_country: dict[str, Any] = {"partitions_def": countries, "metadata": {**given, "partition_expr": "country"}}
    run(instance, root, events(rows(1, country="safe"), **by_country), partition="safe")
    for _ in range(2):
        run(instance, root, events(rows(2, country=key), **by_country), partition=key)
    seen: list[Any] = []
    run(
        instance,
        root,
        AssetSpec("events", **by_country),
        reading(pa.Table, seen, partitions_def=countries),
        partition=key,
    )
    assert numbers_of(seen[0]) == [2]
    assert seen[0]["country"].to_pylist() == [key]
    assert read(root) == [1, 2]


def test_a_key_that_is_no_value_of_its_column_is_refused(instance: DagsterInstance, root: str) -> None:
    numbers = StaticPartitionsDefinition(["1", "1 OR true"])
    settings = {"partitions_def": numbers, "metadata": {"tidemark/create": {}, "partition_expr": "n"}}
    run(instance, root, events(rows(1), **settings), partition="1")
    result = run(instance, root, events(rows(1), **settings), partition="1 OR true", ok=False)
    assert "column 'n': '1 OR true' is not a value of int64" in failures(result)[0]
    assert read(root) == [1]


def test_a_partition_whose_column_nobody_knows_is_refused(instance: DagsterInstance, root: str) -> None:
    stored = events(rows(1), partitions_def=COUNTRIES)
    assert (
        "Give the asset the metadata 'partition_expr'"
        in failures(run(instance, root, stored, partition="at", ok=False))[0]
    )
    assert not Path(root).exists()  # a wrongly created table would stay wrong
    timeless = events(rows(1), partitions_def=DAYS, metadata={"tidemark/create": {}})
    assert "has no known column" in failures(run(instance, f"{root}/2", timeless, partition="2026-01-01", ok=False))[0]


# Ways to store.


def test_rows_are_appended_where_the_asset_says_so(instance: DagsterInstance, root: str) -> None:
    metadata_ = {"tidemark/create": {}, "tidemark/mode": "append"}
    run(instance, root, events(rows(1), metadata=metadata_))
    result = run(instance, root, events(rows(2), metadata=metadata_))
    assert read(root) == [1, 2]
    assert metadata(result, "events")["tidemark/mode"] == "append"


def test_rows_of_a_keyed_table_take_the_place_of_those_with_their_key(instance: DagsterInstance, root: str) -> None:
    keyed = {"tidemark/create": {"primary_key": "n"}}
    run(instance, root, events(rows(1, 2), metadata=keyed))
    seen: list[Any] = []
    result = run(instance, root, events(rows(2, 3, day=2), metadata=keyed), reading(pa.Table, seen))
    assert numbers_of(seen[0]) == [1, 2, 3]
    assert "dagster/row_count" not in metadata(result, "events")


def test_rows_are_upserted_by_the_columns_that_the_asset_names(instance: DagsterInstance, root: str) -> None:
    settings = {"tidemark/create": {}, "tidemark/mode": "upsert", "tidemark/on": "n"}
    for numbers in ((1, 2), (2, 3)):
        run(instance, root, events(rows(*numbers), metadata=settings))
    assert read(root) == [1, 2, 3]


def test_a_store_that_was_killed_after_its_commit_is_retried_and_writes_once(
    instance: DagsterInstance, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Defined.handle_output
    died: list[str] = []

    def dying(self: Defined, context: Any, obj: object) -> None:
        store(self, context, obj)
        if len(died) < 2:
            died.append(context.run_id)
            raise ConnectionError("the process ended here, before Dagster heard of the commit")

    monkeypatch.setattr(Defined, "handle_output", dying)
    for mode in ("append", "overwrite"):
        died.clear()
        settings: dict[str, object] = {"tidemark/create": {}, "tidemark/mode": mode}
        run(instance, f"{root}/{mode}", events(rows(1, 2), metadata=settings, retry_policy=RetryPolicy(max_retries=2)))
        assert read(f"{root}/{mode}") == [1, 2]
        assert len(died) == 2
    appended = Table.open(f"{root}/append/events").history()
    assert [each.operation for each in appended] == ["APPEND", "CREATE TABLE"]


# A program that appends rows. The program is killed after the commit, before it reports to Dagster. A run that retries
# another run is not killed.
APPENDING = """
import os, signal, sys
import pyarrow as pa
from dagster import (
    DagsterInstance, Definitions, ReexecutionOptions, asset, define_asset_job, execute_job, in_process_executor,
    reconstructable,
)
from tidemark.dagster import TidemarkIOManager
from assets.io_manager import manager

FOLDER = sys.argv[1]

@asset(metadata={"tidemark/create": {}, "tidemark/mode": "append"})
def events() -> pa.Table:
    return pa.table({"n": [1]})

def everything():
    return Definitions(
        assets=[events],
        jobs=[define_asset_job("all", "*")],
        resources={"io_manager": TidemarkIOManager(root=FOLDER + "/warehouse")},
        executor=in_process_executor,
    ).resolve_job_def("all")

if __name__ == "__main__":
    options = ReexecutionOptions(parent_run_id=sys.argv[2]) if sys.argv[2:] else None
    if options is None:
        manager.table_metadata = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    with DagsterInstance.local_temp(FOLDER) as instance:
        assert execute_job(reconstructable(everything), instance, reexecution_options=options).success
"""


def test_a_run_that_is_killed_after_its_commit_is_run_again_and_appends_once(tmp_path: Path, root: str) -> None:
    program = tmp_path / "appending.py"
    program.write_text(APPENDING)

    def started(*retried: str) -> int:
        command = [sys.executable, str(program), str(tmp_path), *retried]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode

    assert started() == -signal.SIGKILL
    assert read(root) == [1]
    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        (killed,) = instance.get_runs()
    assert started(killed.run_id) == 0
    assert read(root) == [1]
    with DagsterInstance.ephemeral() as instance:
        run(instance, root, events(pa.table({"n": [2]}), metadata={"tidemark/mode": "append"}))
    assert read(root) == [1, 2]


def test_partitions_that_begin_together_make_the_table_once(root: str) -> None:
    together = Barrier(2)

    def value(context: Any) -> pa.Table:
        together.wait(60)
        return rows(1, day=int(context.partition_key[-2:]))

    def one(day: int) -> bool:
        with DagsterInstance.ephemeral() as instance:  # uses one thread
            return run(instance, root, events(value, partitions_def=DAYS), partition=f"2026-01-0{day}").success

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(one, (1, 2))] == [True, True]
    assert read(root) == [1, 1]


# Settings.


def test_a_materialization_says_where_the_table_is_and_what_is_in_it(instance: DagsterInstance, root: str) -> None:
    result = run(instance, root, events(rows(1, 2), key_prefix="raw"))
    found = metadata(result, "raw__events")
    table = Table.open(f"{root}/raw/events")
    assert found["dagster/uri"] == table.uri
    assert found["dagster/table_name"] == "raw.events"
    assert (found["dagster/row_count"], found["tidemark/version"]) == (2, table.version)
    assert [(each.name, each.type) for each in found["dagster/column_schema"].columns] == [
        ("at", "timestamp[us, tz=UTC]"),
        ("country", "string"),
        ("n", "int64"),
    ]


def test_a_table_that_nobody_made_is_refused_with_how_to_make_it(instance: DagsterInstance, root: str) -> None:
    (failure,) = failures(run(instance, root, events(rows(1), metadata={}), ok=False))
    assert failure.startswith("not_found: ")
    assert "'tidemark/create'" in failure
    assert "tidemark init" in failure
    assert not Path(root).exists()


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"tidemark/modes": "append"}, "'tidemark/modes' is not a setting here"),
        ({"tidemark/mode": "replace"}, "tidemark/mode is 'replace'. Give append, overwrite or upsert"),
        ({"tidemark/create": {"key": "n"}}, "'key' is not a parameter of Table.create"),
        ({"tidemark/create": "n"}, "tidemark/create is 'n'. Set tidemark/create to a mapping"),
        ({"tidemark/uri": "ftp://host/x"}, "Use file:///"),
        (
            {"tidemark/create": {"primary_key": "n"}, "tidemark/mode": "overwrite"},
            "a keyed table cannot be overwritten",
        ),
    ],
)
def test_a_setting_that_is_none_is_refused_by_its_name(
    instance: DagsterInstance, root: str, settings: dict[str, object], found: str
) -> None:
    (failure,) = failures(run(instance, root, events(rows(1), metadata=settings), ok=False))
    assert failure.startswith("invalid_input: ")
    assert found in failure


def test_assets_are_kept_in_a_bucket(instance: DagsterInstance, s3_server: S3Server) -> None:
    root, seen = s3_server.uri("io-manager"), list[Any]()
    stored = events(lambda context: rows(int(context.partition_key[-2:])), partitions_def=DAYS, key_prefix="web")
    ok = {"2026-01-01": True, "2026-01-02": False}  # this row belongs to the previous day
    for day, is_sound in ok.items():
        run(instance, root, stored, partition=day, ok=is_sound)
    above = AssetKey(["web", "events"])
    taken = reading(pl.DataFrame, seen, above=above, partitions_def=DAYS)
    run(instance, root, AssetSpec(above, partitions_def=DAYS), taken, partition="2026-01-01")
    assert numbers_of(seen[0]) == [1]


def test_an_asset_key_that_leaves_its_folder_is_refused(instance: DagsterInstance, root: str) -> None:
    prefixed: Sequence[str] = ["..", "other"]
    result = run(instance, root, events(rows(1), key_prefix=prefixed), ok=False)
    assert "'..' is not the name of a folder" in failures(result)[0]


def test_an_input_is_of_the_version_and_columns_that_it_names(instance: DagsterInstance, root: str) -> None:
    run(instance, root, events(rows(1)))
    version = Table.open(f"{root}/events").version
    run(instance, root, events(rows(2)))
    seen: list[Any] = []
    named = {"tidemark/at": version, "columns": ["n"], "tidemark/uri": f"{root}/events"}
    run(instance, root, AssetSpec("events"), reading(pa.Table, seen, input_metadata=named))
    assert seen[0].to_pydict() == {"n": [1]}
