"""Fetching of parts of splits: footers, column chunks and other pieces. Each part is verified before it is decoded.

The log contains the position and the checksum of a split's footer. The footer contains the checksums of the column
chunks (decision 0017). `Footers` keeps the latest footers in memory. `VerifiedChunks` fetches column chunks. `Pieces`
reads any pieces of an object, from the cache or from the store.
"""

from __future__ import annotations

import functools
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from storage_core.base.errors import SEE_CORRUPT, Corrupt
from storage_core.log.actions import Add
from storage_core.split import verification
from storage_core.split.verification import entries_of, whole_file
from storage_core.store.contract import ObjectStore, SeekableFile
from storage_core.store.meter import all_of
from storage_core.store.pieces import NOT_CACHED, CachedPieces, Data, KeptValues, Piece

REQUEST_COST_BYTES: Final = 2**20
"""The number of bytes that a transfer handles in about the time of one request."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes of an object, starting at `start`. The bytes were read before the positions of the pieces were known."""

    start: int = 0
    data: bytes = b""

    def has(self, piece: Piece) -> bool:
        """Return whether all bytes of the piece are in this range."""
        return piece.end is not None and self.start <= piece.start and piece.end <= self.start + len(self.data)

    def bytes_of(self, piece: Piece) -> bytes:
        """Return the bytes of a piece in this range."""
        return self.data[piece.start - self.start : (piece.end or 0) - self.start]


NOTHING_FETCHED: Final = Fetched()


@dataclass(frozen=True, slots=True)
class Pieces:
    """An object that can be read in pieces.

    Attributes:
        uri: The URI of the store.
        path: The key of the object.
        identity: A checksum that identifies the content of the object.
        fetch: A function that returns the bytes of a range.
        advice: The end of the message of `Corrupt`.
    """

    uri: str
    path: str
    identity: str
    cached: CachedPieces
    fetch: Callable[[int, int], bytes]
    advice: str = SEE_CORRUPT

    def read(
        self,
        wanted: Sequence[Piece],
        *,
        gap_bytes: int,
        at_once: int,
        most_bytes: int = sys.maxsize,
        ahead: Fetched = NOTHING_FETCHED,
    ) -> list[bytes]:
        """Return the bytes of the ascending pieces in `wanted`. Bytes come from `ahead`, the cache or concurrent GETs.

        The cost is one GET per range of `near`. All pieces that were not cached are then written to the cache. Raises
        the errors of `fetch`, and `Corrupt` if bytes do not match the checksum of their piece.

        Args:
            ahead: Bytes that were fetched earlier.
            at_once: The maximum number of concurrent GETs.
        """
        fresh = {each: self.verified(each, ahead.bytes_of(each)) for each in wanted if ahead.has(each)}
        asked = [each for each in wanted if each not in fresh]
        cached = zip(asked, self.cached.read(self.uri, self.path, self.identity, asked), strict=True)
        found = {each: data for each, data in cached if data is not None}
        absent = [each for each in asked if each not in found]
        ranges = near([(each.start, each.end or 0) for each in absent], gap_bytes, most_bytes)
        read = all_of(lambda each: self.fetch(*each), ranges, at_once)
        for piece in absent:
            number = bisect_right(ranges, piece.start, key=lambda each: each[0]) - 1
            start = ranges[number][0]
            fresh[piece] = self.verified(piece, read[number][piece.start - start : (piece.end or 0) - start])
        self.keep(fresh.items())
        found |= fresh
        return [found[each] for each in wanted]

    def verified(self, piece: Piece, data: bytes) -> bytes:
        """Return the bytes of a piece. Raises `Corrupt` if the bytes have another checksum."""
        if not piece.is_of(data):
            what = f"{self.path}: expected xxh3-64 {piece.checksum} of the bytes {piece.start} to {piece.end}"
            raise Corrupt(f"{what}, found {piece.checksum_of(data)}", advice=self.advice, key=self.path)
        return data

    def keep(self, pieces: Iterable[tuple[Piece, Data]]) -> None:
        """Write verified pieces to the cache."""
        self.cached.write(self.uri, self.path, self.identity, [*pieces])


def near(spans: Sequence[tuple[int, int]], gap_bytes: int, most_bytes: int = sys.maxsize) -> list[tuple[int, int]]:
    """Return ranges that cover these ascending spans. Spans are joined if the gap between them is at most `gap_bytes`.

    If joining spans would make a range longer than `most_bytes`, they are not joined.
    """
    found: list[tuple[int, int]] = []
    for start, end in spans:
        if found and start - found[-1][1] <= gap_bytes and end - found[-1][0] <= most_bytes:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


GAPS: Final = 10
"""The minimum ratio of wanted bytes to unwanted bytes in a read.

Therefore the unwanted bytes in a request are at most a tenth of the wanted bytes.
"""

REQUEST_BYTES: Final = 8 * 2**20
"""The approximate size of a request for several chunks. A chunk is never divided."""

