from __future__ import annotations

from dataclasses import replace

import pytest

from storage_core.base.errors import CommitConflict, CommitUnknown, SnapshotExpired
from storage_core.data.formats.documents import Candidate
from storage_core.data.formats.keys import version_key
from storage_core.data.formats.kinds import Reason
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, Fence, MergedGenerations, Metadata, RemoveIndexSegment, Txn
from storage_core.log.commit import MAX_ATTEMPTS
from storage_core.log.conflicts import RESTORES, MergeProgress
from storage_core.log.deletion_vector import inline
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.collect import read_plan, write_plan
from storage_core.maintain.history import MAX_PLANS, OPERATION, Restored, restore
from storage_core.store.contract import LIST_FROM, IfAbsent
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore, PutFault
from tests.support.log_tables import INDEX, SCHEMA, log_on, metadata, removal, segment, split

COMMIT_ID = "7d5f0a44-3c56-4a7e-9d1e-0f8f4b3c2a10"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("restore")


@pytest.fixture
def log(store: MemoryStore) -> TransactionLog:
    found = log_on(store)
    found.create(metadata(TableConfig(checkpoint_interval=0, indexes=(INDEX,))))
    return found


def upload(log: TransactionLog, *names: str) -> None:
    for name in names:
        log.store.put(split(name).path, b"rows", IfAbsent())


def append(log: TransactionLog, *names: str) -> Snapshot:
    upload(log, *names)
    return log.commit(log.snapshot(), [split(name) for name in names], operation="APPEND").snapshot


def rewrite(log: TransactionLog, old: str, new: str) -> Snapshot:
    upload(log, new)
    return log.commit(log.snapshot(), [removal(old), split(new)], operation="REWRITE").snapshot


def run(log: TransactionLog, target: Snapshot, *, commit_id: str | None = None) -> Restored:
    return restore(log, target, commit_id=commit_id)


def names(snapshot: Snapshot) -> set[str]:
    return {path.removeprefix("splits/all/").removesuffix(".parquet") for path in snapshot.splits}


def test_restoring_takes_out_what_came_later_and_brings_back_what_went(log: TransactionLog) -> None:
    old = append(log, "a", "b")
    rewrite(log, "a", "c")
    append(log, "d")
    done = run(log, old)
    assert (done.commit_id != "", done.restored_version, done.splits_added, done.splits_removed) == (True, 1, 1, 2)
    assert names(done.snapshot) == {"a", "b"}
    assert log.snapshot() == done.snapshot
    entry = next(log.history())
    assert (entry.version, entry.operation) == (4, OPERATION)
    assert entry.metrics == {"restored_version": 1, "rows_in": 2, "rows_out": 1, "splits_in": 2, "splits_out": 1}


def test_the_history_is_kept_and_a_restore_can_be_restored_away(log: TransactionLog) -> None:
    old = append(log, "a")
    later = append(log, "b")
    run(log, old)
    assert names(log.snapshot(version=2)) == {"a", "b"}
    assert names(run(log, later).snapshot) == {"a", "b"}


def test_restoring_what_the_table_already_is_writes_nothing(log: TransactionLog) -> None:
    old = append(log, "a")
    append(log, "b")
    run(log, old)
    again = run(log, old)
    assert (again.commit_id, again.splits_added, again.splits_removed) == ("", 0, 0)
    assert log.snapshot().version == 3


def test_the_entries_that_come_back_are_those_of_old_and_change_data(log: TransactionLog) -> None:
    add = replace(split("a"), dataChange=False, minValues={"id": "1"}, nullCounts={"id": 0}, xxh3="0123456789abcdef")
    upload(log, "a")
    old = log.commit(log.snapshot(), [add], operation="COMPACT").snapshot
    rewrite(log, "a", "b")
    assert run(log, old).snapshot.splits[add.path] == replace(add, dataChange=True)


def test_schema_and_settings_are_those_of_the_old_version(log: TransactionLog) -> None:
    old = append(log, "a")
    changed = Metadata(
        id=old.table_id,
        schemaString=to_schema_string(SCHEMA.remove(1)),
        configuration={"tidemark.checkpointInterval": "3", "docMappingSchema.0123456789abcdef": "[]", "other": "x"},
        createdTime=old.metadata.createdTime,
    )
    log.commit(log.snapshot(), [changed], operation="CONFIGURE")
    done = run(log, old).snapshot
    assert (done.schema, done.config) == (old.schema, old.config)
    assert done.metadata.configuration == {
        **old.metadata.configuration,
        "docMappingSchema.0123456789abcdef": "[]",  # the registry only grows, so old references stay valid
    }


