"""Reading splits: the rows that were written, or a typed error; never other rows (lessons 60 and 61)."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from storage_core.errors import Corrupt, InvalidInput, SnapshotExpired, Unsupported
from storage_core.log.actions import Add
from storage_core.log.deletion_vector import inline
from storage_core.objectstore.contract import Overwrite
from storage_core.objectstore.memory import MemoryStore
from storage_core.objectstore.meter import MeteredStore
from storage_core.split.read import conform_split, open_split, read_split
from storage_core.split.write import sort_and_write
from storage_core.testkit.events import SCHEMA, context, events
from storage_core.testkit.ids import SeededIds


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
    """Pages have checksums, the footer has none: damage there must not rename, retype or lose a column."""
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
    with pytest.raises(Corrupt, match=f"the object there says that it is {other.path}"):
        read_split(store, replace(add, size=other.size), ["count"])


def test_an_object_that_is_not_parquet_is_corrupt(store: MemoryStore, add: Add) -> None:
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
        with pytest.raises(SnapshotExpired, match=f"{add.path}: the log names this split"):
            read_split(store, add, columns)


def test_a_deletion_vector_is_never_ignored(store: MemoryStore, add: Add) -> None:
    with pytest.raises(Unsupported, match="deletion vector"):
        read_split(store, replace(add, deletionVector=inline([0])))


def test_the_whole_file_costs_one_get_and_some_columns_cost_ranges(store: MemoryStore, add: Add) -> None:
    metered = MeteredStore(store)
    read_split(metered, add)
    assert metered.requests["get"] == 1
    read_split(metered, add, ["service"])
    assert metered.requests["get"] <= 4
    assert metered.requests["head"] == metered.requests["list"] == 0


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
