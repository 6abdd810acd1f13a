"""Rows by key and by number: packed 64-bit keys, their order, ranges and limits, and row positions.

A packed key is built from the codes of the key columns (`rows.codes`). Packed keys are ordered like the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.codes import Codes, Coding, Mask, Unsigned, codes, sortable, unless_false

Positions = npt.NDArray[np.int64]


# Packed keys.

KEY_BITS = 64
_DENSE_FACTOR = 4
_CACHED_ROWS = 65_536


def pack(columns: Iterable[Codes | Coding], rows: int) -> list[Unsigned]:
    """Return 64-bit keys, with the most significant key first.

    The lexicographic order of the keys is the order of the columns' values.

    Neighboring columns share a key while their ranges fit into 64 bits. Usually one key is sufficient. A `Coding` is
    computed only when its column is packed, so the codes of only one `Coding` are in memory at a time.
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
            if capacity > 1:  # at capacity 1, all keys are zero, and `size` may exceed 64 bits
                packed *= np.uint64(size)
            packed += part
            start += len(part)
        capacity *= size
    return keys or [np.zeros(rows, np.uint64)]


def sorted_order(keys: Sequence[Unsigned]) -> Positions:
    """Return the stable order of rows by `keys`, most significant first.

    Each presorted sequence of rows costs at most one merge.
    """
    if len(keys) == 1:
        return _order_of_one(keys[0])
    return np.lexsort(tuple(reversed(keys))).astype(np.int64, copy=False)


def dense_ranks(keys: Sequence[Unsigned]) -> Positions:
    """Return the rank of every row among the distinct rows of `keys` (most significant first), from 0."""
    if len(keys) == 1 and len(keys[0]) and int(keys[0].max()) < _DENSE_FACTOR * len(keys[0]):
        return _ranks_by_counting(keys[0])
    order = sorted_order(keys)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(rises(keys, order))
    return ranks


def rises(keys: Sequence[Unsigned], order: Positions, *, last_unit: int = 1) -> Mask:
    """Return a mask of the rows whose key differs from the previous row in `order`. The first row is never marked.

    Args:
        keys: The keys, most significant first.
        order: The order of the rows.
        last_unit: Before the comparison, the last key is divided by this number and rounded down.
    """
    rises = np.zeros(len(order), np.bool_)
    for number, key in enumerate(keys, start=1):
        for rows in cached(len(order)):
            ordered = key[order[rows.start - 1 : rows.stop]]
            if number == len(keys) and last_unit > 1:
                ordered //= np.uint64(last_unit)
            rises[rows] |= ordered[1:] != ordered[:-1]
    return rises


def rises_but_for_last(keys: Sequence[Unsigned], sizes: Sequence[int], order: Positions) -> Mask:
    """Return the result that `rises` would have without the last packed column. `keys` is the result of `pack`.

    For each column, `sizes` contains the number of possible codes, which is `null_code + 1`.
    """
    capacity, alone = 0, True
    for size in sizes:
        # a column with a single value does not share a packed key with the next column
        alone = capacity <= 1 or capacity * size > 1 << KEY_BITS
        capacity = size if alone else capacity * size
    return rises(keys[:-1], order) if alone else rises(keys, order, last_unit=sizes[-1])


def cached(rows: int) -> Iterator[slice]:
    """Yield slices of all rows except the first.

    A slice is small enough that its data stays in the processor's caches.
    """
    for start in range(1, rows, _CACHED_ROWS):
        yield slice(start, min(start + _CACHED_ROWS, rows))


def key_codes(tables: Sequence[pa.Table], key: Sequence[str]) -> list[Positions]:
    """Return one dense code for each row of each table. Equal keys have equal codes, greater keys have greater codes.

    Raises:
        InvalidInput: A key column is missing, has different types, or contains a null. For a null, the error names the
            column and the row, counted from 0 in its table.
    """
    ends = np.cumsum([table.num_rows for table in tables])
    dense = dense_ranks(_packed_key(tables, key))
    return np.split(dense, ends[:-1])


