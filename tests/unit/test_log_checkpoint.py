"""The same version always gives an Avro state with the same bytes and the field ids of the specification."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from storage_core.base.errors import Corrupt, InvalidInput
from storage_core.data.formats import avro, avro_state
from storage_core.data.formats.keys import last_checkpoint_key, state_key
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, Txn
from storage_core.log.checkpoint import manifest_keys, read_state
from storage_core.log.codec import PREFIX, canonical
from storage_core.log.live_splits import LiveFiles
from storage_core.log.snapshot import Snapshot
from storage_core.log.transactions import Transactions
from storage_core.store.memory import MemoryStore
from tests.support.foreign_logs import OWN_FIELD_IDS
from tests.support.log_tables import full_split, log_on, metadata, removal, segment, split

FULL_ADD = full_split()


def _state_files(store: MemoryStore) -> dict[str, bytes]:
    return {
        info.key: store.get(info.key).data for info in store.list("_transaction_log/") if info.key.endswith(".avro")
    }


def _written(store: MemoryStore) -> Snapshot:
    log = log_on(store, seed=7)
    head = log.create(metadata(TableConfig(checkpoint_interval=0)))
    head = log.commit(head, [*(split(name) for name in "abcd"), FULL_ADD], operation="APPEND").snapshot
    return log.commit(head, [removal("c"), *(Txn(appId=each, version=1) for each in "xy")], operation="X").snapshot


def test_every_field_of_an_add_survives_the_state() -> None:
    assert all(getattr(FULL_ADD, each.name) not in (None, each.default) for each in fields(Add)), "cover new fields too"
    store = MemoryStore("t")
    head = _written(store)
    log_on(store).checkpoint(head)
    found = log_on(store).snapshot()
    assert found.checkpoint_version == 2
    assert found.splits[FULL_ADD.path] == FULL_ADD
    assert found == head


def test_the_same_version_gives_the_same_bytes_from_a_replay_and_from_a_state() -> None:
    one, other = MemoryStore("one"), MemoryStore("other")
    log_on(one, seed=1).checkpoint(_written(one))
    _written(other)
    log_on(other, seed=2).checkpoint(log_on(other).snapshot(version=1))
    from_state = log_on(other).snapshot()
    assert from_state.checkpoint_version == 1
    log_on(other, seed=3).checkpoint(from_state)
    assert _state_files(other).items() >= _state_files(one).items()
    assert state_key(2) in _state_files(one)


def test_the_order_of_splits_in_memory_does_not_change_the_bytes() -> None:
    store, other = MemoryStore("one"), MemoryStore("other")
    head = _written(store)
    log_on(store).checkpoint(head)
    backwards = LiveFiles(added=dict(reversed(list(head.splits.added.items()))))
    txns = Transactions(recent={each: Txn(appId=each, version=1) for each in "yx"})
    log_on(other).checkpoint(replace(head, splits=backwards, txns=txns))
    assert _state_files(store) == _state_files(other)


def test_manifests_are_named_by_their_content_and_shared_by_states_with_equal_splits() -> None:
    store = MemoryStore("t")
    head = _written(store)
    log = log_on(store)
    log.checkpoint(head)
    later = log.commit(head, [Txn(appId="z", version=1)], operation="X").snapshot
    log.checkpoint(later)
    assert manifest_keys(read_state(store, 2)) == manifest_keys(read_state(store, 3))
    (key,) = manifest_keys(read_state(store, 2))
    assert key.endswith(f"manifests/manifest-{avro_state.content_id(store.get(key).data)}.avro")


def test_many_splits_go_into_several_manifests() -> None:
    store = MemoryStore("t")
    head = _written(store)
    fewer = {**head.metadata.configuration, "tidemark.manifestEntries": "2"}
    altered = log_on(store).commit(head, [replace(head.metadata, configuration=fewer)], operation="CONFIGURE")
    head = altered.snapshot
    log_on(store).checkpoint(head)
    assert [info.num_entries for info in read_state(store, 3).manifests] == [2, 2]
    assert log_on(store).snapshot() == head


def test_an_empty_table_has_a_state_without_manifests() -> None:
    store = MemoryStore("t")
    log = log_on(store)
    log.checkpoint(log.create(metadata()))
    assert read_state(store, 0).manifests == ()
    assert log.snapshot().checkpoint_version == 0


def test_the_schema_keeps_the_field_ids_and_the_order_of_the_source() -> None:
    declared = [(each["name"], each["field-id"]) for each in _fields(avro_state.ENTRY_SCHEMA)]
    assert declared[:18] == [
        ("path", 100), ("partitionValues", 101), ("size", 102), ("modificationTime", 103), ("dataChange", 104),
        ("stats", 110), ("minValues", 111), ("maxValues", 112), ("numRecords", 113), ("footerStartOffset", 120),
        ("footerEndOffset", 121), ("hasFooterOffsets", 122), ("splitTags", 130), ("numMergeOps", 131),
        ("docMappingRef", 132), ("uncompressedSizeBytes", 133), ("addedAtVersion", 140), ("addedAtTimestamp", 141),
    ]  # fmt: skip
    assert all(number in OWN_FIELD_IDS for _, number in declared[18:])
    assert len({number for _, number in declared}) == len(declared)
    names = {each.name for each in fields(Add)} | {"addedAtVersion", "addedAtTimestamp"}
    assert {name for name, _ in declared} == names


def test_the_hint_names_the_state_as_the_source_does() -> None:
    store = MemoryStore("t")
    head = _written(store)
    log_on(store).checkpoint(head)
    hint = json.loads(store.get(last_checkpoint_key()).data)
    assert (hint["version"], hint["format"], hint["stateDir"]) == (2, "avro-state", "state-v00000000000000000002")
    assert (hint["numFiles"], hint["createdTime"]) == (4, head.timestamp)


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 100, -1])
def test_a_torn_state_or_manifest_is_corrupt(cut: int) -> None:
    data = avro_state.encode_entries([{"path": "a", "partitionValues": {}, "size": 1, "modificationTime": 1,
                                       "dataChange": True, "hasFooterOffsets": False, "addedAtVersion": 0,
                                       "addedAtTimestamp": 0}])  # fmt: skip
    with pytest.raises(Corrupt, match="somewhere"):
        avro_state.decode_entries(data[:cut], "somewhere")
    with pytest.raises(Corrupt, match="somewhere"):
        avro_state.decode_state(data, "somewhere")


def test_a_manifest_of_more_entries_than_the_format_admits_is_refused() -> None:
    entry = {"path": "a", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True,
             "hasFooterOffsets": False, "addedAtVersion": 0, "addedAtTimestamp": 0}  # fmt: skip
    most = avro.MAX_ENTRIES_PER_MANIFEST
    assert avro_state.decode_entries(avro_state.encode_entries([entry] * most), "somewhere").num_rows == most
    with pytest.raises(InvalidInput, match=r"has 50,001 entries\. The limit is 50,000"):
        avro_state.encode_entries([entry] * (most + 1))


def test_segments_are_part_of_the_state() -> None:
    store = MemoryStore("t")
    log = log_on(store)
    head = log.commit(log.create(metadata()), [split("a"), segment("s", "a")], operation="X").snapshot
    log.checkpoint(head)
    assert log.snapshot().segments == head.segments


def _fields(schema: object) -> list[dict[str, Any]]:
    assert isinstance(schema, dict)
    return list(schema["fields"])


def test_more_than_five_schemas_are_renormalized_at_a_checkpoint_and_five_are_left_alone() -> None:
    fields = [[{"name": "a", "type": kind}, {"name": "b", "type": "text"}] for kind in ("text", "i64", "f64", "bool")]
    # Each schema occurs in two field orders. The checkpoint converts schemas to a canonical form. Otherwise the same
    # schema with its fields in two orders would have two hashes and two references.
    texts = [json.dumps(each) for pair in fields for each in (pair, pair[::-1])]
    for count in (5, 8):
        store = MemoryStore("t")
        log = log_on(store)
        schemas = {f"docMappingSchema.{number:016}": text for number, text in enumerate(texts[:count])}
        config = TableConfig(checkpoint_interval=0).to_configuration()
        head = log.create(replace(metadata(), configuration=config | schemas))
        adds = [replace(split(f"n{number}"), docMappingRef=f"{number:016}") for number in range(count)]
        head = log.commit(head, adds, operation="APPEND").snapshot
        log.checkpoint(head)
        found = log.snapshot()
        references = {add.docMappingRef for add in found.splits.values()}
        assert len(references) == (5 if count == 5 else 4)
        for add in adds:
            before = head.metadata.configuration[f"{PREFIX}{add.docMappingRef}"]
            after = found.metadata.configuration[f"{PREFIX}{found.splits[add.path].docMappingRef}"]
            assert canonical(after) == canonical(before)
        again = log.commit(found, [split("new")], operation="APPEND").snapshot
        assert len(read_state(store, log.checkpoint(again).version).manifests) == 2, "not renormalized twice"


def test_no_flipped_bit_of_a_state_goes_unnoticed() -> None:
    store = MemoryStore("t")
    head = _written(store)
    log_on(store).checkpoint(head)
    data = store.get(state_key(2)).data
    expected = avro_state.decode_state(data, "state")
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = avro_state.decode_state(bytes(flipped), "state")
        except Corrupt:
            continue
        # If the flipped bit is in the name of the checksum field, the reader finds no checksum, but the file is still
        # complete.
        assert found == expected, bit
