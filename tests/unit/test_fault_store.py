"""The fault store: without faults it equals the wrapped store. Faults come from a script or from a repeatable seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput, Unavailable
from storage_core.store.contract import Committed, Conflict, IfAbsent, ObjectInfo, ObjectStore, OutcomeUnknown
from storage_core.store.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.fault_store import (
    FAULTS,
    Crash,
    CrashFault,
    DeleteFault,
    FaultStore,
    GetFault,
    Interruption,
    ListFault,
    PutFault,
    Rates,
)
from tests.support.scale import scaled
from tests.support.store_conformance import StoreConformance

RATES: Rates = {fault: 0.1 for kind in FAULTS.values() for fault in kind}
KEYS = [f"k{number:02}0" for number in range(12)]


class TestFaultStoreWithoutFaults(StoreConformance):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return FaultStore(MemoryStore("conformance"))


@pytest.fixture
def store() -> FaultStore:
    return FaultStore(MemoryStore("faults"))


def test_steps_happen_in_order_to_the_keys_they_name_and_to_no_others(store: FaultStore) -> None:
    store.on_put("wal/", PutFault.DROPPED_THEN_UNKNOWN, PutFault.CONFLICT_WITH_NOTHING)
    assert isinstance(store.put("other", b"", IfAbsent()), Committed)
    assert isinstance(store.put("wal/1", b"", IfAbsent()), OutcomeUnknown)
    assert store.put("wal/2", b"", IfAbsent()) == Conflict()
    assert isinstance(store.put("wal/1", b"", IfAbsent()), Committed)


def test_a_delayed_put_keeps_its_condition(store: FaultStore) -> None:
    store.on_put("k", *[PutFault.DELAYED_THEN_UNKNOWN] * 2)
    store.put("k", b"first", IfAbsent())
    store.put("k", b"second", IfAbsent())
    store.clear_script()
    assert [type(each) for each in store.deliver()] == [Committed, Conflict]
    assert store.deliver() == []
    assert store.get("k").data == b"first"


def test_an_act_happens_before_the_request_and_an_error_instead_of_it(store: FaultStore) -> None:
    store.on("get", "k", Unavailable("down"), lambda: store.put("k", b"just in time", IfAbsent()))
    with pytest.raises(Unavailable, match="down"):
        store.get("k")
    assert store.get("k").data == b"just in time"


def test_an_interruption_stops_a_delete_in_the_middle() -> None:
    inner = MemoryStore("interrupted")
    for key in "abc":
        inner.put(key, b"", IfAbsent())
    interruption = Interruption(1, lambda kind, _key: kind == "delete")
    store = FaultStore(inner, watch=interruption)
    with pytest.raises(Unavailable, match="interrupted at request 1"):
        store.delete(["a", "b", "c"])
    assert [info.key for info in inner.list("")] == ["b", "c"]
    assert (store.deleted, interruption.requests) == (["a"], 2)


def test_no_two_faults_are_equal() -> None:
    faults = [fault for kind in FAULTS.values() for fault in kind]
    assert len(set(faults)) == len(faults)


@pytest.mark.parametrize("fault", [GetFault.REFUSED, GetFault.TIMED_OUT])
def test_a_refused_get_returns_nothing_and_only_a_time_out_takes_time(fault: GetFault) -> None:
    clock = ManualClock()
    store = FaultStore(with_objects("a"), clock=clock)
    store.on("get", "a", fault)
    with pytest.raises(Unavailable):
        store.get("a")
    assert sum(clock.slept_ms) == (60_000 if fault is GetFault.TIMED_OUT else 0)
    assert store.get("a").data == b"content of a"


def test_a_lost_reply_takes_the_time_that_its_client_waits() -> None:
    clock = ManualClock()
    store = FaultStore(MemoryStore("slow"), clock=clock)
    store.on_put("k", PutFault.APPLIED_THEN_UNKNOWN)
    assert isinstance(store.put("k", b"", IfAbsent()), OutcomeUnknown)
    assert clock.slept_ms == [60_000]


@pytest.mark.parametrize("fault", [GetFault.TORN, GetFault.EMPTY, GetFault.FLIPPED, GetFault.SWAPPED])
def test_damage_on_the_way_changes_what_is_read_and_not_what_is_stored(fault: GetFault) -> None:
    inner = with_objects("f/a", "f/b")
    store = FaultStore(inner)
    store.on("get", "f/a", fault, fault)
    whole = inner.get("f/a")
    assert store.get("f/a").data != whole.data
    assert store.get_range("f/a", 0, 14) != whole.data[:14]
    assert store.get("f/a") == inner.get("f/a") == whole


def test_a_swapped_get_answers_with_another_object_of_the_same_folder() -> None:
    store = FaultStore(with_objects("f/a", "f/b", "g/c"))
    store.on("get", "f/a", GetFault.SWAPPED)
    assert store.get("f/a").data == b"content of f/b"


def test_a_reordered_listing_has_every_key_once_in_another_order() -> None:
    assert sorted(listed(ListFault.REORDERED)) == KEYS != listed(ListFault.REORDERED)


def test_a_doubled_listing_repeats_exactly_one_page() -> None:
    found = listed(ListFault.DOUBLED)
    assert set(found) == set(KEYS)
    assert len(found) == len(KEYS) + 4


def test_a_cut_listing_ends_at_the_end_of_a_page() -> None:
    found = listed(ListFault.CUT)
    assert found == KEYS[: len(found)]
    assert len(found) in (4, 8)
    assert listed(ListFault.CUT, page_keys=100) == KEYS


def test_a_listing_may_start_with_the_key_it_should_start_after() -> None:
    assert listed(ListFault.START_INCLUDED, start_after=KEYS[7]) == KEYS[7:]
    assert listed(ListFault.START_INCLUDED) == KEYS
    assert listed(ListFault.START_INCLUDED, start_after="k055") == KEYS[6:]


def test_a_delete_is_refused_or_keeps_a_key_or_loses_its_reply() -> None:
    inner = with_objects("a", "b", "c", "d")
    store = FaultStore(inner)
    store.on("delete", "b", DeleteFault.KEPT)
    assert store.delete(["a", "b"]) == {"a": None, "b": f"b: {DeleteFault.KEPT}"}
    store.on("delete", "b", DeleteFault.REFUSED)
    store.on("delete", "c", DeleteFault.APPLIED_THEN_UNAVAILABLE)
    for key in "bc":
        with pytest.raises(Unavailable):
            store.delete([key, "d"])
    assert [info.key for info in inner.list("")] == ["b", "d"]


@pytest.mark.parametrize(("fault", "stored"), [(CrashFault.BEFORE, False), (CrashFault.AFTER, True)])
def test_a_crash_ends_the_process_before_or_after_its_request(fault: CrashFault, *, stored: bool) -> None:
    inner = MemoryStore("crashed")
    store = FaultStore(inner)
    store.at(1, fault)
    store.list("")
    with pytest.raises(Crash):
        store.put("k", b"", IfAbsent())
    assert [info.key for info in inner.list("")] == ["k"] * stored
    for request in (lambda: store.get("k"), lambda: store.delete(["k"]), lambda: store.put("other", b"", IfAbsent())):
        with pytest.raises(Crash):
            request()
    assert [info.key for info in inner.list("")] == ["k"] * stored


def test_no_handler_of_errors_survives_a_crash() -> None:
    assert not issubclass(Crash, Exception)


def test_a_fault_of_another_kind_of_request_is_a_mistake_of_the_test(store: FaultStore) -> None:
    store.at(0, GetFault.TORN)
    with pytest.raises(InvalidInput, match="nothing that can happen to a put"):
        store.put("k", b"", IfAbsent())


@pytest.mark.parametrize("rates", [{GetFault.TORN: 0.6, GetFault.EMPTY: 0.6}, {PutFault.REFUSED: -0.1}])
def test_rates_are_shares_of_the_requests_of_their_kind(rates: Rates) -> None:
    with pytest.raises(InvalidInput, match="add up to 1"):
        FaultStore(MemoryStore("rates"), rates=rates)


@given(seed=st.integers(0, 2**64))
@settings(max_examples=scaled(25))
def test_a_seed_replays_every_request_every_fault_and_every_byte(seed: int) -> None:
    first, first_answers = scenario(seed)
    again, again_answers = scenario(seed)
    assert first.trace == again.trace
    assert first_answers == again_answers
    assert repr(seed) in repr(first)


def test_another_seed_is_another_story() -> None:
    assert len({tuple(happening.step for happening in scenario(seed)[0].trace) for seed in range(20)}) == 20


def test_what_happens_to_a_key_does_not_depend_on_the_requests_for_others() -> None:
    alone = FaultStore(MemoryStore("m"), seed=5, rates=RATES)
    among_others = FaultStore(MemoryStore("m"), seed=5, rates=RATES)
    for number in range(50):
        attempt(partial(alone.put, "k", b"", IfAbsent()))
        attempt(partial(among_others.put, f"other{number}", b"", IfAbsent()))
        attempt(partial(among_others.put, "k", b"", IfAbsent()))
    steps = [each.step for each in among_others.trace if each.request.key == "k"]
    assert steps == [each.step for each in alone.trace]
    assert len(set(steps)) > 2


def test_faults_come_at_about_the_given_rates() -> None:
    store = FaultStore(MemoryStore("m"), seed=1, rates={PutFault.REFUSED: 0.1, PutFault.APPLIED_THEN_UNKNOWN: 0.2})
    for number in range(4000):
        attempt(partial(store.put, f"k{number}", b"", IfAbsent()))
    steps = Counter(happening.step for happening in store.trace)
    assert 0.08 < steps["PutFault.REFUSED"] / 4000 < 0.12
    assert 0.17 < steps["PutFault.APPLIED_THEN_UNKNOWN"] / 4000 < 0.23


def test_a_script_goes_before_the_chances_and_the_trace_tells_both(store: FaultStore) -> None:
    certain = FaultStore(store, rates={PutFault.REFUSED: 1.0})
    certain.on_put("k", PutFault.CONFLICT_WITH_NOTHING, Unavailable("down"), lambda: None)
    assert certain.put("k", b"", IfAbsent()) == Conflict()
    with pytest.raises(Unavailable, match="down"):
        certain.put("k", b"", IfAbsent())
    assert isinstance(certain.put("k", b"", IfAbsent()), Committed)
    with pytest.raises(Unavailable, match="never applied"):
        certain.put("k", b"", IfAbsent())
    told = ["PutFault.CONFLICT_WITH_NOTHING", "Unavailable", "act", "PutFault.REFUSED"]
    assert [happening.step for happening in certain.trace] == told


def with_objects(*keys: str) -> MemoryStore:
    store = MemoryStore("objects", clock=ManualClock())
    for key in keys:
        store.put(key, f"content of {key}".encode(), IfAbsent())
    return store


def listed(fault: ListFault, *, start_after: str | None = None, page_keys: int = 4) -> list[str]:
    store = FaultStore(with_objects(*KEYS), page_keys=page_keys)
    store.on("list", "", fault)
    return [info.key for info in store.list("k", start_after)]


def attempt(request: Callable[[], object]) -> object:
    try:
        return request()
    except Unavailable as error:
        return str(error)


def all_of(store: FaultStore, start_after: str) -> list[ObjectInfo]:
    return list(store.list("k", start_after))


def scenario(seed: int) -> tuple[FaultStore, list[object]]:
    """Return a store with random faults of all kinds, and the store's answers to requests of all kinds."""
    store = FaultStore(with_objects(*KEYS), seed=seed, rates=RATES, page_keys=4)
    answers: list[object] = []
    for key in KEYS:
        answers += [
            attempt(partial(store.put, f"{key}-new", b"", IfAbsent())),
            attempt(partial(store.get, key)),
            attempt(partial(store.head, key)),
            attempt(partial(all_of, store, key)),
            attempt(partial(store.delete, [f"{key}-new"])),
        ]
    return store, answers
