"""The registry contains every region before the region has a row, and a lost registry is rebuilt."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest

from storage_core.base.errors import CommitUnknown, Corrupt, RegionClosed, Unsupported
from storage_core.data.formats import keys, region_manifest
from storage_core.data.formats.json_document import json_digest
from storage_core.data.formats.region_manifest import RegionManifest
from storage_core.data.settings.layout import Region
from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.write.region.manifest import commit
from storage_core.write.region.spec import close_spec, read_registry, rebuilt, register
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore, PutFault
from tests.support.ids import SeededIds

KEY = keys.region_registry_key()
CLOCK = ManualClock()


def region(number: int, spec: int = 2) -> Region:
    return Region(id=str(uuid.UUID(int=number)), spec_id=spec, values=(number,))


def add(store: ObjectStore, *regions: Region, seed: int = 1) -> None:
    for each in regions:
        register(store, each, clock=CLOCK, ids=SeededIds(seed))


def claim(store: ObjectStore, each: Region, closed_by: int = 0) -> None:
    manifest = RegionManifest(
        region_id=each.id, version=1, writer_epoch=1, region_spec_id=each.spec_id, writer_id="w", closed_by=closed_by
    )
    assert commit(store, manifest, clock=CLOCK)


def test_a_registered_region_is_named_with_its_values_and_once() -> None:
    store = MemoryStore("t")
    add(store, region(2), region(1), region(2), region(7, spec=3))
    assert read_registry(store).of_spec(2) == [region(1), region(2)]
    assert read_registry(store).of_spec(3) == [region(7, spec=3)]


def test_registering_again_costs_one_get_and_the_whole_table_nothing() -> None:
    store = MeteredStore(MemoryStore("t"))
    add(store, region(1))
    before = store.requests
    add(store, region(1), Region(id=str(uuid.UUID(int=5)), spec_id=1, values=()))
    after = store.requests
    assert {kind: after[kind] - before[kind] for kind in after if after[kind] > before[kind]} == {"get": 1}


def test_of_two_that_register_at_once_both_are_named() -> None:
    memory = MemoryStore("t")
    add(memory, region(9))
    store = FaultStore(memory)
    store.on_put(KEY, lambda: add(memory, region(1), seed=7))
    add(store, region(2))
    assert read_registry(memory).of_spec(2) == [region(1), region(2), region(9)]


def test_a_lost_reply_leaves_the_region_registered_once() -> None:
    memory = MemoryStore("t")
    store = FaultStore(memory)
    store.on_put(KEY, PutFault.APPLIED_THEN_UNKNOWN)
    add(store, region(1))
    assert read_registry(memory).of_spec(2) == [region(1)]


def test_a_store_that_never_says_makes_the_outcome_unknown() -> None:
    store = FaultStore(MemoryStore("t"))
    store.on_put(KEY, *[PutFault.DROPPED_THEN_UNKNOWN] * 10)
    with pytest.raises(CommitUnknown, match="try again"):
        add(store, region(1))


def test_a_lost_registry_is_made_again_from_the_manifests_of_the_regions() -> None:
    store = MemoryStore("t")
    add(store, region(1), region(2), region(3))
    for each in (region(1), region(2), Region(id=str(uuid.UUID(int=5)), spec_id=1, values=())):
        claim(store, each)
    store.delete([KEY])
    found = read_registry(store).of_spec(2)
    assert [(each.id, each.values) for each in found] == [(region(1).id, None), (region(2).id, None)]
    add(store, region(4))
    assert [each.id for each in read_registry(store).of_spec(2)] == [region(1).id, region(2).id, region(4).id]


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b'{"format": 1}', b"\xff\xfe"])
def test_a_torn_registry_is_made_again_and_replaced_by_the_next_region(torn: bytes) -> None:
    store = MemoryStore("t")
    add(store, region(1))
    claim(store, region(1))
    store.put(KEY, torn, Overwrite())
    assert [each.id for each in read_registry(store).of_spec(2)] == [region(1).id]
    add(store, region(2))
    assert [each.id for each in read_registry(store).of_spec(2)] == [region(1).id, region(2).id]
    assert json.loads(store.get(KEY).data)["counter"] == 1


def test_a_flipped_bit_in_the_registry_never_hides_a_region() -> None:
    store = MemoryStore("t")
    add(store, region(1), region(2))
    claim(store, region(1))
    claim(store, region(2))
    sound = store.get(KEY).data
    for at in range(0, len(sound), 7):
        store.put(KEY, sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :], Overwrite())
        assert [each.id for each in read_registry(store).of_spec(2)] == [region(1).id, region(2).id]


def test_a_registry_and_a_manifest_that_are_both_damaged_are_corrupt() -> None:
    store = MemoryStore("t")
    add(store, region(1))
    claim(store, region(1))
    store.put(KEY, b"torn", Overwrite())
    store.put(keys.region_manifest_key(region(1).id, 1), b"torn", Overwrite())
    with pytest.raises(Corrupt, match="manifest"):
        read_registry(store)


def test_a_registry_of_a_newer_format_is_left_alone() -> None:
    store = MemoryStore("t")
    add(store, region(1))
    body = json.loads(store.get(KEY).data)
    newer = {**{name: value for name, value in body.items() if name != "xxh3"}, "format": 2}
    store.put(KEY, json.dumps({**newer, "xxh3": json_digest(newer)}).encode(), Overwrite())
    with pytest.raises(Unsupported, match="format 2"):
        read_registry(store)


def test_rebuilding_lists_once_per_region_and_not_its_log() -> None:
    store = MeteredStore(MemoryStore("t"))
    for number in (1, 2, 3):
        claim(store, region(number))
        for entry in range(1, 50):
            store.put(keys.wal_entry_key(region(number).id, entry), b"x", Overwrite())
    before = store.requests["list"]
    assert len(rebuilt(store).regions) == 3
    assert store.requests["list"] - before <= 4


def test_a_closed_spec_takes_no_new_region_and_keeps_those_it_has() -> None:
    store = MemoryStore("t")
    add(store, region(1))
    assert close_spec(store, region(9), 3, clock=CLOCK, ids=SeededIds(2)).of_spec(2) == [region(1), region(9)]
    add(store, region(1), region(5, spec=3))
    with pytest.raises(RegionClosed, match="spec 3 follows"):
        add(store, region(2))
    before = store.get(KEY).data
    close_spec(store, region(9), 3, clock=CLOCK, ids=SeededIds(3))
    assert store.get(KEY).data == before


@pytest.mark.parametrize("lost", [None, b"torn"])
def test_whoever_made_the_registry_again_before_a_spec_was_closed_adds_no_region_after(lost: bytes | None) -> None:
    memory = MemoryStore("t")
    if lost is not None:
        memory.put(KEY, lost, Overwrite())
    store = FaultStore(memory)

    def close() -> None:
        claim(memory, region(9), closed_by=3)
        close_spec(memory, region(9), 3, clock=CLOCK, ids=SeededIds(2))

    store.on_put(KEY, close)
    with pytest.raises(RegionClosed, match="spec 3 follows"):
        add(store, region(1))


def test_a_lost_registry_still_knows_what_a_closed_region_closed() -> None:
    store = MemoryStore("t")
    claim(store, region(1), closed_by=3)
    with pytest.raises(RegionClosed, match="spec 3 follows"):
        add(store, region(2))


def test_a_closed_manifest_says_so_and_one_that_is_not_keeps_its_bytes() -> None:
    manifest = RegionManifest(region_id=region(1).id, version=1, writer_epoch=1, region_spec_id=2, writer_id="w")
    closed = replace(manifest, closed_by=3)
    assert region_manifest.decode_region(region_manifest.encode_region(closed), "key") == closed
    assert b"\xb0\x06\x03" in region_manifest.encode_region(closed)  # field 102, a varint
    assert len(region_manifest.encode_region(manifest)) == len(region_manifest.encode_region(closed)) - 3
    damaged = region_manifest.encode_region(closed).replace(b"\xb0\x06\x03", b"\xb0\x06\x02")
    with pytest.raises(Corrupt, match="checksum"):
        region_manifest.decode_region(damaged, "key")