def key_order(table: pa.Table, key: Sequence[str]) -> tuple[Positions, Mask]:
    """Return the stable order of the rows by key.

    Also return a mask of the rows in key order. The mask marks each row that begins a new key.

    The mask includes the first row.

    Raises the errors of `key_codes`.
    """
    keys = _packed_key([table], key)
    order = sorted_order(keys)
    begins = rises(keys, order)
    begins[:1] = True
    return order, begins


def _ranks_by_counting(key: Unsigned) -> Positions:
    taken = np.zeros(int(key.max()) + 1, np.bool_)
    taken[key] = True
    return (np.cumsum(taken) - 1)[key].astype(np.int64, copy=False)


def _order_of_one(key: Unsigned) -> Positions:
    """Return the stable order by one key.

    If a key and a row number fit into one word, the function sorts words. Sorting words is several times faster than a
    stable sort of the keys.
    """
    rows = len(key)
    row_bits = max(rows - 1, 0).bit_length()
    if not np.any(key[1:] < key[:-1]):
        return np.arange(rows, dtype=np.int64)
    if int(key.max()).bit_length() + row_bits > KEY_BITS:
        # numpy's stable sort of 64-bit keys is timsort. Timsort finds the presorted parts of merged inputs.
        return np.argsort(key, kind="stable").astype(np.int64, copy=False)
    words = key << np.uint64(row_bits) | np.arange(rows, dtype=np.uint64)
    words.sort()
    return (words & np.uint64((1 << row_bits) - 1)).view(np.int64)


def _packed_key(tables: Sequence[pa.Table], key: Sequence[str]) -> list[Unsigned]:
    return pack([_key_column(tables, name) for name in key], sum(table.num_rows for table in tables))


def _key_column(tables: Sequence[pa.Table], name: str) -> Codes:
    for table in tables:
        if name not in table.schema.names:
            raise InvalidInput(f"the key column {name!r} is missing. Found {table.schema.names}", column=name)
    coded = codes(_joined([table.column(name) for table in tables], name))
    # The function compares codes and does not count nulls, because a dictionary may contain null as a value.
    missing = np.flatnonzero(coded.values == coded.null_code)
    if len(missing):
        row = int(missing[0])
        for table in tables:
            if row < table.num_rows:
                break
            row -= table.num_rows
        raise InvalidInput(f"the key column {name!r} is null in row {row}. A key needs a value", column=name, row=row)
    return coded


def _joined(columns: Sequence[pa.ChunkedArray], name: str) -> pa.ChunkedArray:
    types = {str(column.type.value_type if pa.types.is_dictionary(column.type) else column.type) for column in columns}
    if len(types) > 1:
        raise InvalidInput(
            f"the key column {name!r} has the types {sorted(types)}. Give all values one type", column=name
        )
    if len({column.type for column in columns}) > 1:  # a column may be plain in one table and a dictionary in another
        columns = [
            column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column for column in columns
        ]
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)


# Row positions.


def positions(rows: BitMap) -> Positions:
    """Return the rows of a bitmap, ascending."""
    return np.asarray(rows.to_array()).astype(np.int64)


def bitmap_of(rows: Positions) -> BitMap:
    """Return the bitmap of these rows. `rows` may have any order."""
    return BitMap(rows.astype(np.uint32))


Bytes = npt.NDArray[np.uint8]


def spans_of(data: Bytes, starts: Positions, length: int) -> Bytes:
    """Return one row of `length` bytes for each of these starts. Raises `IndexError` beyond the end."""
    if not len(starts):
        return np.zeros((0, length), np.uint8)
    every = np.lib.stride_tricks.as_strided(data, (max(0, len(data) - length + 1), length), (1, 1), writeable=False)
    return every[starts]


# Map columns.


