"""Schemas as Spark JSON, and the conversion of rows that enter a table (lessons 66, 68, 69)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.conform import conform
from storage_core.data.rows.schema import from_schema_string, to_schema_string

UTC = pa.timestamp("us", tz="UTC")
TYPES: list[tuple[pa.DataType, object]] = [
    (pa.bool_(), "boolean"),
    (pa.int8(), "byte"),
    (pa.int16(), "short"),
    (pa.int32(), "integer"),
    (pa.int64(), "long"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.string(), "string"),
    (pa.binary(), "binary"),
    (pa.date32(), "date"),
    (UTC, "timestamp"),
    (pa.timestamp("us"), "timestamp_ntz"),
    (pa.decimal128(10, 2), "decimal(10,2)"),
    (pa.list_(pa.int64()), {"type": "array", "elementType": "long", "containsNull": True}),
    (
        pa.map_(pa.string(), pa.list_(pa.float64())),
        {
            "type": "map",
            "keyType": "string",
            "valueType": {"type": "array", "elementType": "double", "containsNull": True},
            "valueContainsNull": True,
        },
    ),
    (
        pa.struct([("x", pa.int32())]),
        {"type": "struct", "fields": [{"name": "x", "type": "integer", "nullable": True, "metadata": {}}]},
    ),
]


@pytest.mark.parametrize(("arrow", "spark"), TYPES)
def test_a_type_goes_to_spark_and_comes_back(arrow: pa.DataType, spark: object) -> None:
    schema = pa.schema([pa.field("column", arrow, nullable=False)])
    text = to_schema_string(schema)
    assert json.loads(text) == {
        "type": "struct",
        "fields": [{"name": "column", "type": spark, "nullable": False, "metadata": {}}],
    }
    assert from_schema_string(text).equals(schema)


@pytest.mark.parametrize(
    "refused",
    [
        pa.timestamp("ns", tz="UTC"),
        pa.timestamp("us", tz="Europe/Berlin"),
        pa.timestamp("ms"),
        pa.uint32(),
        pa.large_string(),
        pa.decimal256(50, 2),
        pa.decimal128(5, -2),
        pa.time64("us"),
        pa.date64(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(pa.uint8()),
        pa.null(),
    ],
)
def test_a_type_that_tables_do_not_hold_is_refused_by_column(refused: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match="'odd"):
        to_schema_string(pa.schema([("odd", refused)]))


@pytest.mark.parametrize("names", [["a", "a"], ["Path", "path"], ["a", ""]])
def test_names_that_cannot_be_told_apart_are_refused(names: list[str]) -> None:
    with pytest.raises(InvalidInput):
        to_schema_string(pa.schema([pa.field(name, pa.int64()) for name in names]))


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"type":"array"}',
        '{"type":"struct","fields":[{"name":"a"}]}',
        '{"type":"struct","fields":[{"name":"a","type":"interval","nullable":true}]}',
        '{"type":"struct","fields":[{"name":"a","type":"decimal(39,2)","nullable":true}]}',
        '{"type":"struct","fields":[{"name":"a","type":{"type":"udt"},"nullable":true}]}',
    ],
)
def test_a_schema_string_that_is_not_ours_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        from_schema_string(text)


def test_fields_inside_nested_types_are_nullable_whatever_was_asked() -> None:
    text = to_schema_string(pa.schema([("s", pa.struct([pa.field("x", pa.int64(), nullable=False)]))]))
    assert from_schema_string(text).field("s").type.field("x").nullable


def _column(values: Sequence[object], source: pa.DataType, target: pa.DataType) -> pa.ChunkedArray:
    return conform(pa.table({"c": pa.array(values, source)}), pa.schema([("c", target)])).column("c")


EXACT: list[tuple[list[object], pa.DataType, pa.DataType]] = [
    (["a", None, ""], pa.large_string(), pa.string()),
    (["a", None, ""], pa.string_view(), pa.string()),
    ([b"a", None], pa.binary(1), pa.binary()),
    ([b"a", None], pa.large_binary(), pa.binary()),
    ([1, None, -128], pa.int8(), pa.int64()),
    ([1, None, 127], pa.int64(), pa.int8()),
    ([1, None, 2**63 - 1], pa.uint64(), pa.int64()),
    ([1, None, 2**53], pa.int64(), pa.float64()),
    ([1.5, None, -0.25], pa.float32(), pa.float64()),
    ([Decimal("1.5"), None], pa.decimal128(4, 1), pa.decimal128(10, 3)),
    ([Decimal("1.500"), None], pa.decimal256(40, 3), pa.decimal128(10, 1)),
    ([[1], None, []], pa.large_list(pa.int8()), pa.list_(pa.int64())),
    ([[("k", 1)], None], pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int64())),
    ([{"x": 1}, None], pa.struct([("x", pa.int8())]), pa.struct([("x", pa.int64())])),
    ([None, None], pa.null(), pa.string()),
]


@pytest.mark.parametrize(("values", "source", "target"), EXACT)
def test_an_exact_conversion_keeps_every_value(values: list[object], source: pa.DataType, target: pa.DataType) -> None:
    column = _column(values, source, target)
    assert column.type.equals(target)
    assert column.to_pylist() == values


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        ([128], pa.int64(), pa.int8()),
        ([2**63], pa.uint64(), pa.int64()),
        ([2**53 + 1], pa.int64(), pa.float64()),
        ([1], pa.timestamp("ns", tz="UTC"), UTC),
        ([2**62], pa.timestamp("s", tz="UTC"), UTC),
        ([Decimal("1.55")], pa.decimal128(5, 2), pa.decimal128(5, 1)),
        ([Decimal("123.4")], pa.decimal128(5, 1), pa.decimal128(3, 1)),
        ([1.5], pa.float64(), pa.float32()),
        ([1.0], pa.float64(), pa.int64()),
        (["1"], pa.string(), pa.int64()),
        ([1], pa.int64(), pa.string()),
        (["a"], pa.string(), pa.binary()),
        ([b"a"], pa.binary(), pa.string()),
        ([0], UTC, pa.timestamp("us")),
        ([0], pa.date32(), UTC),
        ([True], pa.bool_(), pa.int64()),
        ([{"x": 1}], pa.struct([("x", pa.int64())]), pa.struct([("y", pa.int64())])),
    ],
)
def test_a_conversion_that_could_change_a_value_is_refused_by_column(
    values: list[object], source: pa.DataType, target: pa.DataType
) -> None:
    with pytest.raises(InvalidInput, match="column 'c'"):
        _column(values, source, target)


def test_instants_of_another_unit_and_zone_stay_the_same_instants() -> None:
    source = pa.array([1_431_857_103, None, -1], pa.timestamp("s", tz="America/New_York"))
    column = conform(pa.table({"c": source}), pa.schema([("c", UTC)])).column("c")
    assert column.cast(pa.int64()).to_pylist() == [1_431_857_103_000_000, None, -1_000_000]


def test_dictionaries_with_nulls_duplicates_and_chunks_become_plain_values() -> None:
    first = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2]), pa.array(["x", None, "x"]))
    second = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array(["y", None, "z"]))
    rows = pa.table({"c": pa.chunked_array([first, second])})
    column = conform(rows, pa.schema([("c", pa.string())])).column("c")
    assert column.to_pylist() == ["x", None, None, "x", "y", "y"]


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        (["a", "of more than twelve bytes"], pa.string_view(), pa.string()),
        ([b"a", b"of more than twelve bytes"], pa.binary_view(), pa.binary()),
        (["a", "of more than twelve bytes"], pa.large_string(), pa.string()),
    ],
)
def test_a_dictionary_of_any_layout_of_text_becomes_plain_values(
    values: list[object], source: pa.DataType, target: pa.DataType
) -> None:
    chunk = pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1], pa.uint32()), pa.array(values, source))
    rows = pa.table({"c": pa.chunked_array([chunk, chunk.slice(0, 0), chunk.slice(1)])})
    column = conform(rows, pa.schema([("c", target)])).column("c")
    assert column.type.equals(target)
    assert column.to_pylist() == [values[1], None, values[0], values[1], None, values[0], values[1]]


def test_a_conversion_that_arrow_lacks_is_refused_with_the_column_and_both_types() -> None:
    chosen = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["a"], pa.string_view()))
    rows = pa.table({"c": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), chosen)})
    with pytest.raises(InvalidInput, match=r"column 'c'.*list<item: dictionary<.*string_view.*list<item: string>"):
        conform(rows, pa.schema([("c", pa.list_(pa.string()))]))


def test_columns_come_in_table_order_and_missing_ones_are_null() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.int64()))])
    rows = conform(pa.record_batch({"b": ["x"], "a": [1]}), schema)
    assert rows.schema.equals(schema)
    assert rows.to_pylist() == [{"a": 1, "b": "x", "c": None}]


def test_an_unknown_column_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"'typo'. The table has a$"):
        conform(pa.table({"a": [1], "typo": [1]}), pa.schema([("a", pa.int64())]))


def test_a_repeated_column_is_refused() -> None:
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(InvalidInput, match="more than once"):
        conform(rows, pa.schema([("a", pa.int64())]))


@pytest.mark.parametrize("rows", [pa.table({"a": [1, None, None], "b": [1, 1, 1]}), pa.table({"b": [1]})])
def test_a_required_column_without_a_value_names_the_first_row(rows: pa.Table) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())])
    expected = rows.num_rows // 2
    with pytest.raises(InvalidInput, match=f"'a' is required, but row {expected} has no value") as refusal:
        conform(rows, schema)
    assert refusal.value.context == {"column": "a", "row": expected}


def test_no_rows_conform_to_any_schema() -> None:
    schema = pa.schema([pa.field("a", pa.string(), nullable=False)])
    assert conform(pa.table({"a": pa.array([], pa.string())}), schema).num_rows == 0
    assert conform(schema.empty_table(), schema).schema.equals(schema)
