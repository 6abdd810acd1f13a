"""Every value of every DuckDB, Arrow, Polars and Spark type is stored and returned unchanged, or is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import tidemark as tm
import tidemark.spark
from pipelines.cli import main
from storage_core.interop.column_union import as_held

if TYPE_CHECKING:
    from jobs.spark.spark import Spark

_BITS = {"tinyint": 8, "smallint": 16, "integer": 32, "bigint": 64}
_DIGITS = (1, 4, 5, 9, 10, 18, 19, 37, 38)

HELD = [
    *(f"'{sign * 2 ** (bits - 1) - (sign > 0)}'::{name}" for name, bits in _BITS.items() for sign in (1, -1)),
    *(f"'{2**bits - 1}'::u{name}" for name, bits in _BITS.items() if bits < 64),
    *(f"'{sign}{'9' * digits}'::decimal({digits}, 0)" for digits in _DIGITS for sign in ("", "-")),
    *(f"'0.{'9' * digits}'::decimal({digits}, {digits})" for digits in _DIGITS),
    *("'99999999999999999999999999999999999999'::hugeint", "'-99999999999999999999999999999999999999'::hugeint"),
    *("9223372036854775807::ubigint", "sum(1)", "true", "'nan'::double", "'-inf'::float", "-0.0::double", "1e-320"),
    *("'text'", "'x\\x00y'::blob", """'{"a": [1]}'::json""", "'a'::enum('a', 'b')"),
    *("uuid '12345678-1234-1234-1234-123456789012'", "date '0001-01-01'", "date '9999-12-31'"),
    *("timestamp_s '9999-12-31 23:59:59'", "timestamp_ms '0001-01-01 00:00:00.001'"),
    *("timestamp '9999-12-31 23:59:59.999999'", "timestamptz '0001-01-01 00:00:00+00'"),
    *("timestamp_ns '2026-01-01 00:00:00.123456'", "[1, null]", "[['a'], []]", "array_value(1, 2)"),
    *("array_value(1.5::float, 2)", "map {'a': 1, 'b': null}", "{'a': 1, 'b': {'c': [date '9999-12-31']}}"),
    *("[uuid '12345678-1234-1234-1234-123456789012']", "map {1: 9::decimal(38, 2)}"),
]
"""DuckDB values that tables and answers support. Tests of one type also use these values in sets."""

_BIG = ("170141183460469231731687303715884105727::hugeint", "'-170141183460469231731687303715884105728'::hugeint")
_ODD = (
    *(*_BIG, "100000000000000000000000000000000000000::hugeint", "18446744073709551615::ubigint"),
    *("340282366920938463463374607431768211455::uhugeint", "1::uhugeint", "md5_number('x')", "'101010'::bit"),
    *("'123456789012345678901234567890123456789012345'::bignum", "timetz '12:34:56+02:00'", "'{}'::json::variant"),
    *("'infinity'::date", "'-infinity'::timestamp", "'infinity'::timestamptz", "'infinity'::timestamp_ns"),
    *("'infinity'::timestamp_s", "'infinity'::timestamp_ms", "date '10000-01-01'", "date '0044-03-15 (BC)'"),
    *("timestamp '290000-01-01'", "timestamp_s '290000-01-01'", "timestamp_ns '2026-01-01 00:00:00.123456789'"),
    *("interval '1 month 2 days 3 microseconds'", "time '12:34:56.789'", "time_ns '12:34:56.789123456'"),
    *("union_value(k := 1)", "null", "[null]"),
)
_AROUND = ("[{}]", "{{'a': {}}}", "map {{'a': {}}}", "array_value({})")
OTHERS = [*_ODD, *(_AROUND[index % 4].format(each) for index, each in enumerate(_ODD[:16]))]
"""DuckDB values that only some interfaces support. An interface that does not support a value refuses the value."""


def names_of(expressions: list[str]) -> str:
    """Return a SELECT of the values as columns c0, c1 and so on."""
    return "SELECT " + ", ".join(f"{each} AS c{index}" for index, each in enumerate(expressions))


def by_import(place: str, query: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        tm.Table.import_from(place, connection.sql(query), name="x")
    return tm.Table.open(place).scan().to_arrow()


def by_command(place: str, query: str) -> pa.Table:
    if main(["import", place, "--query", query]) == 2:
        raise tm.errors.InvalidInput("the command refused it")
    return tm.Table.open(place).scan().to_arrow()


def by_append(place: str, query: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.sql(query)
        table = tm.Table.create(place, as_held(rows.to_arrow_reader(1).schema, "x"))
        table.append(rows)
    return table.scan().to_arrow()


def by_upsert(place: str, query: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.sql(f"SELECT 1 AS k, * FROM ({query})")
        table = tm.Table.create(place, as_held(rows.to_arrow_reader(1).schema, "x"), primary_key="k")
        with table.writer() as writer:
            writer.put(rows)
    return table.scan(consistency="latest").to_arrow().drop_columns(["k"])


def by_sql(place: str, query: str) -> pa.Table:
    return tm.Table.create(place, pa.schema([("n", pa.int64())])).sql(query).to_arrow()


DOORS: Mapping[str, Callable[[str, str], pa.Table]] = {
    "import_from": by_import,
    "import --query": by_command,
    "append": by_append,
    "put": by_upsert,
    "sql": by_sql,
}


def require_equal(found: pa.Table, expressions: list[str]) -> None:
    """Fail unless DuckDB finds the columns equal to these values and formats columns and values in the same way."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("found", found)
        for index, each in enumerate(expressions):
            same = "value IS NOT DISTINCT FROM wanted AND value::VARCHAR IS NOT DISTINCT FROM wanted::VARCHAR"
            pair = f"SELECT (SELECT c{index} FROM found) AS value, ({each}) AS wanted"
            assert connection.sql(f"SELECT {same} FROM ({pair})").fetchall() == [(True,)], f"{each}: {found[index]}"


