"""The blocks of an open vector segment. A search reads, verifies, decodes and caches the blocks that it needs.

A row is identified by its position in the row order of the segment. If all codes fit into memory, they are decoded into
one array for all rows. A search fills only the parts of the array that it reads, and only these parts take memory.
Because the codes are in one array, a search can multiply several adjacent clusters in one operation instead of block by
block. For a segment that does not fit into memory, only the most recently used blocks are cached.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.base.process import OwnLock
from storage_core.data.formats import bundle
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.keys import Positions, spans_of
from storage_core.data.rows.vectors import Floats
from storage_core.index.damage import REBUILD
from storage_core.index.vector.layout import (
    BLOCKS,
    SECOND,
    Codebook,
    Head,
    Table,
    Whole,
    decoded_size,
    dot_products,
    row_bytes,
    second_bytes,
)
from storage_core.index.vector.segment import decoded, require_block
from storage_core.split.fetch import NOTHING_FETCHED, Fetched, Pieces
from storage_core.store.contract import ObjectStore
from storage_core.store.pieces import NOT_CACHED, CachedPieces, Data, KeptValues, Piece

# Sources of the files of a segment. A source is either memory, or an object that is read by ranges.


GAP_BYTES = 64 * 2**10
"""If at most this many bytes lie between two byte ranges of a file, one request fetches both ranges.

Two separate requests would not be faster than one request that also fetches the bytes between the ranges.
"""

REQUEST_BYTES = 8 * 2**20
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes from `start` to `end` of a file, and the xxh3-64 of these bytes."""

    start: int
    end: int
    xxh3: int


class Parts(Protocol):
    """The files of one segment."""

    @property
    def is_ranged(self) -> bool:
        """Whether each piece is fetched only when it is read.

        In this case, it is better to read few and small pieces.
        """
        ...

    def whole(self, names: Sequence[str]) -> Mapping[str, memoryview]:
        """Return these files after verification. Raises `NotFound` and `Corrupt`."""
        ...

    def read(self, name: str, spans: Sequence[Span]) -> Sequence[memoryview]:
        """Return the bytes of these spans of a file. The spans are ascending. Raises `NotFound` and `Corrupt`."""
        ...


class HeldFiles:
    """Files of a segment in memory. The reader verified each file as a whole."""

    is_ranged = False

    def __init__(self, files: Mapping[str, bytes | memoryview]) -> None:
        self._files = files

    def whole(self, names: Sequence[str]) -> Mapping[str, memoryview]:
        """Return these files."""
        return {name: memoryview(self._files[name]) for name in names}

    def read(self, name: str, spans: Sequence[Span]) -> Sequence[memoryview]:
        """Return the bytes of these spans of a file."""
        view = memoryview(self._files[name])
        return [view[each.start : each.end] for each in spans]


class Ranged:
    """The files of a bundle.

    The files are read by ranges. The directory of the bundle is read once. Each file and each span is verified.

    `cached` caches the fetched bytes.

    Cost:
        One request for the directory and the `ahead` bytes before it, or no request if the directory is cached. Files
        and spans outside these bytes take one request per group of neighbouring pieces. The requests of one call run
        concurrently.
    """

    is_ranged = True

    def __init__(
        self, store: ObjectStore, expected: bundle.Expected, *, ahead: int = 0, cached: CachedPieces = NOT_CACHED
    ) -> None:
        """Fetch the directory. Raises `Corrupt`, `NotFound` and `Unsupported`."""
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
        """Return these files after a comparison with their checksums.

        The call then drops the bytes that were fetched ahead.
        """
        parts = sorted((self._directory.part(name) for name in names), key=lambda each: each.offset)
        found = self._fetched([Piece(each.offset, each.offset + each.length, each.xxh3) for each in parts])
        self._ahead = NOTHING_FETCHED
        return {part.name: data for part, data in zip(parts, found, strict=True)}

    def read(self, name: str, spans: Sequence[Span]) -> Sequence[memoryview]:
        """Return the bytes of these spans of a file, after a comparison with their checksums."""
        offset = self._directory.part(name).offset
        return self._fetched([Piece(offset + each.start, offset + each.end, f"{each.xxh3:016x}") for each in spans])

    def _fetched(self, pieces: Sequence[Piece]) -> list[memoryview]:
        read = self._pieces.read(
            pieces, gap_bytes=GAP_BYTES, at_once=_AT_ONCE, most_bytes=REQUEST_BYTES, ahead=self._ahead
        )
        return [memoryview(each) for each in read]

    def _identity(self, tail: Data) -> str:
        """Return the identity of the bundle that this directory belongs to.

        Empty if the bytes are not a valid directory.
        """
        try:
            return bundle.read_directory(bytes(tail), self._expected).identity
        except (Corrupt, Unsupported):
            return ""


