"""The newest record of a key, from a memtable and from a generation, without a full scan."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from storage_core.base.errors import Corrupt
from storage_core.data.formats import key_hashes as key_index
from storage_core.data.formats import keys
from storage_core.data.formats.key_hashes import key_hashes
from storage_core.data.formats.region_manifest import INDEX_FILE, MANIFEST_FILE, Generation
from storage_core.data.rows.fold import record_schema
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.write.region import captured_regions, generation
from storage_core.write.region.manifest import read_latest
from storage_core.write.region.records import KeyRuns, Memtable, RecordBuilder
from tests.support.keyed_table import PLANES, KeyedTable

BUILDER = RecordBuilder(PLANES, ("tailnum",))
NAMES = st.sampled_from(["a", "b", "é", "", "zz", "\U0001f600"])
BATCHES = st.lists(st.lists(st.tuples(NAMES, st.integers(0, 9)), min_size=1, max_size=5), max_size=9)


def wanted(*names: str) -> pa.Table:
    return pa.Table.from_arrays([pa.array(names, pa.string())], ["tailnum"])


def pairs(records: pa.Table) -> list[tuple[object, object]]:
    return list(zip(records.column("tailnum").to_pylist(), records.column("seats").to_pylist(), strict=True))


@given(BATCHES, st.lists(NAMES, min_size=1, max_size=3), st.integers(0, 9))
def test_a_memtable_finds_all_records_of_its_keys_in_order(
    batches: list[list[tuple[str, int]]], names: list[str], looked_at: int
) -> None:
    memtable = Memtable(record_schema(PLANES), ("tailnum",))
    for number, batch in enumerate(batches):
        memtable.add(number + 1, BUILDER.puts([{"tailnum": name, "seats": seats} for name, seats in batch]))
        if number == looked_at:
            memtable.find(wanted("a"))
    arrived = [pair for batch in batches for pair in batch]
    assert pairs(memtable.find(wanted(*names))) == [pair for pair in arrived if pair[0] in names]
    newest = dict(arrived)
    assert dict(pairs(memtable.get(wanted(*names)))) == {name: newest[name] for name in names if name in newest}


def test_lookups_among_many_entries_search_few_runs() -> None:
    runs = KeyRuns()
    for number in range(1000):
        runs.add(wanted(f"N{number}"), ["tailnum"])
    assert len(runs._runs) <= 10
    assert runs.find(wanted("N7", "N999", "nobody", "N7"), ["tailnum"]).tolist() == [7, 999]


def flushed(table: KeyedTable, *, entries: int = 5, rows: int = 20) -> Generation:
    """Flush `entries` entries as a generation. Key `N<i>` is in entry i % entries, and key `all` is in all entries."""
    with table.writer() as writer:
        for entry in range(entries):
            names = [f"N{number}" for number in range(entry, rows, entries)]
            writer.put([{"tailnum": name, "seats": entry} for name in [*names, "all"]])
        writer.flush()
    manifest = read_latest(table.store, writer.region_id)
    assert manifest is not None
    return generation.read(table.store, writer.region_id, manifest.flushed_generations[-1])


def found(table: KeyedTable, held: Generation, *names: str) -> list[tuple[object, object]]:
    return [pair for part in captured_regions.find(table.store, [held], wanted(*names)) for pair in pairs(part)]


@pytest.fixture
def table() -> KeyedTable:
    return KeyedTable(MeteredStore(MemoryStore("planes"))).create()


def gets(table: KeyedTable, call: Callable[[], object]) -> int:
    store = table.store
    assert isinstance(store, MeteredStore)
    before = store.meter.requests["get"]
    call()
    return store.meter.requests["get"] - before


def test_a_lookup_reads_the_entries_that_have_the_key_and_no_other(table: KeyedTable) -> None:
    held = flushed(table)
    assert found(table, held, "N7") == [("N7", 2)]
    assert gets(table, lambda: found(table, held, "N7")) == 3, "the filter, the index, the entry"
    assert found(table, held, "N7", "N2", "N0") == [("N0", 0), ("N2", 2), ("N7", 2)]
    assert gets(table, lambda: found(table, held, "N7", "N2")) == 3
    assert found(table, held, "all") == [("all", entry) for entry in range(5)]
    assert found(table, held, "Nobody") == []
    assert gets(table, lambda: found(table, held, "Nobody")) == 1, "the filter"


def test_a_generation_of_one_entry_is_read_without_its_index(table: KeyedTable) -> None:
    held = flushed(table, entries=1)
    assert found(table, held, "N7") == [("N7", 0)]
    assert gets(table, lambda: found(table, held, "N7")) == 2


def test_a_generation_of_an_earlier_release_has_no_index_and_is_read_whole(table: KeyedTable) -> None:
    held = flushed(table)
    where = keys.generation_file_key(held.region, held.path, MANIFEST_FILE)
    body = json.loads(table.store.get(where).data)
    del body["keyIndex"], body["xxh3"]
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    older = {**body, "xxh3": xxhash.xxh3_64_hexdigest(text.encode())}
    table.store.put(where, json.dumps(older, sort_keys=True).encode(), Overwrite())
    table.store.delete([keys.generation_file_key(held.region, held.path, INDEX_FILE)])
    manifest = read_latest(table.store, held.region)
    assert manifest is not None
    old = generation.read(table.store, held.region, manifest.flushed_generations[0])
    assert old.key_index is None
    assert found(table, old, "N7", "all") == [
        *(("all", entry) for entry in (0, 1)),
        ("N7", 2),
        *(("all", e) for e in (2, 3, 4)),
    ]


@pytest.mark.parametrize("damage", ["absent", "empty", "another", "flipped"])
def test_a_damaged_index_costs_time_and_denies_nothing(
    table: KeyedTable, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    held = flushed(table)
    where = keys.generation_file_key(held.region, held.path, INDEX_FILE)
    data = table.store.get(where).data
    if damage == "absent":
        table.store.delete([where])
    else:
        other = key_index.build_key_index(np.zeros(1, np.uint64), [2], [1])
        flipped = data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]
        table.store.put(where, {"empty": b"", "another": other, "flipped": flipped}[damage], Overwrite())
    assert found(table, held, "N7") == [("N7", 2)]
    assert where in caplog.text


@pytest.mark.parametrize(
    ("entries", "lengths", "named"),
    [([2], [99], "row 98 of a WAL entry with"), ([77], [1], "WAL entry 77, which is not an entry of the generation")],
)
def test_an_index_that_names_what_is_not_there_is_corrupt(
    table: KeyedTable, entries: list[int], lengths: list[int], named: str
) -> None:
    held = flushed(table)
    entries = [held.entries[0]] if lengths != [1] else entries
    forged = key_index.build_key_index(np.repeat(key_hashes(wanted("N7"), ["tailnum"]), lengths), entries, lengths)
    where = keys.generation_file_key(held.region, held.path, INDEX_FILE)
    table.store.put(where, forged, Overwrite())
    with pytest.raises(Corrupt, match=f"{INDEX_FILE}: the key index of generation 1 names {named}"):
        found(table, replace(held, key_index=xxhash.xxh3_64_hexdigest(forged)), "N7")


def test_any_arrow_reader_opens_a_key_index() -> None:
    data = key_index.build_key_index(np.array([9, 4, 9], np.uint64), [11, 12], [2, 1])
    with pa.ipc.open_stream(data) as reader:
        assert reader.read_all().to_pydict() == {"hash": [4, 9, 9], "entry": [11, 11, 12], "row": [1, 0, 0]}
    index = key_index.decode_key_index(data, "k")
    assert {entry: rows.tolist() for entry, rows in index.find(np.array([9], np.uint64)).items()} == {
        11: [0], 12: [0],
    }  # fmt: skip
    assert index.find(np.array([5], np.uint64)) == {}


def other_columns() -> bytes:
    sink = pa.BufferOutputStream()
    other = wanted("a")
    with pa.ipc.new_stream(sink, other.schema) as writer:
        writer.write_table(other)
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize("data", [b"", b"no arrow at all", other_columns()], ids=["empty", "text", "other columns"])
def test_bytes_that_are_no_key_index_are_corrupt_and_named(data: bytes) -> None:
    with pytest.raises(Corrupt, match="the-index"):
        key_index.decode_key_index(data, "the-index")
