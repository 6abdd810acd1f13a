"""Order-preserving integer codes of column values: the one place that defines the total order of values.

Numbers numerically, -0.0 equal to 0.0 and NaN above everything; strings and binary by bytes (UTF-8, not UTF-16); false
before true; null last in both directions unless `nulls_before` (lessons 62, 63, 68, 69). Strings and decimals are
ranked through their distinct values, and dictionary columns through their dictionaries alone, so the rows themselves
are only ever touched as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput

Unsigned = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_SIGN = np.uint64(1 << 63)
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Codes:
    """One code per row, comparing like the values: smaller first, `null_code` (above all others) for null.

    Every code is at most `null_code`; equal values have equal codes. Codes need not be dense.
    """

    values: Unsigned
    null_code: int


@dataclass(frozen=True, slots=True)
class Coding:
    """The codes of a column that are not made yet: `make` makes those of some rows after the other, as often as asked.

    So all of them need not be in memory at once, which is new each time and costs more than making them.
    """

    rows: int
    null_code: int
    make: Callable[[], Iterator[Unsigned]]

    def whole(self) -> Codes:
        """Return the codes of all rows."""
        values, start = np.empty(self.rows, np.uint64), 0
        for part in self.make():
            values[start : start + len(part)] = part
            start += len(part)
        return Codes(values, self.null_code)


def codes(column: pa.ChunkedArray, *, descending: bool = False) -> Codes:
    """Return the codes of `coding`."""
    return coding(column, descending=descending).whole()


def coding(column: pa.ChunkedArray, *, descending: bool = False) -> Coding:
    """Return the codes of a column in the total order, reversed except for nulls when `descending`.

    Dictionary columns are not decoded; unused, repeated and null dictionary values, and a dictionary per chunk, give
    what the plain column gives. Raises `InvalidInput` for lists, structs and maps, which have no order.
    """
    if pa.types.is_dictionary(column.type):
        return _dictionary_coding(column, descending=descending)
    if _is_ranked(column.type):
        return _dictionary_coding(column.dictionary_encode(), descending=descending)
    return _fixed_coding(column, descending=descending)


def nulls_before(column: Coding) -> Coding:
    """Return codes that compare alike but for null, which has the smallest; `null_code` is then that of a value."""

    def make() -> Iterator[Unsigned]:
        for part in column.make():
            yield np.where(part == np.uint64(column.null_code), np.uint64(0), part + np.uint64(1))

    return Coding(column.rows, column.null_code, make)


def ordered_bits(column: pa.ChunkedArray) -> Unsigned:
    """Return a 64-bit key per row of a fixed-width column, ordered unsigned like the values; anything for null.

    Equal values have equal bits: both zeros, and all NaNs. Floats of any width, integers, booleans, dates, times.
    """
    if pa.types.is_floating(column.type):
        numbers = _filled(column.cast(pa.float64()))
        # One NaN, positive, so above infinity; adding zero turns -0.0 into 0.0.
        bits = (np.where(np.isnan(numbers), np.nan, numbers) + 0.0).view(np.uint64)
        return np.where(bits & _SIGN, ~bits, bits | _SIGN)
    bits = _filled(_as_integers(column)).view(np.uint64)
    return np.bitwise_xor(bits, _sign_flip(column.type), out=bits if bits.flags.writeable else None)


def null_mask(column: pa.ChunkedArray) -> Mask | None:
    """Return which rows are null, or None if none is. For dictionary columns: by the indices alone."""
    return column.is_null().to_numpy() if column.null_count else None


def is_blob_or_text(type_: pa.DataType) -> bool:
    """Whether values are bytes: strings and binary in any of Arrow's layouts."""
    kinds = pa.types
    texts = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
    blobs = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary)
    return any(is_kind(type_) for is_kind in (*texts, *blobs))


def _sign_flip(type_: pa.DataType) -> np.uint64:
    return np.uint64(0) if type_.equals(pa.uint64()) else _SIGN


def _as_integers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kinds, type_ = pa.types, column.type
    if kinds.is_uint64(type_) or kinds.is_int64(type_):
        return column
    if kinds.is_integer(type_) or kinds.is_boolean(type_) or kinds.is_null(type_):
        return column.cast(pa.int64())
    if kinds.is_date32(type_) or kinds.is_time32(type_):
        return column.cast(pa.int32()).cast(pa.int64())
    if kinds.is_temporal(type_):
        return column.cast(pa.int64())
    raise InvalidInput(f"values of type {type_} have no order; leave the column out of keys and sort schemas")


