"""Where a reader takes the files of a segment from: memory, or an object by ranges."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from storage_core.cache.pieces import NOT_CACHED, CachedPieces, Data, Piece
from storage_core.errors import Corrupt, Unsupported
from storage_core.formats import bundle
from storage_core.index.damage import REBUILD
from storage_core.objectstore.contract import ObjectStore
from storage_core.split.pieces import NOTHING_FETCHED, Fetched, Pieces

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


class HeldFiles:
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
        self._expected = expected
        fetch = functools.partial(store.get_range, expected.where)
        self._pieces = Pieces(store.uri, expected.where, expected.xxh3, cached, fetch, advice=REBUILD)
        self._ahead = NOTHING_FETCHED
        tail = Piece(expected.footer_offset, expected.size, expected.identity, self._identity)
        (found,) = cached.read(store.uri, expected.where, expected.xxh3, [tail])
        if found is None:
            start = max(0, expected.footer_offset - ahead)
            self._ahead = Fetched(start, fetch(start, expected.size))
            found = self._ahead.data[expected.footer_offset - start :]
            self._directory = bundle.read_directory(found, expected)
            self._pieces.keep([(tail, found)])
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
        self._ahead = NOTHING_FETCHED
        return {part.name: data for part, data in zip(parts, found, strict=True)}

    def read(self, name: str, spans: Sequence[Span]) -> Sequence[memoryview]:
        """Return spans of a file, each compared with its checksum."""
        offset = self._directory.part(name).offset
        return self._fetched([Piece(offset + each.start, offset + each.end, f"{each.xxh3:016x}") for each in spans])

    def _fetched(self, pieces: Sequence[Piece]) -> list[memoryview]:
        read = self._pieces.read(
            pieces, gap_bytes=GAP_BYTES, at_once=_AT_ONCE, most_bytes=REQUEST_BYTES, ahead=self._ahead
        )
        return [memoryview(each) for each in read]

    def _identity(self, tail: Data) -> str:
        """The identity of the bundle that these bytes are the directory of; none where they are no sound one."""
        try:
            return bundle.read_directory(bytes(tail), self._expected).identity
        except (Corrupt, Unsupported):
            return ""
