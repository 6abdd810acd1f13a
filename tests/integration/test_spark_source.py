"""Tables in Spark: `spark.read.format("tidemark")`, `df.write.format("tidemark")`, and refused options."""

from __future__ import annotations

import datetime as dt
import gc
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemark as tm
import tidemark.spark
from storage_core.base.errors import TidemarkError
from storage_core.store.resolve import open_store
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from jobs.spark.spark import Spark

pytestmark = pytest.mark.spark

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        *(pa.field("ts", pa.timestamp("us", "UTC")), pa.field("n", pa.int64(), nullable=False)),
        *(pa.field("f", pa.float64()), pa.field("s", pa.string()), pa.field("d", pa.date32())),
        *(pa.field("b", pa.bool_()), pa.field("x", pa.decimal128(10, 2)), pa.field("i", pa.int16())),
        *(pa.field("l", pa.list_(pa.int32())), pa.field("m", pa.map_(pa.string(), pa.int64()))),
        *(pa.field("p", pa.struct([("q", pa.int32())])), pa.field("v", pa.list_(pa.float32(), 2))),
        *(pa.field("y", pa.binary()), pa.field("z", pa.timestamp("us"))),
    ]
)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
CONDITIONS = (
    *("n > {n}", "n <= {n}", "n = {n}", "n in ({n}, {n} + 1, 77)", "not (n = {n})", "i = {n} % 9", "i <> 3"),
    *("f < {n} / 3.0", "f > {n}", "f = 0.0", "f >= 'NaN'", "s = 'text {n}'", "s like 'text 1%'", "s is null"),
    *("d >= date '2026-01-1{n1}'", "b", "not b", "x > 5.25", "x is not null", "y = cast('y{n1}' as {binary})"),
    *("ts >= '2026-01-01T0{n1}:30:00Z'", "z < '2026-01-01T05:00:00'", "ts is null"),
)


@pytest.fixture(scope="module")
def session(spark: Spark) -> SparkSession:
    found = spark.session()
    tidemark.spark.register(found)
    return found


def row(n: int) -> dict[str, object]:
    """Return a row, which sometimes has a null, a NaN or a negative zero."""
    ts = BEGIN + dt.timedelta(minutes=n)
    numbers = {"n": n, "f": {3: math.nan, 4: -0.0, 5: None}.get(n % 11, n / 3), "i": n % 9, "v": [n, 0.5]}
    texts = {"s": None if n % 13 == 0 else f"text {n % 40}", "y": f"y{n % 10}".encode()}
    times = {"ts": None if n % 29 == 0 else ts, "d": dt.date(2026, 1, 1 + n % 28), "z": ts.replace(tzinfo=None)}
    nested = {"l": [n, None], "m": {"k": n}, "p": {"q": n}}
    exact = {"b": (True, False, None)[n % 3], "x": None if n % 7 == 0 else Decimal(n * 12).scaleb(-2)}
    return {**numbers, **texts, **times, **nested, **exact}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> tm.Table:
    """Make a table of four versions: two appends, a delete, and one more append."""
    table = tm.Table.create(str(tmp_path_factory.mktemp("events") / "t"), SCHEMA, time_column="ts", window="1h")
    table.append([row(n) for n in range(300)])
    table.append([row(n) for n in range(300, 500)])
    table.delete("n % 10 = 3")
    table.append([row(n) for n in range(500, 600)])
    return table


def load(session: SparkSession, table: tm.Table, **options: str | int) -> DataFrame:
    return session.read.format("tidemark").options(**options).load(table.uri)


def rows(found: pa.Table, schema: pa.Schema) -> list[str]:
    """Return the rows as texts, so that NaN equals NaN and a negative zero differs from zero."""
    return sorted(map(repr, found.cast(schema).to_pylist()))


