"""64-bit hashes of primary keys, vectorised and stable: they are part of the stored bloom filters and key indexes.

Equal keys have equal hashes whatever the width of their integers, the layout of their text or their chunks, so that
a type promotion keeps every filter usable. Different keys may collide, which a filter tolerates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint32]

_PIECE_BYTES = 2**20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


def key_hashes(rows: pa.Table, key: Sequence[str]) -> Hashes:
    """Return one hash per row over the key columns in their order; the columns hold no nulls."""
    hashes = np.zeros(rows.num_rows, dtype=np.uint64)
    for name in key:
        hashes = _mix(hashes + _GOLDEN ^ _column_hashes(rows.column(name)))
    return hashes


def within(wanted: Hashes, hashes: Hashes) -> Places:
    """Return where each wanted hash stands in the ascending `hashes`: all of its places, hash by hash."""
    first = np.searchsorted(hashes, wanted, side="left")
    lengths = np.searchsorted(hashes, wanted, side="right") - first
    starts = np.cumsum(lengths) - lengths
    places: Places = np.repeat(first - starts, lengths) + np.arange(int(lengths.sum()))
    return places


@dataclass(frozen=True, slots=True, eq=False)
class HashedRows:
    """Hashes, ascending, and the row of each."""

    hashes: Hashes
    rows: Numbers

    @staticmethod
    def of(hashes: Hashes, *, stable: bool = False) -> HashedRows:
        """Return them given the hash of each row. If `stable`, rows of one hash are in their order, for more time."""
        order = np.argsort(hashes, kind="stable" if stable else None)
        return HashedRows(hashes[order], order.astype(np.uint32))

    @staticmethod
    def joined(parts: Sequence[HashedRows]) -> HashedRows:
        """Return those of several that follow each other."""
        if len(parts) == 1:
            return parts[0]
        found = [HashedRows(np.zeros(0, np.uint64), np.zeros(0, np.uint32)), *parts]
        return HashedRows(
            np.concatenate([each.hashes for each in found]), np.concatenate([each.rows for each in found])
        )

    @property
    def size_bytes(self) -> int:
        """What they take in memory."""
        return self.hashes.nbytes + self.rows.nbytes

    def rows_of(self, wanted: Hashes) -> Places:
        """Return all rows of these hashes, hash by hash."""
        return self.rows[within(wanted, self.hashes)].astype(np.int64)


def _mix(values: Hashes) -> Hashes:
    """The finaliser of SplitMix64: every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_A
    values = (values ^ (values >> np.uint64(27))) * _MIX_B
    return values ^ (values >> np.uint64(31))


def _column_hashes(column: pa.ChunkedArray) -> Hashes:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _column_hashes(column.cast(kind.value_type))
    if pa.types.is_floating(kind):
        # Adding zero turns -0.0 into 0.0: one number, one key.
        floats = column.cast(pa.float64()).to_numpy() + 0.0
        return _mix(np.where(np.isnan(floats), np.nan, floats).view(np.uint64) + _GOLDEN)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _mix(column.cast(pa.int64()).to_numpy().astype(np.int64).view(np.uint64) + _GOLDEN)
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        width = pa.int64() if pa.types.is_timestamp(kind) else pa.int32()
        return _mix(column.cast(width).cast(pa.int64()).to_numpy().view(np.uint64) + _GOLDEN)
    return _text_hashes(column if pa.types.is_binary(kind) else column.cast(pa.string()))


def _text_hashes(column: pa.ChunkedArray) -> Hashes:
    parts = [_byte_hashes(chunk.cast(pa.large_binary())) for chunk in column.chunks]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint64)


def _byte_hashes(texts: pa.Array) -> Hashes:
    """Multilinear hashing: the sum of every byte times a constant of its position, then mixed with the length."""
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer else np.zeros(0, np.uint8)
    # Prefix sums wrap around: the difference of two of them is the exact sum in between, empty included.
    sums = _prefix_sums(data, offsets)
    return _mix(np.diff(sums) + np.diff(offsets).astype(np.uint64) * _GOLDEN)


def _prefix_sums(data: Bytes, offsets: Places) -> Hashes:
    """The sums up to each offset, a mebibyte at a time, of one text as of many: it takes some forty times as much."""
    sums = np.zeros(len(offsets), np.uint64)
    total = np.uint64(0)
    for low in range(int(offsets[0]), int(offsets[-1]), _PIECE_BYTES):
        high = min(low + _PIECE_BYTES, int(offsets[-1]))
        first, last = np.searchsorted(offsets, low, side="right"), np.searchsorted(offsets, high, side="left")
        starts, bounds = offsets[first - 1 : last], np.clip(offsets[first - 1 : last + 1], low, high)
        position = np.arange(low, high, dtype=np.uint64) - np.repeat(starts, np.diff(bounds)).astype(np.uint64)
        weighted = (data[low:high].astype(np.uint64) + np.uint64(1)) * _mix((position + np.uint64(1)) * _GOLDEN)
        running = total + np.cumsum(weighted, dtype=np.uint64)
        ended = slice(first, np.searchsorted(offsets, high, side="right"))
        sums[ended] = running[offsets[ended] - low - 1]
        total = running[-1]
    return sums
