"""Every automatic check of a commit, on the head it lands on: design page 02, "Committing"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from storage_core.config import TableConfig
from storage_core.errors import CommitConflict, Fenced, InvalidInput, NotFound, Unsupported
from storage_core.formats.keys import version_key
from storage_core.log.actions import (
    Action,
    CommitInfo,
    Fence,
    MergedGenerations,
    Metadata,
    Protocol,
    RemoveIndexSegment,
    Txn,
)
from storage_core.log.codec import encode_version
from storage_core.log.commit import MAX_ATTEMPTS
from storage_core.log.log import TransactionLog
from storage_core.log.requirements import MergeProgress
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import IfAbsent
from storage_core.objectstore.memory import MemoryStore
from storage_core.objectstore.meter import MeteredStore
from storage_core.testkit.clock import START_MS, ManualClock
from storage_core.testkit.fault_store import FaultStore
from storage_core.testkit.log_tables import (
    INDEX,
    log_on,
    metadata,
    removal,
    segment,
    split,
)


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
    with pytest.raises(InvalidInput, match="exists here already"):
        log.create(metadata())
    store.delete([version_key(0)])
    store.put(version_key(7), b"", IfAbsent())
    with pytest.raises(InvalidInput, match="exists here already"):
        log.create(metadata())


def test_a_creation_that_loses_the_race_is_refused(store: MemoryStore) -> None:
    faulty = FaultStore(store)
    faulty.on_put(version_key(0), lambda: log_on(store, seed=1).create(metadata()))
    with pytest.raises(InvalidInput, match="exists here already"):
        log_on(faulty, seed=2).create(metadata())


def test_a_table_that_could_not_be_opened_is_not_created(store: MemoryStore) -> None:
    with pytest.raises(InvalidInput):
        log_on(store).create(replace(metadata(), schemaString="no schema"))
    with pytest.raises(InvalidInput, match="windowSeconds"):
        log_on(store).create(replace(metadata(), configuration={"tidemark.windowSeconds": "x"}))
    with pytest.raises(NotFound, match="no table"):
        log_on(store).snapshot()


# --- removes and adds -------------------------------------------------------------------------------------------------


def test_only_one_of_two_compactions_of_one_split_lands(log: TransactionLog) -> None:
    planned = _commit(log, split("a"), split("b"))
    _commit(log, removal("a"), removal("b"), split("ab"), on=planned)
    with pytest.raises(CommitConflict, match=r"splits/all/a\.parquet: no longer live at version 2"):
        _commit(log, removal("a"), split("other"), on=planned)
    assert set(log.snapshot().splits) == {split("ab").path}


def test_a_compaction_lands_after_an_append(log: TransactionLog) -> None:
    planned = _commit(log, split("a"), split("b"))
    _commit(log, split("c"), on=planned)
    _commit(log, removal("a"), removal("b"), split("ab"), on=planned)
    assert set(log.snapshot().splits) == {split("ab").path, split("c").path}


def test_a_live_path_is_not_added_again(log: TransactionLog) -> None:
    planned = log.snapshot()
    _commit(log, split("a"))
    with pytest.raises(CommitConflict, match="live already since version 1"):
        _commit(log, split("a"), on=planned)


# --- metadata ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mine", [[split("a")], [metadata(TableConfig(window_seconds=60))]])
def test_what_was_planned_on_older_metadata_does_not_land(log: TransactionLog, mine: Sequence[Action]) -> None:
    planned = log.snapshot()
    _commit(log, metadata(TableConfig(window_seconds=900)))
    with pytest.raises(CommitConflict, match="schema or configuration changed between version 0 and 1"):
        _commit(log, *mine, on=planned)


def test_work_without_new_splits_lands_after_a_metadata_change(log: TransactionLog) -> None:
    planned = _commit(log, split("a"))
    _commit(log, replace(metadata(), description="changed"))
    assert not _commit(log, removal("a"), on=planned).splits


# --- fences and generations -------------------------------------------------------------------------------------------


def test_a_lower_token_is_fenced_and_an_equal_one_is_not(log: TransactionLog) -> None:
    planned = log.snapshot()
    _commit(log, Fence(resource="compact", token=5))
    with pytest.raises(Fenced, match="token 5 has committed, this one is 4"):
        _commit(log, split("a"), Fence(resource="compact", token=4), on=planned)
    _commit(log, Fence(resource="compact", token=5), Fence(resource="other", token=1), on=planned)
    assert log.snapshot().fences == {"compact": 5, "other": 1}


def test_a_merge_lands_only_after_the_generation_it_was_planned_after(log: TransactionLog) -> None:
    planned = log.snapshot()

    def merge(after: int, upto: int) -> None:
        log.commit(
            planned,
            [split(f"{after}-{upto}"), MergedGenerations(region="r", generation=upto)],
            operation="MERGE",
            requirements=[MergeProgress("r", after)],
        )

    merge(0, 2)
    with pytest.raises(CommitConflict, match="generations up to 2 are merged at version 1"):
        merge(0, 3)
    with pytest.raises(CommitConflict, match="planned after 3"):
        merge(3, 4)
    merge(2, 3)
    assert log.snapshot().merged_generations == {"r": 3}
    assert set(log.snapshot().splits) == {split("0-2").path, split("2-3").path}


def test_merge_progress_never_goes_back_even_when_nobody_required_it(log: TransactionLog) -> None:
    _commit(log, MergedGenerations(region="r", generation=1))
    _commit(log, MergedGenerations(region="r", generation=2))
    for generation in (1, 2, 4):
        with pytest.raises(CommitConflict, match="region r"):
            _commit(log, MergedGenerations(region="r", generation=generation))


# --- idempotency by transaction ---------------------------------------------------------------------------------------


def test_work_that_is_recorded_is_not_committed_again(log: TransactionLog) -> None:
    unit = Txn(appId="landed:a.log", version=100)
    first = _commit(log, split("a"), unit)
    again = log.commit(log.snapshot(), [split("other attempt"), unit], operation="INGEST")
    assert (again.already_committed, again.version, again.snapshot) == (True, 1, first)
    older = log.commit(log.snapshot(), [split("x"), Txn(appId="landed:a.log", version=99)], operation="INGEST")
    assert older.already_committed
    newer = log.commit(log.snapshot(), [split("y"), Txn(appId="landed:a.log", version=101)], operation="INGEST")
    assert not newer.already_committed
    assert set(log.snapshot().splits) == {split("a").path, split("y").path}


def test_work_recorded_since_the_plan_is_found_on_rebase(log: TransactionLog) -> None:
    planned = log.snapshot()
    unit = Txn(appId="job", version=1)
    _commit(log, split("a"), unit, on=planned)
    assert log.commit(planned, [split("b"), unit], operation="INGEST").already_committed
    assert log.snapshot().version == 1


def test_work_that_is_recorded_in_part_conflicts(log: TransactionLog) -> None:
    _commit(log, split("a"), Txn(appId="a", version=1))
    with pytest.raises(CommitConflict, match="1 of 2 units"):
        _commit(log, split("ab"), Txn(appId="a", version=1), Txn(appId="b", version=1))


# --- index segments ---------------------------------------------------------------------------------------------------


def test_two_segments_of_one_index_never_cover_one_split(log: TransactionLog) -> None:
    planned = _commit(log, split("a"), split("b"))
    _commit(log, segment("s", "a"), on=planned)
    with pytest.raises(CommitConflict, match=r"covered by _indices/words/s\.seg"):
        _commit(log, segment("t", "a", "b"), on=planned)
    _commit(log, segment("u", "b"), on=planned)
    _commit(log, segment("v", "a"), RemoveIndexSegment(index=INDEX.name, path=segment("s").path))
    assert set(log.snapshot().segments) == {segment("u").path, segment("v").path}


def test_a_segment_whose_splits_are_all_gone_is_left_out(log: TransactionLog) -> None:
    planned = _commit(log, split("a"), split("b"), split("c"))
    _commit(log, removal("a"), removal("b"), split("ab"), on=planned)
    found = _commit(log, segment("gone", "a"), segment("half", "b", "c"), on=planned)
    assert set(found.segments) == {segment("half").path}
    with pytest.raises(CommitConflict, match="every split that the new segments cover is gone"):
        _commit(log, segment("gone", "a"), on=planned)


def test_a_segment_may_cover_a_split_of_its_own_commit(log: TransactionLog) -> None:
    assert set(_commit(log, split("a"), segment("s", "a")).segments) == {segment("s").path}


@pytest.mark.parametrize("config", [TableConfig(), TableConfig(indexes=(replace(INDEX, columns=("id",)),))])
def test_a_segment_of_a_dropped_or_redefined_index_conflicts(log: TransactionLog, config: TableConfig) -> None:
    planned = _commit(log, split("a"))
    _commit(log, metadata(config))
    with pytest.raises(CommitConflict, match="dropped or redefined"):
        _commit(log, segment("s", "a"), on=planned)


def test_a_segment_is_removed_once(log: TransactionLog) -> None:
    planned = _commit(log, split("a"), segment("s", "a"))
    remove = RemoveIndexSegment(index=INDEX.name, path=segment("s").path)
    _commit(log, remove, on=planned)
    with pytest.raises(CommitConflict, match="no live segment"):
        _commit(log, remove, on=planned)


# --- what no head could accept ----------------------------------------------------------------------------------------


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
        ([replace(split("a"), path="../../etc/passwd")], "leaves the table"),
        ([replace(split("a"), size="12")], "add.size is '12'"),  # type: ignore[arg-type]  # as a careless caller does
    ],
)
def test_a_commit_that_contradicts_itself_is_refused(
    log: TransactionLog, actions: Sequence[Action], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        log.commit(log.snapshot(), actions, operation="TEST")
    assert log.snapshot().version == 0


@pytest.mark.parametrize(
    ("protocol", "named"),
    [
        (Protocol(minWriterVersion=5, writerFeatures=("tidemark",)), "writer version 5"),
        (Protocol(writerFeatures=("tidemark", "rowIds")), "rowIds"),
        (Protocol(), "not created by Tidemark"),
    ],
)
def test_a_table_that_this_release_may_not_write_is_refused(store: MemoryStore, protocol: Protocol, named: str) -> None:
    store.put(version_key(0), encode_version([protocol, metadata()]), IfAbsent())
    log = log_on(store)
    with pytest.raises(Unsupported, match=named):
        _commit(log, split("a"))


# --- racing and time --------------------------------------------------------------------------------------------------


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