def test_progress_never_goes_back(log: TransactionLog) -> None:
    old = append(log, "a")
    progress: list[Action] = [
        Txn(appId="landed:x", version=7),
        Fence(resource="compact", token=5),
        MergedGenerations(region="r", generation=1),
    ]
    log.commit(log.snapshot(), progress, operation="MERGE", requirements=[MergeProgress("r", 0)])
    done = run(log, append(log, "b")).snapshot
    done = run(log, old).snapshot
    assert done.txns == {"landed:x": 7}
    assert done.merged_generations == {"r": 1}
    assert done.fences == {"compact": 5, RESTORES: done.version}


def test_a_merge_that_was_planned_before_a_restore_is_planned_again(log: TransactionLog) -> None:
    """At planning, the merge found no row with the key.

    The restore brings back a row of this key, so a second row would be a duplicate.
    """
    old = append(log, "with-key")
    planned = log.commit(log.snapshot(), [removal("with-key")], operation="MERGE").snapshot
    run(log, old)
    merge: list[Action] = [split("new"), MergedGenerations(region="r", generation=1)]
    upload(log, "new")
    with pytest.raises(CommitConflict, match="version 3 restored the table after this merge was planned on version 2"):
        log.commit(planned, merge, operation="MERGE", requirements=[MergeProgress("r", 0)])
    assert log.snapshot().version == 3
    log.commit(log.snapshot(), merge, operation="MERGE", requirements=[MergeProgress("r", 0)])


def test_an_append_that_was_planned_before_a_restore_follows_it(log: TransactionLog) -> None:
    old = append(log, "a")
    planned = append(log, "b")
    run(log, old)
    upload(log, "c")
    assert names(log.commit(planned, [split("c")], operation="APPEND").snapshot) == {"a", "c"}


def test_a_commit_that_lands_while_a_restore_is_planned_is_undone_too(store: MemoryStore, log: TransactionLog) -> None:
    old = append(log, "a")
    append(log, "b")
    faulty = FaultStore(store)
    faulty.on_put(version_key(3), lambda: append(log, "c"))
    done = run(log_on(faulty, seed=1), old)
    assert (done.snapshot.version, names(done.snapshot), done.splits_removed) == (4, {"a"}, 2)


def test_writers_that_never_pause_end_the_attempts_with_nothing_written(
    store: MemoryStore, log: TransactionLog
) -> None:
    old = append(log, "a")
    append(log, "b")
    faulty = FaultStore(store)
    faulty.on_put("_transaction_log/0", *[lambda n=n: append(log, f"c{n}") for n in range(MAX_PLANS)])
    with pytest.raises(CommitConflict, match="Nothing was written"):
        run(log_on(faulty, seed=1), old)
    assert OPERATION not in {entry.operation for entry in log.history()}


@pytest.mark.parametrize("fault", [PutFault.APPLIED_THEN_CONFLICT, PutFault.APPLIED_THEN_UNKNOWN])
def test_a_lost_reply_is_resolved_and_the_restore_lands_once(
    store: MemoryStore, log: TransactionLog, fault: PutFault
) -> None:
    old = append(log, "a")
    append(log, "b")
    faulty = FaultStore(store)
    faulty.on_put(version_key(3), fault)
    assert run(log_on(faulty, seed=1), old).snapshot.version == 3
    assert [entry.operation for entry in log.history()].count(OPERATION) == 1


def test_a_restore_with_its_own_id_is_found_again_however_much_followed(
    store: MemoryStore, log: TransactionLog
) -> None:
    old = append(log, "a")
    append(log, "b")
    faulty = FaultStore(store)
    faulty.on_put(version_key(3), PutFault.DELAYED_THEN_UNKNOWN, *[PutFault.DROPPED_THEN_UNKNOWN] * (MAX_ATTEMPTS - 1))
    with pytest.raises(CommitUnknown):
        run(log_on(faulty, seed=1), old, commit_id=COMMIT_ID)
    faulty.deliver()
    append(log, "c")
    done = run(log, old, commit_id=COMMIT_ID)
    assert (done.commit_id, names(log.snapshot())) == ("", {"a", "c"})


def test_a_split_whose_file_is_gone_stops_the_restore_before_it_writes(store: MemoryStore, log: TransactionLog) -> None:
    old = append(log, "a")
    head = rewrite(log, "a", "b")
    store.delete([split("a").path])
    with pytest.raises(SnapshotExpired, match=r"version 1 of .*splits/all/a\.parquet") as caught:
        run(log, old)
    assert caught.value.context["keys"] == [split("a").path]
    assert log.snapshot() == head


def test_a_split_that_the_collector_is_about_to_delete_does_not_come_back(
    store: MemoryStore, log: TransactionLog
) -> None:
    old = append(log, "a")
    head = rewrite(log, "a", "b")
    key = split("a").path
    due = Candidate(key=key, reason=Reason.REMOVED_SPLIT, size=4, first_seen_ms=0, since_version=head.version)
    write_plan(store, read_plan(store), {key: due}, nonce="n")
    with pytest.raises(SnapshotExpired, match="or planned for collection"):
        run(log, old)
    assert log.snapshot() == head