@pytest.mark.parametrize("seed", range(scaled(2)))
def test_the_rows_are_those_of_a_scan_of_the_same_version(session: SparkSession, events: tm.Table, seed: int) -> None:
    random = Random(seed)
    version = random.choice([None, *range(1, 5)])
    at = {} if version is None else {"at": version}
    several = random.sample(CONDITIONS, 3)
    join = random.choice([" and ", " and ", " or "])
    numbers = {"n": random.randrange(600), "n1": random.randrange(10)}
    here, there = (join.join(several).format(**numbers, binary=binary) for binary in ("binary", "blob"))
    scan = events.scan(filter=there, at=version)
    expected = rows(scan.to_arrow(), SCHEMA)
    assert rows(load(session, events, **at).where(here).toArrow(), SCHEMA) == expected
    assert rows(load(session, events, filter=there, **at).toArrow(), SCHEMA) == expected


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> tm.Table:
    """Make a keyed table with rows in the base, in a generation and in the log.

    The log has new rows, patches and deletes.
    """
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("stock", pa.int64())])
    table = tm.Table.create(str(tmp_path_factory.mktemp("products") / "t"), schema, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": n, "name": f"first {n}", "stock": n} for n in range(200)])
        writer.flush()
        KeyedTable(open_store(table.uri)).merge_all()
        writer.put([{"id": n, "name": f"second {n}", "stock": n} for n in range(150, 250)])
        writer.delete(list(range(0, 200, 10)))
        writer.flush()
        writer.put([{"id": n, "name": f"third {n}", "stock": n} for n in range(240, 260)])
        writer.patch([{"id": n, "stock": -1} for n in range(5, 250, 7)])
    return table.refresh()


@pytest.mark.parametrize("level", ["snapshot", "committed", "latest"])
def test_rows_that_are_not_merged_are_read_once_at_the_level_that_has_them(
    session: SparkSession, products: tm.Table, level: str
) -> None:
    least, most, start = (Random(level).randrange(*each) for each in ((0, 100), (100, 250), (0, 10)))
    condition = f"(stock < {most} and id >= {least} or name like '%{start}') and stock is not null"
    expected = rows(products.scan(filter=condition, consistency=level).to_arrow(), products.schema)
    assert rows(load(session, products, consistency=level, filter=condition).toArrow(), products.schema) == expected
    every = load(session, products, consistency=level)
    assert (
        every.count() == every.select("id").distinct().count() == products.scan(consistency=level).to_arrow().num_rows
    )


def test_what_the_source_imported_is_passed_over_by_collections_behind_tasks(
    session: SparkSession, products: tm.Table
) -> None:
    from jobs.spark.source import TableSource

    source = TableSource({"path": products.uri})
    reader = source.reader(source.schema())
    (portion, *_) = reader.partitions()
    count = sum(batch.num_rows for batch in reader.read(portion))

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = sum(batch.num_rows for _ in batches for batch in reader.read(portion))
        yield pa.RecordBatch.from_pydict({"read": [read], "spared": [gc.get_freeze_count()]})

    (found,) = session.range(0, 1, 1, 1).mapInArrow(task, "read long, spared long").collect()
    assert (found["read"], gc.get_freeze_count()) == (count, 0), "nothing changes in a process of another kind"
    assert found["spared"] > 10_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tm.Table:
    """Make a table of eight splits in hourly windows, each large enough for its own task."""
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("noise", pa.binary())])
    table = tm.Table.create(str(tmp_path_factory.mktemp("many") / "t"), schema, time_column="ts", window="1h")
    noise = Random(1)
    for hour in range(8):
        at = [BEGIN + dt.timedelta(hours=hour, minutes=each) for each in range(5)]
        table.append([{"ts": each, "n": hour, "noise": noise.randbytes(2**20)} for each in at])
    return table


def tasks_of(session: SparkSession, name: str, query: Callable[[], Any]) -> int:
    """Return the number of tasks that a query started."""
    context = session.sparkContext
    context.setJobGroup(name, name)
    query()
    tracker: Any = context.statusTracker()
    stages = [stage for job in tracker.getJobIdsForGroup(name) for stage in tracker.getJobInfo(job).stageIds]
    context._jsc.clearJobGroup()
    return sum(tracker.getStageInfo(stage).numTasks for stage in stages)


def test_a_limit_starts_the_work_of_one_task(session: SparkSession, many: tm.Table) -> None:
    frame = load(session, many)
    assert tasks_of(session, "all", frame.toArrow) == 8
    assert tasks_of(session, "limited", frame.limit(3).collect) == 1


def test_what_conditions_exclude_starts_no_task(session: SparkSession, many: tm.Table) -> None:
    of_two_hours = "ts >= '2026-01-01T03:00:00Z' and ts < '2026-01-01T05:00:00Z'"
    assert tasks_of(session, "by the option", load(session, many, filter=of_two_hours).toArrow) == 2
    narrow = load(session, many, filter=of_two_hours, columns="n")
    assert (narrow.columns, tasks_of(session, "of a column", narrow.toArrow)) == (["n"], 1)
    assert load(session, many, filter="n > 7").toArrow().num_rows == 0


