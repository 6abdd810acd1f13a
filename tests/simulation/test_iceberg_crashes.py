"""The Iceberg mirror ends at every request, runs beside another, and beside the collector: it shows what it says."""

from __future__ import annotations

import random
from functools import cache, partial

import pytest

from storage_core.clock import HOUR_MS
from storage_core.errors import NotFound
from storage_core.formats.iceberg_metadata import IcebergMetadata, ShownSnapshot, files_of, manifests_of
from storage_core.formats.keys import KeyKind, iceberg_hint_key, iceberg_metadata_key, parse
from storage_core.fsck.check import fsck
from storage_core.fsck.report import Severity
from storage_core.log.published_iceberg import newest_metadata, read_metadata
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.memory import MemoryStore
from storage_core.publishing import iceberg_manifests
from storage_core.publishing.iceberg_manifests import MERGED
from storage_core.settings.publish import Publish
from storage_core.settings.table import TableConfig
from tests.support import upkeep
from tests.support.changed_rows import created, opened, row
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_into, copy_of
from tests.support.crashes import left_by_crashes
from tests.support.dated import Dated, collect_at, collect_twice, opened_at
from tests.support.fault_store import FaultStore
from tests.support.meanwhile import Meanwhile
from tests.support.scale import scaled

RETENTION_MS = 5 * HOUR_MS
CONFIG = TableConfig(
    time_column="at",
    window_seconds=3600,
    sort_schema="host|timestamp/V2",
    checkpoint_interval=3,
    version_retention_ms=RETENTION_MS,
    gc_horizon_ms=HOUR_MS,
    publish=Publish(iceberg=True),
)


@cache
def _start(name: str = "copy") -> MemoryStore:
    """A table that was published, and then changed: an append, a delete, a compaction, a column.

    Copies of the store have this name: a mirror is of one place.
    """
    store = MemoryStore(name)
    table = created(store, CONFIG)
    table.append([row(n, f"h{n % 3}", hour=n % 2) for n in range(60)])
    table.publish("iceberg")
    table.append([row(n, "later", hour=n % 2) for n in range(60, 80)])
    table.delete("n % 7 = 3")
    upkeep.compact(table.refresh())
    table.add_column("note", "string")
    return store


def _publish(store: ObjectStore, seed: int = 7) -> object:
    return opened(store, seed).publish("iceberg")


def _newest(store: ObjectStore) -> IcebergMetadata:
    found = newest_metadata(store)
    assert found is not None
    return found.metadata


def _versions(store: ObjectStore) -> list[int]:
    return [each.version for each in _newest(store).snapshots]


def _files(store: ObjectStore, metadata: IcebergMetadata, snapshot: ShownSnapshot) -> set[str]:
    """The splits that a snapshot names; they exist."""
    named: set[str] = set()
    for key in manifests_of(store.get(snapshot.files).data, metadata.root, snapshot.files):
        named |= {each.key for each in files_of(store.get(key).data, metadata.root, key) if each.is_live}
    for key in named:
        store.head(key)
    return named


def _shown_files(store: ObjectStore) -> set[str]:
    metadata = _newest(store)
    return _files(store, metadata, metadata.shown)


def _require_sound(store: ObjectStore) -> None:
    """Each snapshot names exactly the files of the version that it shows, which hide no row."""
    table, newest = opened(store, 998), _newest(store)
    for each in newest.snapshots:
        version = table.log.snapshot(version=each.version)
        assert _files(store, newest, each) == {*version.splits}
        assert not version.splits.deleted_rows()
    versions = _versions(store)
    assert versions == sorted({*versions}), "no version is shown twice"


def test_killed_at_any_request_the_next_mirror_ends_where_one_that_was_not_killed_does() -> None:
    whole = copy_of(_start())
    _publish(whole)
    assert len(_versions(whole)) > 3
    left = left_by_crashes(_start(), _publish)
    assert len(left) > 7
    for store in left:
        _require_sound(store)
        _publish(store, 8)
        assert _versions(store) == _versions(whole)
        assert store.get(iceberg_hint_key()).data.decode() == str(_newest(store).number)
        _require_sound(store)


def test_killed_before_anything_is_published_it_is_published_by_the_same_call() -> None:
    never = copy_of(_start())
    never.delete([info.key for info in never.list("_iceberg/")])
    for store in left_by_crashes(never, _publish):
        _publish(store, 8)
        _require_sound(store)


