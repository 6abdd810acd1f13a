"""Which row groups of a split can hold a row that a filter wants, by the bounds that its footer has of every column.

The rules are those of `read.pruning`; here the footer's statistics become bounds for them. They are believed of a
footer whose checksum is in the log: such a file is of our writer, which leaves out the bounds of columns with NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from functools import cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from storage_core.read.bounds import ColumnBounds, Source
from storage_core.read.predicate import Predicate
from storage_core.read.pruning import by_bounds, possible
from storage_core.rows.codes import Unsigned
from storage_core.rows.columns import default_of, defaults, stored_name
from storage_core.rows.sortable import leading_keys, sortable

_EXACT: Final = Context(prec=80)


def groups_left(footer: pq.FileMetaData, predicate: Predicate | None, schema: pa.Schema) -> Sequence[int]:
    """Return the row groups, ascending, in which a row may make `predicate` true. No request.

    `schema` is the table's. What the footer does not tell keeps the row group: a column without statistics, a nested
    one, one of another type than the table's. A column that the file lacks has one value in every row, or null.
    """
    groups = range(footer.num_row_groups)
    if predicate is None:
        return groups
    left: list[int] = np.flatnonzero(possible(predicate, by_bounds(_bounds_in(footer, schema)), len(groups))).tolist()
    return left


def groups_with(rows: BitMap, footer: pq.FileMetaData, groups: Sequence[int]) -> Sequence[int]:
    """Return those of the row groups, ascending, that hold one of these rows of the file."""
    ends = np.cumsum([footer.row_group(index).num_rows for index in range(footer.num_row_groups)]).tolist()
    firsts = [0, *ends[:-1]]
    return [group for group in groups if rows.range_cardinality(firsts[group], ends[group])]


def _bounds_in(footer: pq.FileMetaData, schema: pa.Schema) -> Source:
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    rows = pa.array([group.num_rows for group in groups], pa.int64())
    found = footer.schema.to_arrow_schema()

    @cache
    def bounds(column: str) -> ColumnBounds | None:
        index = schema.get_field_index(column)
        if index < 0:
            return None
        type_, stored = schema.field(index).type, stored_name(schema.field(index))
        if stored not in found.names:
            added = partial(sortable, defaults(schema.field(index), len(groups)))
            nulls = pa.array([0] * len(groups), pa.int64()) if default_of(schema.field(index)) is not None else rows
            return ColumnBounds(type_, added, added, nulls, rows)
        leaf = _flat_leaf(footer, stored)
        if leaf is None or found.field(stored).type != type_:
            return None
        chunks = [group.column(leaf) for group in groups]
        statistics = [chunk.statistics if chunk.is_stats_set else None for chunk in chunks]
        nulls = [each.null_count if each is not None and each.has_null_count else None for each in statistics]
        low, high = (
            _keys([getattr(each, end) if each is not None and each.has_min_max else None for each in statistics], type_)
            for end in ("min_raw", "max_raw")
        )
        return ColumnBounds(type_, low, high, pa.array(nulls, pa.int64()), rows)

    return bounds


def leading_bounds(footer: pq.FileMetaData, field: pa.Field) -> tuple[Unsigned, Unsigned] | None:
    """Return `leading_keys` that no value of a column is below and none above, for each row group; None where unknown.

    The column is one that has such keys.
    """
    bounds = _bounds_in(footer, pa.schema([field]))(field.name)
    if bounds is None:
        return None
    low, high = leading_keys(bounds.low()), leading_keys(bounds.high())
    low[bounds.low().is_null().to_numpy(zero_copy_only=False)] = 0
    high[bounds.nulls.fill_null(1).to_numpy() > 0] = leading_keys(pa.nulls(1, field.type))[0]
    return low, high


def _flat_leaf(footer: pq.FileMetaData, column: str) -> int | None:
    """The place of a column among the leaves; None for a nested one, and where another has the same path."""
    leaves = [index for index in range(footer.num_columns) if footer.schema.column(index).path == column]
    if len(leaves) != 1:
        return None
    leaf = footer.schema.column(leaves[0])
    return leaves[0] if not leaf.max_repetition_level and leaf.max_definition_level <= 1 else None


def _keys(raw: Sequence[Any], type_: pa.DataType) -> Callable[[], pa.Array]:
    """The bounds, given as Parquet stores them, in the terms of `rows.sortable`; all unknown where one is no value."""

    @cache
    def keys() -> pa.Array:
        try:
            return sortable(_values(raw, type_))
        except (pa.ArrowException, ValueError, OverflowError, ArithmeticError, TypeError):
            return sortable(pa.nulls(len(raw), type_))

    return keys


def _values(raw: Sequence[Any], type_: pa.DataType) -> pa.Array:
    kinds = pa.types
    if kinds.is_date32(type_):
        return pa.array(raw, pa.int32()).view(type_)  # by way of Python's dates the years would end at 9999
    if kinds.is_timestamp(type_):
        return pa.array(raw, pa.int64()).view(type_)
    if kinds.is_decimal(type_):
        return pa.array([None if each is None else _decimal(each, type_.scale) for each in raw], type_)
    return pa.array(raw, pa.binary()).cast(type_) if kinds.is_string(type_) else pa.array(raw, type_)


def _decimal(raw: bytes | int, scale: int) -> Decimal:
    digits = int.from_bytes(raw, signed=True) if isinstance(raw, bytes) else raw
    return Decimal(digits).scaleb(-scale, context=_EXACT)
