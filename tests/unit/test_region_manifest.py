"""The newest region manifest is found with any hint. Of two concurrent commits of a manifest, one succeeds.

See lessons 01, 05 and 46.
"""

from __future__ import annotations

import uuid

import pytest

from storage_core.base.errors import CommitUnknown, Corrupt, WriterFenced
from storage_core.data.formats import keys
from storage_core.data.formats.region_manifest import RegionManifest
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.write.region import manifest
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore, PutFault

REGION = "00112233-4455-6677-8899-aabbccddeeff"


def _manifest(version: int, writer: str = "w") -> RegionManifest:
    return RegionManifest(region_id=REGION, version=version, writer_epoch=version, writer_id=writer)


def _store(versions: int) -> MemoryStore:
    store = MemoryStore("region")
    for version in range(1, versions + 1):
        assert manifest.commit(store, _manifest(version), clock=ManualClock())
    return store


def test_a_region_that_nobody_claimed_has_no_manifest() -> None:
    assert manifest.read_latest(MemoryStore("region"), REGION) is None


def test_the_region_of_a_table_follows_from_the_table() -> None:
    table = str(uuid.UUID(int=7))
    assert manifest.region_of(table) == manifest.region_of(table)
    assert manifest.region_of(table) != manifest.region_of(str(uuid.UUID(int=8)))


@pytest.mark.parametrize(
    "hint",
    [None, b"", b'{"vers', b"[]", b'{"version": "4"}', b'{"version": -1}', b'{"version": 1}', b'{"version": 99}'],
    ids=["missing", "empty", "torn", "not an object", "text", "negative", "stale", "ahead"],
)
@pytest.mark.parametrize("versions", [1, 2, 5, 40])
def test_whatever_the_hint_says_the_newest_manifest_is_found(hint: bytes | None, versions: int) -> None:
    store = _store(versions)
    if hint is None:
        store.delete([keys.region_hint_key(REGION)])
    else:
        store.put(keys.region_hint_key(REGION), hint, Overwrite())
    assert manifest.read_latest(store, REGION) == _manifest(versions)


def test_with_a_good_hint_the_newest_manifest_costs_two_gets_and_one_head() -> None:
    store = MeteredStore(_store(40))
    manifest.read_latest(store, REGION)
    assert store.meter.requests == {"get": 2, "put": 0, "list": 0, "head": 1, "delete": 0}


def test_the_hint_says_where_the_log_goes_on_and_other_text_there_says_nothing() -> None:
    store = _store(1)
    following = RegionManifest(
        region_id=REGION, version=2, writer_epoch=2, writer_id="n", replay_after_wal_id=7, wal_id_last_seen=9
    )
    assert manifest.commit(store, following, clock=ManualClock())
    key = keys.region_hint_key(REGION)
    assert store.get(key).data == b'{"version": 2, "replayAfter": 7, "nonce": "n"}'
    hint = manifest.read_hint(store, REGION)
    assert (hint.version, hint.replay_after) == (2, 7)
    for found in (b'{"version": 2, "nonce": "n"}', *(b'{"version": 2, "replayAfter": %s}' % each for each in BAD)):
        store.put(key, found, Overwrite())
        hint = manifest.read_hint(store, REGION)
        assert (hint.version, hint.replay_after) == (2, None)
        assert manifest.read_latest(store, REGION) == following


BAD = (b'"7"', b"-1", b"true", b"1.5", b"null", b"9223372036854775808")


@pytest.mark.parametrize("hinted", [0, 1, 2, 5, 6, 40])
def test_from_a_manifest_that_was_the_newest_once_the_newest_is_found_whatever_the_hint_says(hinted: int) -> None:
    store = MeteredStore(_store(6))
    store.put(keys.region_hint_key(REGION), b'{"version": %d}' % hinted, Overwrite())
    for known in range(1, 7):
        assert manifest.read_after(store, _manifest(known)) == _manifest(6)
    before = store.requests
    manifest.read_after(store, _manifest(6))
    if hinted <= 6:
        assert {
            kind: store.requests[kind] - count for kind, count in before.items() if store.requests[kind] != count
        } == {
            "get": 1,
            "head": 1,
        }


def test_manifests_that_were_collected_behind_a_known_one_hide_no_newer_one() -> None:
    store = _store(6)
    store.delete([keys.region_manifest_key(REGION, version) for version in range(1, 6)])
    assert manifest.read_after(store, _manifest(2)) == _manifest(6)


def test_a_damaged_manifest_is_no_matter_where_a_newer_one_follows() -> None:
    store = _store(3)
    store.put(keys.region_manifest_key(REGION, 2), b"damaged", Overwrite())
    store.put(keys.region_hint_key(REGION), b'{"version": 2}', Overwrite())
    assert manifest.read_latest(store, REGION) == _manifest(3)


def test_of_two_manifests_of_one_version_the_second_loses() -> None:
    store = _store(1)
    assert manifest.commit(store, _manifest(2, "a"), clock=ManualClock())
    assert not manifest.commit(store, _manifest(2, "b"), clock=ManualClock())
    assert manifest.read_latest(store, REGION) == _manifest(2, "a")


@pytest.mark.parametrize(
    "fault",
    [PutFault.APPLIED_THEN_UNKNOWN, PutFault.APPLIED_THEN_CONFLICT, PutFault.DROPPED_THEN_UNKNOWN, PutFault.REFUSED],
)
def test_a_lost_reply_neither_loses_nor_doubles_a_manifest(fault: PutFault) -> None:
    store = FaultStore(_store(1))
    store.on_put(".binpb", fault)
    assert manifest.commit(store, _manifest(2), clock=ManualClock())
    assert manifest.read_latest(store, REGION) == _manifest(2)


def test_a_manifest_that_never_gets_an_answer_is_unknown() -> None:
    store = FaultStore(_store(1))
    store.on_put(".binpb", *[PutFault.DELAYED_THEN_UNKNOWN] * 10)
    with pytest.raises(CommitUnknown, match="Delete nothing"):
        manifest.commit(store, _manifest(2), clock=ManualClock())


def test_a_late_hint_never_goes_backwards() -> None:
    store = FaultStore(_store(1))
    store.on_put("version_hint", PutFault.DELAYED_THEN_UNKNOWN)
    assert manifest.commit(store, _manifest(2), clock=ManualClock())
    assert manifest.commit(store, _manifest(3), clock=ManualClock())
    store.deliver()
    assert b'"version": 3' in store.get(keys.region_hint_key(REGION)).data


def test_a_writer_that_slept_before_its_hint_does_not_set_it_back() -> None:
    store = _store(3)
    manifest._write_hint(store, _manifest(2))
    assert b'"version": 3' in store.get(keys.region_hint_key(REGION)).data


def test_a_hint_that_cannot_be_written_does_not_fail_the_commit() -> None:
    store = FaultStore(_store(1))
    store.on_put("version_hint", PutFault.REFUSED)
    assert manifest.commit(store, _manifest(2), clock=ManualClock())
    assert manifest.read_latest(store, REGION) == _manifest(2)


def test_another_objects_bytes_under_a_manifest_key_are_corrupt() -> None:
    store = _store(2)
    store.put(keys.region_manifest_key(REGION, 2), store.get(keys.region_manifest_key(REGION, 1)).data, Overwrite())
    with pytest.raises(Corrupt, match="expected version 2"):
        manifest.read_latest(store, REGION)


def test_a_lower_epoch_is_fenced_and_the_message_says_by_whom() -> None:
    with pytest.raises(WriterFenced, match="epoch 2 of writer w"):
        manifest.check_epoch(_store(2), REGION, 1)
