"""The total order of values. Integer codes of rows and sortable keys of values express this order.

In this order numbers compare numerically. -0.0 equals 0.0. NaN is the greatest value and equals itself. Strings and
binary values compare by bytes (UTF-8, not UTF-16), false is less than true, and dates and timestamps compare as
instants.

**Codes** (`codes`, `coding`) are one integer per row. Null is last in both directions, unless `nulls_before` is used
(lessons 62, 63, 68, 69). For strings and decimals, only the distinct values are ranked. For dictionary columns, the
dictionaries are ranked. So the work per row uses only integers.

**Keys** (`sortable`) contain one comparable value per row. Two keys can be compared with a single machine comparison.
Booleans, integers, floats, dates and timestamps become int64. Decimals and strings do not change, because Arrow already
compares decimals and strings in the total order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.bound_text import decode_column

Unsigned = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_SIGN = np.uint64(1 << 63)
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Codes:
    """One code per row. The codes have the same order as the values. `null_code` is the greatest code and means null.

    Equal values have equal codes. There may be gaps between codes.
    """

    values: Unsigned
    null_code: int


@dataclass(frozen=True, slots=True)
class Coding:
    """The codes of a column, computed on demand.

    `make` yields the codes in pieces, and may be called any number of times. So the codes need not be in memory all at
    once. Computing the codes again costs less than allocating memory for all of them.
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
    """Return the codes of all rows of a column, as `coding` computes them."""
    return coding(column, descending=descending).whole()


def coding(column: pa.ChunkedArray, *, descending: bool = False) -> Coding:
    """Return the codes of a column in the total order. With `descending`, the order is reversed except for nulls.

    Dictionary columns are not decoded. Unused, repeated or null dictionary values do not change the result. The number
    of dictionaries into which a column is divided also does not change the result. Raises `InvalidInput` for lists,
    structs and maps, which have no order.
    """
    if pa.types.is_dictionary(column.type):
        return _dictionary_coding(column, descending=descending)
    if _is_ranked(column.type):
        return _dictionary_coding(column.dictionary_encode(), descending=descending)
    return _fixed_coding(column, descending=descending)


def nulls_before(column: Coding) -> Coding:
    """Return the same codes, except that null has the smallest code.

    In the result, the code `null_code` belongs to a value, because null has the code 0.
    """

    def make() -> Iterator[Unsigned]:
        for part in column.make():
            yield np.where(part == np.uint64(column.null_code), np.uint64(0), part + np.uint64(1))

    return Coding(column.rows, column.null_code, make)


def ordered_bits(column: pa.ChunkedArray) -> Unsigned:
    """Return a 64-bit key per row of a fixed-width column. As unsigned numbers, the keys are ordered like the values.

    Equal values have equal bits, including both zeros and all NaNs. The key of a null is undefined. Accepts floats of
    any width, integers, booleans, dates and times.
    """
    if pa.types.is_floating(column.type):
        numbers = _filled(column.cast(pa.float64()))
        # All NaN become one positive NaN, which is above infinity. Adding zero turns -0.0 into 0.0.
        bits = (np.where(np.isnan(numbers), np.nan, numbers) + 0.0).view(np.uint64)
        return np.where(bits & _SIGN, ~bits, bits | _SIGN)
    bits = _filled(_as_integers(column)).view(np.uint64)
    return np.bitwise_xor(bits, _sign_flip(column.type), out=bits if bits.flags.writeable else None)


def null_mask(column: pa.ChunkedArray) -> Mask | None:
    """Return which rows are null, or None if no row is null. For a dictionary column, only the indices are checked."""
    return column.is_null().to_numpy() if column.null_count else None


def is_blob_or_text(type_: pa.DataType) -> bool:
    """Return whether the values of a type are strings or binary values, in any of Arrow's layouts."""
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
    raise InvalidInput(f"values of type {type_} have no order. Leave the column out of keys and sort schemas")


def _filled(column: pa.ChunkedArray) -> npt.NDArray[np.generic]:
    """Return the values as one array, with 0 for null. The array may share the column's memory."""
    values: npt.NDArray[np.generic] = (column.fill_null(0) if column.null_count else column).to_numpy()
    return values


def _is_ranked(type_: pa.DataType) -> bool:
    """Return whether the code of a value is its rank among the distinct values of the column.

    This is necessary if values do not fit into 64 bits.
    """
    return is_blob_or_text(type_) or bool(pa.types.is_decimal(type_))


