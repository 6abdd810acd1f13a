"""Checksums of column chunks: written with every split, and protected by the log's checksum of the footer."""

from __future__ import annotations

import base64
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from storage_core.base.errors import Corrupt
from storage_core.data.formats import avro_state
from storage_core.data.rows.sort_order import SortOrder
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, read_actions, to_json_object, write_actions
from storage_core.log.log import TransactionLog
from storage_core.log.split_columns import adds_of, entries_of, table_of
from storage_core.maintain.recovered_splits import read_found
from storage_core.maintain.table_objects import list_table
from storage_core.split import metadata as row_groups
from storage_core.split import verification
from storage_core.split.encode import FileWriter
from storage_core.split.metadata import CHECKSUM
from storage_core.split.read import open_split
from storage_core.split.writer import sort_and_write
from storage_core.store.memory import MemoryStore
from tests.support.events import SCHEMA, context, events
from tests.support.every_kind import every_kind
from tests.support.ids import SeededIds

KEY = "tidemark.chunk_checksums"
NESTED = pa.schema([*SCHEMA, ("tags", pa.map_(pa.string(), pa.string())), ("path", pa.list_(pa.string()))])


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "ROWS_PER_GROUP", 100)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("chunks")


@pytest.fixture
def add(store: MemoryStore) -> Add:
    return written(store)


def written(store: MemoryStore) -> Add:
    """Write a split of three row groups and eight leaf columns."""
    rows = events(
        (
            {"at": 7200 + i, "service": f"s{i % 5}", "host": f"h{i}", "count": i, "tags": [("a", "b")], "path": ["c"]}
            for i in range(250)
        ),
        NESTED,
    )
    (add,) = sort_and_write(store, rows, context=context(NESTED), ids=SeededIds(1), now_ms=1)
    return add


def test_every_column_chunk_has_the_checksum_of_its_bytes(store: MemoryStore, add: Add) -> None:
    data = store.get(add.path).data
    footer = pq.read_metadata(pa.BufferReader(data))
    expected = []
    for group in range(footer.num_row_groups):
        for column in range(footer.num_columns):
            chunk = footer.row_group(group).column(column)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            expected.append(xxhash.xxh3_64_intdigest(data[start : start + chunk.total_compressed_size]))
    assert (footer.num_row_groups, footer.num_columns) == (3, 8)
    metadata = open_split(store, add).metadata
    found = verification.recorded_checksums(metadata, footer, add.path)
    assert found is not None
    assert found.shape == (3, 8)
    assert found.ravel().tolist() == expected


def test_chunks_fill_the_file_up_to_its_indexes(store: MemoryStore, add: Add) -> None:
    footer = pq.read_metadata(pa.BufferReader(store.get(add.path).data))
    places = verification.places(footer).reshape(-1, 2)
    assert places[0, 0] == 4
    assert np.array_equal(places[1:, 0], places[:-1, 1])


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_footer_is_that_of_the_writer_with_its_metadata(*, on_disk: bool) -> None:
    rows = pa.table({"a": pa.array(range(500)), "s": pa.array(["x", "y"] * 250).dictionary_encode(), "l": [[1]] * 500})
    file = FileWriter(rows.schema, SortOrder((), ""), {}, on_disk=on_disk)
    for start in (0, 200, 400):
        file.add(rows.slice(start, 200))
    data = file.finish({"tidemark.path": "p"})
    found = pq.read_metadata(pa.BufferReader(data))
    assert {"tidemark.path", CHECKSUM, KEY} == {key.decode() for key in found.metadata}
    assert found.num_rows == 500
    assert [found.row_group(each).num_rows for each in range(3)] == [200, 200, 100]
    chunk = found.row_group(2).column(0)
    assert (chunk.has_column_index, chunk.has_offset_index, chunk.statistics.min) == (True, True, 400)
    assert pq.read_table(pa.BufferReader(data), page_checksum_verification=True).to_pylist() == rows.to_pylist()


def test_the_log_has_the_checksum_of_the_footer(store: MemoryStore, add: Add) -> None:
    data = store.get(add.path).data
    assert add.footerXxh3 == xxhash.xxh3_64_hexdigest(data[add.footerStartOffset : add.footerEndOffset])


def test_the_checksum_of_the_footer_goes_through_the_log_and_its_checkpoints(add: Add) -> None:
    assert read_actions(write_actions([add]), Add, "here") == (add,)
    files = table_of([add], [(1, 2)])
    entries = avro_state.decode_entries(avro_state.encode_entries(entries_of(files)), "here")
    assert adds_of(entries) == (add,)


def test_an_entry_does_not_grow_with_the_chunks() -> None:
    rows = pa.table({f"c{number}": pa.array(np.arange(100.0)) for number in range(60)})
    store = MemoryStore("wide")
    plain = context(rows.schema, TableConfig())
    one, many = (
        sort_and_write(store, pa.concat_tables([rows] * groups), context=plain, ids=SeededIds(groups), now_ms=1)[0]
        for groups in (1, 20)
    )
    sizes = [len(json.dumps(to_json_object(each))) for each in (one, many)]
    assert sizes[1] - sizes[0] < 60 * 5  # null counts and positions have more digits in the larger split
    assert len(open_split(store, many).metadata[KEY]) == 60 * 20 * 8 * 4 / 3


def test_splits_of_every_writer_have_checksums_of_column_chunks() -> None:
    table = every_kind()
    splits = TransactionLog(table.store).snapshot().splits.values()
    assert splits
    assert {each.footerXxh3 is not None for each in splits} == {True}


def test_checksums_that_are_not_those_of_the_file_are_corrupt(store: MemoryStore, add: Add) -> None:
    split = open_split(store, add)
    footer = pq.read_metadata(pa.BufferReader(store.get(add.path).data))
    assert verification.recorded_checksums({}, footer, add.path) is None
    for text in ("", "AAAA", split.metadata[KEY][:-4], split.metadata[KEY] + "AAAA", "?" * len(split.metadata[KEY])):
        with pytest.raises(Corrupt, match=add.path):
            verification.recorded_checksums({KEY: text}, footer, add.path)


def test_a_repair_believes_no_checksums_that_do_not_fit(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as wrong:
        wrong.setattr(verification, "checksums_entry", lambda *_: {KEY: base64.b64encode(bytes(24 * 8)).decode()})
        add = written(store)
    with pytest.raises(Corrupt, match="its column chunks do not have the checksums that it records"):
        read_found(store, list_table(store), add.path)
    other = MemoryStore("sound")
    sound = written(other)
    assert read_found(other, list_table(other), sound.path).add.footerXxh3 == sound.footerXxh3
