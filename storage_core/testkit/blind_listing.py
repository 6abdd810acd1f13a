"""A store whose listings miss some keys, as one that lost a page does; whoever asks for such a key by name gets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from storage_core.objectstore.contract import Blob, ObjectInfo, ObjectStore, PutMode, PutResult


class BlindListing:
    """The wrapped store, but `list` leaves out every key that `misses` says."""

    def __init__(self, store: ObjectStore, misses: Callable[[str], bool]) -> None:
        self._store = store
        self._misses = misses

    @property
    def uri(self) -> str:
        """The URI of the wrapped store."""
        return self._store.uri

    def get(self, key: str) -> Blob:
        """Pass on."""
        return self._store.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Pass on."""
        return self._store.get_range(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """Pass on."""
        return self._store.head(key)

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Pass on."""
        return self._store.put(key, data, mode)

    def make_durable(self, key: str) -> None:
        """Pass on."""
        self._store.make_durable(key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield what the wrapped store lists, without the missed keys."""
        return (info for info in self._store.list(prefix, start_after) if not self._misses(info.key))

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Pass on."""
        return self._store.delete(keys)

    def local_path(self, key: str) -> Path | None:
        """Pass on."""
        return self._store.local_path(key)