@pytest.mark.parametrize("door", DOORS)
def test_values_of_all_types_of_duckdb_are_equal_or_refused(tmp_path: Path, door: str) -> None:
    require_equal(DOORS[door](str(tmp_path / "held"), names_of(HELD)), HELD)
    for index, each in enumerate(OTHERS):
        try:
            found = DOORS[door](str(tmp_path / str(index)), names_of([each]))
        except tm.errors.InvalidInput:
            continue
        require_equal(found, [each])


def column_of(integers: list[int], type_: pa.DataType) -> pa.Array:
    """Return 128-bit decimals with these integers, which may exceed the digits of the type."""
    held = b"".join(each.to_bytes(16, "little", signed=True) for each in integers)
    return pa.Array.from_buffers(type_, len(integers), [None, pa.py_buffer(held)])


def arrow_columns() -> dict[str, pa.Array]:
    """Return values of all Arrow types. The key of each entry is a description.

    If a description begins with `held`, a table accepts the values.
    """
    long = column_of([0, 10**9], pa.decimal128(5, 2))
    least = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    number = Decimal("-1.50")
    held = {
        "half": pa.array([np.float16(1.5), np.float16("nan")], pa.float16()),
        "floats": pa.array([float("nan"), float("-inf"), -0.0]),
        "decimal32": pa.array([number], pa.decimal32(5, 2)),
        "decimal64": pa.array([[number]], pa.list_(pa.decimal64(12, 2))),
        "decimal256": pa.array([number], pa.decimal256(38, 2)),
        "views": pa.array([["a"]], pa.list_(pa.string_view())),
        "binary view": pa.array([b"a"], pa.binary_view()),
        "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
        "dictionary inside": pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        "unsigned": pa.array([0, 2**63 - 1], pa.uint64()),
        "large": pa.array([["a"]], pa.large_list(pa.large_string())),
        "fixed": pa.array([b"ab"], pa.binary(2)),
        "seconds": pa.array([least], pa.timestamp("s", "Europe/Berlin")),
        "nanoseconds": pa.array([1000], pa.timestamp("ns")),
        "most digits": column_of([10**38 - 1, 1 - 10**38], pa.decimal128(38, 0)),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.uint32())),
    }
    others = {
        "decimal256 of 40": pa.array([number], pa.decimal256(40, 2)),
        "negative scale": pa.array([Decimal("1E2")], pa.decimal128(5, -2)),
        "long": long,
        "39 digits": column_of([2**127 - 1], pa.decimal128(38, 0)),
        "long in a list": pa.ListArray.from_arrays([0, 1, 2], long),
        "long in a struct": pa.StructArray.from_arrays([long], ["a"]),
        "long in a map": pa.MapArray.from_arrays([0, 1, 2], ["a", "b"], long),
        "long in a dictionary": pa.DictionaryArray.from_arrays(pa.array([0, None, 1]), long),
        "unsigned beyond": pa.array([2**64 - 1], pa.uint64()),
        "unsigned beyond inside": pa.array([[2**64 - 1]], pa.list_(pa.uint64())),
        "list view": pa.array([[1]], pa.list_view(pa.int64())),
        "run end": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([5])),
        "interval": pa.array([pa.MonthDayNano([1, 2, 3])]),
        "duration": pa.array([1], pa.duration("s")),
        "time": pa.array([1], pa.time64("ns")),
        "null": pa.nulls(1),
        "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())),
        "opaque": pa.ExtensionArray.from_storage(pa.opaque(pa.binary(), "x", "y"), pa.array([b"1"])),
        "date64": pa.array([0], pa.date64()),
        "union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
        "seconds beyond": pa.array([2**62], pa.timestamp("s")),
        "nanosecond": pa.array([1], pa.timestamp("ns")),
        "year 290000": pa.array([2**63 - 1], pa.timestamp("us")),
        "year 290000 in a list": pa.array([[], [2**63 - 1]], pa.list_(pa.timestamp("us"))),
        "year 290000 in a map": pa.array([[("a", 2**31 - 1)]], pa.map_(pa.string(), pa.date32())),
        "year 290000 in a struct": pa.array([{"a": 2**31 - 1}], pa.struct([("a", pa.date32())])),
    }
    return {**{f"held: {name}": each for name, each in held.items()}, **others}


