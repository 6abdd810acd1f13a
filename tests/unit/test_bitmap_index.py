"""Bitmap segments: equality and IN over typed values, nulls excluded (docs/architecture/indexes.md)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt, InvalidInput, Unavailable
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import bitmap
from storage_core.read.bitmap import rows_that_meet
from storage_core.read.search.search_request import parse_bitmap_query
from tests.support.limits import address_space, limited

SCHEMA = pa.schema([
    ("status", pa.int32()),
    ("method", pa.string()),
    ("cached", pa.bool_()),
    ("day", pa.date32()),
    ("time", pa.timestamp("us", "UTC")),
    ("price", pa.decimal128(7, 2)),
    ("ratio", pa.float64()),
])  # fmt: skip
NOON = dt.datetime(2015, 5, 17, 12, tzinfo=dt.UTC)
ROWS = pa.Table.from_pylist(
    [
        {"status": 200, "method": "GET", "cached": True, "day": NOON.date(), "time": NOON, "price": Decimal("1.50")},
        {"status": 404, "method": "GET", "cached": None, "day": None, "time": None, "price": None},
        {"status": None, "method": "a,b", "cached": False, "day": dt.date(1969, 12, 31), "time": NOON, "price": None},
        {"status": 500, "method": None, "cached": True, "day": NOON.date(), "time": None, "price": Decimal("-3.00")},
        {"status": 404, "method": "", "cached": True, "day": None, "time": None, "price": Decimal("1.50")},
    ],
    schema=SCHEMA,
)


def index(*columns: str) -> IndexDefinition:
    return IndexDefinition("b", "bitmap", columns)


def found(tmp_path: Path, query: object, *columns: str) -> list[int]:
    definition = index(*columns)
    for name, data in bitmap.build(ROWS, definition).items():
        (tmp_path / name).write_bytes(data)
    condition = parse_bitmap_query(query, definition, SCHEMA)
    unpacked = {each: bitmap.unpacked_bitmaps(tmp_path, definition, each) for each in columns}
    return list(rows_that_meet(condition, unpacked, lambda: ROWS.num_rows))


@pytest.mark.parametrize(
    ("column", "query", "rows"),
    [
        ("status", "404", [1, 4]),
        ("status", 404, [1, 4]),
        ("status", "404,500", [1, 3, 4]),
        ("status", " 404 , 500 ", [1, 3, 4]),
        ("status", [404, 200, 404], [0, 1, 4]),
        ("status", "[404, 500]", [1, 3, 4]),
        ("status", '{"status": 404}', [1, 4]),
        ("status", {"status": [500]}, [3]),
        ("status", "-1", []),
        ("method", "GET", [0, 1]),
        ("method", "a,b", []),
        ("method", '["a,b", ""]', [2, 4]),
        ("method", ["a,b"], [2]),
        ("cached", "true", [0, 3, 4]),
        ("cached", False, [2]),
        ("day", "2015-05-17", [0, 3]),
        ("day", dt.date(1969, 12, 31), [2]),
        ("time", "2015-05-17T12:00:00Z", [0, 2]),
        ("time", NOON, [0, 2]),
        ("price", "1.5", [0, 4]),
        ("price", "[1.50, -3]", [0, 3, 4]),
        ("price", Decimal(-3), [3]),
    ],
)
def test_a_query_finds_the_rows_with_the_value_and_never_a_null(
    tmp_path: Path, column: str, query: object, rows: list[int]
) -> None:
    assert found(tmp_path, query, column) == rows


def test_conditions_on_several_columns_must_all_hold(tmp_path: Path) -> None:
    columns = ("status", "method")
    assert found(tmp_path, {"status": [404, 200], "method": "GET"}, *columns) == [0, 1]
    assert found(tmp_path, '{"method": ["GET", ""], "status": 404}', *columns) == [1, 4]
    assert found(tmp_path, {"method": "GET"}, *columns) == [0, 1]


def test_a_column_of_nulls_only_matches_nothing(tmp_path: Path) -> None:
    definition = index("status")
    rows = pa.table({"status": pa.nulls(3, pa.int32())})
    for name, data in bitmap.build(rows, definition).items():
        (tmp_path / name).write_bytes(data)
    unpacked = {"status": bitmap.unpacked_bitmaps(tmp_path, definition, "status")}
    asked = {"404": [], '{"status": {"is null": true}}': [0, 1, 2], '{"status": {"<>": 404}}': []}
    for query, rows_found in asked.items():
        assert list(rows_that_meet(parse_bitmap_query(query, definition, SCHEMA), unpacked, lambda: 3)) == rows_found


def test_the_same_rows_in_other_chunks_give_the_same_files() -> None:
    chunked = pa.concat_tables([ROWS.slice(0, 2), ROWS.slice(2, 0), ROWS.slice(2)])
    assert bitmap.build(chunked, index("status", "method")) == bitmap.build(ROWS, index("status", "method"))


@pytest.mark.parametrize(
    ("columns", "query", "reason"),
    [
        (("status",), "abc", "'abc' does not fit 'status', which has the type int32"),
        (("status",), "", "does not fit"),
        (("status",), "404,,500", "does not fit"),
        (("status",), "404.5", "does not fit"),
        (("status",), [404.5], "does not fit"),
        (("status",), True, "does not fit"),
        (("status",), "[404", "is not JSON"),
        (("status",), [], "the list of values for 'status' is empty"),
        (("status",), [None], "null is not a value"),
        (("status",), None, "null is not a value"),
        (("status",), {}, "names no column"),
        (("status",), {"method": "GET"}, "'method' is not one of status"),
        (("status",), b"404", "does not fit"),
        (("status", "method"), "404", "has several columns"),
        (("method",), 404, "Put the value in quotes"),
        (("time",), "2015-05-17T12:00:00", "zone offset"),
        (("price",), "1.505", "does not fit"),
    ],
)
def test_a_query_that_does_not_read_is_refused_with_the_reason(
    columns: tuple[str, ...], query: object, reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parse_bitmap_query(query, index(*columns), SCHEMA)


def test_a_float_column_and_an_option_are_refused() -> None:
    with pytest.raises(InvalidInput, match="'ratio' is double"):
        bitmap.validate(index("ratio"), SCHEMA)
    with pytest.raises(InvalidInput, match="unknown option 'x'"):
        bitmap.validate(IndexDefinition("b", "bitmap", ("status",), {"x": "1"}), SCHEMA)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_values_are_corrupt_before_they_are_expanded(tmp_path: Path, compression: str) -> None:
    definition = IndexDefinition("one", "bitmap", ("text",))
    rows = pa.table({"text": ["x" * 50_000_000, "y"]})
    files = bitmap.build(rows, definition)
    bitmap.check(files, definition, where="here")
    sink = pa.BufferOutputStream()
    table = pa.ipc.open_file(files["values-0.arrow"]).read_all()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    bomb = {**files, "values-0.arrow": sink.getvalue().to_pybytes()}
    for name, data in bomb.items():
        (tmp_path / name).write_bytes(data)
    before = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(Corrupt, match="plain record batches"):
        bitmap.check(bomb, definition, where="here")
    with pytest.raises(Corrupt, match="plain record batches"):
        bitmap.unpacked_bitmaps(tmp_path, definition, "text")
    assert pa.default_memory_pool().bytes_allocated() <= before


@pytest.mark.parametrize(
    "value", [10**5000, "\ud800", "[" * 100_000, "9" * 100_000], ids=["number", "surrogate", "brackets", "digits"]
)
def test_a_value_that_no_text_or_number_can_hold_is_refused_briefly(value: object) -> None:
    definition = IndexDefinition("one", "bitmap", ("status",))
    with pytest.raises(InvalidInput) as raised:
        parse_bitmap_query(value, definition, SCHEMA)
    assert len(str(raised.value)) < 2_000


def test_a_value_for_which_memory_is_lacking_is_unavailable() -> None:
    value = "x" * 2**28
    with limited(*address_space(2**27)), pytest.raises(Unavailable, match="Cannot allocate memory"):
        parse_bitmap_query([value], index("method"), SCHEMA)
