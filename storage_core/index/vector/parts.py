"""Where a reader takes the files of a segment from: memory, or an object by ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from storage_core.cache.pieces import NOT_CACHED, CachedPieces, Data, Piece
from storage_core.errors import Corrupt, Unsupported
from storage_core.formats import bundle
from storage_core.index.native_errors import REBUILD
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of

GAP_BYTES = 64 * 2**10
"""Pieces no farther apart are fetched by one request: it would take about as long to ask twice."""

REQUEST_BYTES = 8 * 2**20
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes from `start` to `end` of a file, and their xxh3-64."""

    start: int
    end: int
    xxh3: int


class Parts(Protocol):
    """The files of one segment."""

    @property
    def is_ranged(self) -> bool:
        """Whether each piece that is read is fetched, so that few and small ones are wanted."""
        ...

    def whole(self, names: Sequence[str]) -> Mapping[str, memoryview]:
        """Return these files, which are verified. Raises `NotFound` and `Corrupt`."""
        ...

    def read(self, name: str, spans: Sequence[Span]) -> Sequence[memoryview]:
        """Return spans of a file, ascending. Raises `NotFound` and `Corrupt`."""
        ...


class InMemory:
    """Files that are in memory, and were verified as a whole."""

    is_ranged = False

    def __init__(self, files: Mapping[str, bytes | memoryview]) -> None:
        self._files = files

    def whole(self, names: Sequence[str]) -> Mapping[str, memoryview]:
        """Return these files."""
        return {name: memoryview(self._files[name]) for name in names}

    def read(self, name: str, spans: Sequence[Span]) -> Sequence[memoryview]:
        """Return spans of a file."""
        view = memoryview(self._files[name])
        return [view[each.start : each.end] for each in spans]


class Ranged:
    """Files of a bundle that is read by ranges: its directory once, files whole or in parts, each verified.

    What is fetched goes through `cached`. Requests: for the directory and the `ahead` bytes before it one, and none
    where the directory is cached; for files that are not among these bytes, and for spans, one per piece of neighbours,
    those of a call at once.
    """

    is_ranged = True

    def __init__(
        self, store: ObjectStore, expected: bundle.Expected, *, ahead: int = 0, cached: CachedPieces = NOT_CACHED
    ) -> None:
        """Fetch the directory. Raises `Corrupt`, `NotFound`, `Unsupported`."""
        self._store, self._expected, self._cached = store, expected, cached
        self._ahead, self._ahead_at = b"", 0
        tail = Piece(expected.footer_offset, expected.size, expected.identity, self._identity)
        (found,) = self._read([tail])
        if found is None:
            self._ahead_at = max(0, expected.footer_offset - ahead)
            self._ahead = self._range((self._ahead_at, expected.size))
            found = self._ahead[expected.footer_offset - self._ahead_at :]
            self._directory = bundle.read_directory(found, expected)
            self._write([(tail, found)])
        else:
            self._directory = bundle.read_directory(found, expected)

    @property
    def where(self) -> str:
        """The key of the object."""
        return self._expected.where

    def whole(self, names: Sequence[str]) -> Mapping[str, memoryview]:
        """Return these files, each compared with its checksum. What was fetched ahead is dropped."""
        parts = sorted((self._directory.part(name) for name in names), key=lambda each: each.offset)
        found = self._fetched([Piece(each.offset, each.offset + each.length, each.xxh3) for each in parts])
        self._ahead = b""
        return {part.name: data for part, data in zip(parts, found, strict=True)}

    def read(self, name: str, spans: Sequence[Span]) -> Sequence[memoryview]:
        """Return spans of a file, each compared with its checksum."""
        offset = self._directory.part(name).offset
        return self._fetched([Piece(offset + each.start, offset + each.end, f"{each.xxh3:016x}") for each in spans])

    def _fetched(self, pieces: Sequence[Piece]) -> list[memoryview]:
        ahead, at = memoryview(self._ahead), self._ahead_at
        found = [
            ahead[each.start - at : _end(each) - at] if at <= each.start and _end(each) <= at + len(ahead) else None
            for each in pieces
        ]
        absent = [each for each, data in zip(pieces, found, strict=True) if data is None]
        held = dict(zip(absent, self._read(absent), strict=True))
        runs = _joined([(each.start, _end(each)) for each, data in held.items() if data is None])
        read = dict(zip(runs, all_of(self._range, runs, _AT_ONCE), strict=True))
        fresh, given = list[tuple[Piece, Data]](), list[memoryview]()
        for piece, known in zip(pieces, found, strict=True):
            cached = held.get(piece)
            if cached is not None:
                given.append(memoryview(cached))
                continue
            data = known if known is not None else _part(read, piece)
            if not piece.is_of(data):
                raise Corrupt(
                    f"{self.where}: expected xxh3-64 {piece.checksum} of the bytes {piece.start} to {piece.end}, "
                    f"found {bundle.checksum(data)}",
                    advice=REBUILD,
                    key=self.where,
                )
            given.append(memoryview(bytes(data)))  # a copy: a part does not hold the rest
            fresh.append((piece, given[-1]))
        self._write(fresh)
        return given

    def _range(self, place: tuple[int, int]) -> bytes:
        return self._store.get_range(self.where, *place)

    def _read(self, pieces: Sequence[Piece]) -> list[bytes | None]:
        return self._cached.read(self._store.uri, self.where, self._expected.xxh3, pieces)

    def _write(self, pieces: Sequence[tuple[Piece, Data]]) -> None:
        self._cached.write(self._store.uri, self.where, self._expected.xxh3, pieces)

    def _identity(self, tail: Data) -> str:
        """The identity of the bundle that these bytes are the directory of; none where they are no sound one."""
        try:
            return bundle.read_directory(bytes(tail), self._expected).identity
        except (Corrupt, Unsupported):
            return ""


def _end(piece: Piece) -> int:
    return piece.end or 0


def _part(read: Mapping[tuple[int, int], bytes], piece: Piece) -> memoryview:
    start, data = next((run[0], data) for run, data in read.items() if run[0] <= piece.start and _end(piece) <= run[1])
    return memoryview(data)[piece.start - start : _end(piece) - start]


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges, ascending, with those put together that lie near each other."""
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        near = found and start - found[-1][1] <= GAP_BYTES and end - found[-1][0] <= REQUEST_BYTES
        if near:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
