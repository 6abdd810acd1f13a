"""In which order rows lie in the base: by partition and window, and in each by the order of the table.

Ties keep the order given.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from storage_core.rows.keys import Positions
from storage_core.rows.order import sort_indices
from storage_core.rows.partitions import by_partition
from storage_core.rows.sort_order import SortOrder
from storage_core.rows.windows import split_by_window
from storage_core.split.context import SplitContext

PLACE = "\0place"  # no column has such a name


def arranged(rows: pa.Table, context: SplitContext) -> Iterator[tuple[SplitContext, int | None, pa.Table]]:
    """Yield the rows of each partition and window, in order, with the context that their splits are written in.

    The windows of a partition ascend, that of null timestamps is last.
    """
    for values, part in by_partition(rows, context.partition_by):
        own = context.of_partition(values) if context.partition_by else context
        for window, of_window in _by_window(part, context):
            yield own, window, _ordered(of_window, context.order)


def with_places(rows: pa.Table) -> pa.Table:
    """Return the rows with the number of each as one column more, `PLACE`."""
    return rows.append_column(PLACE, pa.array(np.arange(rows.num_rows)))


def places_in_order(rows: pa.Table, context: SplitContext) -> Positions:
    """Return the numbers of the rows in the order of `arranged`."""
    compared = {context.time_column, *(each.name for each in context.order.columns), PLACE}
    compared |= {each.column for each in context.partition_by}
    placed = with_places(rows)
    chosen = placed.select([name for name in placed.column_names if name in compared])
    parts = [part.column(PLACE).to_numpy() for _, _, part in arranged(chosen, context)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _by_window(rows: pa.Table, context: SplitContext) -> list[tuple[int | None, pa.Table]]:
    if rows.num_rows == 0:
        return []
    if context.window_seconds is None or context.time_column is None:
        return [(None, rows)]
    return split_by_window(rows, context.time_column, context.window_seconds)


def _ordered(rows: pa.Table, order: SortOrder) -> pa.Table:
    indices = sort_indices(rows, order.present(rows.column_names))
    if not np.any(indices[1:] < indices[:-1]):
        return rows  # as a merge hands them over: to take every row would copy them all
    return rows.take(pa.array(indices))
