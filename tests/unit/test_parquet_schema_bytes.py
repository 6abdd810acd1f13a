"""Footers with the same `schema_bytes` have the same columns. The result is None for bytes without a footer."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage_core.data.formats.parquet_footer import schema_bytes

NESTED = pa.struct([("x", pa.list_(pa.int32())), ("y", pa.map_(pa.string(), pa.float64()))])
TYPES = st.sampled_from([pa.int32(), pa.int64(), pa.string(), pa.timestamp("us"), pa.timestamp("us", "UTC"), NESTED])
FIELDS = st.builds(pa.field, st.sampled_from([*"abcdefghijklmnopqrstuvwxyz"]), TYPES, nullable=st.booleans())
SCHEMAS = st.lists(FIELDS, min_size=1, max_size=20, unique_by=lambda each: each.name).map(pa.schema)


def footer(schema: pa.Schema, rows: int = 0) -> bytes:
    target = io.BytesIO()
    values = [pa.nulls(rows, field.type) for field in schema]
    pq.write_table(pa.table(values, schema.names).cast(schema) if rows else schema.empty_table(), target)
    data = target.getvalue()
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


@given(schema=SCHEMAS, other=SCHEMAS)
@example(schema=pa.schema([("a", pa.int64())]), other=pa.schema([("a", pa.int64()), ("b", pa.int64())]))
@example(schema=pa.schema([("a", pa.int64())]), other=pa.schema([pa.field("a", pa.int64(), nullable=False)]))
def test_footers_begin_alike_where_and_only_where_their_schemas_are_the_same(
    schema: pa.Schema, other: pa.Schema
) -> None:
    start = schema_bytes(footer(schema))
    assert start is not None
    assert footer(other).startswith(start) == schema.equals(other)


def test_the_rows_of_a_file_are_no_part_of_it() -> None:
    schema = pa.schema([(f"c{each}", pa.string()) for each in range(60)])
    start = schema_bytes(footer(schema, rows=3))
    assert start is not None
    assert footer(schema).startswith(start)
    assert not footer(schema).startswith(footer(schema, rows=3))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"PAR1", b"\x15\x04\x19", b"\x15\x04\x19\xfc\xff\xff\xff\xff\x0f", b"\x1c" * 100, b"\xff" * 100],
    ids=["nothing", "an empty struct", "a magic number", "cut", "a list without end", "too deep", "of no kind"],
)
def test_what_is_no_footer_has_no_beginning(data: bytes) -> None:
    assert schema_bytes(data) is None


@given(data=st.binary(max_size=200), at=st.integers(0, 200))
def test_bytes_that_nobody_vouches_for_end_nothing(data: bytes, at: int) -> None:
    sound = footer(pa.schema([("a", NESTED)]))
    schema_bytes(data)
    schema_bytes(sound[:at] + data)
