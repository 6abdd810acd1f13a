"""`sql` and `scan(filter=)` over splits on disk return what DuckDB returns for a native table with the same rows."""

from __future__ import annotations

import datetime as dt
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput
from storage_core.engine.session import session
from storage_core.read.fetching import FetchPlan
from storage_core.read.table_read import splits_source
from storage_core.read.verified_files import VerifiedFiles
from storage_core.split.writer import with_file_metrics
from storage_core.store.local import LocalStore
from tests.support.scale import scaled
from tidemark import Table

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("f", pa.float64()),
        pa.field("g", pa.float32()),
        pa.field("s", pa.struct([pa.field("f", pa.float64()), pa.field("n", pa.int64())])),
        pa.field("l", pa.list_(pa.float32())),
    ]
)
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
INSTANT = st.sampled_from([0, 0, 0, 0, 1, 59, 60, 120, -1, -120]).map(lambda each: START + dt.timedelta(minutes=each))
FLOAT = st.sampled_from([math.nan, 20.5, 21.0, -0.0, 0.0, math.nan, 20.5, 21.0, math.inf])
STRUCT = st.fixed_dictionaries({"f": FLOAT, "n": st.none() | st.integers(0, 3)})
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "ts": INSTANT,
    "local": INSTANT.map(lambda instant: instant.replace(tzinfo=None)),
    "day": INSTANT.map(lambda instant: instant.date()),
    "f": FLOAT,
    "g": FLOAT,
    "s": STRUCT,
    "l": st.lists(FLOAT, max_size=2),
    "n": st.integers(0, 3),
}
SPARSE = {name: st.one_of(values, values, values, values, st.none()) for name, values in VALUES.items()}
ROWS = st.lists(st.fixed_dictionaries(SPARSE), min_size=3, max_size=8)
NUMBER = st.sampled_from(["0", "20.5", "21", "100", "1e300", "'nan'", "'inf'", "-1.5"])
ZONE = st.sampled_from(["", "Z", "+00", "+02", "-05:30", " UTC", " America/New_York"])
CLOCK = st.sampled_from(["2023-12-31 23:00:00", "2024-01-01 00:00:00", "2024-01-01T02:00:00", "2024-01-01"])
CAST = st.sampled_from(["", "timestamp ", "timestamptz ", "date "])
OPERATOR = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


@st.composite
def conditions(draw: st.DrawFn, depth: int = 1) -> str:
    kind = draw(st.sampled_from(["float", "float", "moment", "field", *(["and", "or", "not"] if depth else ["nan"])]))
    match kind:
        case "float":
            return f"{draw(st.sampled_from(['f', 't.f', 's.f', 'g', 'l[1]']))} {draw(OPERATOR)} {draw(NUMBER)}"
        case "nan":
            return f"isnan({draw(st.sampled_from(['f', 's.f', 'g']))})"
        case "field":
            return f"{draw(st.sampled_from(['n', 't.n', 's.n', 't.s.n']))} {draw(OPERATOR)} {draw(st.integers(0, 3))}"
        case "moment":
            clock = draw(CLOCK)  # a date with a zone raises an error only if a row is compared with it
            literal = f"{draw(CAST)}'{clock}{draw(ZONE) if ':' in clock else ''}'"
            return f"{draw(st.sampled_from(['ts', 'local', 'day']))} {draw(OPERATOR)} {literal}"
        case "not":
            return f"not ({draw(conditions(depth=depth - 1))})"
        case _:
            return f"({draw(conditions(depth=depth - 1))}) {kind} ({draw(conditions(depth=depth - 1))})"


def created(batches: list[pa.Table]) -> Table:
    folder = Path(tempfile.mkdtemp(prefix="tidemark-native-"))
    table = Table.create(str(folder / "t"), batches[0].schema, time_column="ts", window="1h")
    for each in batches:
        table.append(each)
    return table


def native(connection: duckdb.DuckDBPyConnection, query: str) -> list[str] | str:
    try:
        return sorted(map(str, connection.sql(query).to_arrow_table().to_pylist()))
    except duckdb.Error:
        return "refused"


def ours(table: Table, query: str) -> list[str] | str:
    try:
        return sorted(map(str, table.sql(query).to_pylist()))
    except InvalidInput:
        return "refused"


