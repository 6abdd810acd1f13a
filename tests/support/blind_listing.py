"""A store whose listings omit some keys, as if a page was lost. A read by key still finds each object."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from storage_core.store.contract import ObjectInfo, ObjectStore


class BlindListing:
    """Wrapper around a store. The `list` of the wrapper omits every key for which `misses` returns True."""

    def __init__(self, store: ObjectStore, misses: Callable[[str], bool]) -> None:
        self._store = store
        self._misses = misses
        self.uri, self.get, self.get_range, self.head = store.uri, store.get, store.get_range, store.head
        self.put, self.delete = store.put, store.delete
        self.make_durable, self.local_path = store.make_durable, store.local_path

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects that the wrapped store lists, except the keys that this listing omits on purpose."""
        return (info for info in self._store.list(prefix, start_after) if not self._misses(info.key))
