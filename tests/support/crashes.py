"""Functions that return all states that a killed process can leave in its stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import RequestKind
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
"""Objects that matter only if another object refers to them, and objects that only make opening faster."""


def decides(key: str) -> bool:
    """Return True if an object with this key changes the table as soon as it exists."""
    parsed = parse(key)
    return parsed is None or parsed.kind not in DECIDE_NOTHING


def left_by_crashes(start: ObjectStore, run: Callable[[ObjectStore], object]) -> list[MemoryStore]:
    """Run on a copy of the store. Return the distinct states that a crash before or after each request leaves."""
    return [left["copy"] for left in left_in_stores({"copy": start}, lambda stores: run(stores["copy"]))]


def left_in_stores(
    start: Mapping[str, ObjectStore], run: Callable[[dict[str, ObjectStore]], object]
) -> list[dict[str, MemoryStore]]:
    """Run on copies of several named stores. Return the distinct states of the stores before and after each request.

    A crash leaves the effects of all earlier requests. The function therefore executes the run once, and copies all
    stores before each request and at the end. Each key of a delete counts as a request. Two objects are the same if
    their keys and ETags are equal. The ETag counts the puts of a store.
    """
    stores = {name: copy_of(each, name) for name, each in start.items()}
    found: dict[frozenset[tuple[str, str, str]], dict[str, MemoryStore]] = {}
    deleted: set[tuple[str, str]] = set()  # keys that one delete request has removed up to now

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
    """For each put that changes a table, return the first and the last state after this put, in the order of the run.

    Some puts write objects that change no table on their own (`DECIDE_NOTHING`). The first state has the fewest of
    these objects, and the last state has the most. With a larger `SCALE`, return all states.
    """
    alike: dict[frozenset[str], list[T]] = {}
    for each in left:
        decided = frozenset(info.key for info in store_of(each).list("") if decides(info.key))
        alike.setdefault(decided, []).append(each)
    if scaled(1) > 1:
        return [each for states in alike.values() for each in states]
    return [each for first, *others in alike.values() for each in (first, *others[-1:])]
