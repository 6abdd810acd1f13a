"""Ways to sort the keys of a merge, all with one result: which of them is fast is what the benchmark asks.

`benchmarks/compaction_questions.py` compares them; decision 0067 says what it found.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import assert_never

import numpy as np
import numpy.typing as npt

from storage_core.rows.codes import Codes, Unsigned
from storage_core.rows.keys import Positions, dense_ranks, sorted_order


class Strategy(StrEnum):
    """How the order of a merge is found."""

    PACKED = "packed"
    """Columns packed into 64-bit keys, sorted stably."""

    BY_COLUMN = "by-column"
    """A stable sort per column, from the last to the first."""

    K_WAY = "k-way"
    """The same packed keys, sorted inputs merged two by two."""


def positions(
    packed: Sequence[Unsigned], columns: Sequence[Codes], input_rows: Sequence[int], strategy: Strategy
) -> Positions:
    """Return the stable order of the rows of all inputs, one after the other, by `columns`, most significant first.

    `packed` are the columns packed; only `BY_COLUMN` looks at them one by one. `input_rows` are the rows of each input.
    The inputs need not be sorted; those that are not are no case for `K_WAY`, which sorts then.
    """
    match strategy:
        case Strategy.PACKED:
            return sorted_order(packed)
        case Strategy.BY_COLUMN:
            return sorted_order([column.values for column in columns])
        case Strategy.K_WAY:
            return _merged(packed, input_rows)
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
    """Neighbouring runs as one; of equal keys those of the first come first."""
    places = np.searchsorted(key[first], key[second], side="right") + np.arange(len(second))
    merged = np.empty(len(first) + len(second), np.int64)
    free = np.ones(len(merged), np.bool_)
    free[places] = False
    merged[places], merged[free] = second, first
    return merged