@dataclass(frozen=True, slots=True)
class MapColumn:
    """One chunk of a map column.

    Row `i` has the entries from `starts[i]` up to the entry before `ends[i]`. A null map has no entries. `width` is the
    number of entries per row if all rows have the same keys in the same order, else None.
    """

    keys: pa.Array
    items: pa.Array
    starts: Positions
    ends: Positions
    width: int | None

    def lookup(self, key: str) -> pa.Array:
        """Return the value of the key per row. Return null if the row does not have the key."""
        if self.width is not None:
            at = pc.index(self.keys.slice(self.starts[0], self.width), key).as_py()
            if at < 0:
                return pa.nulls(len(self.starts), self.items.type)
            return self.items.take(pa.array(self.starts + at))
        return self.items.take(self._entries(key))

    def _entries(self, key: str) -> pa.Array:
        """Return, for each row, the position of the entry with the key. Each row may have different keys."""
        hits = np.flatnonzero(pc.equal(self.keys, key).to_numpy(zero_copy_only=False))
        if not len(hits):
            return pa.nulls(len(self.starts), pa.int64())
        # If the first hit at or after a row's start is before the row's end, this hit belongs to the row.
        nearest = hits[np.minimum(np.searchsorted(hits, self.starts), len(hits) - 1)]
        return pa.array(nearest, mask=(nearest < self.starts) | (nearest >= self.ends))


def map_column(array: pa.MapArray) -> MapColumn:
    """Return the chunk in a form in which keys can be looked up. Cost: one pass over the keys of the chunk."""
    offsets = array.offsets.to_numpy().astype(np.int64)
    starts, ends = offsets[:-1], offsets[1:]
    if array.null_count:
        ends = np.where(array.is_valid().to_numpy(zero_copy_only=False), ends, starts)
    return MapColumn(array.keys, array.items, starts, ends, _common_width(array.keys, starts, ends))


def _common_width(keys: pa.Array, starts: Positions, ends: Positions) -> int | None:
    widths = ends - starts
    if not len(widths) or not widths[0] or (widths != widths[0]).any() or (starts[1:] != ends[:-1]).any():
        return None
    # If each row has the same keys as the row before, all rows have the same keys.
    width = int(widths[0])
    first, last = int(starts[0]), int(ends[-1])
    same = keys.slice(first, last - first - width).equals(keys.slice(first + width, last - first - width))
    return width if same else None


def union(maps: pa.ChunkedArray, groups: Positions, count: int) -> pa.Array:
    """Return one map for each group from 0 to `count` - 1. This map has the entries of all maps of the group.

    If a key occurs several times, its last value is used. Entries have the order in which their keys occurred first. A
    null map has no entries, and a null value counts as a value. Therefore the union is associative, and no result is
    null.

    Args:
        maps: The maps.
        groups: The group of each map, ascending.
        count: The number of groups.

    Raises:
        InvalidInput: Keys are lists, structs or maps, which have no order.
    """
    given = maps.drop_null().combine_chunks()
    offsets = given.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    keys, items = given.keys.slice(first, last - first), given.items.slice(first, last - first)
    entry_groups = np.repeat(groups[maps.is_valid().to_numpy()], np.diff(offsets))
    ends = _ends(entry_groups, count, keys)
    taken = entry_groups[ends[:, 0]]
    bounds = np.searchsorted(taken, np.arange(count + 1)).astype(np.int32)
    return pa.MapArray.from_arrays(
        pa.array(bounds), keys.take(pa.array(ends[:, 0])), items.take(pa.array(ends[:, 1])), type=maps.type
    )


def _ends(groups: Positions, count: int, keys: pa.Array) -> Positions:
    """Return the first and the last position of each key in each group, ordered by the first position."""
    packed = pack([Codes(groups.astype(np.uint64), count), codes(pa.chunked_array([keys]))], len(keys))
    ranks = dense_ranks(packed)
    order = np.argsort(ranks, kind="stable")
    changes = np.flatnonzero(np.diff(ranks[order], prepend=-1, append=len(ranks)))
    ends = np.stack([order[changes[:-1]], order[changes[1:] - 1]], axis=1)
    return ends[np.argsort(ends[:, 0], kind="stable")]


# The size limit of a key value.

MAX_KEY_BYTES = 64 * 2**10


