"""Parts of a split, fetched by ranges and verified before a byte is decoded: its footer, and column chunks of it.

The log's entry has the place and the checksum of the footer, the footer those of the column chunks (decision 0101).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from storage_core.cache.pieces import NOT_CACHED, CachedPieces, Piece
from storage_core.errors import Corrupt
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.seekable import SeekableFile
from storage_core.split import chunk_checksums
from storage_core.split.kept_values import KeptValues
from storage_core.split.packed_metadata import entries_of
from storage_core.split.verification import whole_file

GAPS: Final = 10
"""What is fetched and not wanted, between chunks that one request fetches, is at most a tenth of what is wanted."""

REQUEST_BYTES: Final = 8 * 2**20
"""What one request fetches of several chunks, about; a chunk is not cut."""

_AT_ONCE: Final = 4
_FOOTERS_BYTES: Final = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a split, whose bytes have the checksum that the log has."""

    file: pq.FileMetaData
    entries: Mapping[str, str]
    checksums: npt.NDArray[np.uint64]
    """Of each column chunk, by row group and leaf column."""


class Footers:
    """The footers that were read last, decoded: at most 32 MiB as they are encoded. Safe for threads.

    What a reader of them fetches of splits, footers as well, goes through `cached`.
    """

    def __init__(self, cached: CachedPieces = NOT_CACHED, *, held: KeptValues | None = None) -> None:
        self.cached = cached
        self._held = KeptValues(_FOOTERS_BYTES) if held is None else held

    def of_a_read(self) -> Footers:
        """Return the same footers for one read, which is cached as one."""
        return Footers(self.cached.of_a_read(), held=self._held)

    def of(self, store: ObjectStore, add: Add) -> Footer:
        """Return the footer of a split that has `footerXxh3`. One ranged GET, none where it is held or cached.

        Raises `NotFound`, and `Corrupt` where it is not what was written.
        """
        name = (add.path, add.footerXxh3)
        return self._held.made(
            name, Footer, lambda: read_footer(store, add, self.cached), lambda footer: footer.file.serialized_size
        )

    def held(self, add: Add) -> Footer | None:
        """Return the footer of a split if it is held. No request."""
        found = self._held.get((add.path, add.footerXxh3))
        return found if isinstance(found, Footer) else None


def read_footer(store: ObjectStore, add: Add, cached: CachedPieces = NOT_CACHED) -> Footer:
    """Return the footer of a split that has `footerXxh3`. One ranged GET, none where it is cached.

    Raises `NotFound`, `Corrupt` where it is not what was written, and what Arrow raises of a footer.
    """
    if add.footerXxh3 is None or add.footerStartOffset is None or add.footerEndOffset is None:
        raise Corrupt(f"{add.path}: the log has the checksum of a footer and does not say where it is", key=add.path)
    if add.footerEndOffset != add.size:
        found = f"its footer ends at {add.footerEndOffset}, and it has {add.size} bytes"
        raise Corrupt(f"{add.path}: by the log {found}", key=add.path)
    piece = Piece(add.footerStartOffset, add.footerEndOffset, add.footerXxh3)
    fetch = functools.partial(store.get_range, add.path, add.footerStartOffset, add.footerEndOffset)
    data = cached.made(store.uri, add.path, identity(add), piece, fetch=fetch)
    found = xxhash.xxh3_64_hexdigest(data)
    if found != add.footerXxh3:
        raise Corrupt(f"{add.path}: expected xxh3-64 {add.footerXxh3} of the footer, found {found}", key=add.path)
    file = pq.read_metadata(pa.BufferReader(data))
    entries = entries_of(file, add.path)
    checksums = chunk_checksums.recorded(entries, file, add.path)
    if checksums is None:
        raise Corrupt(
            f"{add.path}: the log has the checksum of a footer that has none of its column chunks", key=add.path
        )
    return Footer(file, entries, checksums)


