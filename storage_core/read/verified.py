"""Which split files are known to be what was written, so that DuckDB may read them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import xxhash

from storage_core.cache.pieces import NOT_CACHED, CachedPieces
from storage_core.errors import Corrupt, Unavailable
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore

if TYPE_CHECKING:
    from storage_core.index.bitmap_parts import BitmapParts
    from storage_core.split.kept_values import KeptValues
    from storage_core.split.ranges import Footers

_HASH_BLOCK_BYTES = 4 * 2**20
_VECTOR_BYTES = 64 * 2**20
_TAIL = 8
"""Bytes after the footer of a Parquet file: its length, and the magic number."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """What the footers of some splits say of their columns, all of them the same. There is one of each in `Verified`.

    `schema` is what Arrow makes of it; None where that cannot be told.
    """

    schema: pa.Schema | None


UNKNOWN: Final = Columns(None)
"""Of splits whose columns cannot be told, and so may differ."""


@dataclass(frozen=True, slots=True)
class _Sound:
    path: Path
    identity: tuple[int, ...]
    columns: Columns


class Verified:
    """Remembers which splits were read whole and found to be what was written; splits are immutable, so once is enough.

    DuckDB checks neither length nor checksums of what it reads, and a flipped bit may come back as another value
    (lesson 61). So each file is hashed before DuckDB sees it for the first time, and again when it is another file or
    was written to: device, inode, size and the times of the last change are remembered, and looked at each time. Of
    splits that are no local files it holds the footers that were read last, and columns of bitmap indexes; what is
    fetched of either goes through `cached`. All splits are of one store.
    """

    def __init__(self, cached: CachedPieces = NOT_CACHED) -> None:
        self.cached = cached
        self._files: dict[str, _Sound] = {}
        self._columns: dict[bytes, Columns] = {}

    @cached_property
    def footers(self) -> Footers:
        """The footers of splits."""
        from storage_core.split.ranges import Footers  # and Parquet

        return Footers(self.cached)

    @cached_property
    def vectors(self) -> KeptValues:
        """Deletion vectors that were read, and what was made of them."""
        from storage_core.split.kept_values import KeptValues  # which tables without deleted rows do not need

        return KeptValues(_VECTOR_BYTES)

    @cached_property
    def bitmaps(self) -> BitmapParts:
        """Columns of bitmap indexes over the splits."""
        from storage_core.index.bitmap_parts import BitmapParts

        return BitmapParts(self.footers.cached)

    def path(self, store: ObjectStore, add: Add) -> Path | None:
        """Return the local file of a split that is sound, or None when the store has no file of it."""
        known = self._files.get(add.path)
        if known is not None and _is(known):
            return known.path
        path = store.local_path(add.path)
        if path is None:
            return path
        try:
            found = _identity(path)
            require_sound(path, add)
            self._files[add.path] = _Sound(path, found, self._columns_in(path))
        except FileNotFoundError:  # it went just now; reading it says so like for every other store
            return None
        except OSError as error:
            raise Unavailable(f"{add.path}: {error.strerror}; try again later", key=add.path) from error
        return path

    def is_known(self, add: Add) -> bool:
        """Whether the local file of a split was read whole already."""
        return add.path in self._files

    def columns(self, add: Add) -> Columns:
        """Return what the footer of a split, of which `path` has told the file, says of its columns."""
        return self._files[add.path].columns

    def recheck(self, store: ObjectStore, splits: Iterable[tuple[Add, Path]]) -> None:
        """Return when the files that were just read are what was written, still. Raises `Corrupt` otherwise."""
        for add, _ in splits:
            self.path(store, add)

    def _columns_in(self, path: Path) -> Columns:
        """What the footer of a sound file says; Arrow reads it where no footer before it began alike."""
        import pyarrow.parquet as pq  # which an open table need not have

        from storage_core.formats.parquet_footer import schema_bytes

        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            length = int.from_bytes(file.read(_TAIL)[:4], "little")
            file.seek(max(0, file.tell() - _TAIL - length))
            footer = file.read(length)
        seen = self._columns.copy()  # at once: another thread may add to them, also while a tuple is made of them
        known = next((columns for start, columns in seen.items() if footer.startswith(start)), None)
        if known is not None:
            return known
        start = schema_bytes(footer)
        if start is None:
            return UNKNOWN
        try:
            return self._columns.setdefault(start, Columns(pq.read_schema(path).remove_metadata()))
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            return UNKNOWN


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


def _is(known: _Sound) -> bool:
    """Whether the file is the one that was verified; any doubt is a reason to verify it again."""
    try:
        return _identity(known.path) == known.identity
    except OSError:
        return False


def _identity(path: Path) -> tuple[int, ...]:
    found = os.stat(path)  # noqa: PTH116  # half the time of its like in pathlib, for each split of each query
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
