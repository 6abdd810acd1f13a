"""A store whose listings miss some keys, as one that lost a page does; whoever asks for such a key by name gets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from storage_core.objectstore.contract import ObjectInfo, ObjectStore


class BlindListing:
    """The wrapped store, but `list` leaves out every key that `misses` says."""

    def __init__(self, store: ObjectStore, misses: Callable[[str], bool]) -> None:
        self._store = store
        self._misses = misses
        self.uri, self.get, self.get_range, self.head = store.uri, store.get, store.get_range, store.head
        self.put, self.delete = store.put, store.delete
        self.make_durable, self.local_path = store.make_durable, store.local_path

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield what the wrapped store lists, without the missed keys."""
        return (info for info in self._store.list(prefix, start_after) if not self._misses(info.key))
