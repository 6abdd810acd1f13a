"""Ranged reads of single embedding pages return the right rows, or an error that contains the name of the split."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_core.base.errors import Corrupt
from storage_core.data.rows.vectors import column_of, vector_type
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add
from storage_core.maintain.recovered_splits import read_found
from storage_core.maintain.table_objects import list_table
from storage_core.split import metadata, verification
from storage_core.split.fetch import Footers
from storage_core.split.pages import RangedVectors
from storage_core.split.read import open_split
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.store.pieces import NOT_CACHED, KeptValues
from tests.support.events import context
from tests.support.ids import SeededIds

SCHEMA = pa.schema([("id", pa.int64()), ("v", vector_type(96)), ("some", vector_type(3)), ("one", vector_type(1))])
ROWS, GROUP = 2_500, 1_000


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("pages-of-vectors")


@pytest.fixture
def add(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Make a split of three row groups where the second has null vectors in the last columns."""
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", GROUP)
    chance = np.random.default_rng(1)
    some = [None if row == 1_200 else [float(row), 1.0, 2.0] for row in range(ROWS)]
    vectors = column_of(chance.random((ROWS, 96), np.float32))
    one = pa.array([None if each is None else each[:1] for each in some], vector_type(1))
    rows = pa.table([pa.array(range(ROWS)), vectors, pa.array(some, vector_type(3)), one], schema=SCHEMA)
    config = TableConfig(primary_key=("id",))
    (add,) = sort_and_write(store, rows, context=context(SCHEMA, config), ids=SeededIds(1), now_ms=1)
    return add


def taken(store: MemoryStore, add: Add, name: str, places: list[int], kept: KeptValues | None = None) -> pa.Array:
    footer, metered = Footers().of(store, add), MeteredStore(store)
    ranged = RangedVectors(metered, add, footer, kept=kept or KeptValues(), cached=NOT_CACHED)
    return ranged.take(name, SCHEMA, np.array(places, np.int64))


def test_rows_of_pages_are_those_of_the_file(store: MemoryStore, add: Add) -> None:
    whole, chance, kept = open_split(store, add).read(), np.random.default_rng(2), KeptValues()
    assert whole.num_rows == ROWS
    for count in (1, 3, 40, 400):
        places = np.unique([*chance.integers(0, ROWS, count), 0, ROWS - 1, GROUP - 1, GROUP]).tolist()
        found = taken(store, add, "v", places, kept)
        assert found.equals(whole.column("v").take(pa.array(places)).combine_chunks())
        for name in ("some", "one"):
            assert taken(store, add, name, places, kept) is None
    outside = [5, 999, 2_000]
    assert taken(store, add, "some", outside).to_pylist() == [[float(each), 1.0, 2.0] for each in outside]
    assert taken(store, add, "one", outside).to_pylist() == [[float(each)] for each in outside]
    assert taken(store, add, "id", [5]) is None


def test_of_a_page_its_bytes_are_fetched_and_once(store: MemoryStore, add: Add) -> None:
    footer, kept, metered = Footers().of(store, add), KeptValues(), MeteredStore(store)
    ranged = RangedVectors(metered, add, footer, kept=kept, cached=NOT_CACHED)
    for places in ([3, 4, 1_700], [3, 1_701], [4]):
        ranged.take("v", SCHEMA, np.array(places, np.int64))
    assert metered.requests["get"] == 2
    assert metered.bytes_read < 4 * 65_536


def test_a_flipped_bit_in_any_page_is_found(store: MemoryStore, add: Add) -> None:
    footer, data = Footers().of(store, add), bytearray(store.get(add.path).data)
    pages = verification.recorded_vector_pages(footer.entries, footer.file, add.path)
    leaf = verification.leaves(footer.file, SCHEMA)["v"]
    assert {group for own, group in pages if own == leaf} == {0, 1, 2}
    for group in range(3):
        own = pages[leaf, group]
        assert len(own.ends) > 2
        for number, (start, end) in enumerate(zip(own.starts.tolist(), own.ends.tolist(), strict=True)):
            for place in (start, start + 9, (start + end) // 2, end - 1):
                data[place] ^= 4
                store.put(add.path, bytes(data), Overwrite())
                with pytest.raises(Corrupt, match=add.path):
                    taken(store, add, "v", [group * GROUP + int(own.rows[number])])
                data[place] ^= 4


def test_what_is_said_of_pages_fits_the_file_or_is_damaged(store: MemoryStore, add: Add) -> None:
    footer = pq.read_metadata(pa.BufferReader(store.get(add.path).data))
    said = json.loads(open_split(store, add).metadata[verification.VECTOR_PAGES_KEY])
    assert [[text is None for text in groups] for groups in said.values()] == [
        [False] * 3,
        *[[False, True, False]] * 2,
    ]
    first = next(iter(said))
    for groups in (
        {first: said[first][:1] * 2 + ["AAAA"]},
        {first: [said[first][2], *said[first][1:]]},
        {first: [*said[first], said[first][0]]},
        {"99": said[first]},
        {"x": said[first]},
        {first: [7]},
        [1],
        7,
    ):
        with pytest.raises(Corrupt, match=add.path):
            verification.recorded_vector_pages({verification.VECTOR_PAGES_KEY: json.dumps(groups)}, footer, add.path)
    for text in ("", "[" * 100_000):
        with pytest.raises(Corrupt, match=add.path):
            verification.recorded_vector_pages({verification.VECTOR_PAGES_KEY: text}, footer, add.path)
    assert verification.recorded_vector_pages({}, footer, add.path) == {}


def test_a_repair_keeps_pages_as_they_are(store: MemoryStore, add: Add) -> None:
    assert read_found(store, list_table(store), add.path).add.footerXxh3 == add.footerXxh3
