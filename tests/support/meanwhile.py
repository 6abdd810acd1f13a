"""Somebody else acting at one moment of an operation: the way to try a race at each of its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from storage_core.objectstore.contract import ObjectStore, Overwrite
from storage_core.objectstore.meter import RequestKind

T = TypeVar("T")


class Meanwhile:
    """A `watch` of a `FaultStore` that lets somebody act once, before request number `instant` (from 0).

    Manifests are not counted: they are read by other threads, while the reading thread holds what the act may need.
    """

    def __init__(self, instant: int, act: Callable[[], object]) -> None:
        """Wait for the request of that number."""
        self._left = instant
        self._act: Callable[[], object] | None = act

    def __call__(self, _kind: RequestKind, key: str) -> None:
        """Count the request, and act when its time has come."""
        if self._act is None or "/manifests/" in key:
            return
        self._left -= 1
        if self._left < 0:
            act, self._act = self._act, None
            act()

    @property
    def acted(self) -> bool:
        """Whether there were that many requests."""
        return self._act is None


def repeatable(act: Callable[[ObjectStore], T]) -> Callable[[ObjectStore], T]:
    """Return an act that is worked out once for all stores that hold the same objects, and done to the others again.

    What it does may depend on the objects alone. A store that was acted on holds what the act left in the first one,
    and what the act rewrote is newly written here too.
    """
    known: dict[frozenset[tuple[str, bytes]], tuple[T, dict[str, bytes], list[str]]] = {}

    def repeat(store: ObjectStore) -> T:
        before = {info.key: store.get(info.key) for info in store.list("")}
        start = frozenset((key, blob.data) for key, blob in before.items())
        if start in known:
            result, written, removed = known[start]
            store.delete(removed)
            for key, data in written.items():
                store.put(key, data, Overwrite())
            return result
        result = act(store)
        after = {info.key: store.get(info.key) for info in store.list("")}
        written = {key: blob.data for key, blob in after.items() if before.get(key) != blob}
        known[start] = result, written, sorted(before.keys() - after.keys())
        return result

    return repeat
