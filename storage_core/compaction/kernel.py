"""The order of a sorted merge: computed from the sort columns alone, held as runs (step 1).

Sort columns come with strings as dictionaries, which are ranked and never decoded. The order is held as runs of rows
that stay together, which sorted inputs make long. `compaction.streaming` takes the columns through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_core.compaction import strategies
from storage_core.compaction.strategies import Strategy
from storage_core.rows.codes import Coding, Mask
from storage_core.rows.keys import Positions, cached, pack, rises, rises_but_for_last
from storage_core.rows.order import key_coding
from storage_core.rows.sort_order import SortOrder


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
    """Return what `order_of` returns for the rows of these tables, which need the sort columns only."""

    def columns(name: str) -> list[pa.ChunkedArray | None]:
        return [table.column(name) if name in table.column_names else None for table in inputs]

    return order_of(columns, [table.num_rows for table in inputs], order, strategy)


def order_of(
    columns: Callable[[str], Sequence[pa.ChunkedArray | None]],
    input_rows: Sequence[int],
    order: SortOrder,
    strategy: Strategy = Strategy.PACKED,
) -> MergeOrder:
    """Return the order in which the rows of all inputs are sorted; rows with equal keys keep the order of the inputs.

    `columns` gives a sort column of every input, None where it lacks it, which counts as null (MC-4); it is asked for
    one at a time, and only that is held. The inputs need not be sorted: a stable sort exploits it where they are. Every
    strategy gives the same order. Without sort columns every row begins a key. Memory: about 40 bytes per row.
    """
    rows = sum(input_rows)
    sizes: list[int] = []
    coded: Iterable[Coding] = _coded(columns, input_rows, order, sizes)
    kept = [each.whole() for each in coded] if strategy is Strategy.BY_COLUMN else []
    packed = pack(kept or coded, rows)
    if not sizes:
        in_file_order = np.arange(rows, dtype=np.int64)
        begins = np.full(rows, not order.columns)
        return MergeOrder(_runs(in_file_order, input_rows, np.zeros(rows, np.bool_)), begins)
    positions = strategies.positions(packed, kept, input_rows, strategy)
    begins = rises(packed, positions)
    series = rises_but_for_last(packed, sizes, positions)
    return MergeOrder(_runs(positions, input_rows, series), begins)


def _coded(
    columns: Callable[[str], Sequence[pa.ChunkedArray | None]],
    input_rows: Sequence[int],
    order: SortOrder,
    sizes: list[int],
) -> Iterator[Coding]:
    """The codes of each sort column that any input has, and their number of values to `sizes`."""
    for each in order.columns:
        found = columns(each.name)
        if any(column is not None for column in found):
            codes = key_coding(concatenated(found, input_rows, common_type(found)), each)
            del found
            sizes.append(codes.null_code + 1)
            yield codes


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


def _offsets(input_rows: Sequence[int]) -> Positions:
    counts = np.asarray(input_rows, dtype=np.int64)
    return np.asarray(np.cumsum(counts) - counts, dtype=np.int64)


def _runs(positions: Positions, input_rows: Sequence[int], series: Mask) -> Runs:
    """A run ends where the next row is not the next row of the same input, or where `series` says that one begins."""
    if len(positions) == 0:
        empty = np.empty(0, dtype=np.int64)
        return Runs(empty, empty, empty)
    # the next row in the concatenation may be the first of the next input; inputs without rows begin at the rows' end
    begins_input = np.zeros(len(positions) + 1, np.bool_)
    begins_input[_offsets(input_rows)] = True
    breaks = series.copy()
    for rows in cached(len(positions)):
        breaks[rows] |= np.diff(positions[rows.start - 1 : rows.stop]) != 1
        breaks[rows] |= begins_input[positions[rows]]
    breaks[0] = True
    firsts = np.flatnonzero(breaks)
    counts = np.diff(np.append(firsts, len(positions)))
    # `right`: an input without rows has the same end as the one before it and must never be chosen
    ends = np.cumsum(np.asarray(input_rows, dtype=np.int64))
    inputs = np.searchsorted(ends, positions[firsts], side="right").astype(np.int64)
    return Runs(inputs, positions[firsts] - _offsets(input_rows)[inputs], counts)
