"""What is left of a run that ends at any of its requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.memory import MemoryStore
from tests.support.copies import copy_of
from tests.support.fault_store import Crash, CrashFault, FaultStore


def left_by_crashes(start: ObjectStore, run: Callable[[ObjectStore], object], side: CrashFault) -> list[MemoryStore]:
    """Run on a copy of the store for each request of the run, end there, and return what is left, the same once.

    Requests that only read leave the same objects behind.
    """
    whole = FaultStore(copy_of(start))
    run(whole)
    found: dict[frozenset[str], MemoryStore] = {}
    for number in range(len(whole.trace)):
        objects = copy_of(start)
        store = FaultStore(objects)
        store.at(number, side)
        with pytest.raises(Crash):
            run(store)
        found.setdefault(frozenset(info.key for info in objects.list("")), objects)
    return [*found.values()]
