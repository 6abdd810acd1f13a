"""The fault store of the test kit: without a script it is the wrapped store, with one it does as it is told, once."""

from __future__ import annotations

import pytest

from storage_core.errors import Unavailable
from storage_core.objectstore.contract import Committed, Conflict, IfAbsent, ObjectStore, OutcomeUnknown
from storage_core.objectstore.memory import MemoryStore
from storage_core.testkit.fault_store import FaultStore, Interruption, PutFault
from storage_core.testkit.store_conformance import StoreConformance


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
    store.forget()
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
