"""The Delta mirror ends at every request, runs beside another, and beside the collector: it shows what it says."""

from __future__ import annotations

import random
from functools import cache, partial
from pathlib import Path

import pytest

from storage_core.clock import HOUR_MS
from storage_core.errors import Corrupt, TidemarkError
from storage_core.formats.keys import KeyKind, delta_commit_key, delta_hint_key, parse
from storage_core.fsck.check import fsck
from storage_core.fsck.report import Severity
from storage_core.log.published_delta import DeltaState, newest_commit, read_commit, state_at
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.local import LocalStore
from storage_core.objectstore.memory import MemoryStore
from storage_core.publishing.delta_files import descriptor
from storage_core.settings.publish import Publish
from storage_core.settings.table import TableConfig
from storage_core.table import Table
from tests.support import upkeep
from tests.support.changed_rows import created, kept, opened, row, rows_of
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_into, copy_of
from tests.support.crashes import left_by_crashes
from tests.support.dated import Dated, collect_at, collect_twice, opened_at
from tests.support.fault_store import FaultStore
from tests.support.meanwhile import Meanwhile
from tests.support.published import by_delta_rs, plain
from tests.support.scale import scaled

RETENTION_MS = 5 * HOUR_MS
CONFIG = TableConfig(
    time_column="at",
    window_seconds=3600,
    sort_schema="host|timestamp/V2",
    checkpoint_interval=3,
    version_retention_ms=RETENTION_MS,
    gc_horizon_ms=HOUR_MS,
    publish=Publish(delta="inline"),
)


@cache
def _start() -> MemoryStore:
    """A table that was published, and then changed: appends, deletes, an update, a compaction, a column."""
    store = MemoryStore("published")
    table = created(store, CONFIG)
    table.append([row(n, f"h{n % 3}", hour=n % 2) for n in range(60)])
    table.publish()
    table.delete("n % 7 = 3")
    table.append([row(n, "later", hour=1) for n in range(60, 80)])
    table.update({"host": "moved"}, "n % 11 = 0")
    upkeep.compact(table.refresh())
    table.add_column("note", "string")
    table.delete("n = 1")
    return store


def _publish(store: ObjectStore, seed: int = 7) -> object:
    return opened(store, seed).publish("delta")


def _require_sound(store: ObjectStore) -> None:
    """Each Delta version names exactly the files of the version that it shows, with their vectors, and they exist."""
    newest = newest_commit(store)
    assert newest is not None
    table = opened(store, 998)
    for number in range(newest.commit.version + 1):
        commit = read_commit(store, number)
        assert commit is not None
        assert commit.shown is not None
        state: DeltaState = state_at(store, commit)
        shown = table.log.snapshot(version=commit.shown.version)
        assert state.files == {key: descriptor(store, add) for key, add in shown.splits.items()}
        for key in state.files:
            store.head(key)


def test_killed_at_any_request_the_next_mirror_ends_where_one_that_was_not_killed_does() -> None:
    whole = copy_of(_start())
    _publish(whole)
    expected = newest_commit(whole)
    assert expected is not None
    left = left_by_crashes(_start(), _publish)
    assert len(left) > 4
    for store in left:
        _require_sound(store)
        _publish(store, 8)
        found = newest_commit(store)
        assert found is not None
        assert found.commit.version == expected.commit.version
        assert found.commit.added == expected.commit.added
        _require_sound(store)


def test_killed_before_anything_is_published_it_is_published_by_the_same_call() -> None:
    never = copy_of(_start())
    never.delete([delta_commit_key(0)])
    for store in left_by_crashes(never, _publish):
        _publish(store, 8)
        _require_sound(store)