def polars_frames() -> dict[str, pl.DataFrame]:
    """Return values of all Polars types in the same form as `arrow_columns`."""
    integers = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)
    held = {
        **{f"least and greatest {each}": pl.select(pl.concat_list(each.min(), each.max())) for each in integers},
        "categorical": pl.DataFrame({"x": pl.Series(["a", None], dtype=pl.Categorical)}),
        "enum": pl.DataFrame({"x": pl.Series(["b"], dtype=pl.Enum(["a", "b"]))}),
        "decimal": pl.DataFrame({"x": pl.Series([Decimal("-1.50")], dtype=pl.Decimal(38, 2))}),
        "array": pl.DataFrame({"x": pl.Series([[1, 2]], dtype=pl.Array(pl.Int64, 2))}),
        "struct": pl.DataFrame({"x": [{"a": "x", "b": [b"y"]}]}),
        "binary": pl.DataFrame({"x": [b"\0"]}),
    }
    wide = pl.Struct({"a": pl.List(pl.UInt128)})
    others = {
        "int128": pl.DataFrame({"x": pl.Series([2**127 - 1], dtype=pl.Int128)}),
        "uint128": pl.DataFrame({"x": pl.Series([2**128 - 1], dtype=pl.UInt128)}),
        "uint128 inside": pl.DataFrame({"x": pl.Series([{"a": [2**128 - 1]}], dtype=wide)}),
        "uint64": pl.DataFrame({"x": pl.Series([2**64 - 1], dtype=pl.UInt64)}),
        "object": pl.DataFrame({"x": pl.Series([{1}], dtype=pl.Object)}),
        "duration": pl.DataFrame({"x": [dt.timedelta(1)]}),
        "time": pl.DataFrame({"x": [dt.time(1)]}),
        "null": pl.DataFrame({"x": [None]}),
        "nanosecond": pl.DataFrame({"x": pl.Series([1], dtype=pl.Datetime("ns"))}),
    }
    found = {**{f"held: {name}": each for name, each in held.items()}, **others}
    return {name: each.rename({each.columns[0]: "x"}) for name, each in found.items()}


def import_given(place: str, rows: object) -> pa.Table:
    tm.Table.import_from(place, rows, name="x")  # type: ignore[arg-type]
    return tm.Table.open(place).scan().to_arrow()


def append_given(place: str, rows: Any) -> pa.Table:
    schema = as_held(pa.RecordBatchReader.from_stream(rows).schema, "x")
    table = tm.Table.create(place, schema)
    table.append(rows)
    return table.scan().to_arrow()


