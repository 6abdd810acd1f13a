"""Ranges of a split: the same rows as from the whole split, with few requests and few surplus bytes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.base.errors import Corrupt, SnapshotExpired
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add
from storage_core.log.deletion_vector import inline
from storage_core.split import fetch, metadata
from storage_core.split.fetch import Footers
from storage_core.split.read import open_split, read_split
from storage_core.split.writer import sort_and_write
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.events import context
from tests.support.ids import SeededIds

ROWS = 1_000
COLUMNS = pa.table(
    {
        "a": pa.array(range(ROWS)),
        "a.b": pa.array(np.random.default_rng(1).random(ROWS)),
        "text": pa.array([None if each % 7 == 0 else f"text {each % 11}" for each in range(ROWS)]),
        "tags": pa.array([[("k", str(each))] * (each % 3) for each in range(ROWS)], pa.map_(pa.string(), pa.string())),
        "path": pa.array([[str(each)] * (each % 4) for each in range(ROWS)]),
        "inner": pa.array([{"x": each, "y": [each]} for each in range(ROWS)]),
    }
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 300)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 0)


@pytest.fixture
def store() -> MeteredStore:
    return MeteredStore(MemoryStore("ranges"))


def written(store: MeteredStore, rows: pa.Table = COLUMNS, seed: int = 1) -> Add:
    plain = context(rows.schema, TableConfig())
    (add,) = sort_and_write(store, rows, context=plain, ids=SeededIds(seed), now_ms=1)
    return add


@pytest.mark.parametrize(
    "columns", [None, ["a"], ["a.b"], ["tags"], ["inner", "text"], ["path", "a"], COLUMNS.column_names], ids=str
)
def test_the_rows_are_those_of_the_whole_split(store: MeteredStore, columns: list[str] | None) -> None:
    add = replace(written(store), deletionVector=inline([0, 299, 300, 777]))
    whole = open_split(store, add, whole=True)
    split = open_split(store, add, whole=False)
    expected = whole.read(columns)
    assert split.read(columns).equals(expected)
    assert pa.concat_tables(split.batches(columns, groups=[1, 3])).equals(
        pa.concat_tables(whole.batches(columns, groups=[1, 3]))
    )
    assert pa.concat_tables(piece.read() for piece in split.pieces(columns)).equals(expected)
    assert pa.concat_tables(piece.read() for piece in whole.pieces(columns)).equals(expected)
    assert len(whole.pieces(columns)) == len(split.pieces(columns)) == whole.row_groups > 1
    assert split.take(np.array([5, 299, 900])).equals(whole.take(np.array([5, 299, 900])))
    found = list(split.since(290, 100))
    assert np.concatenate([places for places, _ in found]).tolist() == [
        place for place in range(290, ROWS) if place not in (299, 300, 777)
    ]
    assert pa.concat_tables(rows for _, rows in found).column("a").to_pylist() == [
        each for each in range(290, ROWS) if each not in (299, 300, 777)
    ]
    coded = open_split(store, add, whole=False, as_dictionary=True)
    assert coded.dictionaries() == {"text"}
    assert coded.read(["text"]).column("text").to_pylist() == whole.read(["text"]).column("text").to_pylist()


def test_a_split_without_the_columns_has_as_many_rows(store: MeteredStore) -> None:
    for split in (open_split(store, written(store), whole=whole) for whole in (True, False)):
        assert sum(piece.read().num_rows for piece in split.pieces(["later"])) == ROWS
        assert split.pieces(["later"], []) == []


def test_a_row_group_is_one_request_where_its_columns_lie_together(store: MeteredStore) -> None:
    add = written(store)
    split = open_split(store, add, whole=False)
    assert store.requests["get"] == 1
    split.read()
    assert store.requests["get"] == 1 + split.row_groups
    split.read(["a", "path"])
    assert store.requests["get"] == 1 + 3 * split.row_groups


def test_footers_are_read_once_as_long_as_they_are_held(store: MeteredStore, monkeypatch: pytest.MonkeyPatch) -> None:
    adds = [written(store, seed=seed) for seed in (1, 2, 3)]
    footers = Footers()
    for add in [*adds, *adds]:
        open_split(store, add, whole=False, footers=footers)
    assert store.requests["get"] == 3
    size = footers.of(store, adds[0]).file.serialized_size
    monkeypatch.setattr(fetch, "_FOOTERS_BYTES", 2 * size + 100)
    footers = Footers()
    for add in (*adds, adds[1], adds[2], adds[0], adds[2], adds[1]):
        footers.of(store, add)
    assert store.requests["get"] == 3 + 3 + 2


def test_what_the_log_says_of_a_footer_must_hold(store: MeteredStore) -> None:
    add = written(store)
    start = add.footerStartOffset or 0
    for wrong in (
        replace(add, footerXxh3="0" * 16),
        replace(add, footerStartOffset=start - 1),
        replace(add, footerStartOffset=None),
        replace(add, footerEndOffset=add.size + 1),
    ):
        with pytest.raises(Corrupt, match=add.path):
            open_split(store, wrong, whole=False)
    split = open_split(store, add, whole=False)
    store.delete([add.path])
    with pytest.raises(SnapshotExpired, match=add.path):
        split.read(["a"])
    with pytest.raises(SnapshotExpired, match=add.path):
        open_split(store, add, whole=False)


def test_a_split_of_an_earlier_release_is_read_as_before(store: MeteredStore) -> None:
    add = replace(written(store), footerXxh3=None)
    for whole in (True, False):
        assert open_split(store, add, whole=whole).read().equals(COLUMNS)
    assert read_split(store, add, ["a"]).column("a").to_pylist() == COLUMNS.column("a").to_pylist()


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 500)), min_size=1, max_size=30))
def test_requests_hold_every_chunk_and_little_else(chunks: list[tuple[int, int]]) -> None:
    places, end = [], 4
    for gap, size in chunks:
        places.append((end + gap, end + gap + size))
        end += gap + size
    wanted = sum(size for _, size in chunks)
    found = fetch.requests_for(np.array(places))
    assert all(any(start <= first and last <= stop for start, stop in found) for first, last in places)
    assert sum(stop - start for start, stop in found) * 10 <= wanted * 11
    assert found == sorted(found)
    assert all(one[1] < other[0] for one, other in pairwise(found))
    if not any(gap for gap, _ in chunks[1:]):
        assert len(found) == 1


def test_large_chunks_are_not_put_together() -> None:
    size = fetch.REQUEST_BYTES
    places = np.array([(each * size // 2, (each + 1) * size // 2) for each in range(4)])
    assert fetch.requests_for(places) == [(0, size), (size, 2 * size)]
    assert fetch.requests_for(places[:0]) == []
