"""The sorted merge: compute the order from the sort columns, then take every column through it (design page 04).

Sort columns come with strings as dictionaries, which are ranked and never decoded. The order is held as runs of rows
that stay together, which sorted inputs make long. What holds the columns in between is the caller's choice:
`take_column` moves one column of all inputs at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.rows.order import ranks, sort_indices
from storage_core.rows.sort_order import SortOrder

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """A merge order: run i is `count[i]` rows of input `input[i]` from row `start[i]` on. Equal-length int64 arrays.

    All rows of a run have one value in every sort column but the last, as a series of points has.
    """

    input: Positions
    start: Positions
    count: Positions

    def __len__(self) -> int:
        """Return the number of runs; the fewer per row, the better the inputs were sorted."""
        return len(self.input)

    @property
    def rows(self) -> int:
        """Return the number of rows of the output."""
        return int(self.count.sum())

    def positions(self, input_rows: Sequence[int]) -> Positions:
        """Return, per output row, its position in the concatenation of the inputs, whose row counts are given."""
        first = _offsets(input_rows)[self.input] + self.start
        run_starts = np.cumsum(self.count) - self.count
        shifts: Positions = np.repeat(first - run_starts, self.count)
        return np.arange(self.rows, dtype=np.int64) + shifts


def merge_order(inputs: Sequence[pa.Table], order: SortOrder) -> Runs:
    """Return the order in which the rows of all inputs are sorted; rows with equal keys keep the order of the inputs.

    The tables need the sort columns only; one that lacks a sort column counts as null in it (MC-4). The inputs need not
    be sorted: the stable sort exploits it where they are.
    """
    keys = [each for each in order.columns if any(each.name in table.column_names for table in inputs)]
    columns = [concatenated([_column(table, each.name) for table in inputs], _rows(inputs)) for each in keys]
    row_counts = _rows(inputs)
    if not keys:
        return _runs(np.arange(sum(row_counts), dtype=np.int64), row_counts, [])
    combined = pa.table(columns, names=[each.name for each in keys])
    positions = sort_indices(combined, SortOrder(columns=tuple(keys), text=order.text))
    return _runs(positions, row_counts, [ranks(column) for column in columns[:-1]])


def take_column(inputs: Sequence[pa.ChunkedArray | None], runs: Runs, input_rows: Sequence[int]) -> pa.ChunkedArray:
    """Return one column of the output: the inputs' column through the order; None stands for an input without it."""
    return concatenated(inputs, input_rows).take(pa.array(runs.positions(input_rows)))


def concatenated(columns: Sequence[pa.ChunkedArray | None], input_rows: Sequence[int]) -> pa.ChunkedArray:
    """Return the column of one input after the other; where an input lacks it, that many nulls.

    Dictionary columns come out with one dictionary. At least one input must have the column.
    """
    kind = next(column.type for column in columns if column is not None)
    chunks: list[pa.Array] = []
    for column, rows in zip(columns, input_rows, strict=True):
        chunks.extend([pa.nulls(rows, kind)] if column is None else column.chunks)
    whole = pa.chunked_array(chunks, type=kind)
    return whole.unify_dictionaries() if pa.types.is_dictionary(kind) else whole


def _column(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    return table.column(name) if name in table.column_names else None


def _rows(inputs: Sequence[pa.Table]) -> list[int]:
    return [table.num_rows for table in inputs]


def _offsets(input_rows: Sequence[int]) -> Positions:
    counts = np.asarray(input_rows, dtype=np.int64)
    return np.asarray(np.cumsum(counts) - counts, dtype=np.int64)


def _runs(positions: Positions, input_rows: Sequence[int], series: Sequence[Positions]) -> Runs:
    """A run ends where the next row is not the next row of the same input, or where a code of `series` changes."""
    if len(positions) == 0:
        empty = np.empty(0, dtype=np.int64)
        return Runs(empty, empty, empty)
    ends = np.cumsum(np.asarray(input_rows, dtype=np.int64))
    # `right`: an input without rows has the same end as the one before it and must never be chosen
    inputs = np.searchsorted(ends, positions, side="right").astype(np.int64)
    breaks = (np.diff(positions) != 1) | (np.diff(inputs) != 0)
    for codes in series:
        breaks |= np.diff(codes[positions]) != 0
    firsts = np.concatenate(([0], np.flatnonzero(breaks) + 1)).astype(np.int64)
    counts = np.diff(np.append(firsts, len(positions)))
    return Runs(inputs[firsts], positions[firsts] - _offsets(input_rows)[inputs[firsts]], counts)
