"""Tests for reads of the unflushed WAL entries of a region (the tail), and for the limit of their number."""

from __future__ import annotations

from dataclasses import replace
from threading import Barrier

import pytest

from storage_core.base.errors import Corrupt
from storage_core.data.formats import arrow_files, keys
from storage_core.store.contract import Blob, IfAbsent
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.store.pieces import KeptValues
from storage_core.write.region import wal
from storage_core.write.region.manifest import region_of
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.spec import list_regions
from tests.support.keyed_table import KeyedTable

SENTINELS = 1
ENTRIES = wal.IN_PAIRS + 2 * wal.TOGETHER - SENTINELS
PATIENCE_SECONDS = 60


class TogetherStore(MemoryStore):
    """A store that blocks the GETs of some WAL entries until `TOGETHER` of these GETs are in progress."""

    def __init__(self) -> None:
        super().__init__("wal-tail")
        self.together = frozenset[str]()
        self._all_under_way = Barrier(wal.TOGETHER, timeout=PATIENCE_SECONDS)

    def get(self, key: str) -> Blob:
        if key in self.together:
            self._all_under_way.wait()
        return super().get(key)


def _filled(store: MemoryStore | MeteredStore, entries: int = ENTRIES) -> str:
    table = KeyedTable(store).create()
    with table.writer() as planes:
        for number in range(entries):
            planes.put({"tailnum": f"N{number}"})
    return region_of(table.snapshot.table_id)


def _names(store: MemoryStore | MeteredStore, region: str, kept: KeptValues | None = None) -> list[object]:
    found = wal.read_tail(store, region, after=0, kept=KeptValues() if kept is None else kept)
    return [name for each in found for name in each.entry.records.column("tailnum").to_pylist()]


def test_the_entries_of_a_long_tail_are_read_together() -> None:
    store = TogetherStore()
    region = _filled(store)
    first = wal.IN_PAIRS + 1
    store.together = frozenset(keys.wal_entry_key(region, first + each) for each in range(2 * wal.TOGETHER))
    assert _names(store, region) == [f"N{number}" for number in range(ENTRIES)]


def test_what_a_tail_costs() -> None:
    store = MeteredStore(MemoryStore("wal-tail"))
    region = _filled(store)
    kept, before = KeptValues(), store.requests
    assert len(_names(store, region, kept)) == ENTRIES
    first = store.requests
    assert first["get"] - before["get"] == ENTRIES + SENTINELS + wal.TOGETHER
    assert len(_names(store, region, kept)) == ENTRIES
    assert (store.requests["get"] - first["get"], store.requests["head"] - first["head"]) == (2, 0), "the end of it"


@pytest.mark.parametrize("entry", [1, wal.IN_PAIRS, wal.IN_PAIRS + 1, wal.IN_PAIRS + 3, ENTRIES])
def test_an_entry_that_is_missing_before_another_is_named(entry: int) -> None:
    store = MemoryStore("wal-tail")
    region = _filled(store)
    store.delete([keys.wal_entry_key(region, entry)])
    with pytest.raises(Corrupt, match="missing from the middle") as refused:
        _names(store, region)
    assert refused.value.context["key"] == keys.wal_entry_key(region, entry)


def test_a_memtable_of_many_entries_is_flushed_before_the_next() -> None:
    table = KeyedTable(MemoryStore("wal-tail")).create()
    with table.writer(WriterOptions(flush_entries=3)) as planes:
        for number in range(8):
            planes.put([{"tailnum": f"N{number}"}, {"tailnum": f"M{number}"}])
        assert planes.unflushed().num_rows == 2 * 2
    assert [each.current_generation for each in list_regions(table.store, table.snapshot)] == [3]
    assert len(table.rows()) == 2 * 8


def test_an_entry_of_a_fenced_writer_behind_the_claim_is_not_read() -> None:
    store = MemoryStore("wal-tail")
    region = _filled(store, 1)
    claimed, own = (wal.read(store, region, entry).entry for entry in (1, 2))
    for entry, content in ((3, replace(claimed, writer_epoch=2)), (4, replace(own, nonce="late"))):
        store.put(
            keys.wal_entry_key(region, entry), arrow_files.encode_wal_entry(replace(content, number=entry)), IfAbsent()
        )
    assert _names(store, region) == ["N0"]