class VerifiedChunks(SeekableFile):
    """A split as a seekable file that has nothing but the column chunks that were fetched last, which are verified."""

    def __init__(self, store: ObjectStore, add: Add, footer: Footer, cached: CachedPieces = NOT_CACHED) -> None:
        super().__init__(add.size)
        self._store, self._add, self._footer, self._cached = store, add, footer, cached
        self._held: dict[int, memoryview] = {}

    @property
    def footer(self) -> pq.FileMetaData:
        """The footer of the split."""
        return self._footer.file

    def another(self) -> VerifiedChunks:
        """Return a file of the same split that holds nothing yet."""
        return VerifiedChunks(self._store, self._add, self._footer, self._cached)

    def fetch(self, group: int, columns: Sequence[int]) -> None:
        """Fetch these leaf columns, ascending, of a row group, in place of what is held.

        Ranged GETs side by side of those that are not cached: one for chunks that lie together or nearly so (`GAPS`),
        up to about `REQUEST_BYTES`. Raises `NotFound`, and `Corrupt` naming split, row group and column where a chunk
        is not what was written.
        """
        self._held = {}
        places = chunk_checksums.places(self._footer.file, [group])[0, columns]
        checksums = self._footer.checksums[group, columns].tolist()
        pieces = [
            Piece(start, end, f"{each:016x}") for (start, end), each in zip(places.tolist(), checksums, strict=True)
        ]
        cached = self._cached.read(self._store.uri, self._add.path, identity(self._add), pieces)
        self._held = {
            each.start: memoryview(data) for each, data in zip(pieces, cached, strict=True) if data is not None
        }
        missing = [number for number, data in enumerate(cached) if data is None]
        self._fetch(places[missing])
        for number in missing:
            self._require(group, columns[number], self._held[pieces[number].start])
        fetched = [(pieces[number], self._held[pieces[number].start]) for number in missing]
        self._cached.write(self._store.uri, self._add.path, identity(self._add), fetched)

    def _fetch(self, places: npt.NDArray[np.int64]) -> None:
        parts = requests_for(places)
        fetched = all_of(lambda part: self._store.get_range(self._add.path, *part), parts, _AT_ONCE)
        for (first, end), data in zip(parts, fetched, strict=True):
            view = memoryview(data)
            for start, stop in places[(places[:, 0] >= first) & (places[:, 1] <= end)].tolist():
                self._held[start] = view[start - first : stop - first]

    def write_to(self, file: BinaryIO) -> None:
        """Write what is held into a file, at its place."""
        for start, chunk in self._held.items():
            file.seek(start)
            file.write(chunk)

    def drop(self) -> None:
        """Hold nothing."""
        self._held = {}

    def read(self, size: int = -1, /) -> memoryview:
        """Return `size` bytes of a chunk that is held, from its start on. Raises `OSError` for any others."""
        chunk = self._held.get(self.position)
        if chunk is None or not 0 <= size <= len(chunk):
            raise OSError(f"{size} bytes at {self.position} are of no column chunk that was fetched")
        self.position += size
        return chunk[:size]

    def _require(self, group: int, column: int, chunk: memoryview) -> None:
        expected = int(self._footer.checksums[group, column])
        found = xxhash.xxh3_64_intdigest(chunk)
        if found != expected:
            name = self._footer.file.schema.column(column).path
            raise Corrupt(
                f"{self._add.path}: expected xxh3-64 {expected:016x} of the column {name!r} in row group {group}, "
                f"found {found:016x}",
                key=self._add.path,
            )


def whole_split(store: ObjectStore, add: Add, cached: CachedPieces) -> bytes:
    """Return the bytes of a split, which are what was written. One GET, none where they are cached.

    Raises what `whole_file` raises.
    """
    if add.xxh3 is None:  # of another writer: nothing says what its bytes are
        return whole_file(store, add)
    piece = Piece(0, add.size, add.xxh3)
    return cached.made(store.uri, add.path, identity(add), piece, fetch=lambda: whole_file(store, add))


def identity(add: Add) -> str:
    """Return what fixes the bytes of a split."""
    return str(add.xxh3 or add.footerXxh3)


def requests_for(places: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the ranges that hold these ascending chunks, and of the gaps between them the smallest: a tenth in all."""
    if not len(places):
        return []
    gaps = places[1:, 0] - places[:-1, 1]
    smallest = np.argsort(gaps, kind="stable")
    wanted = int((places[:, 1] - places[:, 0]).sum())
    joined = np.zeros(len(gaps), np.bool_)
    joined[smallest[np.cumsum(gaps[smallest]) * GAPS <= wanted]] = True
    found = [(int(places[0, 0]), int(places[0, 1]))]
    for is_joined, (start, end) in zip(joined.tolist(), places[1:].tolist(), strict=True):
        if is_joined and found[-1][1] - found[-1][0] < REQUEST_BYTES:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
