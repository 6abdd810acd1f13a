"""Order-preserving integer codes of column values: the one place that defines the total order of values.

Numbers numerically, -0.0 equal to 0.0 and NaN above everything; strings and binary by bytes (UTF-8, not UTF-16); false
before true; null last in both directions unless `nulls_before` (design page 04 "Sort schema"; lessons 62, 63, 68, 69 of
page 10). Strings and decimals are ranked through their distinct values, and dictionary columns through their
dictionaries alone, so the rows themselves are only ever touched as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput

Unsigned = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]

KEY_BITS = 64
_SIGN = np.uint64(1 << 63)
_WORD = (1 << 64) - 1
_DENSE_FACTOR = 4
_CACHED_ROWS = 65_536


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


def pack(columns: Iterable[Codes | Coding], rows: int) -> list[Unsigned]:
    """Return 64-bit keys, most significant first, whose lexicographic order is that of the columns.

    Neighbouring columns share a key as long as their ranges fit; usually one key is all there is. Of columns that are
    made as they are asked for, one is in memory at a time.
    """
    keys: list[Unsigned] = []
    capacity = 0
    for column in columns:
        size = column.null_code + 1
        parts = [column.values] if isinstance(column, Codes) else column.make()
        if capacity * size > 1 << KEY_BITS or not keys:
            keys.append(np.zeros(rows, np.uint64))
            capacity = 1
        start = 0
        for part in parts:
            packed = keys[-1][start : start + len(part)]
            if capacity > 1:  # else all of them are zero, and `size` may be more than a word can say
                packed *= np.uint64(size)
            packed += part
            start += len(part)
        capacity *= size
    return keys or [np.zeros(rows, np.uint64)]


def rises_but_for_last(keys: Sequence[Unsigned], sizes: Sequence[int], order: Positions) -> Mask:
    """Return the `rises` of the keys that `pack` makes, were it not for the last column.

    `sizes` are `null_code + 1` of each column.
    """
    capacity, alone = 0, True
    for size in sizes:
        # beside columns of one value each it is as if alone
        alone = capacity <= 1 or capacity * size > 1 << KEY_BITS
        capacity = size if alone else capacity * size
    return rises(keys[:-1], order) if alone else rises(keys, order, last_unit=sizes[-1])


def key_codes(tables: Sequence[pa.Table], key: Sequence[str]) -> list[Positions]:
    """Return one dense code per row of every table: equal keys have equal codes, greater keys greater ones.

    Raises `InvalidInput` for a key column that is missing, of different types, or null somewhere (naming column and
    row, counted from 0 in its table).
    """
    ends = np.cumsum([table.num_rows for table in tables])
    dense = dense_ranks(_packed_key(tables, key))
    return np.split(dense, ends[:-1])


def key_order(table: pa.Table, key: Sequence[str]) -> tuple[Positions, Mask]:
    """Return the stable order of the rows by key, and which rows in that order have another key than the one before.

    The first row has. Raises what `key_codes` raises.
    """
    keys = _packed_key([table], key)
    order = sorted_order(keys)
    begins = rises(keys, order)
    begins[:1] = True
    return order, begins


def dense_ranks(keys: Sequence[Unsigned]) -> Positions:
    """Return the rank of every row among the distinct rows of `keys` (most significant first), from 0."""
    if len(keys) == 1 and len(keys[0]) and int(keys[0].max()) < _DENSE_FACTOR * len(keys[0]):
        return _ranks_by_counting(keys[0])
    order = sorted_order(keys)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(rises(keys, order))
    return ranks


def sorted_order(keys: Sequence[Unsigned]) -> Positions:
    """Return the stable order of rows by `keys`, most significant first. Presorted runs cost one merge each at most."""
    if len(keys) == 1:
        return _order_of_one(keys[0])
    return np.lexsort(tuple(reversed(keys))).astype(np.int64, copy=False)


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


def _packed_key(tables: Sequence[pa.Table], key: Sequence[str]) -> list[Unsigned]:
    return pack([_key_column(tables, name) for name in key], sum(table.num_rows for table in tables))


def rises(keys: Sequence[Unsigned], order: Positions, *, last_unit: int = 1) -> Mask:
    """Return which rows in this order differ from the row before, by a unit in the last key; the first does not."""
    rises = np.zeros(len(order), np.bool_)
    for number, key in enumerate(keys, start=1):
        for rows in cached(len(order)):
            ordered = key[order[rows.start - 1 : rows.stop]]
            if number == len(keys) and last_unit > 1:
                ordered //= np.uint64(last_unit)
            rises[rows] |= ordered[1:] != ordered[:-1]
    return rises


def cached(rows: int) -> Iterator[slice]:
    """Yield all rows but the first, so few at a time that what is made of them stays in the caches."""
    for start in range(1, rows, _CACHED_ROWS):
        yield slice(start, min(start + _CACHED_ROWS, rows))


def _ranks_by_counting(key: Unsigned) -> Positions:
    taken = np.zeros(int(key.max()) + 1, np.bool_)
    taken[key] = True
    return (np.cumsum(taken) - 1)[key].astype(np.int64, copy=False)


def _order_of_one(key: Unsigned) -> Positions:
    """The stable order by one key. Where key and row number fit a word, words are sorted: several times as fast."""
    rows = len(key)
    row_bits = max(rows - 1, 0).bit_length()
    if not np.any(key[1:] < key[:-1]):
        return np.arange(rows, dtype=np.int64)
    if int(key.max()).bit_length() + row_bits > KEY_BITS:
        # numpy's stable sort of 64-bit keys is a timsort: it finds the presorted runs of merged inputs.
        return np.argsort(key, kind="stable").astype(np.int64, copy=False)
    words = key << np.uint64(row_bits) | np.arange(rows, dtype=np.uint64)
    words.sort()
    return (words & np.uint64((1 << row_bits) - 1)).view(np.int64)


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


def _joined(columns: Sequence[pa.ChunkedArray], name: str) -> pa.ChunkedArray:
    types = {str(column.type.value_type if pa.types.is_dictionary(column.type) else column.type) for column in columns}
    if len(types) > 1:
        raise InvalidInput(f"the key column {name!r} has the types {sorted(types)}; they must be one", column=name)
    if len({column.type for column in columns}) > 1:  # plain here, dictionary there
        columns = [
            column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column for column in columns
        ]
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)


def _key_column(tables: Sequence[pa.Table], name: str) -> Codes:
    for table in tables:
        if name not in table.schema.names:
            raise InvalidInput(f"the key column {name!r} is missing; found {table.schema.names}", column=name)
    coded = codes(_joined([table.column(name) for table in tables], name))
    # By code, not by null count: a dictionary may hold null as one of its values.
    missing = np.flatnonzero(coded.values == coded.null_code)
    if len(missing):
        row = int(missing[0])
        for table in tables:
            if row < table.num_rows:
                break
            row -= table.num_rows
        raise InvalidInput(f"the key column {name!r} is null in row {row}; a key needs a value", column=name, row=row)
    return coded