def test_each_part_of_a_query_over_one_frame_has_all_of_its_rows_whatever_spark_would_push(
    session: SparkSession, many: tm.Table
) -> None:
    """With pushdown, Spark would use one part's conditions for all parts of the query, and also for the next query."""
    session.conf.set(PUSHDOWN, "true")
    try:
        frame = load(session, many, columns="n")
        assert frame.where("n < 3").union(frame.where("n >= 3")).count() == frame.count() == 40
    finally:
        session.conf.unset(PUSHDOWN)


def test_what_is_loaded_stays_at_its_version(session: SparkSession, tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "t"), pa.schema([("n", pa.int64())]))
    table.append([{"n": 1}])
    before = load(session, table)
    table.append([{"n": 2}])
    assert (before.count(), load(session, table).count()) == (1, 2)
    assert load(session, table, at=1).count() == load(session, table, at="1", columns='["n"]').count() == 1


def refusal(call: Callable[[], object]) -> str:
    """Return the last line with a Tidemark error in the traceback of Spark's exception."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as refused:
        call()
    lines = [line for line in str(refused.value).splitlines() if line.startswith("storage_core.base.errors.")]
    return lines[-1].removeprefix("storage_core.base.errors.") if lines else str(refused.value)


def test_spark_says_what_cannot_be_read(session: SparkSession, events: tm.Table, tmp_path: Path) -> None:
    unknown = refusal(lambda: load(session, events, colums="n"))
    assert unknown.startswith(
        "InvalidInput: spark.read of the format tidemark has no option 'colums'. The options are at, "
    )
    missing = refusal(lambda: session.read.format("tidemark").load(str(tmp_path / "none")))
    assert missing.startswith("NotFound: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": "n,none"}, "unknown column 'none'"),
        ({"at": "1", "consistency": "latest"}, "a read of an older version (at), which returns only merged rows"),
        ({"consistency": "newest"}, "consistency is 'newest'. Give snapshot, committed or latest"),
        ({"at": "99"}, "99"),
        ({"filter": "n >"}, "the condition 'n >' is not valid SQL"),
        ({"filter": "no_such = 1"}, "unknown column 'no_such'. The table has ts, n, "),
        ({"changes": "yes"}, "the option changes is 'yes'. Write true or false."),
        (
            {"Pushdown": "true"},
            "has no option pushdown. Spark plans a Python source once for all uses of a data ",
        ),
        ({"path": ""}, "the location of the table is missing"),
        ({"max_rows": "5", "max_bytes": "5"}, "the limits of a micro-batch are"),
        ({"max_files": "0"}, "the limits of a micro-batch are max_files '0'. Give"),
    ],
)
def test_options_that_contradict_the_table_are_refused(events: tm.Table, options: dict[str, str], said: str) -> None:
    from jobs.spark.source import TableSource

    with pytest.raises(TidemarkError, match=re.escape(said)):
        TableSource({"path": events.uri, **options}).schema()


def test_a_schema_is_not_told_to_the_format(events: tm.Table) -> None:
    from pyspark.sql.types import StructType

    from jobs.spark.source import TableSource

    with pytest.raises(TidemarkError, match="the table defines the columns"):
        TableSource({"path": events.uri}).reader(StructType())


def write(frame: DataFrame, uri: str, mode: str = "append", **options: str | int) -> None:
    frame.write.format("tidemark").mode(mode).options(**options).save(uri)


def test_a_frame_is_appended_in_one_commit_and_the_work_of_an_application_once(
    session: SparkSession, events: tm.Table, tmp_path: Path
) -> None:
    copy = tm.Table.create(str(tmp_path / "copy"), SCHEMA, time_column="ts", window="1h")
    for _ in range(2):
        few = load(session, events, filter="n < 150").repartition(2)
        write(few, copy.uri, application="nightly", batch=7)
    assert [each.operation for each in copy.refresh().history()] == ["APPEND", "CREATE TABLE"]
    assert rows(copy.scan().to_arrow(), SCHEMA) == rows(events.scan(filter="n < 150").to_arrow(), SCHEMA)
    few = load(session, events, columns="n", filter="n < 5")
    write(few, copy.uri, application="nightly", batch=8)
    write(few.where("false"), copy.uri)
    assert (copy.refresh().version, copy.scan(["n"], filter="n < 5").to_arrow().num_rows) == (2, 8)


def test_spark_says_what_cannot_be_written(session: SparkSession, events: tm.Table) -> None:
    before, frame = events.refresh().version, load(session, events, columns="n")
    assert 'cannot be written in the "ErrorIfExists" mode' in refusal(lambda: write(frame, events.uri, "error"))
    overwritten = refusal(lambda: write(frame, events.uri, "overwrite"))
    assert overwritten.startswith("InvalidInput: the format tidemark does not support mode('overwrite')")
    table = refusal(lambda: frame.write.format("tidemark").mode("append").saveAsTable("nowhere"))
    assert ".save('s3://bucket/table')" in table
    nulls = refusal(lambda: write(frame.selectExpr("nullif(n, 1) as n"), events.uri))
    assert nulls.startswith("InvalidInput: column 'n' is required, but row")
    assert events.refresh().version == before


def test_options_of_batches_are_none_of_streams_and_the_other_way_round(events: tm.Table) -> None:
    from jobs.spark.source import TableSource

    batch = TableSource({"path": events.uri, "changes": "true"})
    with pytest.raises(TidemarkError, match=re.escape("spark.read of the format tidemark has no option 'changes'")):
        batch.reader(batch.schema())
    stream = TableSource({"path": events.uri, "filter": "n = 1"})
    with pytest.raises(
        TidemarkError, match=re.escape("spark.readStream of the format tidemark has no option 'filter'")
    ):
        stream.streamReader(stream.schema())


def test_frames_that_the_table_does_not_take_are_refused(events: tm.Table, products: tm.Table, tmp_path: Path) -> None:
    from pyspark.sql.types import StructType

    from jobs.spark.source import TableSource

    cases: list[tuple[str, dict[str, str], StructType, str]] = [
        (products.uri, {}, StructType().add("id", "long"), "many tasks cannot write to a keyed table"),
        (events.uri, {"batch": "1"}, StructType().add("n", "long"), "the options application and batch are"),
        (events.uri, {"application": "a", "batch": str(2**70)}, StructType().add("n", "long"), f"'{2**70}'"),
        (events.uri, {"application": "a", "batch": str(2**70)}, StructType().add("n", "long"), f"up to {2**63 - 1},"),
        (
            events.uri,
            {"merge": "x"},
            StructType().add("n", "long"),
            "has no option 'merge'. The options are application, batch",
        ),
        (events.uri, {}, StructType().add("n", "double"), "column 'n' has type double"),
        (events.uri, {}, StructType().add("m2", "long"), "unknown column 'm2'"),
        (str(tmp_path / "none"), {}, StructType().add("n", "long"), "no table"),
    ]
    for uri, options, schema, said in cases:
        with pytest.raises(TidemarkError, match=re.escape(said)):
            TableSource({"path": uri, **options}).writer(schema, overwrite=False)


def test_the_small_benchmark_compares_every_read_with_that_of_spark_s_own_reader(session: SparkSession) -> None:
    from benchmarks.spark_source import measure

    assert session is not None, "the benchmark joins it"
    found = list(measure(small=True))
    assert len({each.name for each in found}) == 7
    assert all(each.against == "Spark's Parquet reader" and each.ratio and each.value > 0 for each in found)


def test_without_pyspark_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyspark.sql'] = None\n"
        "import tidemark.spark\n"
        "try: tidemark.spark.register(None)\n"
        "except tidemark.errors.Unavailable as error: print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.startswith("Spark's format `tidemark` needs packages: pip install '.[pipeline]'")


def streamed(session: SparkSession, folder: Path, uri: str) -> None:
    """Append the newly landed Parquet files of a folder, file by file."""
    landed = session.readStream.schema("n long").option("maxFilesPerTrigger", 1).parquet(str(folder / "landed"))
    copied(landed, folder / "checkpoint", uri).awaitTermination()


def copied(frame: DataFrame, checkpoint: Path, uri: str) -> StreamingQuery:
    """Start a streaming query that writes the frame's current rows to a table, and then ends."""
    writing = frame.writeStream.format("tidemark").option("checkpointLocation", str(checkpoint))
    return writing.trigger(availableNow=True).start(uri)


