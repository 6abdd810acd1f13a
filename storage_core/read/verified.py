"""Which split files are known to be what was written, so that DuckDB may read them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from storage_core.errors import Corrupt, Unavailable
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore

if TYPE_CHECKING:
    from storage_core.split.ranges import Footers

_HASH_BLOCK_BYTES = 4 * 2**20


class Verified:
    """Remembers which splits were read whole and found to be what was written; splits are immutable, so once is enough.

    DuckDB checks neither length nor checksums of what it reads, and a flipped bit may come back as another value
    (lesson 61). So each file is hashed before DuckDB sees it for the first time, and again when it is another file or
    was written to: device, inode, size and the times of the last change are remembered, and looked at each time.
    Of splits that are no local files it holds the footers that were read last.
    """

    def __init__(self) -> None:
        self._files: dict[str, tuple[int, ...]] = {}

    @cached_property
    def footers(self) -> Footers:
        """The footers of splits."""
        from storage_core.split.ranges import Footers  # and Parquet

        return Footers()

    def path(self, store: ObjectStore, add: Add) -> Path | None:
        """Return the local file of a split that is sound, or None when the store has no file of it."""
        path = store.local_path(add.path)
        if path is None:
            return path
        try:
            found = _identity(path)
            if self._files.get(add.path) != found:
                require_sound(path, add)
        except FileNotFoundError:  # it went just now; reading it says so like for every other store
            return None
        except OSError as error:
            raise Unavailable(f"{add.path}: {error.strerror}; try again later", key=add.path) from error
        self._files[add.path] = found
        return path

    def recheck(self, store: ObjectStore, splits: Iterable[tuple[Add, Path]]) -> None:
        """Return when the files that were just read are what was written, still. Raises `Corrupt` otherwise."""
        for add, path in splits:
            try:
                unchanged = self._files.get(add.path) == _identity(path)
            except FileNotFoundError:  # collected meanwhile
                continue
            if not unchanged:
                self.path(store, add)


def require_sound(path: Path, add: Add) -> None:
    """Return when the file is what was written, by length and checksum. Raises `Corrupt`, and what the system does."""
    size = path.stat().st_size
    if size != add.size:
        raise Corrupt(f"{add.path}: {size} bytes, expected {add.size}", key=add.path)
    if add.xxh3 is None:  # written by somebody else, who recorded none
        return
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != add.xxh3:
        raise Corrupt(f"{add.path}: checksum {digest.hexdigest()}, expected {add.xxh3}", key=add.path)


def _identity(path: Path) -> tuple[int, ...]:
    found = os.stat(path)  # noqa: PTH116  # half the time of its like in pathlib, for each split of each query
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