def _filled(column: pa.ChunkedArray) -> npt.NDArray[np.generic]:
    """The values as one array, 0 for null; it may be the column's own memory."""
    values: npt.NDArray[np.generic] = (column.fill_null(0) if column.null_count else column).to_numpy()
    return values


def _is_ranked(type_: pa.DataType) -> bool:
    """Whether values are ranked through their distinct values because they do not fit 64 bits."""
    return is_blob_or_text(type_) or bool(pa.types.is_decimal(type_))


def _fixed_coding(column: pa.ChunkedArray, *, descending: bool) -> Coding:
    chunks = [pa.chunked_array([chunk]) for chunk in column.chunks if len(chunk)]
    ends = [end for chunk in chunks for end in _ends(chunk)]
    if not ends:
        return Coding(len(column), 0, lambda: (np.zeros(len(chunk), np.uint64) for chunk in chunks))
    low, high = min(ends), max(ends)
    if high - low >= _WORD:
        # Both ends of the range are taken, so there is no code left for null: rank instead.
        ranked = _dense_codes(ordered_bits(column), null_mask(column), descending=descending)
        return Coding(len(column), ranked.null_code, lambda: iter([ranked.values]))

    def make() -> Iterator[Unsigned]:
        for chunk in chunks:
            bits = ordered_bits(chunk)
            values = np.uint64(high) - bits if descending else bits - np.uint64(low)
            yield _with_nulls(values, null_mask(chunk), high - low + 1)

    return Coding(len(column), high - low + 1, make)


def _ends(chunk: pa.ChunkedArray) -> list[int]:
    """The least and the greatest of the ordered bits of values; none where all are null."""
    bits, nulls = ordered_bits(chunk), null_mask(chunk)
    present = bits if nulls is None else bits[~nulls]
    return [int(present.min()), int(present.max())] if len(present) else []


def _dense_codes(bits: Unsigned, nulls: Mask | None, *, descending: bool) -> Codes:
    distinct, inverse = np.unique(bits, return_inverse=True)
    values = inverse.astype(np.uint64)
    if descending:
        values = np.uint64(len(distinct) - 1) - values
    return Codes(_with_nulls(values, nulls, len(distinct)), len(distinct))


def _with_nulls(values: Unsigned, nulls: Mask | None, null_code: int) -> Unsigned:
    if nulls is not None:
        values[nulls] = null_code
    return values


def _dictionary_coding(column: pa.ChunkedArray, *, descending: bool) -> Coding:
    """Rank the distinct values of all chunks once, then look every row's index up in the ranks."""
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    dictionaries, offsets = _stacked([chunk.dictionary for chunk in chunks])
    if dictionaries is None:
        return Coding(0, 0, lambda: iter(()))
    ranked = _rank_values(dictionaries, descending=descending)
    lookup = np.append(ranked.values, np.uint64(ranked.null_code))

    def make() -> Iterator[Unsigned]:
        for chunk, offset in zip(chunks, offsets, strict=True):
            yield lookup.take(_indices(chunk.indices, offset, len(lookup) - 1))

    return Coding(len(column), ranked.null_code, make)


def _stacked(dictionaries: Iterable[pa.Array]) -> tuple[pa.Array | None, list[int]]:
    """All dictionaries one after the other, and where each begins; a repeated one is stacked once."""
    distinct: list[pa.Array] = []
    offsets: list[int] = []
    length = 0
    for dictionary in dictionaries:
        if distinct and dictionary.equals(distinct[-1]):
            offsets.append(length - len(dictionary))
            continue
        distinct.append(dictionary)
        offsets.append(length)
        length += len(dictionary)
    return (pa.concat_arrays(distinct) if distinct else None), offsets


def _indices(indices: pa.Array, offset: int, null_position: int) -> npt.NDArray[np.int64]:
    present = indices.fill_null(0) if indices.null_count else indices
    positions: npt.NDArray[np.int64] = np.add(present.to_numpy(), offset, dtype=np.int64)
    if indices.null_count:
        positions[indices.is_null().to_numpy(zero_copy_only=False)] = null_position
    return positions


def _rank_values(values: pa.Array, *, descending: bool) -> Codes:
    if not _is_ranked(values.type):
        return _fixed_coding(pa.chunked_array([values]), descending=descending).whole()
    encoded = values.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(order) + 1, np.uint64)
    ranks[order] = np.arange(len(order), dtype=np.uint64)[::-1] if descending else np.arange(len(order))
    ranks[-1] = len(order)
    return Codes(ranks[_indices(encoded.indices, 0, len(order))], len(order))