def test_a_micro_batch_that_spark_runs_again_is_in_the_table_once(session: SparkSession, tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "t"), pa.schema([("n", pa.int64())]))
    (tmp_path / "landed").mkdir()
    for number in range(3):
        pq.write_table(pa.table({"n": [number]}), tmp_path / "landed" / f"{number}.parquet")
    streamed(session, tmp_path, table.uri)
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink()
    pq.write_table(pa.table({"n": [3]}), tmp_path / "landed" / "3.parquet")
    streamed(session, tmp_path, table.uri)
    assert sorted(table.refresh().scan().to_arrow().column("n").to_pylist()) == [0, 1, 2, 3]
    assert [each.operation for each in table.history()] == ["APPEND"] * 4 + ["CREATE TABLE"]


def test_a_frame_with_text_that_is_not_utf8_is_refused_and_nothing_is_committed(
    session: SparkSession, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    table = tm.Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64()), ("c", pa.string())]))
    frame = session.sql("SELECT id, CAST(unhex(IF(id = 2, '6DFF', '61')) AS STRING) AS c FROM range(4)")
    with pytest.raises(PySparkException, match="the text is not valid UTF-8"):
        frame.write.format("tidemark").mode("append").save(table.uri)
    assert table.refresh().version == 0


def test_a_stream_of_results_that_replace_one_another_is_refused(session: SparkSession, tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "t"), pa.schema([("n", pa.int64()), ("count", pa.int64())]))
    counted = session.readStream.format("rate").load().selectExpr("value as n").groupBy("n").count()
    query = (
        counted.writeStream.format("tidemark").outputMode("complete").option("checkpointLocation", str(tmp_path / "c"))
    )
    said = refusal(lambda: query.trigger(availableNow=True).start(table.uri).awaitTermination())
    assert "supports only the output mode append" in said


