"""Sorting rows by a sort order: stable, total, and fast on presorted runs (step 1).

Columns become integer codes (`rows.codes`), neighbouring codes are packed into 64-bit keys (`rows.keys`), and the keys
are sorted stably. Presorted runs, as compaction has them, cost one merge pass per doubling.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.rows.codes import Coding, Unsigned, codes, coding, nulls_before
from storage_core.rows.keys import dense_ranks, pack, sorted_order
from storage_core.rows.sort_order import OrderColumn, SortOrder


def sort_indices(table: pa.Table, order: SortOrder) -> npt.NDArray[np.int64]:
    """Return the row numbers of `table` in sorted order; ties keep the order of the rows.

    An order without columns gives the rows as they are. Raises `InvalidInput` for a column that has no order.
    """
    if not order.columns:
        return np.arange(table.num_rows, dtype=np.int64)
    return sorted_order(_keys(table, order))


def is_sorted(table: pa.Table, order: SortOrder) -> bool:
    """Whether no row of `table` comes before its predecessor in `order`. Linear in the rows."""
    undecided = np.ones(max(table.num_rows - 1, 0), np.bool_)
    for key in _keys(table, order):
        if np.any(undecided & (key[1:] < key[:-1])):
            return False
        undecided &= key[1:] == key[:-1]
    return True


def ranks(column: pa.ChunkedArray, descending: bool = False) -> npt.NDArray[np.int64]:  # noqa: FBT001, FBT002 - reads as SQL's DESC
    """Return the dense rank of every value among the distinct values of the column, from 0; null has the last one.

    Ranks compare like the values in the total order, reversed except for nulls when `descending`.
    """
    return dense_ranks([codes(column, descending=descending).values])


def _keys(table: pa.Table, order: SortOrder) -> list[Unsigned]:
    return pack([key_coding(table.column(each.name), each) for each in order.columns], table.num_rows)


def key_coding(column: pa.ChunkedArray, each: OrderColumn) -> Coding:
    """Return codes that order the rows as this column of a sort schema does: its direction and its place of nulls."""
    found = coding(column, descending=each.descending)
    return nulls_before(found) if each.nulls_first else found
