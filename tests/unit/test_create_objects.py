"""If replies to creates are lost, the stored content decides the outcome, and no object exists twice.

See lessons 01, 02 and 04.
"""

from __future__ import annotations

import pytest

from storage_core.base.errors import CommitUnknown, Unavailable
from storage_core.store.contract import (
    Conflict,
    IfAbsent,
    OutcomeUnknown,
    Overwrite,
    create_derived,
    create_numbered,
    create_once,
    put_or_unknown,
)
from storage_core.store.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore, PutFault

APPLIED = [PutFault.APPLIED_THEN_CONFLICT, PutFault.APPLIED_THEN_UNKNOWN]
UNANSWERED = [PutFault.DROPPED_THEN_UNKNOWN, PutFault.REFUSED]


@pytest.fixture
def store() -> FaultStore:
    return FaultStore(MemoryStore("created"))


def test_a_store_that_cannot_be_reached_is_an_unknown_outcome(store: FaultStore) -> None:
    store.on_put("k", PutFault.APPLIED_THEN_UNAVAILABLE)
    assert isinstance(put_or_unknown(store, "k", b"1", IfAbsent()), OutcomeUnknown)
    assert put_or_unknown(store, "k", b"1", IfAbsent()) == Conflict()


@pytest.mark.parametrize("fault", [*APPLIED, PutFault.APPLIED_THEN_UNAVAILABLE])
def test_a_fresh_object_whose_reply_was_lost_is_created(store: FaultStore, fault: PutFault) -> None:
    store.on_put("k", fault)
    assert create_once(store, "k", memoryview(b"mine"), advice="start over")
    assert store.get("k").data == b"mine"


def test_a_fresh_key_with_other_bytes_is_refused_and_left_alone(store: FaultStore) -> None:
    store.put("k", b"theirs", Overwrite())
    assert not create_once(store, "k", b"mine", advice="start over")
    assert store.get("k").data == b"theirs"


def test_a_fresh_object_that_is_not_there_is_unknown_and_the_caller_says_what_to_do(store: FaultStore) -> None:
    store.on_put("k", PutFault.DELAYED_THEN_UNKNOWN)
    with pytest.raises(CommitUnknown, match="Start over"):
        create_once(store, "k", b"mine", advice="start over")
    assert store.deleted == []


@pytest.mark.parametrize("fault", [PutFault.APPLIED_THEN_UNKNOWN, PutFault.APPLIED_THEN_UNAVAILABLE])
def test_a_fresh_object_that_cannot_be_read_back_is_unknown(store: FaultStore, fault: PutFault) -> None:
    store.on_put("k", fault)
    store.on("get", "k", Unavailable("down"))
    with pytest.raises(CommitUnknown, match=r"down.*Start over"):
        create_once(store, "k", b"mine", advice="start over")


def test_of_two_writers_of_derived_bytes_only_the_first_writes(store: FaultStore) -> None:
    assert create_derived(store, "k", b"same", advice="again")
    assert not create_derived(store, "k", b"same", advice="again")


def test_derived_bytes_that_are_there_after_a_lost_reply_are_written(store: FaultStore) -> None:
    store.on_put("k", PutFault.APPLIED_THEN_UNKNOWN, PutFault.DROPPED_THEN_UNKNOWN)
    assert create_derived(store, "k", b"same", advice="again")
    with pytest.raises(CommitUnknown, match="Again"):
        create_derived(store, "k2", b"same", advice="again")


def test_lesson_04_a_conflict_with_nothing_there_does_not_make_a_derived_object(store: FaultStore) -> None:
    store.on_put("k", PutFault.CONFLICT_WITH_NOTHING, PutFault.APPLIED_THEN_CONFLICT)
    with pytest.raises(CommitUnknown, match="Write it again"):
        create_derived(store, "k", b"same", advice="write it again")
    assert not create_derived(store, "k", b"same", advice="write it again")
    assert store.get("k").data == b"same"


@pytest.mark.parametrize("fault", [*APPLIED, *UNANSWERED, PutFault.APPLIED_THEN_UNAVAILABLE])
def test_a_numbered_object_is_ours_whatever_became_of_the_first_put(store: FaultStore, fault: PutFault) -> None:
    store.on_put("k", fault)
    assert create_numbered(store, "k", b"mine", clock=ManualClock())
    assert store.get("k").data == b"mine"


def test_a_numbered_object_is_tried_four_times_with_growing_pauses(store: FaultStore) -> None:
    clock = ManualClock()
    store.on_put("k", *[PutFault.DROPPED_THEN_UNKNOWN] * 4)
    with pytest.raises(CommitUnknown, match="Delete nothing"):
        create_numbered(store, "k", b"mine", clock=clock)
    assert clock.slept_ms == [50, 100, 200]


def test_a_number_that_somebody_else_took_is_not_ours(store: FaultStore) -> None:
    store.on_put("k", lambda: store.put("k", b"theirs", Overwrite()))
    assert not create_numbered(store, "k", b"mine", clock=ManualClock())


def test_a_number_that_cannot_be_read_back_is_unknown(store: FaultStore) -> None:
    store.put("k", b"theirs", Overwrite())
    store.on("get", "k", Unavailable("down"))
    with pytest.raises(CommitUnknown, match="down"):
        create_numbered(store, "k", b"mine", clock=ManualClock())
