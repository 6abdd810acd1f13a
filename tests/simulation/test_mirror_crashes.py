"""Kill the process that publishes a mirror at each request, or let a second publisher or the collector act.

The mirror always shows a correct version of the table.
"""

from __future__ import annotations

import random
from functools import cache, partial
from pathlib import Path

import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import Corrupt, NotFound, TidemarkError
from storage_core.data.formats.keys import (
    delta_commit_key,
    delta_hint_key,
    iceberg_hint_key,
    iceberg_metadata_key,
    parse,
)
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.formats.mirrors import manifests_of
from storage_core.data.settings.table import TableConfig
from storage_core.interop import iceberg_manifests
from storage_core.interop.iceberg_manifests import MERGED
from storage_core.log.mirror_metadata import newest_commit, state_at
from storage_core.maintain.check import fsck
from storage_core.maintain.findings import Severity
from storage_core.store.contract import ObjectStore
from storage_core.store.local import LocalStore
from storage_core.store.memory import MemoryStore
from storage_core.table import Table
from tests.support import upkeep
from tests.support.changed_rows import created, opened, row, rows_of
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_into, copy_of
from tests.support.crashes import left_by_crashes
from tests.support.dated import Dated, collect_at, collect_twice, opened_at
from tests.support.fault_store import FaultStore
from tests.support.meanwhile import Meanwhile
from tests.support.mirrors import DELTA, ICEBERG, Mirrors
from tests.support.published import by_delta_rs, plain
from tests.support.scale import scaled

RETENTION_MS = 5 * HOUR_MS

of_each = pytest.mark.parametrize("mirrors", [DELTA, ICEBERG], ids=lambda mirrors: mirrors.format)


def _config(mirrors: Mirrors) -> TableConfig:
    return TableConfig(
        time_column="at",
        window_seconds=3600,
        sort_schema="host|timestamp/V2",
        checkpoint_interval=3,
        version_retention_ms=RETENTION_MS,
        gc_horizon_ms=HOUR_MS,
        publish=mirrors.publish,
    )


@cache
def _start(mirrors: Mirrors, name: str = "copy") -> MemoryStore:
    """Return a table that was published once and changed after the publication.

    A mirror is valid only for one location. A copy of the store therefore has the same name as the store.
    """
    store = MemoryStore(name)
    table = created(store, _config(mirrors))
    table.append([row(n, f"h{n % 3}", hour=n % 2) for n in range(60)])
    table.publish(mirrors.format)
    mirrors.change(table)
    return store


def _dated(mirrors: Mirrors) -> Dated:
    store = Dated()
    copy_into(store, _start(mirrors, "dated"))
    return store


def _publish(mirrors: Mirrors, store: ObjectStore, seed: int = 7) -> object:
    return opened(store, seed).publish(mirrors.format)


