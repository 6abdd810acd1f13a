"""An unknown outcome of a put neither loses nor repeats a commit or a checkpoint hint (lessons 01 to 05)."""

from __future__ import annotations

import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import CommitUnknown, InvalidInput, NotFound, Unavailable
from storage_core.data.formats.documents import CheckpointKind
from storage_core.data.formats.keys import last_checkpoint_key, state_key, version_key
from storage_core.log.listing import Checkpointed, read_hint
from storage_core.log.log import TransactionLog
from storage_core.store.contract import Conflict, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore, PutFault
from tests.support.ids import SeededIds
from tests.support.log_tables import log_on, metadata, removal, split

APPLIED = [PutFault.APPLIED_THEN_CONFLICT, PutFault.APPLIED_THEN_UNKNOWN, PutFault.APPLIED_THEN_UNAVAILABLE]
NOT_APPLIED = [PutFault.DROPPED_THEN_UNKNOWN, PutFault.CONFLICT_WITH_NOTHING]

DAY_MS = 24 * HOUR_MS


@pytest.fixture
def faulty() -> FaultStore:
    store = FaultStore(MemoryStore("t"))
    log_on(store).create(metadata())
    return store


@pytest.fixture
def log(faulty: FaultStore) -> TransactionLog:
    return log_on(faulty, seed=1)


@pytest.mark.parametrize("fault", APPLIED)
def test_lesson_01_a_commit_whose_reply_was_lost_is_committed_exactly_once(
    faulty: FaultStore, log: TransactionLog, fault: PutFault
) -> None:
    faulty.on_put(version_key(1), fault)
    result = log.commit(log.snapshot(), [split("a")], operation="APPEND")
    assert (result.version, result.already_committed, result.attempts) == (1, False, 1)
    assert [entry.commit_id for entry in log.history()].count(result.commit_id) == 1
    assert result.snapshot == log.snapshot()


@pytest.mark.parametrize("fault", APPLIED)
def test_lesson_01_a_lost_reply_is_recognised_after_others_have_followed(
    faulty: FaultStore, log: TransactionLog, fault: PutFault
) -> None:
    planned = log.snapshot()
    faulty.on("get", version_key(1), *[Unavailable("for a moment")] * 2)  # right after the put, and after the pause
    other = log_on(faulty, seed=2)
    faulty.on_put(
        version_key(1), fault, lambda: [other.commit(other.snapshot(), [split(n)], operation="X") for n in "bc"]
    )
    result = log.commit(planned, [split("a")], operation="APPEND")
    assert (result.version, result.attempts) == (1, 2)
    assert set(log.snapshot().splits) == {split(name).path for name in "abc"}
    assert log.snapshot().version == 3


@pytest.mark.parametrize("fault", APPLIED)
def test_lesson_01_a_creation_whose_reply_was_lost_is_a_creation(fault: PutFault) -> None:
    store = FaultStore(MemoryStore("new"))
    store.on_put(version_key(0), fault)
    assert log_on(store).create(metadata()) == log_on(store).snapshot()
    with pytest.raises(InvalidInput):
        log_on(store).create(metadata())


@pytest.mark.parametrize("fault", APPLIED)
def test_lesson_01_a_checkpoint_and_its_hint_survive_lost_replies(
    faulty: FaultStore, log: TransactionLog, fault: PutFault
) -> None:
    head = log.commit(log.snapshot(), [split("a")], operation="APPEND").snapshot
    faulty.on_put(last_checkpoint_key(), fault)
    if fault is PutFault.APPLIED_THEN_UNAVAILABLE:
        with pytest.raises(Unavailable):
            log.checkpoint(head)
    else:
        log.checkpoint(head)
    assert read_hint(faulty) == Checkpointed(1, CheckpointKind.AVRO_STATE)
    assert not log.checkpoint(head).written


@pytest.mark.parametrize("fault", NOT_APPLIED)
def test_lesson_04_a_put_that_never_happened_is_tried_again_at_the_same_version(
    faulty: FaultStore, log: TransactionLog, fault: PutFault
) -> None:
    faulty.on_put(version_key(1), fault, fault)
    result = log.commit(log.snapshot(), [split("a")], operation="APPEND")
    assert (result.version, result.attempts) == (1, 3)
    assert log.snapshot() == result.snapshot


def test_lesson_02_an_unknown_outcome_is_a_typed_error_and_nothing_is_cleaned_up(
    faulty: FaultStore, log: TransactionLog
) -> None:
    faulty.on_put(version_key(1), *[PutFault.DELAYED_THEN_UNKNOWN] * 10)
    with pytest.raises(CommitUnknown) as caught:
        log.commit(log.snapshot(), [split("a")], operation="APPEND")
    assert faulty.deleted == []
    commit_id = str(caught.value.context["commit_id"])
    assert caught.value.context["version"] == 1
    assert log.find_commit(commit_id) is None

    assert sum(not isinstance(outcome, Conflict) for outcome in faulty.deliver()) == 1
    assert log.find_commit(commit_id) == 1
    assert set(log.snapshot().splits) == {split("a").path}


