"""Objects that a shallow clone has in its source: there as those of its own are, though no listing of it shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from storage_core.errors import InvalidInput, NotFound
from storage_core.formats.keys import source_key
from storage_core.fsck.inventory import Inventory, take_inventory
from storage_core.history.kept import objects_of
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore


def whole_inventory(store: ObjectStore) -> Inventory:
    """Return what lies under the root of a table that has all its objects there. Raises `InvalidInput` for others."""
    found = take_inventory(store)
    if source_key() in found.parsed:
        raise InvalidInput(
            f"{store.uri}: is a shallow clone, most of which lies in another table; clone it deep, where it opens, or "
            "repair its source and clone that again",
            uri=store.uri,
        )
    return found


def named_by(snapshot: Snapshot) -> Iterator[str]:
    """Yield the keys of the objects that reading a snapshot takes."""
    yield from objects_of([*snapshot.splits.values()])
    yield from snapshot.segments
    yield from snapshot.translations


def with_shared(store: ObjectStore, inventory: Inventory, keys: Iterable[str]) -> Inventory:
    """Return the inventory with those of the keys that are elsewhere. One HEAD per key of a shallow clone."""
    if source_key() not in inventory.objects:
        return inventory
    found = dict(inventory.objects)
    for key in keys:
        if key not in found:
            try:
                found[key] = store.head(key)
            except NotFound:
                continue
    return replace(inventory, objects=found)