KEPT_BYTES: Final = 256 * 2**20

_GATHERED_BYTES: Final = 2**18
"""The number of bytes of codes in one copied piece. A piece of this size fits into the processor's cache."""

_GATHERED_PART: Final = 4
"""A search copies the codes of the needed rows if they are less than one part in `_GATHERED_PART` of all rows.

If a search needs more rows, it multiplies the codes of all rows with the query.
"""

_Loaded = TypeVar("_Loaded")


@dataclass(frozen=True, slots=True, eq=False)
class _Codes:
    """Codes as integers. Each row has an offset and a norm correction (`leans`)."""

    offsets: Floats
    leans: Floats
    whole: Whole


class Blocks:
    """The codes of one segment.

    Safe for threads. The object caches the most recently used blocks, up to `kept_bytes` bytes.
    """

    def __init__(
        self, parts: Parts, head: Head, codebook: Codebook, table: Table, *, where: str, kept_bytes: int
    ) -> None:
        """Prepare without reading. Errors name `where`."""
        self._where = where
        self._parts, self._head, self._codebook, self._table = parts, head, codebook, table
        self.sizes = table["rows"].astype(np.int64)
        self.ends = np.cumsum(self.sizes)
        self._starts = self.ends - self.sizes
        self._width = decoded_size(head.quantization, head.dimensions)
        self._kept = KeptValues(kept_bytes)
        self.is_one_array = head.quantization != "none" and head.rows * (self._width + 8) <= kept_bytes
        """Whether all rows are decoded into one array.

        If it is True, a search of few rows takes time only for these rows.
        """
        self._filled = np.zeros(len(table), np.bool_)
        self._verified = np.zeros(len(table), np.bool_)
        self._codes: _Codes | None = None
        self._lock = OwnLock()

    def places(self, blocks: Positions) -> Positions:
        """Return the positions of the rows in these blocks. The blocks are ascending."""
        if len(blocks) == len(self.sizes):
            return np.arange(self._head.rows)
        sizes = self.sizes[blocks]
        return np.repeat(self.ends[blocks] - np.cumsum(sizes), sizes) + np.arange(int(sizes.sum()))

    def vectors(self, blocks: Positions) -> list[Floats]:
        """Return the embeddings of these blocks. The segment must store embeddings."""

        def numbers(data: memoryview, rows: int) -> Floats:
            return np.frombuffer(data, "<f4").reshape(rows, self._head.dimensions)

        return self._loaded(BLOCKS, blocks, numbers)

    def coarse(self, code: Whole, blocks: Positions, counts: Mask | None) -> tuple[Floats, Floats, Floats]:
        """Return the offsets and norm corrections of the needed rows, and the dot products of their codes with `code`.

        `blocks` is ascending. Like all methods, the method raises `Corrupt` for a block that differs from the written
        block.
        """
        code = code[: self._width]
        if not self.is_one_array:
            found = self._loaded(BLOCKS, blocks, self._block, decoded_bytes=self._width)
            held = slice(None) if counts is None else counts
            offsets, leans = (np.concatenate(each) for each in zip(*((e.offsets, e.leans) for e in found), strict=True))
            products = np.concatenate([dot_products(code, each.whole) for each in found])
            return offsets[held], leans[held], products[held]
        codes, places = self._filled_for(blocks), self.places(blocks)
        if counts is not None and _GATHERED_PART * np.count_nonzero(counts) < len(places):
            places = places[counts]
            step = max(1, _GATHERED_BYTES // self._width)
            parts = [dot_products(code, codes.whole[places[at : at + step]]) for at in range(0, len(places), step)]
            return codes.offsets[places], codes.leans[places], np.concatenate(parts or [np.zeros(0, np.float32)])
        products = np.concatenate([dot_products(code, codes.whole[begin:end]) for begin, end in self._runs(blocks)])
        if counts is None and len(places) == self._head.rows:
            return codes.offsets, codes.leans, products
        held = slice(None) if counts is None else counts
        places = places[held]
        return codes.offsets[places], codes.leans[places], products[held]

    def int8_corrections(self, code: Whole, places: Positions) -> tuple[Floats, Floats]:
        """Return the norm corrections of 8-bit codes at `places`, and the dot products of these codes with `code`."""
        numbers = np.searchsorted(self.ends, places, side="right")
        blocks = np.unique(numbers)
        inside, size = places - self._starts[numbers], self._head.dimensions
        if self._parts.is_ranged:
            loaded = self._loaded(SECOND, blocks, self._second_block)
            cuts = np.searchsorted(numbers, blocks[1:])  # positions ascend, so their blocks ascend, too
            taken = zip(loaded, np.split(inside, cuts), strict=True)
            leans, whole = zip(*((leans[rows], codes[rows]) for (leans, codes), rows in taken), strict=True)
            return np.concatenate(leans), dot_products(code[:size], np.concatenate(whole))
        self._read(SECOND, blocks[~self._verified[blocks]])
        self._verified[blocks] = True
        data = np.frombuffer(self._parts.whole([SECOND])[SECOND], np.uint8)
        begins = self._starts[numbers] * second_bytes(self._head.quantization, size)
        own = spans_of(data, begins + 4 * inside, 4).view("<f4").ravel()
        return own, dot_products(
            code[:size], spans_of(data, begins + 4 * self.sizes[numbers] + size * inside, size).view("i1")
        )

    def _block(self, data: memoryview, rows: int) -> _Codes:
        factors = np.frombuffer(data[: 8 * rows], "<f4")
        codes = np.frombuffer(data[8 * rows :], np.uint8).reshape(rows, -1)
        return _Codes(factors[:rows], factors[rows:], decoded(self._codebook, codes))

    @staticmethod
    def _second_block(data: memoryview, rows: int) -> tuple[Floats, Whole]:
        return np.frombuffer(data[: 4 * rows], "<f4"), np.frombuffer(data[4 * rows :], np.int8).reshape(rows, -1)

    def _filled_for(self, blocks: Positions) -> _Codes:
        """Return the array with the codes of all rows.

        Only the rows of the given blocks and of earlier calls are filled.
        """
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
            self._filled[number] = True  # another thread may have filled the block with the same values
        return codes

    def _runs(self, blocks: Positions) -> list[tuple[int, int]]:
        """Return the ranges of rows of ascending blocks. Adjacent blocks form one range."""
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
        """Return the blocks of a file, decoded. Missing blocks are read concurrently.

        `decoded_bytes` is the memory of a decoded row in addition to the bytes that were read.
        """
        held = {int(each): self._kept.get((name, int(each))) for each in blocks}
        missing = np.array([each for each, value in held.items() if value is None], np.int64)
        for each, data in zip(missing.tolist(), self._read(name, missing), strict=True):
            value = decode(data, int(self.sizes[each]))
            read = len(data) if self._parts.is_ranged else 0  # sources without ranges keep all bytes in memory anyway
            self._kept.keep((name, each), value, int(self.sizes[each]) * decoded_bytes + read)
            held[each] = value
        return list(held.values())  # type: ignore[arg-type]  # what is kept under a name was made by its own decoder

    def _read(self, name: str, blocks: Positions) -> list[memoryview]:
        """Return these blocks of a file. The blocks are read concurrently and verified."""
        width = {BLOCKS: row_bytes, SECOND: second_bytes}[name](self._head.quantization, self._head.dimensions)
        starts, ends = (self._starts[blocks] * width).tolist(), (self.ends[blocks] * width).tolist()
        checksums = self._table[name.removesuffix(".bin")][blocks].tolist()
        spans = [Span(*each) for each in zip(starts, ends, checksums, strict=True)]
        found = list(self._parts.read(name, spans)) if spans else []
        for data, span in zip(found, spans, strict=True):
            require_block(data, name, span.xxh3, where=self._where)
        return found