def _instants(mirrors: Mirrors) -> range:
    """Return the numbers of some requests of a publication. A large `SCALE` selects all requests."""
    requests = FaultStore(copy_of(_start(mirrors)))
    _publish(mirrors, requests)
    return range(0, len(requests.trace), max(1, 4 // scaled(1)))


def _require_sound(mirrors: Mirrors, store: ObjectStore) -> None:
    """Assert that the mirror shows each version once, with exactly its files, and that these files exist."""
    table, versions = opened(store, 998), mirrors.versions(store)
    assert versions == sorted({*versions}) != []
    for each in versions:
        mirrors.require_shown(store, table.log.snapshot(version=each), each)


def _require_kept(mirrors: Mirrors, store: ObjectStore, now_ms: int) -> None:
    """Assert that all files exist to which the mirror refers now, or referred during the retention period."""
    for files in mirrors.kept(store, now_ms - RETENTION_MS, now_ms):
        for key in files:
            store.head(key)


@of_each
def test_killed_at_any_request_the_next_mirror_ends_where_one_that_was_not_killed_does(mirrors: Mirrors) -> None:
    whole = copy_of(_start(mirrors))
    _publish(mirrors, whole)
    assert len(mirrors.versions(whole)) > 3
    left = left_by_crashes(_start(mirrors), partial(_publish, mirrors))
    assert len(left) > 4
    for store in left:
        _require_sound(mirrors, store)
        _publish(mirrors, store, 8)
        assert mirrors.newest(store) == mirrors.newest(whole)
        _require_sound(mirrors, store)


@of_each
def test_killed_before_anything_is_published_it_is_published_by_the_same_call(mirrors: Mirrors) -> None:
    never = copy_of(_start(mirrors))
    never.delete([info.key for info in never.list(mirrors.prefix)])
    for store in left_by_crashes(never, partial(_publish, mirrors)):
        _publish(mirrors, store, 8)
        _require_sound(mirrors, store)


@of_each
@pytest.mark.parametrize("appends", [False, True], ids=["of the same", "of a newer version"])
def test_of_two_mirrors_at_once_each_version_is_shown_by_one(mirrors: Mirrors, *, appends: bool) -> None:
    for instant in _instants(mirrors):
        store = copy_of(_start(mirrors))

        def act(at: MemoryStore = store) -> None:
            if appends:
                opened(at, 8).append([row(500, "meanwhile")])
            _publish(mirrors, at, 9)

        _publish(mirrors, FaultStore(store, watch=Meanwhile(instant, act)))
        _require_sound(mirrors, store)
        assert mirrors.versions(store)[-1] == opened(store, 10).version


@of_each
def test_a_collector_and_a_mirror_meet_at_any_request_and_nothing_is_lost(mirrors: Mirrors) -> None:
    late = START_MS + 2 * RETENTION_MS
    for instant in _instants(mirrors):
        store = _dated(mirrors)
        collect_twice(store, late)
        act = partial(collect_at, store, late + 4 * HOUR_MS, 8)
        _publish(mirrors, FaultStore(store, watch=Meanwhile(instant, act)))
        collect_twice(store, late + 5 * HOUR_MS)
        _require_kept(mirrors, store, late + 8 * HOUR_MS)
        opened_at(store, late, 9).publish(mirrors.format)
        assert mirrors.versions(store)[-1] == opened(store, 10).version


@of_each
def test_a_collector_beside_it_keeps_all_that_a_published_version_within_its_retention_names(mirrors: Mirrors) -> None:
    for seed in range(scaled(1)):
        chance = random.Random(seed)
        store, now = Dated(), START_MS
        created(store, _config(mirrors))
        published = 0
        for step in range(40):
            now += chance.randrange(HOUR_MS)
            table = opened_at(store, now, 1000 * seed + step)
            match chance.randrange(6):
                case 0 | 1:
                    table.append([row(n, f"h{n % 3}", hour=n % 2) for n in range(9 * step, 9 * step + 9)])
                case 2:
                    mirrors.delete(table, f"n % 5 = {chance.randrange(5)}")
                case 3:
                    upkeep.compact(table)
                case 4:
                    published += table.publish(mirrors.format).commits
                case _:
                    collect_at(store, now, 5000 * seed + step, chance.choice([None, 0]))
                    _require_kept(mirrors, store, now)
        assert published > 5


@of_each
def test_a_mirror_that_was_away_longer_than_versions_are_retained_goes_on(mirrors: Mirrors) -> None:
    store = _dated(mirrors)
    before = rows_of(store)
    now = START_MS + 10 * RETENTION_MS
    for number in range(12):
        opened_at(store, now + number, 20 + number).append(
            [row(n, "new") for n in range(100 * number + 100, 100 * number + 110)]
        )
    collect_twice(store, now + 3 * RETENTION_MS)
    with pytest.raises(TidemarkError):
        opened(store, 3).log.snapshot(version=1)
    _require_kept(mirrors, store, now)
    opened_at(store, now + 4 * RETENTION_MS, 60).publish(mirrors.format)
    mirrors.require_shown(store, opened(store, 61).snapshot)
    assert rows_of(store) != before


# Tests of a single format.


def test_real_readers_find_the_rows_after_kills(tmp_path: Path) -> None:
    for number, store in enumerate(left_by_crashes(_start(DELTA), partial(_publish, DELTA))[::3]):
        _publish(DELTA, store, 8)
        copy_into(LocalStore(str(tmp_path / str(number))), store)
        newest = newest_commit(store)
        assert newest is not None
        table = Table.open(str(tmp_path / str(number)))
        assert by_delta_rs(table.uri, newest.commit.version, table.schema.names) == plain(table.scan().to_arrow())


def test_old_delta_versions_go_once_a_later_checkpoint_is_as_old_as_versions_are_retained() -> None:
    store = _published_each_hour(DELTA, 25)
    left = [
        parsed.version
        for info in store.list("_delta_log/")
        if (parsed := parse(info.key)) and parsed.kind is KeyKind.DELTA_COMMIT
    ]
    assert {*left} == {*range(20, 25)}
    _require_it_goes_on(DELTA, store, 25)


def test_a_hint_that_is_lost_or_damaged_costs_requests_and_a_lost_commit_is_named() -> None:
    store = copy_of(_start(DELTA))
    _publish(DELTA, store)
    newest = newest_commit(store)
    store.delete([delta_hint_key()])
    assert newest_commit(store) == newest
    store.delete([delta_commit_key(1)])
    assert newest is not None
    with pytest.raises(Corrupt, match=r"00001\.json: missing.*Remove the folder `_delta_log` and publish again"):
        state_at(store, newest.commit)


def test_old_metadata_goes_and_a_lost_hint_costs_a_listing() -> None:
    store = _published_each_hour(ICEBERG, 12)
    parsed = [each for info in store.list("_iceberg/") if (each := parse(info.key)) is not None]
    of_kind = {kind: sum(each.kind is kind for each in parsed) for kind in {each.kind for each in parsed}}
    assert of_kind[KeyKind.ICEBERG_METADATA] < 8
    assert of_kind[KeyKind.ICEBERG_LIST] < 8
    store.delete([iceberg_hint_key()])
    assert ICEBERG.metadata(store).number == 12
    _require_it_goes_on(ICEBERG, store, 13)
    assert store.get(iceberg_hint_key()).data == b"13"
    with pytest.raises(NotFound):
        store.get(iceberg_metadata_key(1))


def _published_each_hour(mirrors: Mirrors, hours: int) -> Dated:
    """Return a table with one append and one publication per hour. The collector ran some hours later."""
    store = Dated()
    created(store, _config(mirrors))
    for number in range(hours):
        table = opened_at(store, START_MS + number * HOUR_MS, 10 + number)
        table.append([row(number)])
        table.publish(mirrors.format)
    collect_twice(store, START_MS + (hours + 3) * HOUR_MS)
    return store


def _require_it_goes_on(mirrors: Mirrors, store: Dated, number: int) -> None:
    """Fail unless the mirror shows the next table version as version `number` and a deep check has no warning."""
    table = opened(store, 80)
    table.append([row(99)])
    assert table.publish(mirrors.format).shown_as == number
    found = fsck(store, clock=ManualClock(START_MS + 31 * HOUR_MS, step_ms=1), deep=True).findings
    assert [each for each in found if each.severity is not Severity.NOTE] == []


def test_what_a_commit_costs_does_not_grow_with_the_commits_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_manifests, "MOST_FILES", 16)
    store = MemoryStore("long")
    table = created(store, _config(ICEBERG))
    costs, manifests = [], []
    for number in range(40):
        table.append([row(number)])
        requests = FaultStore(store)
        _publish(ICEBERG, requests, 100 + number)
        costs.append(sum("_iceberg/" in each.request.key for each in requests.trace))
        newest = ICEBERG.metadata(store)
        manifests.append(len(manifests_of(store.get(newest.shown.files).data, newest.root, "")))
    assert max(manifests) <= MERGED + 40 // 8
    assert sorted(costs)[-10] <= 9
    assert max(costs) <= 9 + MERGED + 1
