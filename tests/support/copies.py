"""Copies of stores and their objects, for tests that damage, kill or continue a table and keep the original."""

from __future__ import annotations

from collections.abc import Callable

from storage_core.base.clock import Clock
from storage_core.store.contract import IfAbsent, ObjectStore
from storage_core.store.memory import MemoryStore


def copy_of(
    store: ObjectStore, name: str = "copy", clock: Clock | None = None, *, wanted: Callable[[str], bool] | None = None
) -> MemoryStore:
    """Return a store with the same objects, or only the objects whose keys are `wanted`.

    A store in memory shares the bytes, so a copy costs only its keys. `clock` sets the times of the copied objects.
    """
    copied = MemoryStore(name, clock=clock)
    copy_into(copied, store, wanted=wanted)
    return copied


def copy_into(target: ObjectStore, store: ObjectStore, *, wanted: Callable[[str], bool] | None = None) -> None:
    """Put the same objects, or only the objects whose keys are `wanted`, into another store."""
    for info in store.list(""):
        if wanted is None or wanted(info.key):
            target.put(info.key, store.get(info.key).data, IfAbsent())


def contents(store: ObjectStore) -> dict[str, bytes]:
    """Return the bytes of every object, in key order. The result is equal for stores with the same objects."""
    return {info.key: store.get(info.key).data for info in store.list("")}
