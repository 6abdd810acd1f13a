"""Sorted merge in two steps (docs/architecture/compaction.md).

Step 1 computes the order of the rows from the sort columns. Rows of one input that stay together form one run. Step 2
reads all inputs once, from start to end, and writes all columns in pieces of `PIECE_BYTES`. Each moved value is
compared with its source (MC-1, MC-2, decision 0016).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import Corrupt
from storage_core.data.rows import statistics
from storage_core.data.rows.codes import Coding, Mask, is_blob_or_text
from storage_core.data.rows.keys import Positions, cached, pack, rises, rises_but_for_last, sorted_order
from storage_core.data.rows.sort_order import SortOrder, key_coding
from storage_core.data.rows.statistics import used_values
from storage_core.data.rows.vectors import is_vector, matrix
from storage_core.split.encode import Encodings, by_dictionary
from storage_core.split.metadata import ROWS_PER_GROUP
from storage_core.split.read import OpenSplit


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """A merge order as runs: run i has `count[i]` rows of the input `input[i]`, starting at row `start[i]`.

    `input`, `start` and `count` are int64 arrays.

    All rows of a run have the same value in every sort column except the last sort column. For example, a run contains
    rows of a single time series.
    """

    input: Positions
    start: Positions
    count: Positions

    def __len__(self) -> int:
        """Return the number of runs. Inputs that are better sorted give fewer runs."""
        return len(self.input)

    @property
    def rows(self) -> int:
        """The number of rows of the output."""
        return int(self.count.sum())

    def positions(self, input_rows: Sequence[int]) -> Positions:
        """Return, for each output row, its position in the concatenated inputs.

        `input_rows` are the row counts of the inputs.
        """
        first = _offsets(input_rows)[self.input] + self.start
        run_starts = np.cumsum(self.count) - self.count
        shifts: Positions = np.repeat(first - run_starts, self.count)
        return np.arange(self.rows, dtype=np.int64) + shifts

    def pieces(self, rows: int) -> list[Runs]:
        """Return the merge order in consecutive pieces of `rows` output rows each. The last piece may be shorter."""
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
    """The order of the output rows as `Runs`, and a mask of the rows whose key differs from the previous row.

    A split may begin at each row that the mask marks.
    """

    runs: Runs
    begins: Mask

    def next_key(self, row: int) -> int:
        """Return the first output row at or after `row` that begins a key.

        Return the number of rows if there is no such row.
        """
        ahead = self.begins[row:]
        nearest = int(ahead.argmax()) if len(ahead) else 0
        return row + nearest if len(ahead) and ahead[nearest] else len(self.begins)


def merge_order(inputs: Sequence[pa.Table], order: SortOrder) -> MergeOrder:
    """Return the result of `order_of` for the rows of these tables. The function reads only the sort columns."""

    def columns(name: str) -> list[pa.ChunkedArray | None]:
        return [table.column(name) if name in table.column_names else None for table in inputs]

    return order_of(columns, [table.num_rows for table in inputs], order)


def order_of(
    columns: Callable[[str], Sequence[pa.ChunkedArray | None]],
    input_rows: Sequence[int],
    order: SortOrder,
) -> MergeOrder:
    """Return the sort order of the rows of all inputs. Rows with equal keys keep the order of the inputs.

    The inputs need not be sorted. The stable sort takes less time for sorted inputs than for unsorted inputs (decision
    0016). Without sort columns, each row counts as a new key. Memory is about 40 bytes per row.

    Args:
        columns: a function that returns a sort column of every input, or None for an input without this column. A
            missing column counts as null (MC-4). The function is called for one column at a time, and only this column
            is in memory.
    """
    rows = sum(input_rows)
    sizes: list[int] = []
    packed = pack(_coded(columns, input_rows, order, sizes), rows)
    if not sizes:
        in_file_order = np.arange(rows, dtype=np.int64)
        begins = np.full(rows, not order.columns)
        return MergeOrder(_runs(in_file_order, input_rows, np.zeros(rows, np.bool_)), begins)
    positions = sorted_order(packed)
    begins = rises(packed, positions)
    series = rises_but_for_last(packed, sizes, positions)
    return MergeOrder(_runs(positions, input_rows, series), begins)


def _coded(
    columns: Callable[[str], Sequence[pa.ChunkedArray | None]],
    input_rows: Sequence[int],
    order: SortOrder,
    sizes: list[int],
) -> Iterator[Coding]:
    """Yield the codes of each sort column that any input has. Append the number of values of each column to `sizes`."""
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
    """Return the concatenated column of all inputs as `type_`.

    For an input without the column, the result contains nulls.

    Dictionary columns get one common dictionary. If `type_` is not a dictionary type, dictionary columns become plain
    values.
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
    """Return the type of the columns. At least one column is not None.

    The type is a dictionary type if all columns are dictionaries.
    """
    types = [column.type for column in columns if column is not None]
    return next((each for each in types if not pa.types.is_dictionary(each)), types[0])