def test_a_table_is_copied_by_a_stream_that_is_killed_and_stopped_again_and_again(
    session: SparkSession, tmp_path: Path
) -> None:
    from tests.integration.copy_in_spark import follow  # imports PySpark

    source, copy = (
        tm.Table.create(str(tmp_path / name), SCHEMA, time_column="ts", window="1h") for name in ("source", "copy")
    )
    kills = scaled(1)
    source.append([row(n) for n in range(360 * kills)])
    checkpoint = str(tmp_path / "checkpoint")
    program = [sys.executable, "-m", "tests.integration.copy_in_spark", "local[2]", source.uri, copy.uri, checkpoint]
    for kill in range(kills):
        running = subprocess.Popen(program, start_new_session=True)
        try:
            wait_for_commits(copy, 1, running.poll)
            time.sleep(Random(kill).choice([0, 0.2, 0.5]) if kill else 0)  # the first kill is just after a commit
        finally:
            os.killpg(running.pid, signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL, "it was at work"
        source.append([row(1_000 + kill)])
    query = follow(session, source.uri, copy.uri, checkpoint)
    wait_for_commits(copy, 1, lambda: None if query.isActive else 0)
    query.stop()
    source.append([row(n) for n in range(2_000, 2_100)])
    follow(session, source.uri, copy.uri, checkpoint).awaitTermination()
    assert rows(copy.refresh().scan().to_arrow(), SCHEMA) == rows(source.refresh().scan().to_arrow(), SCHEMA)
    assert copy.version >= 3, "three files at a time"


def wait_for_commits(table: tm.Table, count: int, ended: Callable[[], int | None]) -> None:
    """Wait until a table has `count` more versions, or until its writer has ended."""
    wanted = table.refresh().version + count
    while table.refresh().version < wanted and ended() is None:
        time.sleep(0.02)


def test_changes_are_streamed_with_what_happened_to_each_row(session: SparkSession, tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "t"), pa.schema([("n", pa.int64()), ("s", pa.string())]))
    table.append([{"n": 1, "s": "a"}, {"n": 2, "s": "b"}])
    frame = session.readStream.format("tidemark").options(changes=True, columns="n").load(table.uri)
    table.update({"n": 3}, "n = 2")
    found: list[tuple[object, ...]] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend((each["_change_type"], each["n"], each["_commit_version"]) for each in batch.collect())

    query = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(take)
    query.trigger(availableNow=True).start().awaitTermination()
    assert sorted(found) == [("delete", 2, 2), ("insert", 3, 2)]
    rows_only = session.readStream.format("tidemark").option("at", 1).load(table.uri)
    copy = tm.Table.create(str(tmp_path / "copy"), table.schema)
    said = refusal(lambda: copied(rows_only, tmp_path / "other", copy.uri).awaitTermination())
    assert "version 2 changed or removed rows, which a stream of rows cannot show" in said