def put_given(place: str, rows: Any) -> pa.Table:
    if isinstance(rows, pl.DataFrame):
        given: Any = rows.with_row_index("k")
    else:
        given = rows.append_column("k", pa.array(range(rows.num_rows), pa.int64()))
    schema = as_held(pa.RecordBatchReader.from_stream(given).schema, "x")
    table = tm.Table.create(place, schema, primary_key="k")
    with table.writer() as writer:
        writer.put(given)
    return table.scan(consistency="latest").to_arrow().sort_by("k")


@pytest.mark.parametrize("door", [import_given, append_given, put_given])
def test_values_of_all_types_of_arrow_and_polars_are_equal_or_refused(
    tmp_path: Path, door: Callable[[str, object], pa.Table]
) -> None:
    given: dict[str, Any] = {name: pa.table({"x": each}) for name, each in arrow_columns().items()}
    frames = {f"{name} of polars": each for name, each in polars_frames().items()}
    for index, (name, rows) in enumerate({**given, **frames}.items()):
        try:
            found = door(str(tmp_path / str(index)), rows)
        except (tm.errors.InvalidInput, pa.ArrowInvalid) as error:
            # pyarrow refuses to read some frames before a table receives them.
            if name.startswith("held") or not (name.endswith("of polars") or isinstance(error, tm.errors.InvalidInput)):
                raise
            continue
        wanted = rows.to_dicts() if isinstance(rows, pl.DataFrame) else rows.to_pylist()
        assert sorted(map(repr, plain(found.select(["x"]).to_pylist()))) == sorted(map(repr, plain(wanted))), name


def plain(value: Any) -> Any:
    """Return the value with its times in UTC, so that equal instants look alike."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dt.datetime):
        return (value if value.tzinfo is None else value.astimezone(dt.UTC)).isoformat()
    return float(value) if isinstance(value, np.floating) else value


@pytest.mark.spark
def test_values_of_all_types_of_spark_are_equal_or_refused(tmp_path: Path, spark: Spark) -> None:
    session = spark.session()
    tidemark.spark.register(session)
    nines = "9" * 38
    held = {
        "tinyint": "-128Y",
        "bigint": "-9223372036854775808L",
        "float": "float('NaN')",
        "double": "double('-Infinity')",
        "decimal(38,0)": f"-{nines}BD",
        "decimal(38,38)": f"0.{nines}BD",
        "string": "'a'",
        "binary": "X'00ff'",
        "date": "date '9999-12-31'",
        "timestamp": "timestamp '0001-01-01 00:00:00Z'",
        "timestamp_ntz": "timestamp_ntz '9999-12-31 23:59:59.999999'",
        "array<map<string,date>>": "array(map('a', date '0001-01-01'))",
    }
    names = ", ".join(f"{value} AS c{index}" for index, value in enumerate(held.values()))
    frame = session.sql(f"SELECT {names}")
    table = tm.Table.create(str(tmp_path / "held"), as_held(frame.toArrow().schema, "x"))
    frame.write.format("tidemark").mode("append").save(table.uri)
    (wanted,), (found,) = frame.toArrow().to_pylist(), table.refresh().scan().to_arrow().to_pylist()
    assert repr(plain(found)) == repr(plain(wanted))
    read = session.read.format("tidemark").load(table.uri).toArrow().to_pylist()
    assert repr(plain(read)) == repr(plain([wanted]))
    others = {
        "interval '1' month": pa.int32(),
        "interval '1' day": pa.int64(),
        "parse_json('{}')": pa.string(),
        f"{nines}BD": pa.decimal128(37, 0),
        "array(date '10000-01-01')": pa.list_(pa.date32()),
        "timestamp '2026-01-01 00:00:00Z'": pa.timestamp("us"),
        "time '12:00:00'": pa.int64(),
    }
    for index, (value, type_) in enumerate(others.items()):
        place = tm.Table.create(str(tmp_path / str(index)), pa.schema([("x", type_)]))
        with pytest.raises(PySparkException, match="column 'x'"):
            session.sql(f"SELECT {value} AS x").write.format("tidemark").mode("append").save(place.uri)
        assert place.refresh().scan().to_arrow().num_rows == 0, value
