"""The blocks of an open segment of vectors: read where they are looked at, verified, decoded and kept.

Rows are named by their places, in the order of the segment. Codes that fit are decoded into one array of all rows, of
which only those are filled, and take memory, that were looked at; so a search multiplies runs of clusters, and not
blocks one by one. Of larger segments the blocks used last are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from storage_core.index.vector.codebook import Codebook
from storage_core.index.vector.codes import Whole, dots
from storage_core.index.vector.layout import (
    BLOCKS,
    SECOND,
    Head,
    Table,
    decoded_size,
    row_bytes,
    second_bytes,
)
from storage_core.index.vector.parts import Parts, Span
from storage_core.index.vector.segment import require_block
from storage_core.index.vector.whole import decoded
from storage_core.process import OwnLock
from storage_core.rows.keys import Positions
from storage_core.rows.spans import spans_of
from storage_core.rows.vectors import Floats, Mask
from storage_core.split.kept_values import KeptValues

KEPT_BYTES: Final = 256 * 2**20

_GATHERED_BYTES: Final = 2**18
"""Codes that are copied together at a time: they stay in the cache of the processor."""

_GATHERED_PART: Final = 4
"""Where fewer rows count than one in so many, their codes are copied together, else all are multiplied."""

_Loaded = TypeVar("_Loaded")


@dataclass(frozen=True, slots=True, eq=False)
class _Codes:
    """Codes as whole numbers, with the offset and the lean of each row."""

    offsets: Floats
    leans: Floats
    whole: Whole


class Blocks:
    """The codes of one segment. Safe for threads. What was read and decoded last is kept, up to `kept_bytes`."""

    def __init__(
        self, parts: Parts, head: Head, codebook: Codebook, table: Table, *, where: str, kept_bytes: int
    ) -> None:
        """Read nothing yet. `where` is what errors name."""
        self._where = where
        self._parts, self._head, self._codebook, self._table = parts, head, codebook, table
        self.sizes = table["rows"].astype(np.int64)
        self.ends = np.cumsum(self.sizes)
        self._starts = self.ends - self.sizes
        self._width = decoded_size(head.quantization, head.dimensions)
        self._kept = KeptValues(kept_bytes)
        self.is_one_array = head.quantization != "none" and head.rows * (self._width + 8) <= kept_bytes
        """Whether all rows are decoded into one array, so that few of them cost no more than they are."""
        self._filled = np.zeros(len(table), np.bool_)
        self._verified = np.zeros(len(table), np.bool_)
        self._codes: _Codes | None = None
        self._lock = OwnLock()

    def places(self, blocks: Positions) -> Positions:
        """Return the places of the rows of ascending blocks."""
        if len(blocks) == len(self.sizes):
            return np.arange(self._head.rows)
        sizes = self.sizes[blocks]
        return np.repeat(self.ends[blocks] - np.cumsum(sizes), sizes) + np.arange(int(sizes.sum()))

    def vectors(self, blocks: Positions) -> list[Floats]:
        """Return the vectors of these blocks, of a segment that has them."""

        def numbers(data: memoryview, rows: int) -> Floats:
            return np.frombuffer(data, "<f4").reshape(rows, self._head.dimensions)

        return self._loaded(BLOCKS, blocks, numbers)

    def coarse(self, code: Whole, blocks: Positions, counts: Mask | None) -> tuple[Floats, Floats, Floats]:
        """Return offsets, leans and dot products with a code of the rows of ascending blocks; of those that count.

        Raises `Corrupt` for a block that is not what was written, as all of these do.
        """
        code = code[: self._width]
        if not self.is_one_array:
            found = self._loaded(BLOCKS, blocks, self._block, decoded_bytes=self._width)
            held = slice(None) if counts is None else counts
            offsets, leans = (np.concatenate(each) for each in zip(*((e.offsets, e.leans) for e in found), strict=True))
            products = np.concatenate([dots(code, each.whole) for each in found])
            return offsets[held], leans[held], products[held]
        codes, places = self._filled_for(blocks), self.places(blocks)
        if counts is not None and _GATHERED_PART * np.count_nonzero(counts) < len(places):
            places = places[counts]
            step = max(1, _GATHERED_BYTES // self._width)
            parts = [dots(code, codes.whole[places[at : at + step]]) for at in range(0, len(places), step)]
            return codes.offsets[places], codes.leans[places], np.concatenate(parts or [np.zeros(0, np.float32)])
        products = np.concatenate([dots(code, codes.whole[begin:end]) for begin, end in self._runs(blocks)])
        if counts is None and len(places) == self._head.rows:
            return codes.offsets, codes.leans, products
        held = slice(None) if counts is None else counts
        places = places[held]
        return codes.offsets[places], codes.leans[places], products[held]

    def fine(self, code: Whole, places: Positions) -> tuple[Floats, Floats]:
        """Return of ascending places the leans of their codes of 8 bits, and the dot products with a code."""
        numbers = np.searchsorted(self.ends, places, side="right")
        blocks = np.unique(numbers)
        inside, size = places - self._starts[numbers], self._head.dimensions
        if self._parts.is_ranged:
            loaded = self._loaded(SECOND, blocks, self._second_block)
            cuts = np.searchsorted(numbers, blocks[1:])  # places ascend, and so do their blocks
            taken = zip(loaded, np.split(inside, cuts), strict=True)
            leans, whole = zip(*((leans[rows], codes[rows]) for (leans, codes), rows in taken), strict=True)
            return np.concatenate(leans), dots(code[:size], np.concatenate(whole))
        self._read(SECOND, blocks[~self._verified[blocks]])
        self._verified[blocks] = True
        data = np.frombuffer(self._parts.whole([SECOND])[SECOND], np.uint8)
        begins = self._starts[numbers] * second_bytes(self._head.quantization, size)
        own = spans_of(data, begins + 4 * inside, 4).view("<f4").ravel()
        return own, dots(code[:size], spans_of(data, begins + 4 * self.sizes[numbers] + size * inside, size).view("i1"))

    def _block(self, data: memoryview, rows: int) -> _Codes:
        factors = np.frombuffer(data[: 8 * rows], "<f4")
        codes = np.frombuffer(data[8 * rows :], np.uint8).reshape(rows, -1)
        return _Codes(factors[:rows], factors[rows:], decoded(self._codebook, codes))

    @staticmethod
    def _second_block(data: memoryview, rows: int) -> tuple[Floats, Whole]:
        return np.frombuffer(data[: 4 * rows], "<f4"), np.frombuffer(data[4 * rows :], np.int8).reshape(rows, -1)

    def _filled_for(self, blocks: Positions) -> _Codes:
        """The codes of all rows, of which those of these blocks are filled."""
        with self._lock:
            if self._codes is None:
                rows = self._head.rows
                offsets, leans = np.empty(rows, np.float32), np.empty(rows, np.float32)
                self._codes = _Codes(offsets, leans, np.empty((rows, self._width), np.int8))
        codes, missing = self._codes, blocks[~self._filled[blocks]]
        for number, data in zip(missing.tolist(), self._read(BLOCKS, missing), strict=True):
            begin, end = int(self._starts[number]), int(self.ends[number])
            own = self._block(data, end - begin)
            codes.offsets[begin:end], codes.leans[begin:end], codes.whole[begin:end] = own.offsets, own.leans, own.whole
            self._filled[number] = True  # another thread may have filled it, with the same
        return codes

    def _runs(self, blocks: Positions) -> list[tuple[int, int]]:
        """Where the rows of ascending blocks begin and end, those of neighbours together."""
        cuts = np.flatnonzero(np.diff(blocks) > 1)
        firsts, lasts = blocks[np.append(0, cuts + 1)], blocks[np.append(cuts, len(blocks) - 1)]
        return list(zip(self._starts[firsts].tolist(), self.ends[lasts].tolist(), strict=True))

    def _loaded(
        self,
        name: str,
        blocks: Positions,
        decode: Callable[[memoryview, int], _Loaded],
        *,
        decoded_bytes: int = 0,
    ) -> list[_Loaded]:
        """The blocks of a file, decoded; those that are not kept are read at once.

        `decoded_bytes` is what a row takes decoded, beside what was read.
        """
        held = {int(each): self._kept.get((name, int(each))) for each in blocks}
        missing = np.array([each for each, value in held.items() if value is None], np.int64)
        for each, data in zip(missing.tolist(), self._read(name, missing), strict=True):
            value = decode(data, int(self.sizes[each]))
            read = len(data) if self._parts.is_ranged else 0  # others are there anyway
            self._kept.keep((name, each), value, int(self.sizes[each]) * decoded_bytes + read)
            held[each] = value
        return list(held.values())  # type: ignore[arg-type]  # what is kept under a name was made by its own decoder

    def _read(self, name: str, blocks: Positions) -> list[memoryview]:
        """These blocks of a file, which are read at once, and verified."""
        width = {BLOCKS: row_bytes, SECOND: second_bytes}[name](self._head.quantization, self._head.dimensions)
        starts, ends = (self._starts[blocks] * width).tolist(), (self.ends[blocks] * width).tolist()
        checksums = self._table[name.removesuffix(".bin")][blocks].tolist()
        spans = [Span(*each) for each in zip(starts, ends, checksums, strict=True)]
        found = list(self._parts.read(name, spans)) if spans else []
        for data, span in zip(found, spans, strict=True):
            require_block(data, name, span.xxh3, where=self._where)
        return found