def beyond_limit(rows: pa.Table, name: str) -> Mask:
    """Return a mask of the rows whose value in the key column has more than `MAX_KEY_BYTES` bytes.

    Text is measured in UTF-8.
    """
    column, kinds = rows.column(name), pa.types
    texts = kinds.is_string(column.type) or kinds.is_large_string(column.type)
    if not texts and not kinds.is_binary(column.type) and not kinds.is_large_binary(column.type):
        return np.zeros(rows.num_rows, np.bool_)
    mask: Mask = np.asarray(pc.fill_null(pc.greater(pc.binary_length(column), MAX_KEY_BYTES), False))  # noqa: FBT003
    return mask


def size_of_key(value: object) -> int:
    """Return the number of bytes of a key value, or 0 if the type of the value has no length."""
    return len(value.encode() if isinstance(value, str) else value) if isinstance(value, str | bytes) else 0


def too_long(name: str, size_bytes: int) -> str:
    """Return the error text for a value of this size in the key column."""
    return f"column {name!r}: a value of {size_bytes} bytes is too long for a key. The limit is {MAX_KEY_BYTES} bytes"


def require_short_keys(rows: pa.Table, key: Sequence[str]) -> None:
    """Raise `InvalidInput` with the column and the row if a value of a key column exceeds the limit."""
    for name in key:
        beyond = np.flatnonzero(beyond_limit(rows, name))
        if len(beyond):
            row = int(beyond[0])
            size = pc.binary_length(rows.column(name)[row]).as_py()
            raise InvalidInput(
                f"row {row}: {too_long(name, size)}. Shorten it", column=name, row=row, limit=MAX_KEY_BYTES
            )


# Ranges of keys.

_COMPARED_AT_ONCE = 2**20
_LEAST, _GREATEST = -(2**63), 2**63 - 1

Range = tuple[pa.Array, pa.Array]
"""The smallest and the greatest values of a column, as keys of `data.rows.codes`.

Null means that the value is unknown.
"""


def with_room(ranges: Sequence[Range], wanted: pa.Table) -> Mask:
    """Return, for each range, False if it certainly contains no row of `wanted`, else True.

    For decimals, the function only checks whether two ranges overlap. The second range goes from the smallest to the
    greatest value of `wanted`.

    Args:
        ranges: For each column of `wanted`, the ranges.
        wanted: The rows.
    """
    count = len(ranges[0][0])
    found = np.zeros(count, np.bool_)
    inside = [_Inside(*each, wanted.column(number)) for number, each in enumerate(ranges)]
    step = max(1, _COMPARED_AT_ONCE // max(1, count))
    for start in range(0, wanted.num_rows, step):
        some = slice(start, min(start + step, wanted.num_rows))
        room = np.ones((count, some.stop - start), np.bool_)
        for each in inside:
            room &= each.of(some)
        found |= room.any(axis=1)
    return found


class _Inside:
    """The check whether the keys of one column are inside the ranges for this column."""

    def __init__(self, low: pa.Array, high: pa.Array, column: pa.ChunkedArray) -> None:
        keys = sortable(column.combine_chunks())
        self._between: Mask | None = None
        if pa.types.is_decimal(keys.type):  # the number of digits may differ between bounds and column
            ends = pc.min_max(keys)
            room = unless_false(pc.less_equal(low, ends["max"])) & unless_false(pc.greater_equal(high, ends["min"]))
            self._between = room[:, None]
            return
        if pa.types.is_int64(keys.type) and not keys.null_count:
            self._low = low.fill_null(_LEAST).to_numpy()
            self._high = high.fill_null(_GREATEST).to_numpy()
            self._keys = keys.to_numpy()
            return
        coded = codes(pa.chunked_array([low, high, keys])).values.view(np.int64)
        self._low, self._high, self._keys = np.split(coded, [len(low), 2 * len(low)])
        self._low[low.is_null().to_numpy(zero_copy_only=False)] = _LEAST
        self._high[high.is_null().to_numpy(zero_copy_only=False)] = _GREATEST

    def of(self, some: slice) -> Mask:
        """Return for each range and each of these keys whether the key is in the range."""
        if self._between is not None:
            return self._between
        mask: Mask = (self._low[:, None] <= self._keys[some]) & (self._high[:, None] >= self._keys[some])
        return mask
