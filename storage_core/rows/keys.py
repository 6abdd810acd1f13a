"""64-bit keys of rows, packed from the codes of their columns, and the order, ranks and runs that keys give.

Keys compare like the rows they are made of (`rows.codes` says how values do; docs/architecture/compaction.md, "Sort
schema"), so sorting and finding equal rows is work on integers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.rows.codes import Codes, Coding, Mask, Unsigned, codes

Positions = npt.NDArray[np.int64]

KEY_BITS = 64
_DENSE_FACTOR = 4
_CACHED_ROWS = 65_536


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


def sorted_order(keys: Sequence[Unsigned]) -> Positions:
    """Return the stable order of rows by `keys`, most significant first. Presorted runs cost one merge each at most."""
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
    """Return which rows in this order differ from the row before, by a unit in the last key; the first does not."""
    rises = np.zeros(len(order), np.bool_)
    for number, key in enumerate(keys, start=1):
        for rows in cached(len(order)):
            ordered = key[order[rows.start - 1 : rows.stop]]
            if number == len(keys) and last_unit > 1:
                ordered //= np.uint64(last_unit)
            rises[rows] |= ordered[1:] != ordered[:-1]
    return rises


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


def cached(rows: int) -> Iterator[slice]:
    """Yield all rows but the first, so few at a time that what is made of them stays in the caches."""
    for start in range(1, rows, _CACHED_ROWS):
        yield slice(start, min(start + _CACHED_ROWS, rows))


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


def _packed_key(tables: Sequence[pa.Table], key: Sequence[str]) -> list[Unsigned]:
    return pack([_key_column(tables, name) for name in key], sum(table.num_rows for table in tables))


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


def _joined(columns: Sequence[pa.ChunkedArray], name: str) -> pa.ChunkedArray:
    types = {str(column.type.value_type if pa.types.is_dictionary(column.type) else column.type) for column in columns}
    if len(types) > 1:
        raise InvalidInput(f"the key column {name!r} has the types {sorted(types)}; they must be one", column=name)
    if len({column.type for column in columns}) > 1:  # plain here, dictionary there
        columns = [
            column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column for column in columns
        ]
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)