def _offsets(input_rows: Sequence[int]) -> Positions:
    counts = np.asarray(input_rows, dtype=np.int64)
    return np.asarray(np.cumsum(counts) - counts, dtype=np.int64)


def _runs(positions: Positions, input_rows: Sequence[int], series: Mask) -> Runs:
    """Return the runs.

    A run ends where the next output row comes from another input, or is not the next row of the same input. A run also
    ends where a new series begins in `series`.
    """
    if len(positions) == 0:
        empty = np.empty(0, dtype=np.int64)
        return Runs(empty, empty, empty)
    # The next row in the concatenation may be the first row of the next input. An empty last input begins after the
    # last row.
    begins_input = np.zeros(len(positions) + 1, np.bool_)
    begins_input[_offsets(input_rows)] = True
    breaks = series.copy()
    for rows in cached(len(positions)):
        breaks[rows] |= np.diff(positions[rows.start - 1 : rows.stop]) != 1
        breaks[rows] |= begins_input[positions[rows]]
    breaks[0] = True
    firsts = np.flatnonzero(breaks)
    counts = np.diff(np.append(firsts, len(positions)))
    # In `ends`, an empty input has the same value as the previous input. With `side="right"`, `searchsorted` never
    # selects an empty input.
    ends = np.cumsum(np.asarray(input_rows, dtype=np.int64))
    inputs = np.searchsorted(ends, positions[firsts], side="right").astype(np.int64)
    return Runs(inputs, positions[firsts] - _offsets(input_rows)[inputs], counts)


Words = npt.NDArray[np.generic]

