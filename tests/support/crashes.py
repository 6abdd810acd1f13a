"""What is left of a run that ends at any of its requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from storage_core.formats.keys import KeyKind, parse
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.memory import MemoryStore
from storage_core.objectstore.meter import RequestKind
from tests.support.copies import copy_of
from tests.support.fault_store import FaultStore
from tests.support.scale import scaled

T = TypeVar("T")
DECIDE_NOTHING = frozenset(
    {
        KeyKind.SPLIT,
        KeyKind.VECTOR,
        KeyKind.SEGMENT,
        KeyKind.TRANSLATION,
        KeyKind.GENERATION_FILE,
        KeyKind.MANIFEST,
        KeyKind.STATE,
        KeyKind.LAST_CHECKPOINT,
        KeyKind.REGION_HINT,
    }
)
"""Objects that count when something else names them, and those that only make opening quicker."""


def decides(key: str) -> bool:
    """Whether the table is another one as soon as there is an object of this key."""
    parsed = parse(key)
    return parsed is None or parsed.kind not in DECIDE_NOTHING


def left_by_crashes(start: ObjectStore, run: Callable[[ObjectStore], object]) -> list[MemoryStore]:
    """Return what is left when a run on a copy of the store ends before or after any of its requests, the same once."""
    return [left["copy"] for left in left_in_stores({"copy": start}, lambda stores: run(stores["copy"]))]


def left_in_stores(
    start: Mapping[str, ObjectStore], run: Callable[[dict[str, ObjectStore]], object]
) -> list[dict[str, MemoryStore]]:
    """Return what is left in several stores, by their names, when a run on copies of them ends at any of its requests.

    A process that is gone leaves what its requests did so far: so the run is done once, and all is copied before each
    of them and at the end. Each key of a delete is a request. Objects are the same by key and by ETag, which counts the
    puts of a store.
    """
    stores = {name: copy_of(each, name) for name, each in start.items()}
    found: dict[frozenset[tuple[str, str, str]], dict[str, MemoryStore]] = {}
    deleted: set[tuple[str, str]] = set()  # by a delete of several keys, which its store deletes at once

    def note() -> None:
        objects = ((name, info.key, info.etag) for name, store in stores.items() for info in store.list(""))
        here = frozenset(each for each in objects if each[:2] not in deleted)
        if here not in found:
            found[here] = {
                name: copy_of(store, name, wanted=lambda key, name=name: (name, key) not in deleted)  # type: ignore[misc]
                for name, store in stores.items()
            }

    def watch(name: str, kind: RequestKind, key: str) -> None:
        note()
        if kind == "delete":
            deleted.add((name, key))
        else:
            deleted.clear()

    run({name: FaultStore(store, watch=partial(watch, name)) for name, store in stores.items()})
    note()
    return [*found.values()]


def at_both_ends(left: Iterable[T], store_of: Callable[[T], ObjectStore]) -> list[T]:
    """Of states, in the order of the run, in which the same is decided return the first and the last.

    Those have the fewest and the most of the other objects. All states where there is time (`SCALE`).
    """
    alike: dict[frozenset[str], list[T]] = {}
    for each in left:
        decided = frozenset(info.key for info in store_of(each).list("") if decides(info.key))
        alike.setdefault(decided, []).append(each)
    if scaled(1) > 1:
        return [each for states in alike.values() for each in states]
    return [each for first, *others in alike.values() for each in (first, *others[-1:])]