def _fixed_coding(column: pa.ChunkedArray, *, descending: bool) -> Coding:
    chunks = [pa.chunked_array([chunk]) for chunk in column.chunks if len(chunk)]
    ends = [end for chunk in chunks for end in _ends(chunk)]
    if not ends:
        return Coding(len(column), 0, lambda: (np.zeros(len(chunk), np.uint64) for chunk in chunks))
    low, high = min(ends), max(ends)
    if high - low >= _WORD:
        # The range of values uses all 64 bits, so no code is left for null. The codes are therefore the ranks of the
        # distinct values.
        ranked = _dense_codes(ordered_bits(column), null_mask(column), descending=descending)
        return Coding(len(column), ranked.null_code, lambda: iter([ranked.values]))

    def make() -> Iterator[Unsigned]:
        for chunk in chunks:
            bits = ordered_bits(chunk)
            values = np.uint64(high) - bits if descending else bits - np.uint64(low)
            yield _with_nulls(values, null_mask(chunk), high - low + 1)

    return Coding(len(column), high - low + 1, make)


def _ends(chunk: pa.ChunkedArray) -> list[int]:
    """Return the smallest and the greatest result of `ordered_bits`. The list is empty if all values are null."""
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
    """Rank the distinct values of all chunks once, then look up each row's index in the ranks."""
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
    """Return all dictionaries in one array, and the start of each dictionary.

    A dictionary that equals the previous one is not included again.
    """
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


# Sortable keys.

# This key is above the key of infinity. All NaN are the same value, regardless of their bits.
NAN_KEY = 2**63 - 1
_GREATEST = 2**64 - 1
_LEADING_BYTES = 8
_DAY = 86_400_000_000
_LAST_DAY = (2**63 - 1) // _DAY


def sortable(values: pa.Array) -> pa.Array:
    """Return one key per value, and null for null. For a type without an order, all keys are null.

    Dates and timestamps become microseconds since the epoch in UTC, for the years 1 to 9999.
    """
    kinds, type_ = pa.types, values.type
    if kinds.is_boolean(type_) or kinds.is_integer(type_):
        return values.cast(pa.int64())
    if kinds.is_floating(type_):
        return _like(values, float_keys(values.cast(pa.float64()).fill_null(0.0).to_numpy()))
    if kinds.is_date(type_) or kinds.is_timestamp(type_):
        return values.cast(pa.timestamp("us", tz=getattr(type_, "tz", None))).view(pa.int64())
    if kinds.is_decimal(type_) or kinds.is_string(type_):
        return values
    return pa.nulls(len(values), pa.int64())


def bound_keys(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return the `sortable` keys of the bounds of a column.

    `texts` contains the bounds in the text form that the log uses. A key is null if the bound is unknown.
    """
    return sortable(decode_column(texts, type_))


def has_leading_keys(type_: pa.DataType) -> bool:
    """Return whether `leading_keys` accepts values of this type."""
    kinds = pa.types
    numbers = kinds.is_boolean(type_) or kinds.is_integer(type_) or kinds.is_floating(type_)
    return bool(numbers or kinds.is_date(type_) or kinds.is_timestamp(type_) or kinds.is_string(type_))


def leading_keys(values: pa.Array) -> Unsigned:
    """Return an unsigned word per value.

    The returned words have the same order as the values. For a text value, the word contains the first eight bytes of
    the text.

    Different values may have equal words. A null value gets the greatest possible word. The word of a number, date or
    timestamp is derived from its `sortable` key.
    """
    if pa.types.is_string(values.type):
        keys = _leading_bytes(values)
    elif pa.types.is_date32(values.type):
        days = values.view(pa.int32()).fill_null(0).to_numpy().astype(np.int64)
        keys = (np.clip(days, -_LAST_DAY, _LAST_DAY) * _DAY).view(np.uint64) ^ _SIGN
    else:
        keys = sortable(values).fill_null(0).to_numpy().view(np.uint64) ^ _SIGN
    if values.null_count:
        keys[values.is_null().to_numpy(zero_copy_only=False)] = _GREATEST
    return keys


def unless_false(compared: pa.Array) -> Mask:
    """Return the result of a comparison of keys. An unknown result becomes True."""
    mask: Mask = compared.fill_null(fill_value=True).to_numpy(zero_copy_only=False)
    return mask


def float_keys(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the int64 key of each double. The keys are computed from the bits and are ordered like the doubles."""
    bits = (values + 0.0).view(np.int64)  # -0.0 + 0.0 is 0.0
    keys = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    keys[np.isnan(values)] = NAN_KEY
    return keys


def _leading_bytes(values: pa.Array) -> Unsigned:
    keys = np.zeros(len(values), np.uint64)
    _, offsets, content = values.buffers()
    if content is None or not content.size:
        return keys
    data = np.frombuffer(content, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[values.offset :][: len(values) + 1].astype(np.int64)
    for number in range(_LEADING_BYTES):
        places = ends[:-1] + number
        found = np.where(places < ends[1:], data.take(places, mode="clip"), np.uint8(0))
        keys = keys << np.uint64(8) | found
    return keys


def _like(values: pa.Array, keys: npt.NDArray[np.int64]) -> pa.Array:
    if not values.null_count:
        return pa.array(keys)
    return pa.array(keys, mask=values.is_null().to_numpy(zero_copy_only=False))