_NULL = -1
_ABSENT = -2
_WORD_BITS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The mapping of rows from inputs to output: output row i is row `positions[i]` of the concatenated inputs.

    `places` is the inverse mapping: the output row of each input row. Each row has exactly one place.
    """

    positions: pa.Array
    places: Positions


def route(positions: Positions, rows: int) -> Route:
    """Return the `Route` of a merge with `rows` rows. Raise `Corrupt` (MC-1) unless each row has exactly one place."""
    places = np.full(rows, _NULL, np.int64)
    inside = bool(np.all((positions >= 0) & (positions < rows)))
    if inside:
        places[positions] = np.arange(len(positions), dtype=np.int64)
    if not inside or len(positions) != rows or (rows and int(places.min()) < 0):
        raise Corrupt(f"MC-1: {len(positions)} positions are not a permutation of {rows} rows. Nothing was committed")
    return Route(pa.array(positions.astype(np.uint32) if rows < 1 << 32 else positions), places)


def take_column(inputs: Sequence[pa.Array], way: Route, type_: pa.DataType) -> pa.Array:
    """Return an output column as `type_`. The concatenated rows of the inputs may have chunks of any size.

    Dictionary columns get one dictionary without unused values. If `type_` is not a dictionary type, dictionary columns
    become plain values.
    """
    chunks = [chunk if chunk.type == type_ else chunk.cast(type_) for chunk in inputs]
    whole = pa.concat_arrays(chunks) if chunks else pa.array([], type_)
    taken = pc.take(whole, way.positions, boundscheck=False)  # `route` has checked the positions
    return _without_unused(taken) if pa.types.is_dictionary(type_) else taken


def require_same_values(name: str, inputs: Sequence[pa.Array], way: Route, taken: pa.Array) -> None:
    """Raise `Corrupt` unless each output row has the values of its input row (MC-1, MC-2)."""
    rows = len(way.places)
    if len(taken) != rows:
        raise Corrupt(f"MC-1: the merge read {rows} rows and wrote {len(taken)} of {name!r}. Nothing was committed")
    if not same_values(inputs, way, taken):
        raise Corrupt(f"MC-2: a value of {name!r} is in the wrong row of the output. Nothing was committed")


def same_values(inputs: Sequence[pa.Array], way: Route, taken: pa.Array) -> bool:
    """Return whether `taken` contains the values of all inputs in the order that `way` defines.

    Numbers, embeddings and times are compared bit by bit. Strings and dictionaries are compared by value. Other nested
    values are compared by a 64-bit hash.
    """
    if not len(taken) == len(way.places) == sum(map(len, inputs)):
        return False
    if pa.types.is_dictionary(taken.type):
        return not inputs or np.array_equal(_indices(taken).take(way.places), _places_in(taken.dictionary, inputs))
    plain = [chunk if chunk.type == taken.type else chunk.cast(taken.type) for chunk in inputs]
    whole = pa.concat_arrays(plain) if plain else taken
    if is_blob_or_text(taken.type):  # restoring the input order is faster than hashing strings
        return bool(taken.take(pa.array(way.places)).equals(whole))
    if whole.null_count != taken.null_count:
        return False
    if whole.null_count and not np.array_equal(_null_mask(taken).take(way.places), _null_mask(whole)):
        return False
    return np.array_equal(_cells(taken).take(way.places, axis=0), _cells(whole))


def _places_in(dictionary: pa.Array, columns: Sequence[pa.DictionaryArray]) -> Words:
    """Return the position in `dictionary` of each value of the concatenated columns.

    The position -1 means null, and -2 means a value that `dictionary` does not contain.
    """
    distinct: dict[tuple[int, int, int], tuple[pa.Array, int]] = {}
    firsts, start = [], 0
    for column in columns:
        own = column.dictionary
        # The key contains the address of the dictionary, because the chunks of a row group share a dictionary.
        key = (_address(own), own.offset, len(own))
        if key not in distinct:
            distinct[key] = own, start
            start += len(own)
        firsts.append(distinct[key][1])
    stacked = pa.concat_arrays([own for own, _ in distinct.values()]) if distinct else dictionary.slice(0, 0)
    lookup = pc.index_in(stacked, value_set=dictionary).fill_null(_ABSENT).to_numpy()
    # done for all columns at once, because there are many columns with few rows each
    indices = pa.concat_arrays([column.indices for column in columns])
    shifts = np.repeat(firsts, [len(column) for column in columns])
    if not indices.null_count:
        return np.asarray(lookup.take(shifts + indices.to_numpy()))
    places = np.full(len(indices), _NULL, np.int32)
    present = np.flatnonzero(~_null_mask(indices))
    places[present] = lookup.take((shifts + indices.fill_null(0).to_numpy())[present])
    return places


def _address(array: pa.Array) -> int:
    buffer = array.buffers()[1]
    return 0 if buffer is None else int(buffer.address)


def _cells(column: pa.Array) -> Words:
    """Return one word per value, or several per embedding. Null gives zero. Values without a fixed width are hashed."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if is_vector(column.type):
        words: Words = matrix(column).view(np.uint32)
        return np.where(_null_mask(column)[:, None], np.uint32(0), words) if column.null_count else words
    width = _bit_width(column.type)
    if width is None:
        return statistics.cells(column)
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(len(column), np.uint8)
    narrow = width <= _WORD_BITS
    flat = np.frombuffer(buffer, np.dtype(f"u{width // 8}")) if narrow else np.frombuffer(buffer, np.uint64)
    cells: Words = flat if narrow else flat.reshape(-1, width // _WORD_BITS)
    cells = cells[column.offset : column.offset + len(column)]
    if column.null_count:
        cells = cells.copy()
        cells[_null_mask(column)] = 0
    return cells


def _bit_width(type_: pa.DataType) -> int | None:
    """Return the number of bits of a value if the type uses whole bytes. Return None for other types."""
    kinds = pa.types
    if kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_temporal(type_) or kinds.is_decimal(type_):
        return int(type_.bit_width)
    return None


def _indices(column: pa.DictionaryArray) -> Words:
    """Return the dictionary position of each value, -1 for null."""
    indices = column.indices.fill_null(_NULL) if column.indices.null_count else column.indices
    return np.asarray(indices.to_numpy())


def _null_mask(column: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return mask


def _without_unused(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the same values with a dictionary of used values only.

    A Parquet writer stores the whole dictionary that it is given.
    """
    used = used_values(column)
    if used.all():
        return column
    renumbered = pa.array(np.cumsum(used, dtype=np.int32) - np.int32(1))
    return pa.DictionaryArray.from_arrays(pc.take(renumbered, column.indices), column.dictionary.filter(pa.array(used)))


PIECE_BYTES = 64 * 2**20
"""Approximate maximum memory of the rows of a piece, in bytes.

While a piece is built, its rows are in memory twice: in input order and in output order.
"""

_LEAST_ROWS = 1024
_BATCHES_BYTES = 64 * 2**20
_LEAST_BATCH_ROWS = 1024
_MOST_BATCH_ROWS = 16_384
_VALUE_BYTES = 16


def output_schema(splits: Sequence[OpenSplit], schema: pa.Schema, encodings: Encodings) -> pa.Schema:
    """Return `schema`, with dictionary types for some columns.

    A column is a dictionary if every input has a dictionary for it and the output encoding is a dictionary.
    """
    fields = []
    for field in schema:
        having = [split for split in splits if field.name in split.schema.names]
        coded = by_dictionary(encodings, field.name) and all(field.name in split.dictionaries() for split in having)
        type_ = pa.dictionary(pa.int32(), field.type) if coded else field.type
        fields.append(pa.field(field.name, type_, field.nullable))
    return pa.schema(fields)


def piece_rows(splits: Sequence[OpenSplit], schema: pa.Schema, piece_bytes: int = PIECE_BYTES) -> int:
    """Return the number of rows of a piece.

    A piece is a row group, or a part of it if the group takes more than `piece_bytes`.

    A piece of this size stays in the CPU caches while it is built. A piece that is a whole row group need not be
    concatenated with other pieces.
    """
    stored = sum(split.add.uncompressedSizeBytes or 0 for split in splits)
    written = sum(split.rows + len(split.deleted) for split in splits)
    width = max(len(schema) * _VALUE_BYTES, stored // max(1, written))
    parts = -(-ROWS_PER_GROUP * width // piece_bytes)
    return max(_LEAST_ROWS, -(-ROWS_PER_GROUP // parts))


def pieces(splits: Sequence[OpenSplit], runs: Runs, schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    """Yield the output in pieces of `rows` rows. The last piece may be shorter.

    Every row of the inputs is in the output once, with all of its values (MC-1, MC-2). The function checks the values
    of a piece before it yields the piece. At any time, two output pieces and one batch of every input are in memory.

    Args:
        schema: the result of `output_schema`.

    Raises:
        Corrupt: an input is not sorted like the output (SS-1, with the split), the output differs from the input (MC-1
            or MC-2), or an input lacks rows of the order.
    """
    width = max(1, len(splits)) * max(1, len(schema)) * _VALUE_BYTES
    batch_rows = min(_MOST_BATCH_ROWS, max(_LEAST_BATCH_ROWS, _BATCHES_BYTES // width))
    inputs = [_Input(split, schema, batch_rows) for split in splits]
    consumed = np.zeros(len(splits), np.int64)
    for part in runs.pieces(rows):
        counts = np.zeros(len(splits), np.int64)
        np.add.at(counts, part.input, part.count)
        local = Runs(part.input, part.start - consumed[part.input], part.count)
        _require_forwards(local, counts, splits)
        way = route(local.positions(counts.tolist()), int(counts.sum()))
        parts = [part for each, count in zip(inputs, counts, strict=True) for part in each.next(int(count))]
        by_column = deque(zip(*parts, strict=True))
        del parts  # each input column is released when its output column is built
        yield pa.table([_column(by_column.popleft(), way, field) for field in schema], schema=schema)
        consumed += counts
    for each in inputs:
        each.require_read()


Columns = Sequence[pa.Array]
"""Some rows of one input: one array per output column. A column that the input lacks has nulls."""


class _Input:
    """Reads the rows of one split from the first to the last, in steps of any size."""

    def __init__(self, split: OpenSplit, schema: pa.Schema, batch_rows: int) -> None:
        self._split, self._schema = split, schema
        self._batches = (batch for _, rows in split.since(0, batch_rows) for batch in rows.to_batches())
        self._ahead: Columns = ()
        self._rows = 0

    def next(self, rows: int) -> list[Columns]:
        """Return the next rows, in one or more parts."""
        parts: list[Columns] = []
        while rows:
            while self._rows == 0:
                self._ahead, self._rows = self._batch()
            count = min(rows, self._rows)
            parts.append([column.slice(0, count) for column in self._ahead])
            self._ahead = [column.slice(count) for column in self._ahead]
            self._rows -= count
            rows -= count
        return parts

    def require_read(self) -> None:
        """Raise `Corrupt` if some rows were not read."""
        left = self._rows + sum(batch.num_rows for batch in self._batches)
        if left:
            raise Corrupt(f"MC-1: {left} rows of {self._split.add.path} are missing in the output")

    def _batch(self) -> tuple[Columns, int]:
        batch = next(self._batches, None)
        if batch is None:
            path = self._split.add.path
            raise Corrupt(f"{path}: the split has fewer rows than its sort columns", key=path)
        found = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        rows = batch.num_rows
        columns = [found[each.name] if each.name in found else pa.nulls(rows, each.type) for each in self._schema]
        return columns, rows


def _require_forwards(local: Runs, counts: Positions, splits: Sequence[OpenSplit]) -> None:
    """Raise `Corrupt` (SS-1) if the output would change the order of the rows of an input.

    Sorted inputs never cause this error.
    """
    astray = (local.start < 0) | (local.start + local.count > counts[local.input])
    if np.any(astray):
        path = splits[int(local.input[int(astray.argmax())])].add.path
        raise Corrupt(f"SS-1: {path} is not sorted by its sort schema", key=path)


def _column(inputs: Sequence[pa.Array], way: Route, field: pa.Field) -> pa.Array:
    column = take_column(inputs, way, field.type)
    require_same_values(field.name, inputs, way, column)
    return column
