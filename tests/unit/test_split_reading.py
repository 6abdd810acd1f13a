"""A read of a split returns the rows that were written, or raises a typed error (lessons 60 and 61)."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

from storage_core.base.errors import Corrupt, InvalidInput, SnapshotExpired
from storage_core.data.formats.keys import parse
from storage_core.log.actions import Add
from storage_core.log.deletion_vector import inline
from storage_core.split.deletion_vectors import INLINE_BYTES, deleted_rows, vector_for
from storage_core.split.read import conform_split, open_split, read_split
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.events import SCHEMA, context, events
from tests.support.ids import SeededIds


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("reading")


@pytest.fixture
def add(store: MemoryStore) -> Add:
    return _write(store, seed=1, first=0)


def _write(store: MemoryStore, *, seed: int, first: int) -> Add:
    rows = events(
        {"at": 7200 + i % 60, "service": f"s{i % 5}", "host": f"h{i}", "count": first + i, "value": i / 7}
        for i in range(3000)
    )
    (written,) = sort_and_write(store, rows, context=context(), ids=SeededIds(seed), now_ms=1)
    return written


def _damage(store: MemoryStore, add: Add, position: int) -> None:
    data = bytearray(store.get(add.path).data)
    data[position] ^= 0x10
    store.put(add.path, bytes(data), Overwrite())


def test_a_truncated_file_is_corrupt(store: MemoryStore, add: Add) -> None:
    store.put(add.path, store.get(add.path).data[:-100], Overwrite())
    for columns in (None, ["count"]):
        with pytest.raises(Corrupt, match=add.path):
            read_split(store, add, columns)


def test_a_file_with_bytes_after_its_end_is_corrupt(store: MemoryStore, add: Add) -> None:
    store.put(add.path, store.get(add.path).data + b"more", Overwrite())
    with pytest.raises(Corrupt, match=f"expected {add.size} bytes, found {add.size + 4}"):
        read_split(store, add)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.35, 0.5, 0.75, 0.9, 0.99])
def test_a_flipped_bit_anywhere_is_corrupt(store: MemoryStore, add: Add, fraction: float) -> None:
    _damage(store, add, int(add.size * fraction))
    with pytest.raises(Corrupt, match="expected xxh3-64"):
        read_split(store, add)
    with pytest.raises(Corrupt, match="expected xxh3-64"):
        read_split(store, add, ["count"], verify=True)


def test_a_flipped_bit_in_the_data_is_corrupt_when_only_some_columns_are_read(store: MemoryStore, add: Add) -> None:
    add = replace(add, footerXxh3=None)
    assert add.footerStartOffset is not None
    original = store.get(add.path).data
    expected = read_split(store, add)
    refused = 0
    for position in range(5, add.footerStartOffset, 97):
        _damage(store, add, position)
        for name in SCHEMA.names:
            try:
                found = read_split(store, add, [name])
            except Corrupt:
                refused += 1
            else:
                assert found.column(name).equals(expected.column(name))
        store.put(add.path, original, Overwrite())
    assert refused > 100


def test_a_flipped_bit_in_the_footer_never_changes_rows_when_only_some_columns_are_read(
    store: MemoryStore, add: Add
) -> None:
    """Early 0.1 has checksums of pages only. A damaged footer must not rename, retype or lose a column."""
    add = replace(add, footerXxh3=None)
    assert add.footerStartOffset is not None
    original = store.get(add.path).data
    names = ["count", "host", "service", "at"]
    expected = read_split(store, add, names)
    refused = 0
    for position in range(add.footerStartOffset, add.size):
        _damage(store, add, position)
        try:
            found = read_split(store, add, names)
        except Corrupt:
            refused += 1
        else:
            assert found.equals(expected), position
        store.put(add.path, original, Overwrite())
    assert refused > 100


def test_another_split_of_the_same_shape_in_its_place_is_corrupt(store: MemoryStore, add: Add) -> None:
    other = _write(store, seed=2, first=0)
    data = store.get(other.path).data
    store.put(add.path, data, Overwrite())
    with pytest.raises(Corrupt, match="expected"):
        read_split(store, add)
    with pytest.raises(Corrupt, match=f"the object is a copy of {other.path}"):
        read_split(store, replace(add, size=other.size, footerXxh3=None), ["count"])


def test_an_object_that_is_not_parquet_is_corrupt(store: MemoryStore, add: Add) -> None:
    add = replace(add, footerXxh3=None)
    store.put(add.path, b"x" * add.size, Overwrite())
    with pytest.raises(Corrupt, match="not a readable Parquet file"):
        read_split(store, add, ["count"])
    with pytest.raises(Corrupt, match="not a readable Parquet file"):
        open_split(store, add, whole=False)


def test_a_row_count_that_the_log_does_not_know_is_corrupt(store: MemoryStore, add: Add) -> None:
    with pytest.raises(Corrupt, match="expected 2999 rows, the file has 3000"):
        read_split(store, replace(add, numRecords=2999))


def test_a_vanished_split_is_an_expired_snapshot_that_names_its_key(store: MemoryStore, add: Add) -> None:
    store.delete([add.path])
    for columns in (None, ["count"]):
        with pytest.raises(SnapshotExpired, match=f"{add.path}: the log contains this split"):
            read_split(store, add, columns)


MISSING = [0, 1, 5, 1023, 1024, 1025, 2047, 2998, 2999]


@pytest.mark.parametrize("columns", [None, ["count"]])
def test_rows_that_a_vector_hides_are_left_out_wherever_they_are(
    store: MemoryStore, add: Add, columns: list[str] | None
) -> None:
    marked = replace(add, deletionVector=inline(MISSING))
    whole = read_split(store, add, columns)
    expected = whole.filter(pa.array([place not in MISSING for place in range(3000)]))
    assert read_split(store, marked, columns).equals(expected)
    split = open_split(store, marked, whole=columns is None)
    assert pa.concat_tables(list(split.batches(columns))).equals(expected)
    assert split.rows == 3000 - len(MISSING)
    assert read_split(store, marked.as_written, columns).equals(whole)


def test_row_groups_count_rows_from_the_start_of_the_file(store: MemoryStore) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": pa.array(range(100))}), sink, row_group_size=7)
    data = bytes(sink.getvalue())
    store.put("splits/all/grouped.parquet", data, Overwrite())
    deleted = [0, 6, 7, 13, 50, 98, 99]
    add = Add(path="splits/all/grouped.parquet", size=len(data), modificationTime=1, deletionVector=inline(deleted))
    for whole in (True, False):
        split = open_split(store, add, whole=whole)
        parts = list(split.batches())
        assert [n for part in parts for n in part.column("n").to_pylist()] == [
            n for n in range(100) if n not in deleted
        ]
        assert len(parts) == 15
        assert split.take(np.array([0, 6, 7, 55, 99])).column("n").to_pylist() == [0, 6, 7, 55, 99]
        assert split.take(np.array([], np.int64)).num_rows == 0


def test_a_vector_of_every_row_leaves_none(store: MemoryStore, add: Add) -> None:
    marked = replace(add, deletionVector=inline(range(3000)))
    assert (read_split(store, marked).num_rows, marked.visible_rows) == (0, 0)
    assert read_split(store, marked).schema.equals(read_split(store, add).schema)


def test_a_vector_that_names_a_row_beyond_the_last_is_corrupt(store: MemoryStore, add: Add) -> None:
    for numbered in (add, replace(add, numRecords=None)):
        with pytest.raises(Corrupt, match="contains row 3000, but the split has 3000 rows"):
            read_split(store, replace(numbered, deletionVector=inline([3000])))


def test_a_short_vector_is_inline_and_a_long_one_is_an_object(store: MemoryStore, add: Add) -> None:
    ids = SeededIds(9)
    for rows in (BitMap([1, 2, 3]), BitMap(range(0, 3000, 2))):
        vector = vector_for(store, add, rows, ids=ids)
        assert (vector.path is None) == (vector.size <= INLINE_BYTES)
        assert vector.size < 1024 or parse(str(vector.path)) is not None
        assert deleted_rows(store, replace(add, deletionVector=vector)) == rows
    scattered = BitMap([place * place % 60_000 for place in range(2_000)])
    vector = vector_for(store, replace(add, numRecords=60_000), scattered, ids=ids)
    assert vector.size > INLINE_BYTES
    assert vector.path is not None
    assert vector.path.startswith(add.path.rpartition("/")[0])
    with pytest.raises(InvalidInput, match="not the key of a split"):
        vector_for(store, replace(add, path="part-0001.parquet"), scattered, ids=ids)


def test_the_whole_file_costs_one_get_and_so_does_a_small_one_unless_it_is_of_an_earlier_release(
    store: MemoryStore, add: Add
) -> None:
    metered = MeteredStore(store)
    read_split(metered, add)
    assert metered.requests["get"] == 1
    read_split(metered, add, ["service"])
    assert metered.requests["get"] == 2
    read_split(metered, replace(add, footerXxh3=None), ["service"])
    assert metered.requests["get"] <= 5
    assert metered.requests["head"] == metered.requests["list"] == 0


def test_a_split_that_threads_read_holds_no_python_object(add: Add, store: MemoryStore) -> None:
    # If an Arrow thread releases a Python object after the interpreter has ended, the process aborts.
    data = store.get(add.path).data
    before = sys.getrefcount(data)
    split = open_split(store, add, whole=True)
    assert split.read(["count"]).num_rows == 3000
    assert sys.getrefcount(data) == before


def test_columns_come_in_file_order_and_absent_ones_are_left_out(store: MemoryStore, add: Add) -> None:
    assert read_split(store, add, ["value", "nowhere", "service"]).column_names == ["service", "value"]


def test_strings_come_as_dictionaries_on_request(store: MemoryStore, add: Add) -> None:
    coded = read_split(store, add, ["service", "count"], as_dictionary=True)
    assert pa.types.is_dictionary(coded.schema.field("service").type)
    assert coded.schema.field("count").type == pa.int64()
    assert coded.column("service").to_pylist() == read_split(store, add).column("service").to_pylist()


def test_batches_are_the_same_rows(store: MemoryStore, add: Add) -> None:
    split = open_split(store, add)
    assert pa.concat_tables(split.batches()).equals(split.read())


def test_a_conformed_split_has_the_columns_of_the_table() -> None:
    table = pa.table({"b": pa.array(["x", None]).dictionary_encode(), "gone": [1, 2]})
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert conform_split(table, schema).to_pylist() == [{"a": None, "b": "x"}, {"a": None, "b": None}]


def test_a_conformed_split_does_not_change_types() -> None:
    with pytest.raises(InvalidInput, match="column 'a' is string in the split and int64 in the table"):
        conform_split(pa.table({"a": ["1"]}), pa.schema([("a", pa.int64())]))
