"""Copies of stores and of what is in them, for tests that damage, kill or continue a table and keep the original."""

from __future__ import annotations

from collections.abc import Callable

from storage_core.clock import Clock
from storage_core.objectstore.contract import IfAbsent, ObjectStore
from storage_core.objectstore.memory import MemoryStore


def copy_of(
    store: ObjectStore, name: str = "copy", clock: Clock | None = None, *, wanted: Callable[[str], bool] | None = None
) -> MemoryStore:
    """Return a store with the same objects, or those whose keys are wanted.

    Their bytes are shared where the store is in memory, so that a copy costs no more than its keys. `clock` dates them.
    """
    copied = MemoryStore(name, clock=clock)
    copy_into(copied, store, wanted=wanted)
    return copied


def copy_into(target: ObjectStore, store: ObjectStore, *, wanted: Callable[[str], bool] | None = None) -> None:
    """Put the same objects into another store, or those whose keys are wanted."""
    for info in store.list(""):
        if wanted is None or wanted(info.key):
            target.put(info.key, store.get(info.key).data, IfAbsent())


def contents(store: ObjectStore) -> dict[str, bytes]:
    """Return the bytes of every object by key, in the order of the keys: equal for stores with the same objects."""
    return {info.key: store.get(info.key).data for info in store.list("")}