def test_of_two_mirrors_at_once_each_metadata_file_is_made_by_one() -> None:
    requests = FaultStore(copy_of(_start()))
    _publish(requests)
    for instant in range(0, len(requests.trace), max(1, 4 // scaled(1))):
        store = copy_of(_start())

        def act(at: MemoryStore = store) -> None:
            opened(at, 8).append([row(500, "meanwhile")])
            _publish(at, 9)

        _publish(FaultStore(store, watch=Meanwhile(instant, act)))
        _require_sound(store)
        assert _versions(store)[-1] == opened(store, 9).version


def test_a_collector_and_a_mirror_meet_at_any_request_and_nothing_is_lost() -> None:
    late = START_MS + 2 * RETENTION_MS
    requests = FaultStore(copy_of(_start()))
    _publish(requests)
    for instant in range(0, len(requests.trace), max(1, 6 // scaled(1))):
        store = Dated()
        copy_into(store, _start("dated"))
        collect_twice(store, late)
        act = partial(collect_at, store, late + 4 * HOUR_MS, 8)
        _publish(FaultStore(store, watch=Meanwhile(instant, act)))
        collect_twice(store, late + 5 * HOUR_MS)
        assert _shown_files(store)
        opened_at(store, late, 9).publish("iceberg")
        assert _versions(store)[-1] == opened(store, 10).version


def test_a_collector_beside_it_keeps_all_that_a_published_version_within_its_retention_names() -> None:
    for seed in range(scaled(1)):
        chance = random.Random(seed)
        store, now = Dated(), START_MS
        created(store, CONFIG)
        published = 0
        for step in range(40):
            now += chance.randrange(HOUR_MS)
            table = opened_at(store, now, 1000 * seed + step)
            match chance.randrange(6):
                case 0 | 1:
                    table.append([row(n, f"h{n % 3}", hour=n % 2) for n in range(9 * step, 9 * step + 9)])
                case 2:
                    table.delete(f"n % 5 = {chance.randrange(5)}")
                    upkeep.compact(table.refresh())
                case 3:
                    upkeep.compact(table)
                case 4:
                    published += table.publish("iceberg").commits
                case _:
                    collect_at(store, now, 5000 * seed + step, chance.choice([None, 0]))
                    _require_kept(store, now)
        assert published > 5


def _require_kept(store: ObjectStore, now_ms: int) -> None:
    """All that a metadata file names which is the newest, or was until the retention began, exists."""
    found = newest_metadata(store)
    at, superseded_ms = 0 if found is None else found.metadata.number, now_ms
    while at and superseded_ms > now_ms - RETENTION_MS:
        metadata = read_metadata(store, at)
        assert metadata is not None
        _files(store, metadata, metadata.shown)
        at, superseded_ms = at - 1, metadata.shown.published_at_ms or 0


def test_a_mirror_that_was_away_longer_than_versions_are_retained_goes_on() -> None:
    store = Dated()
    copy_into(store, _start("dated"))
    now = START_MS + 10 * RETENTION_MS
    for number in range(6):
        opened_at(store, now + number, 20 + number).append([row(n, "new") for n in range(100, 110)])
    collect_twice(store, now + 3 * RETENTION_MS)
    _require_kept(store, now)
    opened_at(store, now + 4 * RETENTION_MS, 60).publish("iceberg")
    head = opened(store, 61).snapshot
    assert (_versions(store)[-1], _shown_files(store)) == (head.version, {*head.splits})


def test_old_metadata_goes_and_a_lost_hint_costs_a_listing() -> None:
    store = Dated()
    created(store, CONFIG)
    for number in range(12):
        table = opened_at(store, START_MS + number * HOUR_MS, 10 + number)
        table.append([row(number)])
        table.publish("iceberg")
    collect_twice(store, START_MS + 14 * HOUR_MS)
    parsed = [each for info in store.list("_iceberg/") if (each := parse(info.key)) is not None]
    of_kind = {kind: sum(each.kind is kind for each in parsed) for kind in {each.kind for each in parsed}}
    kept = of_kind[KeyKind.ICEBERG_METADATA]
    assert kept < 8
    assert of_kind[KeyKind.ICEBERG_LIST] < 8
    store.delete([iceberg_hint_key()])
    assert _newest(store).number == 12
    table = opened(store, 80)
    table.append([row(99)])
    assert table.publish("iceberg").shown_as == 13
    assert store.get(iceberg_hint_key()).data == b"13"
    with pytest.raises(NotFound):
        store.get(iceberg_metadata_key(1))
    found = fsck(store, clock=ManualClock(START_MS + 31 * HOUR_MS, step_ms=1), deep=True).findings
    assert [each for each in found if each.severity is not Severity.NOTE] == []


def test_what_a_commit_costs_does_not_grow_with_the_commits_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_manifests, "MOST_FILES", 16)
    store = MemoryStore("long")
    table = created(store, CONFIG)
    costs, manifests = [], []
    for number in range(40):
        table.append([row(number)])
        requests = FaultStore(store)
        _publish(requests, 100 + number)
        costs.append(sum("_iceberg/" in each.request.key for each in requests.trace))
        newest = _newest(store)
        manifests.append(len(manifests_of(store.get(newest.shown.files).data, newest.root, "")))
    assert max(manifests) <= MERGED + 40 // 8
    assert sorted(costs)[-10] <= 9
    assert max(costs) <= 9 + MERGED + 1
