"""The Avro state: same bytes every time, the ids of the source, and states that others wrote (design pages 02, 09)."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import fastavro
import pytest

from storage_core.config import TableConfig
from storage_core.errors import Corrupt, Unsupported
from storage_core.formats import avro_state
from storage_core.formats.keys import last_checkpoint_key, state_key, version_key
from storage_core.log import checkpoint as checkpoint_module
from storage_core.log.actions import Add, Metadata, Protocol, Txn
from storage_core.log.checkpoint import manifest_keys, read_state
from storage_core.log.codec import encode_line, encode_version
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import IfAbsent, Overwrite
from storage_core.objectstore.memory import MemoryStore
from storage_core.testkit.log_tables import log_on, metadata, removal, segment, split

FULL_ADD = Add(
    path="splits/900/full.parquet",
    size=123,
    modificationTime=4,
    partitionValues={"z": "1", "a": "2"},
    dataChange=False,
    stats="{}",
    minValues={"b": "1", "a": "x"},
    maxValues={},
    numRecords=9,
    hasFooterOffsets=True,
    footerStartOffset=1,
    footerEndOffset=2,
    splitTags=("t", "s"),
    numMergeOps=3,
    docMappingRef="-Yvhbr-oYcs5ph-v",
    docMappingJson='{"test":"value"}',
    uncompressedSizeBytes=5,
    windowStart=900,
    windowSeconds=900,
    sortSchema="timestamp/V2",
    sourceId="src",
    partitionId="p",
    minRowKey='["a"]',
    maxRowKey='["b"]',
    nullCounts={"a": 1},
    xxh3="00000000000000ff",
    deletionVector={"inline": "AA==", "cardinality": 1},
)


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
    log_on(other).checkpoint(replace(head, splits=dict(reversed(list(head.splits.items()))), txns={"y": 1, "x": 1}))
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


def test_many_splits_go_into_several_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_module, "ENTRIES_PER_MANIFEST", 2)
    store = MemoryStore("t")
    head = _written(store)
    log_on(store).checkpoint(head)
    assert [info.num_entries for info in read_state(store, 2).manifests] == [2, 2]
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
    assert all(number in avro_state.OWN_FIELD_IDS for _, number in declared[18:])
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


# --- states of others -------------------------------------------------------------------------------------------------


def _fields(schema: object) -> list[dict[str, Any]]:
    assert isinstance(schema, dict)
    return list(schema["fields"])


def _avro(schema: Mapping[str, Any], records: list[dict[str, Any]]) -> bytes:
    target = io.BytesIO()
    fastavro.writer(target, dict(schema), records, codec="zstandard")
    return target.getvalue()


def _foreign_entry_schema() -> dict[str, Any]:
    documented = _fields(avro_state.ENTRY_SCHEMA)[:18]
    unknown = {"name": "aggregateHints", "type": ["null", "string"], "default": None, "field-id": 150}
    # Another order and other ids: readers resolve by name.
    renumbered = [{**each, "field-id": 900 + position} for position, each in enumerate([unknown, *documented[::-1]])]
    return {"type": "record", "name": "FileEntry", "namespace": "somebody.else", "fields": renumbered}


def _foreign_state(
    store: MemoryStore,
    version: int,
    paths: list[str],
    *,
    manifest: str = "manifests/manifest-a1b2c3d4.avro",
    metadata_text: str | None = None,
    **more: Any,
) -> None:
    """Write a state as others do: only the documented fields, and no actions."""
    folder = f"_transaction_log/state-v{version:020d}/"
    key = folder + manifest if "/" not in manifest else "_transaction_log/" + manifest
    entries = [
        {"aggregateHints": "x", "path": path, "partitionValues": {}, "size": 1, "modificationTime": 1,
         "dataChange": True, "hasFooterOffsets": False, "addedAtVersion": 0, "addedAtTimestamp": 0}
        for path in paths
    ]  # fmt: skip
    store.put(key, _avro(_foreign_entry_schema(), entries), Overwrite())
    documented = [each for each in _fields(avro_state.STATE_SCHEMA) if each["name"] != "actions"]
    state = {
        "formatVersion": 1, "stateVersion": version, "createdAt": 1000 + version, "numFiles": len(paths),
        "totalBytes": len(paths), "protocolVersion": 4, "metadata": metadata_text, "tombstones": [],
        "schemaRegistry": {},
        "manifests": [{"path": manifest, "numEntries": len(paths), "minAddedAtVersion": 0, "maxAddedAtVersion": 0,
                       "partitionBounds": None, "tombstoneCount": 0, "liveEntryCount": -1}],
    } | more  # fmt: skip
    schema = {"type": "record", "name": "StateManifest", "namespace": "io.indextables.state", "fields": documented}
    store.put(state_key(version), _avro(schema, [state]), IfAbsent())


def _foreign_hint(store: MemoryStore, version: int) -> None:
    body = {"version": version, "size": 1, "format": "avro-state", "stateDir": f"state-v{version:020d}"}
    store.put(last_checkpoint_key(), json.dumps(body).encode(), Overwrite())


def _bare_metadata() -> str:
    body: dict[str, Any] = json.loads(encode_line(metadata()))["metaData"]
    return json.dumps(body)


@pytest.fixture
def foreign() -> MemoryStore:
    """Return a table of others whose only version file is 0."""
    store = MemoryStore("foreign")
    store.put(version_key(0), encode_version([Protocol(), metadata()]), IfAbsent())
    return store


@pytest.mark.parametrize(
    "manifest",
    ["manifests/manifest-a1b2c3d4.avro", "state-v00000000000000000003/manifest-1.avro", "manifest-001.avro"],
)
def test_every_spelling_of_a_manifest_path_is_resolved(foreign: MemoryStore, manifest: str) -> None:
    _foreign_state(foreign, 3, ["date=1/a.split", "b.split"], manifest=manifest)
    found = log_on(foreign).snapshot()
    assert (found.version, found.timestamp, set(found.splits)) == (3, 1003, {"date=1/a.split", "b.split"})


@pytest.mark.parametrize("text", [encode_line(metadata()), _bare_metadata(), None, "null"])
def test_metadata_of_a_state_is_wrapped_bare_or_in_version_zero(foreign: MemoryStore, text: str | None) -> None:
    _foreign_state(foreign, 3, ["a"], metadata_text=text)
    assert log_on(foreign).snapshot().metadata == metadata()


def test_metadata_missing_everywhere_but_in_an_older_state_is_found_there(foreign: MemoryStore) -> None:
    foreign.delete([version_key(0)])
    _foreign_state(foreign, 2, ["a"], metadata_text=encode_line(metadata()))
    _foreign_state(foreign, 3, ["a", "b"])
    assert log_on(foreign).snapshot().metadata == metadata()
    foreign.delete([state_key(2)])
    with pytest.raises(Corrupt, match="neither version 0 nor an intact state"):
        log_on(foreign).snapshot()


def test_where_states_are_commits_the_highest_state_is_the_head_whatever_the_hint_says(foreign: MemoryStore) -> None:
    for version in (1, 2, 3):
        _foreign_state(
            foreign, version, [f"n{each}" for each in range(version)], manifest=f"manifests/manifest-{version}.avro"
        )
    _foreign_hint(foreign, 2)
    log = log_on(foreign)
    assert log.snapshot().version == 3
    assert set(log.snapshot(version=2).splits) == {"n0", "n1"}
    with pytest.raises(Unsupported, match="not created by Tidemark"):
        log.commit(log.snapshot(), [split("x")], operation="APPEND")


def test_tombstones_of_a_state_are_applied(foreign: MemoryStore) -> None:
    _foreign_state(foreign, 3, ["a", "b"], tombstones=["a"], numFiles=1)
    assert set(log_on(foreign).snapshot().splits) == {"b"}


@pytest.mark.parametrize("key", ["abc", "docMappingSchema.abc"])
def test_a_schema_registry_beside_the_metadata_is_found_under_bare_and_prefixed_keys(
    foreign: MemoryStore, key: str
) -> None:
    _foreign_state(foreign, 3, ["a"], schemaRegistry={key: "[]"})
    found: Metadata = log_on(foreign).snapshot().metadata
    assert found.configuration == {**metadata().configuration, "docMappingSchema.abc": "[]"}


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "s3://other/x"])
def test_paths_that_leave_the_table_are_refused(foreign: MemoryStore, path: str) -> None:
    _foreign_state(foreign, 3, [path])
    with pytest.raises(Corrupt):
        log_on(foreign).snapshot()


def test_segments_are_part_of_the_state() -> None:
    store = MemoryStore("t")
    log = log_on(store)
    head = log.commit(log.create(metadata()), [split("a"), segment("s", "a")], operation="X").snapshot
    log.checkpoint(head)
    assert log.snapshot().segments == head.segments


def test_a_state_of_a_newer_format_is_refused(foreign: MemoryStore) -> None:
    _foreign_state(foreign, 3, ["a"], formatVersion=2)
    with pytest.raises(Unsupported, match="state of format 2"):
        read_state(foreign, 3)