def test_of_two_mirrors_at_once_each_delta_commit_is_made_by_one() -> None:
    requests = FaultStore(copy_of(_start()))
    _publish(requests)
    for instant in range(0, len(requests.trace), max(1, 2 // scaled(1))):
        store = copy_of(_start())
        _publish(FaultStore(store, watch=Meanwhile(instant, partial(_publish, store, 8))))
        _require_sound(store)
        newest = newest_commit(store)
        assert newest is not None
        shown = [
            commit.shown for n in range(newest.commit.version + 1) if (commit := read_commit(store, n)) is not None
        ]
        versions = [each.version for each in shown if each is not None]
        assert versions == sorted(set(versions)), "no version is shown twice"
        assert versions[-1] == opened(store, 9).version


def test_another_mirror_that_shows_a_newer_version_meanwhile_is_no_damage() -> None:
    requests = FaultStore(copy_of(_start()))
    _publish(requests)
    for instant in range(0, len(requests.trace), max(1, 3 // scaled(1))):
        store = copy_of(_start())

        def act(at: MemoryStore = store) -> None:
            opened(at, 8).append([row(500, "meanwhile")])
            _publish(at, 9)

        _publish(FaultStore(store, watch=Meanwhile(instant, act)))
        _require_sound(store)
        newest = newest_commit(store)
        assert newest is not None
        assert newest.commit.shown is not None
        assert newest.commit.shown.version == opened(store, 10).version


def test_real_readers_find_the_rows_after_kills(tmp_path: Path) -> None:
    for number, store in enumerate(left_by_crashes(_start(), _publish)[::3]):
        _publish(store, 8)
        copy_into(LocalStore(str(tmp_path / str(number))), store)
        newest = newest_commit(store)
        assert newest is not None
        table = Table.open(str(tmp_path / str(number)))
        assert by_delta_rs(table.uri, newest.commit.version, table.schema.names) == plain(table.scan().to_arrow())


def test_a_collector_beside_it_keeps_all_that_a_published_version_within_its_retention_names() -> None:
    for seed in range(scaled(2)):
        chance = random.Random(seed)
        store, now = Dated(), START_MS
        created(store, CONFIG)
        shown: dict[int, tuple[object, int]] = {}
        for step in range(40):
            now += chance.randrange(HOUR_MS)
            table = opened_at(store, now, 1000 * seed + step)
            match chance.randrange(6):
                case 0 | 1:
                    table.append([row(n, f"h{n % 3}", hour=n % 2) for n in range(9 * step, 9 * step + 9)])
                case 2:
                    table.delete(f"n % 5 = {chance.randrange(5)}")
                case 3:
                    upkeep.compact(table)
                case 4:
                    table.publish()
                    newest = newest_commit(store)
                    assert newest is not None
                    shown.setdefault(newest.commit.version, (kept(table.scan().to_arrow().to_pylist()), now))
                case _:
                    collect_at(store, now, 5000 * seed + step, chance.choice([None, 0]))
                    _require_kept(store, now)
        assert shown


def _dated() -> Dated:
    store = Dated()
    copy_into(store, _start())
    return store


def _require_kept(store: ObjectStore, now_ms: int) -> None:
    """Every file of a Delta version that is the newest, or was superseded within the retention, exists."""
    newest = newest_commit(store)
    if newest is None:
        return
    superseded_ms = now_ms
    for number in range(newest.commit.version, -1, -1):
        if superseded_ms <= now_ms - RETENTION_MS:
            break
        commit = read_commit(store, number)
        assert commit is not None
        assert commit.shown is not None
        for key in state_at(store, commit).files:
            store.head(key)
        superseded_ms = commit.shown.published_at_ms


def test_a_collector_and_a_mirror_meet_at_any_request_and_nothing_is_lost() -> None:
    late = START_MS + 2 * RETENTION_MS
    requests = FaultStore(copy_of(_start()))
    _publish(requests)
    for instant in range(0, len(requests.trace), max(1, 4 // scaled(1))):
        store = _dated()
        collect_twice(store, late)

        def act(at: Dated = store) -> None:
            collect_at(at, late + 4 * HOUR_MS, 8)

        _publish(FaultStore(store, watch=Meanwhile(instant, act)))
        collect_twice(store, late + 5 * HOUR_MS)
        _require_kept(store, late + 8 * HOUR_MS)
        assert opened_at(store, late, 9).publish().version == opened(store, 10).version


def test_a_mirror_that_was_away_longer_than_versions_are_retained_goes_on() -> None:
    store = _dated()
    before = rows_of(store)
    table = opened(store, 3)
    now = START_MS + 10 * RETENTION_MS
    for number in range(12):
        opened_at(store, now + number, 20 + number).append(
            [row(n, "new") for n in range(100 * number + 100, 100 * number + 110)]
        )
    collect_twice(store, now + 3 * RETENTION_MS)
    with pytest.raises(TidemarkError):
        table.log.snapshot(version=1)
    _require_kept(store, now)
    opened_at(store, now + 4 * RETENTION_MS, 60).publish()
    newest = newest_commit(store)
    assert newest is not None
    head = opened(store, 61).snapshot
    assert state_at(store, newest.commit).files == {key: descriptor(store, add) for key, add in head.splits.items()}
    assert rows_of(store) != before


def test_old_delta_versions_go_once_a_later_checkpoint_is_as_old_as_versions_are_retained() -> None:
    store = Dated()
    created(store, CONFIG)
    for number in range(25):
        table = opened_at(store, START_MS + number * HOUR_MS, 10 + number)
        table.append([row(number)])
        table.publish()
    collect_twice(store, START_MS + 28 * HOUR_MS)
    left = [
        parsed.version
        for info in store.list("_delta_log/")
        if (parsed := parse(info.key)) and parsed.kind is KeyKind.DELTA_COMMIT
    ]
    assert {*left} == {*range(20, 25)}
    table = opened(store, 80)
    table.append([row(99)])
    assert table.publish().shown_as == 25
    found = fsck(store, clock=ManualClock(START_MS + 31 * HOUR_MS, step_ms=1), deep=True).findings
    assert [each for each in found if each.severity is not Severity.NOTE] == []


def test_a_hint_that_is_lost_or_damaged_costs_requests_and_a_lost_commit_is_named() -> None:
    store = copy_of(_start())
    _publish(store)
    newest = newest_commit(store)
    store.delete([delta_hint_key()])
    assert newest_commit(store) == newest
    store.delete([delta_commit_key(1)])
    assert newest is not None
    with pytest.raises(Corrupt, match=r"00001\.json: missing.*remove the folder `_delta_log` and publish again"):
        state_at(store, newest.commit)
