"""A log opens at the same snapshot with any hints and checkpoints, and with a bounded number of requests.

See lessons 30, 32, 46, 47 and 48.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from storage_core.base.errors import Corrupt, InvalidInput, NotFound, Unavailable
from storage_core.data.formats.documents import CheckpointKind
from storage_core.data.formats.keys import last_checkpoint_key, state_key, version_key
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, Fence, MergedGenerations, MergeSkip, Txn
from storage_core.log.checkpoint import manifest_keys, read_state
from storage_core.log.listing import Checkpointed, list_log, read_hint
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import IfAbsent, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.clock import START_MS, ManualClock
from tests.support.fault_store import FaultStore
from tests.support.log_tables import INDEX, log_on, metadata, removal, segment, split
from tests.support.waves import WavesStore

NEWEST = 12
STEP_MS = 1000


@pytest.fixture
def store() -> MemoryStore:
    """Return a table of 12 versions, one per second, with states at 5 and 10, removals and every kind of progress."""
    store, clock = MemoryStore("t"), ManualClock()
    log = log_on(store, clock=clock)
    log.create(metadata(TableConfig(checkpoint_interval=5, indexes=(INDEX,))))
    for version in range(1, NEWEST + 1):
        clock.now += STEP_MS
        actions: list[Action] = [
            split(f"n{version}", version),
            segment(f"s{version}", f"n{version}"),
            Txn(appId="job", version=version),
            Fence(resource="r", token=version),
            MergedGenerations(region="g", generation=version),
            *([removal(f"n{version - 3}")] if version > 3 else []),
        ]
        log.commit(log.snapshot(), actions, operation="TEST")
    return store


def _replayed(store: MemoryStore, version: int | None = None) -> Snapshot:
    """Return the snapshot from the version files alone, in a store without other objects."""
    bare = MemoryStore("bare")
    for number in range(NEWEST + 1):
        bare.put(version_key(number), store.get(version_key(number)).data, IfAbsent())
    return log_on(bare).snapshot(version=version)


def _damage_none(store: MemoryStore) -> None:
    pass


def _lose_hint(store: MemoryStore) -> None:
    store.delete([last_checkpoint_key()])


def _write_hint(data: bytes) -> Callable[[MemoryStore], None]:
    def write(store: MemoryStore) -> None:
        store.put(last_checkpoint_key(), data, Overwrite())

    return write


def _tear_hint(store: MemoryStore) -> None:
    data = store.get(last_checkpoint_key()).data
    store.put(last_checkpoint_key(), data[: len(data) // 2], Overwrite())


def _hint_at(version: int) -> bytes:
    return json.dumps({"version": version, "format": "avro-state"}).encode()


def _lose_state(store: MemoryStore) -> None:
    store.delete([state_key(10)])


def _tear_state(store: MemoryStore) -> None:
    store.put(state_key(10), store.get(state_key(10)).data[:-20], Overwrite())


def _other_state(store: MemoryStore) -> None:
    store.put(state_key(10), store.get(state_key(5)).data, Overwrite())


def _lose_manifest(store: MemoryStore) -> None:
    store.delete(manifest_keys(read_state(store, 10)))


def _flip_manifest(store: MemoryStore) -> None:
    for key in manifest_keys(read_state(store, 10)):
        data = bytearray(store.get(key).data)
        data[-30] ^= 1
        store.put(key, bytes(data), Overwrite())


def _swap_manifest(store: MemoryStore) -> None:
    (older,) = manifest_keys(read_state(store, 5))
    (key,) = manifest_keys(read_state(store, 10))
    store.put(key, store.get(older).data, Overwrite())


def _lose_every_state(store: MemoryStore) -> None:
    store.delete([state_key(5), state_key(10)])


@pytest.mark.parametrize("hint", [_damage_none, _lose_hint])
@pytest.mark.parametrize(
    "damage",
    [
        _damage_none,
        _write_hint(b""),
        _tear_hint,
        _write_hint(b"\xff\x00"),
        _write_hint(b"[1]"),
        _write_hint(b'{"version": "10", "format": "avro-state"}'),
        _write_hint(b'{"version": -1, "format": "avro-state"}'),
        _write_hint(b'{"version": 10, "format": "json"}'),
        _write_hint(_hint_at(5)),
        _write_hint(_hint_at(11)),
        _write_hint(_hint_at(10_000)),
        _lose_state,
        _tear_state,
        _other_state,
        _lose_manifest,
        _flip_manifest,
        _swap_manifest,
        _lose_every_state,
    ],
)
def test_lessons_46_and_47_the_answer_never_depends_on_hints_and_states(
    store: MemoryStore, damage: Callable[[MemoryStore], None], hint: Callable[[MemoryStore], None]
) -> None:
    expected = _replayed(store)
    damage(store)
    hint(store)
    assert log_on(store).snapshot() == expected
    assert log_on(store).snapshot(version=11) == _replayed(store, 11)


@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_every_version_can_be_opened_and_equals_the_replay(store: MemoryStore, version: int) -> None:
    found = log_on(store).snapshot(version=version)
    assert found == _replayed(store, version)
    assert found.version == version
    assert found.checkpoint_version == (10 if version >= 10 else 5 if version >= 5 else None)


@pytest.mark.parametrize("offset", [0, 1, STEP_MS - 1])
def test_a_timestamp_opens_the_newest_version_committed_by_then(store: MemoryStore, offset: int) -> None:
    times = [START_MS + version * STEP_MS + offset for version in range(NEWEST + 1)]
    assert [log_on(store).snapshot(timestamp_ms=each).version for each in times] == [*range(NEWEST + 1)]


def test_what_cannot_be_opened_is_named_with_what_can(store: MemoryStore) -> None:
    log = log_on(store)
    with pytest.raises(NotFound, match=r"version 13 does not exist\. The newest version is 12"):
        log.snapshot(version=13)
    with pytest.raises(NotFound, match="The oldest version is 0"):
        log.snapshot(timestamp_ms=START_MS - 1)
    with pytest.raises(NotFound, match="no table here"):
        log_on(MemoryStore("empty")).snapshot()
    with pytest.raises(NotFound, match="no table here"):
        log_on(MemoryStore("empty")).snapshot(version=3)
    with pytest.raises(InvalidInput, match="start at 0"):
        log.snapshot(version=-1)
    with pytest.raises(InvalidInput, match="cannot be combined with a timestamp"):
        log.snapshot(version=1, timestamp_ms=1)


def test_a_version_whose_own_state_is_damaged_is_not_called_the_oldest_that_is_there(store: MemoryStore) -> None:
    log = log_on(store)
    states = sorted(each.version for each in list_log(store).checkpoints)
    damaged, later = states[0], states[1]
    store.put(state_key(damaged), b"junk", Overwrite())
    store.delete([version_key(version) for version in range(later + 1)])
    with pytest.raises(NotFound, match=f"version {damaged} is no longer retained. The oldest is {later}$"):
        log.snapshot(version=damaged)


def test_versions_that_are_no_longer_retained_are_named(store: MemoryStore) -> None:
    expected = [_replayed(store, version) for version in range(NEWEST + 1)]
    store.delete([version_key(version) for version in range(6)])
    log = log_on(store)
    assert [log.snapshot(version=version) for version in range(5, NEWEST + 1)] == expected[5:]
    with pytest.raises(NotFound, match=r"version 4 is no longer retained\. The oldest is 5"):
        log.snapshot(version=4)
    with pytest.raises(NotFound, match="or before is retained"):
        log.snapshot(timestamp_ms=START_MS + 4 * STEP_MS)
    assert [entry.version for entry in log.history()] == list(range(NEWEST, 5, -1))


def test_a_hole_in_the_log_is_corrupt_and_never_skipped(store: MemoryStore) -> None:
    _lose_hint(store)
    _lose_every_state(store)
    store.delete([version_key(7)])
    with pytest.raises(Corrupt, match=version_key(7)):
        log_on(store).snapshot()
    store.delete([version_key(0)])
    with pytest.raises(Corrupt, match="neither version 0 nor an intact state"):
        log_on(store).snapshot()


@pytest.mark.parametrize("error", [Unavailable("down"), Corrupt("damaged")])
def test_lesson_32_a_version_that_cannot_be_read_ends_the_load(
    store: MemoryStore, error: Unavailable | Corrupt
) -> None:
    faulty = FaultStore(store)
    faulty.on("get", version_key(11), error)
    with pytest.raises(type(error)):
        log_on(faulty).snapshot()
    assert read_hint(store) == Checkpointed(10, CheckpointKind.AVRO_STATE)
    store.put(version_key(11), store.get(version_key(11)).data[:-9], Overwrite())
    with pytest.raises(Corrupt, match=version_key(11)):
        log_on(store).snapshot()


def test_lesson_30_a_commit_without_splits_keeps_every_split(store: MemoryStore) -> None:
    log = log_on(store)
    before = log.snapshot()
    after = log.commit(before, [metadata(TableConfig(indexes=(INDEX,)))], operation="ALTER").snapshot
    log.checkpoint(after)
    assert log.snapshot().checkpoint_version == 13
    assert log.snapshot().splits == before.splits
    assert log.snapshot() == after


def test_lesson_31_removed_splits_stay_removed_through_states(store: MemoryStore) -> None:
    log = log_on(store)
    assert set(log.snapshot().splits) == {split(f"n{version}").path for version in (10, 11, 12)}
    head = log.snapshot()
    for number in range(3):
        head = log.commit(head, [removal(f"n{10 + number}")], operation="REMOVE").snapshot
        log.checkpoint(head)
        assert log.snapshot().checkpoint_version == head.version
        assert log.snapshot().splits == head.splits
    assert not log.snapshot().splits


def test_the_state_carries_every_kind_of_progress(store: MemoryStore) -> None:
    log = log_on(store)
    skip = MergeSkip(path=split("n12").path, skipTimestamp=1, reason="torn", operation="compact", retryAfter=2)
    head = log.commit(log.snapshot(), [skip], operation="SKIP").snapshot
    log.checkpoint(head)
    found = log.snapshot()
    assert found.checkpoint_version == 13
    assert found == head
    assert (dict(found.txns), found.fences, found.merged_generations) == ({"job": 12}, {"r": 12}, {"g": 12})
    assert len(found.segments) == 12
    assert found.mergeskips == {skip.path: skip}
    assert found.splits.added_at(split("n12").path) == (12, START_MS + 12 * STEP_MS)


@pytest.mark.parametrize("step", [0, -1, -3_600_000, 3_600_000])
def test_lesson_48_a_clock_that_freezes_or_steps_loses_nothing(step: int) -> None:
    store, clock = MemoryStore("t"), ManualClock()
    log = log_on(store, clock=clock)
    log.create(metadata(TableConfig(checkpoint_interval=4)))
    for number in range(20):
        clock.now += step if number % 3 == 0 else 0
        log.commit(log.snapshot(), [split(f"n{number}")], operation="APPEND")
    assert len(log.snapshot().splits) == 20
    times = [entry.timestamp for entry in log.history()]
    assert times == sorted(set(times), reverse=True)
    for entry in log.history():
        assert log.snapshot(timestamp_ms=entry.timestamp).version == entry.version


# Budgets.


def _requests(store: MemoryStore, act: Callable[[TransactionLog], object]) -> dict[str, int]:
    metered = MeteredStore(store)
    act(log_on(metered))
    return {kind: count for kind, count in metered.requests.items() if count}


def test_opening_with_a_hint_lists_only_what_lies_beyond_the_head(store: MemoryStore) -> None:
    # The five GETs read the hint, the state, and the versions 11, 12 and 13. Version 13 does not exist.
    assert _requests(store, lambda log: log.snapshot()) == {"get": 5, "list": 1}


def test_opening_right_after_a_checkpoint_is_three_gets_and_a_list(store: MemoryStore) -> None:
    log_on(store).checkpoint(log_on(store).snapshot())
    assert _requests(store, lambda log: log.snapshot()) == {"get": 3, "list": 1}


def test_looking_at_splits_is_one_get_per_manifest_and_only_the_first_time(store: MemoryStore) -> None:
    log_on(store).checkpoint(log_on(store).snapshot())
    metered = MeteredStore(store)
    found = log_on(metered).snapshot()
    opening = metered.requests["get"]
    assert len(found.splits) == len(log_on(store).snapshot(version=NEWEST).splits)
    assert metered.requests["get"] == opening, "the number of splits is known without reading any"
    for _ in range(2):
        assert found.splits.table().num_rows == len(found.splits)
        assert metered.requests["get"] == opening + len(read_state(store, NEWEST).manifests)


def test_opening_without_a_checkpoint_is_one_list_and_a_get_per_version() -> None:
    store = MemoryStore("young")
    log = log_on(store)
    head = log.create(metadata())
    log.commit(head, [split("a")], operation="APPEND")
    assert _requests(store, lambda log: log.snapshot()) == {"get": 4, "list": 1}


@pytest.mark.parametrize(("behind", "gets", "waves"), [(0, 2, 2), (1, 3, 3), (2, 5, 4), (3, 5, 4), (10, 17, 6)])
def test_refreshing_reads_as_many_new_versions_at_once_as_it_found_and_then_the_boundary(
    store: MemoryStore, behind: int, gets: int, waves: int
) -> None:
    head = log_on(store).snapshot()
    older = log_on(store).snapshot(version=NEWEST - behind)
    assert _requests(store, lambda log: log.refresh(older)) == {"get": gets}
    assert _waves(store, lambda log: log.refresh(older)) == waves
    assert log_on(store).refresh(older) == head


def test_opening_waits_for_the_hint_then_for_state_and_listing_then_for_all_newer_versions(store: MemoryStore) -> None:
    log = log_on(store)
    assert log.checkpoint(log.snapshot(version=2)).written
    assert _waves(store, lambda log: log.snapshot()) == 3


def _waves(store: MemoryStore, work: Callable[[TransactionLog], object]) -> int:
    followed = WavesStore(store)
    with followed.waves.followed() as waves:
        work(log_on(followed))
    return waves.number


def test_a_checkpoint_is_three_puts_and_a_second_one_changes_nothing(store: MemoryStore) -> None:
    head = log_on(store).snapshot()
    # The hint is read twice: to check if the snapshot's state is the newest, and to replace the hint. The HEAD request
    # checks a shared manifest.
    assert _requests(store, lambda log: log.checkpoint(head)) == {"get": 2, "put": 3, "head": 1}
    before = {info.key: info.etag for info in store.list("")}
    assert not log_on(store).checkpoint(head).written
    assert {info.key: info.etag for info in store.list("")} == before


def test_a_hint_that_names_nothing_is_replaced_and_a_newer_one_is_kept(store: MemoryStore) -> None:
    log = log_on(store)
    log.checkpoint(log.snapshot(version=7))
    assert read_hint(store) == Checkpointed(10, CheckpointKind.AVRO_STATE)
    _write_hint(_hint_at(10_000))(store)
    log.checkpoint(log.snapshot())
    assert read_hint(store) == Checkpointed(12, CheckpointKind.AVRO_STATE)


def test_a_version_file_in_the_place_of_another_is_named_also_when_just_that_version_is_opened() -> None:
    store = MemoryStore("swapped")
    log = log_on(store)
    log.create(metadata(TableConfig(checkpoint_interval=0)))
    for name in "ab":
        log.commit(log.snapshot(), [split(name)], operation="APPEND")
    store.put(version_key(1), store.get(version_key(2)).data, Overwrite())
    with pytest.raises(Corrupt, match=f"{version_key(1)}: the file contains version 2"):
        log.snapshot(version=1)


@pytest.mark.parametrize("lost", [11, 12])
@pytest.mark.parametrize("open_it", [lambda log: log.snapshot(), lambda log: log.snapshot(version=13)])
def test_a_lost_version_between_the_state_and_the_head_is_named_and_nobody_commits_into_the_gap(
    store: MemoryStore, lost: int, open_it: Callable[[TransactionLog], Snapshot]
) -> None:
    log = log_on(store)
    log.commit(log.snapshot(), [split("n13")], operation="APPEND")
    store.delete([version_key(lost)])
    with pytest.raises(Corrupt, match=f"{version_key(lost)}: the file is missing"):
        open_it(log)


def test_a_version_that_lands_while_the_table_is_opened_is_no_gap(store: MemoryStore) -> None:
    faulty = FaultStore(store)
    log = log_on(store)
    faulty.on("list", "_transaction_log/0", lambda: log.commit(log.snapshot(), [split("n13")], operation="APPEND"))
    assert log_on(faulty).snapshot().version == 13
