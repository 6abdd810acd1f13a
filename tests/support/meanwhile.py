"""An action that runs between two requests of an operation, to test a race at each request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.meter import RequestKind

T = TypeVar("T")


class Meanwhile:
    """A `watch` hook of a `FaultStore` that runs an action once, before request number `instant` (from 0).

    Requests that read manifests do not count. Manifests are read by additional threads. During such a read, the main
    thread may hold a lock, and the action would wait for this lock.
    """

    def __init__(self, instant: int, act: Callable[[], object]) -> None:
        """Set the request number and the action."""
        self._left = instant
        self._act: Callable[[], object] | None = act

    def __call__(self, _kind: RequestKind, key: str) -> None:
        """Count the request. Run the action of the hook before request number `instant`."""
        if self._act is None or "/manifests/" in key:
            return
        self._left -= 1
        if self._left < 0:
            act, self._act = self._act, None
            act()

    @property
    def acted(self) -> bool:
        """Return True if the operation reached the chosen request."""
        return self._act is None


def repeatable(act: Callable[[ObjectStore], T]) -> Callable[[ObjectStore], T]:
    """Return an action that runs only on the first of several stores with equal objects.

    For later stores with equal objects, the returned function copies the effect of this run.

    The effect of the action must depend only on the objects. In each later store, the returned function removes and
    writes the objects that the action removed and wrote in the first store.
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
