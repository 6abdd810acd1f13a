"""States that other systems wrote can be opened, even without optional fields."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from storage_core.base.errors import Corrupt, NotFound, Unsupported
from storage_core.data.formats.avro_state import decode_state
from storage_core.data.formats.keys import state_key, version_key
from storage_core.log.actions import Metadata, Protocol
from storage_core.log.checkpoint import read_state
from storage_core.log.codec import encode_line, encode_version
from storage_core.store.contract import IfAbsent, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.foreign_logs import put_hint, put_state
from tests.support.log_tables import log_on, metadata, split


def _bare_metadata() -> str:
    body: dict[str, Any] = json.loads(encode_line(metadata()))["metaData"]
    return json.dumps(body)


@pytest.fixture
def foreign() -> MemoryStore:
    """Return a foreign table whose only version file is version 0."""
    store = MemoryStore("foreign")
    store.put(version_key(0), encode_version([Protocol(), metadata()]), IfAbsent())
    return store


@pytest.mark.parametrize(
    "manifest",
    ["manifests/manifest-a1b2c3d4.avro", "state-v00000000000000000003/manifest-1.avro", "manifest-001.avro"],
)
def test_every_spelling_of_a_manifest_path_is_resolved(foreign: MemoryStore, manifest: str) -> None:
    put_state(foreign, 3, ["date=1/a.split", "b.split"], manifest=manifest)
    found = log_on(foreign).snapshot()
    assert (found.version, found.timestamp, set(found.splits)) == (3, 1003, {"date=1/a.split", "b.split"})


@pytest.mark.parametrize("text", [encode_line(metadata()), _bare_metadata(), None, "null"])
def test_metadata_of_a_state_is_wrapped_bare_or_in_version_zero(foreign: MemoryStore, text: str | None) -> None:
    put_state(foreign, 3, ["a"], metadata=text)
    assert log_on(foreign).snapshot().metadata == metadata()


def test_metadata_missing_everywhere_but_in_an_older_state_is_found_there(foreign: MemoryStore) -> None:
    foreign.delete([version_key(0)])
    put_state(foreign, 2, ["a"], metadata=encode_line(metadata()))
    put_state(foreign, 3, ["a", "b"])
    assert log_on(foreign).snapshot().metadata == metadata()
    foreign.delete([state_key(2)])
    with pytest.raises(Corrupt, match="neither version 0 nor an intact state"):
        log_on(foreign).snapshot()


def test_where_states_are_commits_the_highest_state_is_the_head_whatever_the_hint_says(foreign: MemoryStore) -> None:
    for version in (1, 2, 3):
        put_state(
            foreign, version, [f"n{each}" for each in range(version)], manifest=f"manifests/manifest-{version}.avro"
        )
    put_hint(foreign, 2)
    log = log_on(foreign)
    assert log.snapshot().version == 3
    assert set(log.snapshot(version=2).splits) == {"n0", "n1"}
    with pytest.raises(Unsupported, match="not created by Tidemark"):
        log.commit(log.snapshot(), [split("x")], operation="APPEND")


def _states_without_metadata(store: MemoryStore, count: int) -> None:
    for version in range(1, count + 1):
        put_state(store, version, [f"n{version}"], manifest=f"manifests/manifest-{version}.avro")


def test_opening_one_of_many_states_without_metadata_is_a_get_for_each_also_when_some_are_damaged(
    foreign: MemoryStore,
) -> None:
    _states_without_metadata(foreign, 40)
    for damaged in ((), (3,), (3, 17)):
        for version in damaged:
            foreign.put(state_key(version), b"not Avro", Overwrite())
        metered = MeteredStore(foreign)
        found = log_on(metered).snapshot()
        assert (found.version, found.metadata) == (40, metadata())
        # The GETs read the missing hint, the state, earlier states and version 0, and probe for the next version.
        assert metered.requests["get"] <= 1 + 3 + 40 + 1 + 1
    foreign.delete([version_key(0)])
    metered = MeteredStore(foreign)
    with pytest.raises(Corrupt):
        log_on(metered).snapshot()
    assert metered.requests["get"] <= 6 * 40


def test_a_state_of_others_that_was_dropped_is_not_retained_and_no_damage(foreign: MemoryStore) -> None:
    _states_without_metadata(foreign, 9)
    foreign.delete([state_key(version) for version in range(1, 8)])
    for dropped in (1, 5, 7):
        with pytest.raises(
            NotFound, match=f"version {dropped} is no longer retained. The oldest version with a state is 8"
        ):
            log_on(foreign).snapshot(version=dropped)
    assert log_on(foreign).snapshot(version=8).version == 8


def test_tombstones_of_a_state_are_applied(foreign: MemoryStore) -> None:
    put_state(foreign, 3, ["a", "b"], tombstones=["a"], numFiles=1)
    assert set(log_on(foreign).snapshot().splits) == {"b"}


@pytest.mark.parametrize("key", ["abc", "docMappingSchema.abc"])
def test_a_schema_registry_beside_the_metadata_is_found_under_bare_and_prefixed_keys(
    foreign: MemoryStore, key: str
) -> None:
    put_state(foreign, 3, ["a"], schemaRegistry={key: "[]"})
    found: Metadata = log_on(foreign).snapshot().metadata
    assert found.configuration == {**metadata().configuration, "docMappingSchema.abc": "[]"}


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "s3://other/x", "%2e%2e/x", "a/%2E%2e/x", "a\\b", "a\x00b", ""]
)
def test_paths_that_leave_the_table_are_refused(foreign: MemoryStore, path: str) -> None:
    put_state(foreign, 3, [path])
    found = log_on(foreign).snapshot()
    with pytest.raises(Corrupt, match="leads out of the table"):
        found.splits.table()


def test_a_state_of_a_newer_format_is_refused(foreign: MemoryStore) -> None:
    put_state(foreign, 3, ["a"], formatVersion=3)
    with pytest.raises(Unsupported, match="state of format 3"):
        read_state(foreign, 3)


@pytest.mark.parametrize(
    ("schema", "record"),
    [
        ("int", 7),
        ({"type": "array", "items": "int"}, [7]),
        (
            {"type": "record", "name": "S", "fields": [{"name": "formatVersion", "type": "string"}]},
            {"formatVersion": "1"},
        ),
    ],
    ids=["a number", "a list", "a version that is text"],
)
def test_a_state_whose_schema_is_another_is_damage(schema: Any, record: object) -> None:
    target = io.BytesIO()
    fastavro.writer(target, schema, [record])
    with pytest.raises(Corrupt, match="the key"):
        decode_state(target.getvalue(), "the key")
