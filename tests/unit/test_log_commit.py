"""Commits: their cost, actions that no version accepts, races, and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from storage_core.base.errors import CommitConflict, InvalidInput, NotFound
from storage_core.data.formats.keys import version_key
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, CommitInfo, Metadata, Protocol, Txn
from storage_core.log.commit import MAX_ATTEMPTS
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import IfAbsent
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.clock import START_MS, ManualClock
from tests.support.fault_store import FaultStore
from tests.support.log_tables import log_on, metadata, removal, segment, split


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("t")


@pytest.fixture
def log(store: MemoryStore) -> TransactionLog:
    log = log_on(store)
    log.create(metadata())
    return log


def _commit(log: TransactionLog, *actions: Action, on: Snapshot | None = None) -> Snapshot:
    return log.commit(on or log.snapshot(), actions, operation="TEST").snapshot


def test_a_commit_is_the_next_version_and_readable_at_once(log: TransactionLog) -> None:
    result = log.commit(log.snapshot(), [split("a", 3)], operation="APPEND", metrics={"rows": 3}, job_run_id="run")
    assert (result.version, result.already_committed, result.attempts) == (1, False, 1)
    assert result.snapshot == log.snapshot()
    newest = next(log.history())
    assert (newest.version, newest.operation, newest.commit_id) == (1, "APPEND", result.commit_id)
    assert (newest.metrics, newest.job_run_id) == ({"rows": 3}, "run")


def test_appends_planned_on_one_snapshot_all_land(log: TransactionLog) -> None:
    planned = log.snapshot()
    results = [log.commit(planned, [split(name)], operation="APPEND") for name in "abc"]
    assert [result.version for result in results] == [1, 2, 3]
    assert set(log.snapshot().splits) == {split(name).path for name in "abc"}
    assert results[2].snapshot == log.snapshot()


def test_an_uncontended_commit_is_one_head_and_one_put(store: MemoryStore) -> None:
    log_on(store).create(metadata())
    metered = MeteredStore(store)
    log = log_on(metered)
    planned = log_on(store).snapshot()
    log.commit(planned, [split("a")], operation="APPEND")
    assert metered.requests == {"get": 0, "put": 1, "list": 0, "head": 1, "delete": 0}


def test_creating_a_table_is_one_list_and_one_put(store: MemoryStore) -> None:
    metered = MeteredStore(store)
    log_on(metered).create(metadata())
    assert metered.requests == {"get": 0, "put": 1, "list": 1, "head": 0, "delete": 0}


def test_a_second_creation_is_refused(log: TransactionLog, store: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="is here already"):
        log.create(metadata())
    store.delete([version_key(0)])
    store.put(version_key(7), b"", IfAbsent())
    with pytest.raises(InvalidInput, match="is here already"):
        log.create(metadata())


def test_a_creation_that_loses_the_race_is_refused(store: MemoryStore) -> None:
    faulty = FaultStore(store)
    faulty.on_put(version_key(0), lambda: log_on(store, seed=1).create(metadata()))
    with pytest.raises(InvalidInput, match="is here already"):
        log_on(faulty, seed=2).create(metadata())


def test_a_table_that_could_not_be_opened_is_not_created(store: MemoryStore) -> None:
    with pytest.raises(InvalidInput):
        log_on(store).create(replace(metadata(), schemaString="no schema"))
    with pytest.raises(InvalidInput, match="windowSeconds"):
        log_on(store).create(replace(metadata(), configuration={"tidemark.windowSeconds": "x"}))
    with pytest.raises(NotFound, match="no table"):
        log_on(store).snapshot()


# Actions that no version accepts.


@pytest.mark.parametrize(
    ("actions", "named"),
    [
        ([], "nothing to commit"),
        ([CommitInfo(commitId="c", operation="x", timestamp=1)], "commitInfo"),
        ([Protocol()], "protocol"),
        ([split("a"), split("a")], "more than once"),
        ([split("a"), removal("a")], "more than once"),
        ([segment("s", "a"), segment("s", "b")], "more than once"),
        ([Txn(appId="a", version=1), Txn(appId="a", version=2)], "more than once"),
        ([replace(split("a"), path="../../etc/passwd")], "leads out of the table"),
        ([replace(split("a"), size="12")], "add.size is '12'"),  # type: ignore[arg-type]  # as a careless caller does
    ],
)
def test_a_commit_that_contradicts_itself_is_refused(
    log: TransactionLog, actions: Sequence[Action], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        log.commit(log.snapshot(), actions, operation="TEST")
    assert log.snapshot().version == 0


# Races and time.


def test_a_commit_that_loses_every_race_says_so_and_backs_off_in_between(store: MemoryStore) -> None:
    other = log_on(store, seed=1)
    other.create(metadata(TableConfig(checkpoint_interval=0)))
    faulty, clock = FaultStore(store), ManualClock()
    for version in range(1, MAX_ATTEMPTS + 1):
        faulty.on_put(version_key(version), lambda: _commit(other, Txn(appId="other", version=other_version())))
    log = TransactionLog(faulty, clock=clock, ids=log_on(store, seed=2).ids)

    def other_version() -> int:
        return other.snapshot().version + 1

    with pytest.raises(CommitConflict, match="10 attempts"):
        _commit(log, split("a"))
    assert other.snapshot().version == MAX_ATTEMPTS
    assert not other.snapshot().splits
    assert len(clock.slept_ms) == MAX_ATTEMPTS - 1
    bounds = [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]
    assert all(0 <= slept < bound for slept, bound in zip(clock.slept_ms, bounds, strict=True))
    assert len(set(clock.slept_ms)) == len(clock.slept_ms)


def test_a_commit_that_paused_is_tried_behind_those_that_were_made_meanwhile(store: MemoryStore) -> None:
    """Otherwise a process with fast commits could always commit while the other processes pause, and block them."""
    other = log_on(store, seed=1)
    other.create(metadata(TableConfig(checkpoint_interval=0)))

    def others_commit() -> None:
        _commit(other, Txn(appId="other", version=other.snapshot().version + 1))

    class Meanwhile(ManualClock):
        def sleep_ms(self, duration_ms: float) -> None:
            super().sleep_ms(duration_ms)
            for _ in range(3):
                others_commit()

    faulty = FaultStore(store)
    faulty.on_put(version_key(1), others_commit)
    log = TransactionLog(faulty, clock=Meanwhile(), ids=log_on(store, seed=2).ids)
    result = log.commit(log.snapshot(), [split("a")], operation="TEST")
    assert (result.version, result.attempts) == (5, 2)


def test_commit_times_grow_whatever_the_clock_does(store: MemoryStore) -> None:
    clock = ManualClock()
    log = log_on(store, clock=clock)
    log.create(metadata())
    for name, step in zip("abcdef", (0, -5_000, 0, 3_600_000, -3_600_000, 1), strict=True):
        clock.now += step
        _commit(log, split(name))
    times = [entry.timestamp for entry in log.history()][::-1]
    assert times[:4] == [START_MS, START_MS + 1, START_MS + 2, START_MS + 3]
    assert times == sorted(set(times))
    assert len(log.snapshot().splits) == 6


def test_a_snapshot_older_than_retention_never_resurrects_a_dead_version_number(store: MemoryStore) -> None:
    log = log_on(store)
    ancient = log.create(metadata(TableConfig(checkpoint_interval=5)))
    for name in "abcdefg":
        _commit(log, split(name))
    store.delete([version_key(version) for version in range(5)])
    result = log.commit(ancient, [split("late")], operation="APPEND")
    assert result.version == 8
    assert len(log.snapshot().splits) == 8


def test_metadata_given_by_the_caller_is_stored_as_readers_will_see_it(log: TransactionLog) -> None:
    found = _commit(log, replace(segment("s"), details={"bounds": (1, 2)}))
    assert found == log.snapshot()
    assert isinstance(found.metadata, Metadata)
    assert found.segments[segment("s").path].details == {"bounds": [1, 2]}