@settings(max_examples=scaled(12), deadline=None)
@given(groups=st.lists(ROWS, min_size=1, max_size=2), wanted=st.lists(conditions(), min_size=4, max_size=6))
def test_a_query_over_splits_equals_the_query_over_a_native_table(
    groups: list[list[dict[str, object]]], wanted: list[str]
) -> None:
    batches = [pa.Table.from_pylist(group, schema=SCHEMA) for group in groups]
    table, connection = created(batches), session()
    connection.from_arrow(pa.concat_tables(batches)).create("t")
    for condition in wanted:
        query = f"select * from t where {condition}"
        expected = native(connection, query)
        if expected == "refused":  # an invalid literal fails only if a row is compared with it
            assert ours(table, query) in ("refused", []), condition
        else:
            assert ours(table, query) == expected, condition
            assert sorted(map(str, table.scan(filter=condition).to_arrow().to_pylist())) == expected, condition
    shutil.rmtree(Path(table.uri.removeprefix("file://")).parent)


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("temp > 100", 1),
        ("temp = 'nan'", 1),
        ("isnan(temp)", 1),
        ("temp < 100", 2),
        ("temp <= 21.0", 2),
        ("not (temp <= 21)", 1),
    ],
)
def test_a_row_that_is_not_a_number_is_found_where_it_sorts_above_all_others(
    tmp_path: Path, kind: pa.DataType, condition: str, count: int
) -> None:
    schema = pa.schema([pa.field("ts", pa.timestamp("us", "UTC")), pa.field("temp", kind)])
    table = Table.create(str(tmp_path / "it's [1]"), schema, time_column="ts", window="1h")
    table.append([{"ts": START, "temp": value} for value in (20.5, math.nan, 21.0)])
    assert table.sql(f"select count(*) as n from t where {condition}").to_pylist() == [{"n": count}]
    assert table.scan(filter=condition).to_arrow().num_rows == count
    assert math.isnan(table.sql("select max(temp) as top from t").to_pylist()[0]["top"])


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("uri", ["a local disk", "memory"])
@pytest.mark.parametrize("values", [[0.5, 700.25], [-3.5, 0.0], [math.nan, 1.5], [None, -0.25]])
def test_the_least_and_the_most_of_floats_are_those_of_the_rows(
    tmp_path: Path, kind: pa.DataType, splits: int, uri: str, values: list[float | None]
) -> None:
    schema = pa.schema([pa.field("f", kind), pa.field("n", pa.int64())])
    table = Table.create(str(tmp_path / "t") if uri == "a local disk" else f"memory://{uuid4()}", schema)
    rows = pa.table({"f": pa.array(values, kind), "n": [1, 2]}, schema=schema)
    for _ in range(splits):
        table.append(rows)
    with duckdb.connect() as plain:
        plain.register("t", pa.concat_tables([rows] * splits))
        for query in (
            "select min(f) as least, max(f) as most, max(n) as n from t",
            "select min(f) as least, max(f) as most from t where n >= 0",
            "select max(f) > 1000 as large from t",
            "select count(*) as n from t where f = (select max(f) from t)",
            "select arg_max(n, f) as n, min(-f) as least from t",
        ):
            expected = plain.sql(query).to_arrow_table().to_pylist()
            assert str(table.sql(query).to_pylist()) == str(expected), query


def test_other_readers_of_a_split_find_no_bounds_where_a_value_is_not_a_number(tmp_path: Path) -> None:
    schema = pa.schema([("f", pa.float64()), ("sound", pa.float64()), ("s", pa.struct([("x.y", pa.float32())]))])
    table = Table.create(str(tmp_path / "t"), schema)
    table.append([{"f": value, "sound": 1.0, "s": {"x.y": value}} for value in (1.0, math.nan)])
    (path,) = [table.store.local_path(key) for key in table.snapshot.splits]
    group = pq.read_metadata(path).row_group(0)
    assert [group.column(each).is_stats_set for each in range(3)] == [False, True, False]


def test_a_split_of_an_older_release_with_bounds_that_leave_nan_out_answers_right(tmp_path: Path) -> None:
    rows = pa.table({"f": pa.array([20.5, math.nan, 21.0])})
    table = Table.create(str(tmp_path / "t"), rows.schema)
    table.append(rows)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)  # older releases wrote statistics for this column
    (add,) = table.snapshot.splits.values()
    (tmp_path / "t" / add.path).write_bytes(sink.getvalue())
    splits = [with_file_metrics(add, sink.getvalue())]
    wanted = FetchPlan(rows.schema, rows.schema.names)
    source = splits_source(LocalStore(tmp_path / "t"), splits, wanted, verified=VerifiedFiles())
    connection = source.opened()
    assert connection.sql("select count(*) filter (f > 100), count(*) filter (f <= 21) from t").fetchall() == [(1, 2)]
    assert connection.sql("select f from t where f <= 21").fetchall() == [(20.5,), (21.0,)]


@pytest.mark.parametrize(
    "query",
    [
        'select id from t where "user".id = 100',
        'select id from t where t."user".id = 100',
        'select id from t where t.id = 1 and "user".id > 50',
        'select "user".id from t as "user" where "user".id = 1',
        'select id from t x where x."user".id = 100 and x.id = 1',
        "select id from t where t.id = 1",
        "select id from t where t.t.id = 7",
        'select "user".id as id from t where id = 1',
    ],
)
def test_a_field_of_a_struct_is_not_the_column_of_its_name(tmp_path: Path, query: str) -> None:
    inner = pa.struct([("id", pa.int64())])
    rows = pa.table({"id": [1], "user": pa.array([{"id": 100}], inner), "t": pa.array([{"id": 7}], inner)})
    table = Table.create(str(tmp_path / "t"), rows.schema)
    table.append(rows)
    connection = session()
    connection.from_arrow(rows).create("t")
    expected = native(connection, query)
    assert len(expected) == 1
    assert ours(table, query) == expected
    condition = query.partition(" where ")[2]
    if " from t where " in query:
        assert table.scan(filter=condition).to_arrow().num_rows == 1


@pytest.mark.parametrize("literal", ["2024-01-01 02:00:00+02", "2024-01-01 02:00:00-05:30", "2024-01-01T02:00:00Z"])
@pytest.mark.parametrize("cast", ["", "timestamp ", "timestamptz "])
@pytest.mark.parametrize("column", ["ts", "local"])
def test_an_offset_in_a_literal_counts_as_duckdb_counts_it(
    tmp_path: Path, column: str, cast: str, literal: str
) -> None:
    instants = [START.replace(tzinfo=None) + dt.timedelta(hours=hours) for hours in (-6, 0, 2, 7, 9)]
    connection = session()
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us"))])
    rows = pa.Table.from_pylist([{"ts": each, "local": each} for each in instants], schema=schema)
    table = Table.create(str(tmp_path / "t"), rows.schema, time_column=column, window="1h")
    table.append(rows)
    connection.from_arrow(rows).create("t")
    for operator in ("=", "<>", "<", "<=", ">", ">="):
        query = f"select {column} from t where {column} {operator} {cast}'{literal}'"
        assert ours(table, query) == native(connection, query), query
