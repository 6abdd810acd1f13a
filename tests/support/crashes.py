"""What is left of a run that ends at any of its requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.memory import MemoryStore
from tests.support.copies import copy_of
from tests.support.fault_store import Crash, CrashFault, FaultStore

READS = frozenset({"get", "head", "list"})


def left_by_crashes(start: ObjectStore, run: Callable[[ObjectStore], object]) -> list[MemoryStore]:
    """Run on a copy of the store for each request of the run, end there, and return what is left, the same once.

    The run ends before each request, and after each that changes something: one that only reads leaves the same objects
    behind when the run ends after it. Objects are the same by key and by ETag, which counts the puts of a store.
    """
    whole = FaultStore(copy_of(start))
    run(whole)
    found: dict[frozenset[tuple[str, str]], MemoryStore] = {}
    for number, each in enumerate(whole.trace):
        for side in [CrashFault.BEFORE] if each.request.kind in READS else list(CrashFault):
            objects = copy_of(start)
            store = FaultStore(objects)
            store.at(number, side)
            with pytest.raises(Crash):
                run(store)
            found.setdefault(frozenset((info.key, info.etag) for info in objects.list("")), objects)
    return [*found.values()]