def test_lesson_03_a_retry_with_the_same_id_appends_nothing_however_many_commits_followed(
    faulty: FaultStore, log: TransactionLog
) -> None:
    faulty.on_put(version_key(1), *[PutFault.DELAYED_THEN_UNKNOWN] * 10)
    with pytest.raises(CommitUnknown) as caught:
        log.commit(log.snapshot(), [split("a")], operation="APPEND")
    faulty.deliver()
    commit_id = str(caught.value.context["commit_id"])
    other = log_on(faulty, seed=2)
    # Another process has already replaced the split. Without the commit id, the log would accept a second add of the
    # split, and the rows of the split would exist twice.
    other.commit(other.snapshot(), [removal("a"), split("compacted")], operation="COMPACT")
    for number in range(25):
        other.commit(other.snapshot(), [split(f"n{number}")], operation="APPEND")

    again = log.commit(log.snapshot(), [split("a")], operation="APPEND", commit_id=commit_id)
    assert (again.version, again.already_committed, again.attempts) == (1, True, 0)
    assert log.find_commit(commit_id) == 1
    assert log.snapshot().version == 27
    assert split("a").path not in log.snapshot().splits


def test_lesson_05_a_put_that_arrives_late_loses_to_whoever_took_its_version(
    faulty: FaultStore, log: TransactionLog
) -> None:
    planned = log.snapshot()
    other = log_on(faulty, seed=2)
    faulty.on_put(
        version_key(1),
        PutFault.DELAYED_THEN_UNKNOWN,
        lambda: other.commit(planned, [split("b")], operation="APPEND"),
    )
    result = log.commit(planned, [split("a")], operation="APPEND")
    assert result.version == 2
    assert all(isinstance(outcome, Conflict) for outcome in faulty.deliver())
    assert set(log.snapshot().splits) == {split("a").path, split("b").path}
    assert log.snapshot().version == 2


def test_lesson_05_a_hint_that_arrives_late_never_goes_back(faulty: FaultStore, log: TransactionLog) -> None:
    old = log.commit(log.snapshot(), [split("a")], operation="APPEND").snapshot
    log.checkpoint(log.snapshot(version=0))
    new = log.commit(old, [split("b")], operation="APPEND").snapshot
    faulty.on_put(last_checkpoint_key(), PutFault.DELAYED_THEN_UNKNOWN, lambda: log.checkpoint(new))
    log.checkpoint(old)
    faulty.deliver()
    assert read_hint(faulty) == Checkpointed(2, CheckpointKind.AVRO_STATE)
    log.checkpoint(old)
    assert read_hint(faulty) == Checkpointed(2, CheckpointKind.AVRO_STATE)


def test_lesson_09_two_bodies_of_the_hint_are_never_equal(faulty: FaultStore, log: TransactionLog) -> None:
    head = log.snapshot()
    log.checkpoint(head)
    first = faulty.get(last_checkpoint_key()).data
    faulty.delete([last_checkpoint_key()])
    log.checkpoint(head)
    assert faulty.get(last_checkpoint_key()).data != first


def test_a_failing_checkpoint_never_fails_the_commit(faulty: FaultStore, log: TransactionLog) -> None:
    for number in range(9):
        log.commit(log.snapshot(), [split(f"n{number}")], operation="APPEND")
    faulty.on_put(state_key(10), PutFault.DROPPED_THEN_UNKNOWN)
    result = log.commit(log.snapshot(), [split("tenth")], operation="APPEND")
    assert (result.version, result.snapshot.checkpoint_version) == (10, None)
    assert log.snapshot() == result.snapshot
    with pytest.raises(NotFound):
        faulty.get(state_key(10))


def boundary_of(first: int) -> bytes:
    return f'{{"firstVersion":{first},"nonce":"x"}}'.encode()


@pytest.mark.parametrize(
    ("fault", "passes_ms"),
    [(None, 31 * DAY_MS), (None, 10_000), (None, -10_000), (PutFault.APPLIED_THEN_UNKNOWN, 0)],
    ids=["slow", "in which the retention was shortened", "in which the clock was set back", "lost"],
)
def test_a_commit_that_comes_back_below_the_collectors_boundary_is_never_acknowledged(
    faulty: FaultStore, fault: PutFault | None, passes_ms: int
) -> None:
    clock = ManualClock()
    log = TransactionLog(faulty, clock=clock, ids=SeededIds(1))
    head = log.snapshot()
    faulty.put("_gc/boundary.json", boundary_of(9), Overwrite())

    def slow() -> None:
        clock.now += passes_ms

    faulty.on_put(version_key(1), fault or slow)
    with pytest.raises(CommitUnknown, match="versions below 9 were collected") as unknown:
        log.commit(head, [split("a")], operation="APPEND")
    assert unknown.value.context["version"] == 1


def test_a_slow_commit_above_the_boundary_is_acknowledged_after_one_more_request(faulty: FaultStore) -> None:
    clock, metered = ManualClock(), MeteredStore(faulty)
    log = TransactionLog(metered, clock=clock, ids=SeededIds(1))
    faulty.put("_gc/boundary.json", boundary_of(1), Overwrite())
    head = log.snapshot()
    before = metered.requests["get"]
    head = log.commit(head, [split("a")], operation="APPEND").snapshot
    assert metered.requests["get"] == before

    def slow() -> None:
        clock.now += 60_000

    faulty.on_put(version_key(2), slow)
    assert log.commit(head, [split("b")], operation="APPEND").version == 2
    assert metered.requests["get"] == before + 1