def test_many_splits_are_looked_for_by_a_listing(store: MemoryStore, log: TransactionLog) -> None:
    many = [f"s{number}" for number in range(LIST_FROM + 1)]
    old = append(log, *many)
    log.commit(log.snapshot(), [removal(name) for name in many], operation="DELETE")
    metered = MeteredStore(store)
    run(log_on(metered, seed=1), old)
    # Without a hint, one listing finds the head of the table and another finds the splits.
    assert (metered.requests["list"], metered.requests["head"]) == (2, 1)
    log.commit(log.snapshot(), [removal(name) for name in many], operation="DELETE")
    store.delete([split("s7").path])
    with pytest.raises(SnapshotExpired, match=r"1 of its objects .*s7\.parquet"):
        run(log, old)


# Index segments.


def indexed(log: TransactionLog, name: str, *covered: str) -> Snapshot:
    found = segment(name, *covered)
    log.store.put(found.path, b"segment", IfAbsent())
    return log.commit(log.snapshot(), [found], operation="CATCH UP").snapshot


def covering(snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    return {path.rpartition("/")[2]: each.covers for path, each in snapshot.segments.items()}


def compacted(log: TransactionLog, old: str, new: str) -> Snapshot:
    """Rewrite an indexed split and index the result, as a compaction and a catch-up do."""
    rewrite(log, old, new)
    log.commit(log.snapshot(), [dropped(f"s-{old}")], operation="CATCH UP")
    return indexed(log, f"s-{new}", new)


def dropped(name: str) -> RemoveIndexSegment:
    return RemoveIndexSegment(index=INDEX.name, path=segment(name).path)


def test_segments_come_back_with_their_splits_and_those_of_others_go(log: TransactionLog) -> None:
    append(log, "a")
    old = indexed(log, "s-a", "a")
    compacted(log, "a", "b")
    done = run(log, old).snapshot
    assert covering(done) == {"s-a.seg": (split("a").path,)}
    assert log.snapshot() == done


def test_a_segment_whose_object_is_gone_is_left_to_the_next_catch_up(store: MemoryStore, log: TransactionLog) -> None:
    append(log, "a")
    old = indexed(log, "s-a", "a")
    compacted(log, "a", "b")
    store.delete([segment("s-a").path])
    assert covering(run(log, old).snapshot) == {}


def test_a_segment_that_was_built_later_for_a_split_that_stays_is_kept(log: TransactionLog) -> None:
    old = append(log, "a")
    indexed(log, "s-a", "a")
    append(log, "b")
    assert covering(run(log, old).snapshot) == {"s-a.seg": (split("a").path,)}


def test_a_split_is_never_covered_twice_after_a_restore(log: TransactionLog) -> None:
    append(log, "a")
    old = indexed(log, "s-1", "a")
    log.commit(log.snapshot(), [dropped("s-1")], operation="CATCH UP")
    indexed(log, "s-2", "a")
    append(log, "b")
    assert covering(run(log, old).snapshot) == {"s-1.seg": (split("a").path,)}


def test_an_index_that_was_defined_otherwise_in_between_is_built_anew(log: TransactionLog) -> None:
    append(log, "a")
    old = indexed(log, "s-a", "a")
    other = IndexDefinition(INDEX.name, "bitmap", ("id",))
    changed = replace(old.metadata, configuration=TableConfig(indexes=(other,)).to_configuration())
    log.commit(log.snapshot(), [changed, dropped("s-a")], operation="CONFIGURE")
    indexed(log, "s-b", "a")
    done = run(log, old).snapshot
    assert done.config.indexes == (INDEX,)
    assert covering(done) == {}


# Deletion vectors.


def test_a_vector_that_came_later_goes_back_to_no_row_deleted(log: TransactionLog) -> None:
    old = append(log, "a")
    log.commit(log.snapshot(), [replace(split("a"), deletionVector=inline([0]))], operation="DELETE")
    done = run(log, old)
    vector = done.snapshot.splits[split("a").path].deletionVector
    assert vector is not None
    assert vector.cardinality == 0
    assert run(log, old).commit_id == ""


def test_an_old_vector_comes_back_as_it_was(log: TransactionLog) -> None:
    append(log, "a")
    first = replace(split("a"), deletionVector=inline([0]))
    old = log.commit(log.snapshot(), [first], operation="DELETE").snapshot
    log.commit(log.snapshot(), [removal("a")], operation="DELETE")
    assert run(log, old).snapshot.splits == {first.path: first}


def test_a_clock_that_stands_still_gives_the_restore_a_later_time(log: TransactionLog, store: MemoryStore) -> None:
    old = append(log, "a")
    append(log, "b")
    stopped = log_on(store, clock=ManualClock(0), seed=9)
    assert run(stopped, old).snapshot.timestamp > log.snapshot(version=2).timestamp
