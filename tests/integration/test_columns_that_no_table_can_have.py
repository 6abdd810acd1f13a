"""Columns that cannot be written or read are refused before the table is created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemark as tm
from storage_core.base.errors import InvalidInput


def _nested(levels: int) -> pa.DataType:
    type_ = pa.int64()
    for _ in range(levels):
        type_ = pa.list_(type_)
    return type_


TWICE = pa.struct([("a", pa.int64()), ("A", pa.int64())])
TYPES = {
    "differ at most in case": TWICE,
    "'a' and 'A' of 'c.element' differ": pa.list_(TWICE),
    "'a' and 'A' of 'c.value' differ": pa.map_(pa.string(), TWICE),
    "'ß' and 'SS' of 'c.x' differ": pa.struct([("x", pa.struct([("ß", pa.int64()), ("SS", pa.int64())]))]),
    "the struct 'c' has no fields": pa.struct([]),
    "the struct 'c.element' has no fields": pa.list_(pa.struct([])),
    "cannot name a field of 'c'": pa.struct([("x\x1b[0m", pa.int64())]),
    "'' cannot name a field of 'c'": pa.struct([("", pa.int64())]),
    "is not valid UTF-8": pa.struct([pa.field(b"\xff", pa.int64())]),
    "nests deeper than 64 types": _nested(3000),
    "has the type null": pa.list_(pa.null()),
}


@pytest.mark.parametrize("fault", TYPES)
def test_a_column_that_could_not_be_written_or_read_is_refused_when_it_is_made(fault: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=fault):
        tm.Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64()), ("c", TYPES[fault])]))
    table = tm.Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64())]))
    with pytest.raises(InvalidInput, match=fault.removesuffix("t 64 types")):
        table.add_column("c", TYPES[fault])
    assert table.refresh().version == 0


@pytest.mark.parametrize("fault", ["differ at most in case", "'a' and 'A' of 'c.element' differ"])
def test_an_import_refuses_such_columns_by_the_file_that_has_them(fault: str, tmp_path: Path) -> None:
    rows = pa.table({"c": pa.nulls(1, TYPES[fault])})
    (tmp_path / "lake").mkdir()
    pq.write_table(rows, tmp_path / "lake" / "a.parquet")
    with pytest.raises(InvalidInput, match=rf"a\.parquet: .*{fault}"):
        tm.Table.import_from(str(tmp_path / "t"), str(tmp_path / "lake"))
    with pytest.raises(InvalidInput, match=f"the rows of 'rows': .*{fault}"):
        tm.Table.import_from(str(tmp_path / "u"), rows, name="rows")
    assert not (tmp_path / "u").exists()


@pytest.mark.parametrize(
    ("field", "fault"),
    [
        (pa.field("c", pa.null()).with_nullable(nullable=False), "type null|has no type"),
        (pa.field(b"\xff", pa.int64()), "not valid UTF-8"),
    ],
    ids=["a null type that is required", "a name that is not UTF-8"],
)
def test_odd_fields_are_a_typed_refusal_at_create_and_import(field: pa.Field, fault: str, tmp_path: Path) -> None:
    schema = pa.schema([field])
    with pytest.raises(InvalidInput, match=fault):
        tm.Table.create(str(tmp_path / "t"), schema)
    with pytest.raises(InvalidInput, match=fault):
        tm.Table.import_from(str(tmp_path / "t"), pa.table([pa.nulls(1, field.type)], schema=schema), name="rows")


def test_rows_with_a_name_that_is_not_utf8_are_refused(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64())]))
    for name in (b"\xff", b"id\xff"):
        with pytest.raises(InvalidInput, match="the name of a column or field is not valid UTF-8"):
            table.append(pa.table([pa.array([1])], schema=pa.schema([(name, pa.int64())])))


@pytest.mark.parametrize("value", ["map{}", "[map{}]", "{'a': map{}}", "map{'a': map{}}", "map{'a': [map{}]}"])
def test_maps_whose_keys_have_no_type_are_refused(value: str, tmp_path: Path) -> None:
    given = duckdb.connect().sql(f"select 1 id, {value} m")
    for rows in (given, given.to_arrow_table()):
        with pytest.raises(InvalidInput, match=r"column 'm' contains a map with untyped keys\. Cast"):
            tm.Table.import_from(str(tmp_path / "t"), rows, name="q")


@pytest.mark.parametrize("value", ["map{'a': map{}}", "map{'a': [map{}]}"])
def test_maps_of_maps_whose_keys_have_no_type_are_refused_by_append(value: str, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int32()), ("m", pa.map_(pa.string(), pa.map_(pa.string(), pa.string())))])
    table = tm.Table.create(str(tmp_path / "t"), schema)
    with pytest.raises(InvalidInput, match=r"column 'm' contains a map of maps with untyped keys\. Cast"):
        table.append(duckdb.sql(f"select 1 id, {value} m"))


@pytest.mark.parametrize("logical", ["interval '1 month'", "[interval '1 month']"])
def test_a_file_with_a_type_that_no_table_has_is_not_damaged(logical: str, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    duckdb.sql(f"copy (select 1 id, {logical} i) to '{tmp_path}/lake/a.parquet'")
    with pytest.raises(InvalidInput, match=r"a\.parquet: column .* has the logical type INTERVAL"):
        tm.Table.import_from(str(tmp_path / "t"), str(tmp_path / "lake"))


@pytest.mark.parametrize("options", [{}, {"window": "15m"}, {"primary_key": "x"}, {"sort_schema": "x"}])
def test_an_empty_name_of_the_time_column_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="time_column: unknown column ''"):
        tm.Table.create(str(tmp_path / "t"), pa.schema([("x", pa.int64())]), time_column="", **options)
    with pytest.raises(InvalidInput, match="time_column: unknown column ''"):
        tm.Table.import_from(str(tmp_path / "t"), pa.table({"x": [1]}), name="q", time_column="", **options)
