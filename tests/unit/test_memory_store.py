from __future__ import annotations

import pytest

from storage_core.store.contract import Committed, IfAbsent, ObjectStore
from storage_core.store.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.store_conformance import StoreConformance, WriteNumberConformance


class TestMemoryStore(StoreConformance, WriteNumberConformance):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore("conformance")


def test_last_modified_follows_the_given_clock() -> None:
    clock = ManualClock(1_000)
    store = MemoryStore("clocked", clock=clock)
    assert isinstance(store.put("k", b"", IfAbsent()), Committed)
    clock.now = 5_000
    assert store.head("k").last_modified_ms == 1_000


def test_a_listing_is_of_the_moment_of_the_call() -> None:
    store = MemoryStore("listing")
    store.put("a", b"", IfAbsent())
    listing = store.list("")
    store.put("b", b"", IfAbsent())
    assert [info.key for info in listing] == ["a"]
