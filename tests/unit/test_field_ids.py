"""Splits have ids of nested fields. Splits of early 0.1 releases without these ids can still be read."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_core.data.rows.columns import COLUMN_ID
from storage_core.data.rows.schema import FIELD_ID, identified, inside, lacks_ids
from storage_core.data.rows.vectors import vector_type
from storage_core.interop.publishing import without_inner_ids
from storage_core.log.actions import Add
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore

NESTED = pa.struct([("q", pa.int64()), ("r", pa.list_(pa.map_(pa.string(), vector_type(2))))])
FIRST = 2**30 + 3 * 2**12


def _ids(field: pa.Field) -> list[int]:
    return [int(field.metadata[FIELD_ID.encode()]), *(number for each in inside(field.type) for number in _ids(each))]


def _in_a_file(field: pa.Field) -> tuple[pa.Field, bytes]:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([pa.nulls(1, field.type)], schema=pa.schema([field])), sink, store_schema=False)
    data = sink.getvalue().to_pybytes()
    return pq.read_schema(pa.BufferReader(data)).field(0), data


def test_all_that_is_inside_of_a_column_has_an_id_in_the_order_of_its_type_also_in_a_file() -> None:
    field = identified(pa.field("c", NESTED), 3)
    assert field.type == NESTED
    found, _ = _in_a_file(field)
    assert _ids(found) == _ids(field) == [3, *range(FIRST, FIRST + 6)]
    assert not lacks_ids(found)


@pytest.mark.parametrize("has_ids", [False, True])
def test_a_split_of_an_earlier_release_with_ids_of_columns_alone_is_named(has_ids: bool) -> None:
    field = pa.field("c", NESTED)
    _, data = _in_a_file(identified(field, 3) if has_ids else field.with_metadata({FIELD_ID: "3"}))
    store = MemoryStore("earlier")
    store.put("splits/all/x.parquet", data, Overwrite())
    add = Add(path="splits/all/x.parquet", size=len(data), modificationTime=0)
    changed = pa.schema([field.with_metadata({COLUMN_ID: "3"})])
    found = without_inner_ids(store, [add], changed)
    assert found is None if has_ids else "x.parquet has no field ids inside of column 'c'" in str(found)
    assert without_inner_ids(store, [add], pa.schema([field])) is None, "a table that never changed has no ids at all"
