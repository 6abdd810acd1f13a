"""Reading what lies in a store: whether it is there, and as a seekable file."""

from __future__ import annotations

from collections.abc import Collection
from posixpath import commonpath
from typing import Any

from storage_core.errors import NotFound
from storage_core.objectstore.contract import ObjectStore
from storage_core.seekable import SeekableFile

LIST_FROM = 100

AHEAD_MOST = 2**24
"""Bytes that a file read in order asks for at once, at most."""


def exists(store: ObjectStore, key: str) -> bool:
    """Return whether the object is there. One HEAD."""
    try:
        store.head(key)
    except NotFound:
        return False
    return True


def missing(store: ObjectStore, keys: Collection[str]) -> list[str]:
    """Return the keys that have no object, sorted.

    One HEAD each; of more than `LIST_FROM` keys a LIST of what they share, and a HEAD for those that it does not show.
    """
    unseen = set(keys)
    if len(unseen) > LIST_FROM:
        # A listing may lack what is there, so absence is only ever concluded from a HEAD.
        unseen.difference_update([info.key for info in store.list(commonpath(unseen))])
    return sorted(key for key in unseen if not exists(store, key))


class ObjectFile(SeekableFile):
    """An object of known size as a seekable file: at most one ranged GET per read, and no HEAD.

    With `ahead` a GET asks for so many bytes at least, for twice as many as the one before where it continues that
    one, up to `AHEAD_MOST`. What it got stays in memory until the next: reads within it are no request. A read raises
    `NotFound` when the object is gone.
    """

    def __init__(self, store: ObjectStore, key: str, size: int, *, ahead: int = 0) -> None:
        super().__init__(size)
        self._store = store
        self._key = key
        self._least_ahead = self._ahead = ahead
        self._held_from = 0
        self._held = b""

    def read(self, size: int = -1, /) -> bytes:
        """Return `size` bytes, fewer at the end of the object, all that is left when it is negative."""
        end = self.size if size < 0 else min(self.position + size, self.size)
        if end <= self.position:
            return b""
        start, self.position = self.position, end
        if not self._held_from <= start <= end <= self._held_to:
            self._fetch(start, end)
        return self._held[start - self._held_from : end - self._held_from]

    def readinto(self, buffer: Any, /) -> int:
        """Fill a writable buffer as far as the object reaches and return the number of bytes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    @property
    def _held_to(self) -> int:
        return self._held_from + len(self._held)

    def _fetch(self, start: int, end: int) -> None:
        continues = self._held_from <= start <= self._held_to + self._least_ahead
        self._ahead = min(2 * self._ahead, AHEAD_MOST) if continues and self._held else self._least_ahead
        last = min(max(end, start + self._ahead), self.size)
        self._held_from, self._held = start, self._store.get_range(self._key, start, last)
