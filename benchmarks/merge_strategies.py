"""Several ways to sort the keys of a merge.

All strategies produce the same order of rows. `compaction_questions` measures the speed of each strategy.

Compaction sorts packed keys (decision 0016). This module keeps the sort strategies that compaction does not use, so
that `compaction_questions` can measure all strategies again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.compact.kernel import common_type, concatenated
from storage_core.data.rows.codes import Unsigned
from storage_core.data.rows.keys import Positions, dense_ranks, pack, sorted_order
from storage_core.data.rows.sort_order import SortOrder, key_coding


class Strategy(StrEnum):
    """A way to find the order of a merge."""

    PACKED = "packed"
    """The columns are packed into 64-bit keys, and a stable sort orders these keys."""

    BY_COLUMN = "by-column"
    """One stable sort per column, from the last column to the first column."""

    K_WAY = "k-way"
    """The columns are packed into 64-bit keys, as in `PACKED`. Pairs of sorted inputs are merged."""


def positions(inputs: Sequence[pa.Table], order: SortOrder, strategy: Strategy) -> Positions:
    """Return the stable order of the rows of all inputs, in one sequence.

    Each input has all columns of the order.

    The inputs do not have to be sorted. For unsorted inputs, `K_WAY` sorts the packed keys.
    """
    rows = [table.num_rows for table in inputs]
    columns = ((each, [table.column(each.name) for table in inputs]) for each in order.columns)
    codings = [key_coding(concatenated(found, rows, common_type(found)), each) for each, found in columns]
    match strategy:
        case Strategy.PACKED:
            return sorted_order(pack(codings, sum(rows)))
        case Strategy.BY_COLUMN:
            return sorted_order([each.whole().values for each in codings])
        case Strategy.K_WAY:
            return _merged(pack(codings, sum(rows)), rows)
        case _:
            assert_never(strategy)


def _merged(keys: Sequence[Unsigned], input_rows: Sequence[int]) -> Positions:
    key: npt.NDArray[np.int64] | Unsigned = keys[0] if len(keys) == 1 else dense_ranks(keys)
    ends = np.cumsum(np.asarray(input_rows, np.int64))
    runs = np.split(np.arange(len(key), dtype=np.int64), ends[:-1])
    if any(np.any(key[run[1:]] < key[run[:-1]]) for run in runs):
        return sorted_order(keys)
    while len(runs) > 1:
        paired = [_merged_two(key, a, b) for a, b in zip(runs[::2], runs[1::2], strict=False)]
        runs = [*paired, *runs[2 * len(paired) :]]
    return runs[0]


def _merged_two(key: npt.NDArray[np.int64] | Unsigned, first: Positions, second: Positions) -> Positions:
    """Merge pairs of adjacent runs. If keys are equal, the rows of the first run come first."""
    places = np.searchsorted(key[first], key[second], side="right") + np.arange(len(second))
    merged = np.empty(len(first) + len(second), np.int64)
    free = np.ones(len(merged), np.bool_)
    free[places] = False
    merged[places], merged[free] = second, first
    return merged