_AT_ONCE: Final = 4
_FOOTERS_BYTES: Final = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a split, verified against the checksum in the log."""

    file: pq.FileMetaData
    entries: Mapping[str, str]
    checksums: npt.NDArray[np.uint64]
    """The checksum of each column chunk, by row group and leaf column."""


class Footers:
    """The most recently used footers, decoded. The encoded footers take at most 32 MiB. Safe for threads.

    Reads of splits and footers use `cached`.
    """

    def __init__(self, cached: CachedPieces = NOT_CACHED, *, held: KeptValues | None = None) -> None:
        self.cached = cached
        self._held = KeptValues(_FOOTERS_BYTES) if held is None else held

    def of_a_read(self) -> Footers:
        """Return a `Footers` for one read that shares the cached footers. The read may use only a part of the cache."""
        return Footers(self.cached.of_a_read(), held=self._held)

    def of(self, store: ObjectStore, add: Add) -> Footer:
        """Return the footer of a split that has a `footerXxh3`.

        The cost is one ranged GET. If the footer is in memory or cached, no request is needed.

        Raises `NotFound`, and `Corrupt` if the footer differs from what was written.
        """
        name = (add.path, add.footerXxh3)
        return self._held.made(
            name, Footer, lambda: read_footer(store, add, self.cached), lambda footer: footer.file.serialized_size
        )

    def cached_footer(self, add: Add) -> Footer | None:
        """Return the footer of a split if it is in memory, else None. No request."""
        found = self._held.get((add.path, add.footerXxh3))
        return found if isinstance(found, Footer) else None


def read_footer(store: ObjectStore, add: Add, cached: CachedPieces = NOT_CACHED) -> Footer:
    """Return the footer of a split that has a `footerXxh3`. Makes one ranged GET if the footer is not cached.

    Raises `NotFound`, and `Corrupt` if the footer differs from what was written. Also raises Arrow's errors for a
    footer.
    """
    if add.footerXxh3 is None or add.footerStartOffset is None or add.footerEndOffset is None:
        raise Corrupt(f"{add.path}: the log has the checksum of the footer, but not its position", key=add.path)
    if add.footerEndOffset != add.size:
        found = f"the footer ends at {add.footerEndOffset}, but the file has {add.size} bytes"
        raise Corrupt(f"{add.path}: according to the log, {found}", key=add.path)
    piece = Piece(add.footerStartOffset, add.footerEndOffset, add.footerXxh3)
    fetch = functools.partial(store.get_range, add.path, add.footerStartOffset, add.footerEndOffset)
    data = cached.made(store.uri, add.path, identity(add), piece, fetch=fetch)
    found = xxhash.xxh3_64_hexdigest(data)
    if found != add.footerXxh3:
        raise Corrupt(f"{add.path}: expected xxh3-64 {add.footerXxh3} of the footer, found {found}", key=add.path)
    file = pq.read_metadata(pa.BufferReader(data))
    entries = entries_of(file, add.path)
    checksums = verification.recorded_checksums(entries, file, add.path)
    if checksums is None:
        raise Corrupt(
            f"{add.path}: the footer has no checksums of its column chunks, although the log has the checksum of the "
            "footer",
            key=add.path,
        )
    return Footer(file, entries, checksums)


class VerifiedChunks(SeekableFile):
    """A split as a seekable file. The file contains only the verified column chunks of the last fetch."""

    def __init__(self, store: ObjectStore, add: Add, footer: Footer, cached: CachedPieces = NOT_CACHED) -> None:
        super().__init__(add.size)
        self._store, self._add, self._footer, self._cached = store, add, footer, cached
        self._held: dict[int, memoryview] = {}

    @property
    def footer(self) -> pq.FileMetaData:
        """The footer of the split."""
        return self._footer.file

    def another(self) -> VerifiedChunks:
        """Return a new file object for the same split. The new file object contains no chunks."""
        return VerifiedChunks(self._store, self._add, self._footer, self._cached)

    def fetch(self, group: int, columns: Sequence[int]) -> None:
        """Fetch these leaf columns (ascending) of a row group. The new chunks replace the current chunks.

        Raises `NotFound`, and `Corrupt` if a chunk differs from what was written. `Corrupt` names the split, row group
        and column.

        Cost:
            Concurrent ranged GETs for the chunks that are not cached. Neighbouring chunks with small gaps (`GAPS`)
            share a GET of up to about `REQUEST_BYTES`.
        """
        self._held = {}
        places = verification.places(self._footer.file, [group])[0, columns]
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
        """Write the current chunks to a file, at their positions."""
        for start, chunk in self._held.items():
            file.seek(start)
            file.write(chunk)

    def drop(self) -> None:
        """Drop the current chunks."""
        self._held = {}

    def read(self, size: int = -1, /) -> memoryview:
        """Return `size` bytes from the start of a current chunk. Raises `OSError` if no current chunk starts at this
        position.
        """
        chunk = self._held.get(self.position)
        if chunk is None or not 0 <= size <= len(chunk):
            raise OSError(f"{size} bytes at {self.position} are not in a column chunk that was fetched")
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
    """Return the verified bytes of a split. Makes one GET if the bytes are not cached.

    Raises the errors of `whole_file`.
    """
    if add.xxh3 is None:  # A split of another writer has no checksum in the log.
        return whole_file(store, add)
    piece = Piece(0, add.size, add.xxh3)
    return cached.made(store.uri, add.path, identity(add), piece, fetch=lambda: whole_file(store, add))


def identity(add: Add) -> str:
    """Return a checksum that identifies the content of a split."""
    return str(add.xxh3 or add.footerXxh3)


def requests_for(places: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return ranges that cover these ascending chunks.

    A range includes the smallest gaps between chunks. The gaps together have at most a tenth of the number of bytes in
    the chunks.
    """
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
