"""The order of a sorted merge: computed from the sort columns alone, held as runs (design page 04, "Kernel", step 1).

Sort columns come with strings as dictionaries, which are ranked and never decoded. The order is held as runs of rows
that stay together, which sorted inputs make long. `compaction.streaming` takes the columns through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.compaction import strategies
from storage_core.compaction.strategies import Strategy
from storage_core.rows.keys import pack, rises
from storage_core.rows.order import key_codes
from storage_core.rows.sort_order import SortOrder

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


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

    def pieces(self, rows: int) -> list[Runs]:
        """Return the same order as consecutive pieces of `rows` output rows each, the last of what is left."""
        ends = np.cumsum(self.count)
        starts = ends - self.count
        pieces = []
        for low in range(0, self.rows, rows):
            high = low + rows
            among = slice(np.searchsorted(ends, low, side="right"), np.searchsorted(starts, high, side="left"))
            skipped = np.maximum(low - starts[among], 0)
            counts = np.minimum(ends[among], high) - starts[among] - skipped
            pieces.append(Runs(self.input[among], self.start[among] + skipped, counts))
        return pieces


@dataclass(frozen=True, slots=True, eq=False)
class MergeOrder:
    """The order as runs, and which output rows have another key than the row before, where a split may begin."""

    runs: Runs
    begins: Mask

    def next_key(self, row: int) -> int:
        """Return the first output row from `row` on where a key begins, or the number of rows."""
        ahead = self.begins[row:]
        nearest = int(ahead.argmax()) if len(ahead) else 0
        return row + nearest if len(ahead) and ahead[nearest] else len(self.begins)


def merge_order(inputs: Sequence[pa.Table], order: SortOrder, strategy: Strategy = Strategy.PACKED) -> MergeOrder:
    """Return the order in which the rows of all inputs are sorted; rows with equal keys keep the order of the inputs.

    The tables need the sort columns only; one that lacks a sort column counts as null in it (MC-4). The inputs need not
    be sorted: a stable sort exploits it where they are. Every strategy gives the
    same order. Without sort columns every row begins a key.
    """
    input_rows = [table.num_rows for table in inputs]
    rows = sum(input_rows)
    keys = [each for each in order.columns if any(each.name in table.column_names for table in inputs)]
    if not keys:
        in_file_order = np.arange(rows, dtype=np.int64)
        begins = np.full(rows, not order.columns)
        return MergeOrder(_runs(in_file_order, input_rows, np.zeros(rows, np.bool_)), begins)
    coded = []
    for each in keys:
        columns = [_column(table, each.name) for table in inputs]
        whole = concatenated(columns, input_rows, common_type(columns))
        coded.append(key_codes(whole, each))
    packed = pack(coded, rows)
    positions = strategies.positions(coded, input_rows, strategy)
    series = rises(pack(coded[:-1], rows), positions) if len(coded) > 1 else np.zeros(rows, np.bool_)
    return MergeOrder(_runs(positions, input_rows, series), rises(packed, positions))


def concatenated(
    columns: Sequence[pa.ChunkedArray | None], input_rows: Sequence[int], type_: pa.DataType
) -> pa.ChunkedArray:
    """Return the column of one input after the other as `type_`; where an input lacks it, that many nulls.

    Dictionary columns come out with one dictionary, or as their values where `type_` is that of the values.
    """
    chunks: list[pa.Array] = []
    for column, rows in zip(columns, input_rows, strict=True):
        if column is None:
            chunks.append(pa.nulls(rows, type_))
        else:
            chunks.extend((column if column.type == type_ else column.cast(type_)).chunks)
    whole = pa.chunked_array(chunks, type=type_)
    return whole.unify_dictionaries() if pa.types.is_dictionary(type_) else whole


def common_type(columns: Sequence[pa.ChunkedArray | None]) -> pa.DataType:
    """Return the type of the columns, of which at least one is not None: a dictionary where every one has one."""
    types = [column.type for column in columns if column is not None]
    return next((each for each in types if not pa.types.is_dictionary(each)), types[0])


def _column(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    return table.column(name) if name in table.column_names else None


def _offsets(input_rows: Sequence[int]) -> Positions:
    counts = np.asarray(input_rows, dtype=np.int64)
    return np.asarray(np.cumsum(counts) - counts, dtype=np.int64)


def _runs(positions: Positions, input_rows: Sequence[int], series: Mask) -> Runs:
    """A run ends where the next row is not the next row of the same input, or where `series` says that one begins."""
    if len(positions) == 0:
        empty = np.empty(0, dtype=np.int64)
        return Runs(empty, empty, empty)
    ends = np.cumsum(np.asarray(input_rows, dtype=np.int64))
    # `right`: an input without rows has the same end as the one before it and must never be chosen
    inputs = np.searchsorted(ends, positions, side="right").astype(np.int64)
    breaks = (np.diff(positions) != 1) | (np.diff(inputs) != 0) | series[1:]
    firsts = np.concatenate(([0], np.flatnonzero(breaks) + 1)).astype(np.int64)
    counts = np.diff(np.append(firsts, len(positions)))
    return Runs(inputs[firsts], positions[firsts] - _offsets(input_rows)[inputs[firsts]], counts)
