"""Pieces of an object, read by ranges: from the cache, else from the store, each verified."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from storage_core.cache.pieces import CachedPieces, Data, Piece
from storage_core.errors import SEE_CORRUPT, Corrupt
from storage_core.objectstore.prefetch import all_of

REQUEST_COST_BYTES: Final = 2**20
"""Fetching so much takes about as long as a request."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes of an object from `start`, fetched before it was known which pieces they hold."""

    start: int = 0
    data: bytes = b""

    def has(self, piece: Piece) -> bool:
        """Whether all bytes of the piece are among these."""
        return piece.end is not None and self.start <= piece.start and piece.end <= self.start + len(self.data)

    def bytes_of(self, piece: Piece) -> bytes:
        """Return the bytes of a piece that is among these."""
        return self.data[piece.start - self.start : (piece.end or 0) - self.start]


NOTHING_FETCHED: Final = Fetched()


@dataclass(frozen=True, slots=True)
class Pieces:
    """An object at `path` of the store at `uri`, whose bytes `identity` fixes; `fetch` returns those of a range."""

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
        """Return these pieces, ascending: of what was fetched `ahead`, from the cache, or by GETs side by side.

        One GET per range of `near`. All but what was cached is kept. Raises what `fetch` raises, and `Corrupt` for
        bytes that have not the checksum of their piece.
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
        """Return the bytes of a piece. Raises `Corrupt` where they have another checksum."""
        if not piece.is_of(data):
            what = f"{self.path}: expected xxh3-64 {piece.checksum} of the bytes {piece.start} to {piece.end}"
            raise Corrupt(f"{what}, found {piece.checksum_of(data)}", advice=self.advice, key=self.path)
        return data

    def keep(self, pieces: Iterable[tuple[Piece, Data]]) -> None:
        """Keep pieces that were verified in the cache."""
        self.cached.write(self.uri, self.path, self.identity, [*pieces])


def near(spans: Sequence[tuple[int, int]], gap_bytes: int, most_bytes: int = sys.maxsize) -> list[tuple[int, int]]:
    """Return the ranges that hold these ascending spans, and gaps of at most `gap_bytes` between them.

    No range gets a further span that would make it longer than `most_bytes`.
    """
    found: list[tuple[int, int]] = []
    for start, end in spans:
        if found and start - found[-1][1] <= gap_bytes and end - found[-1][0] <= most_bytes:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
