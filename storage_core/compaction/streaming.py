"""The columns of a sorted merge, a bounded piece of the output at a time (step 2).

Each input is sorted as the output is, so the next rows of the output are the next rows of every input: all are read
forwards, once, in small batches, and nothing is held but one piece. Within a piece the columns are taken one by one.
Decision 0066.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from storage_core.compaction.columns import Route, require_same_values, route, take_column
from storage_core.compaction.kernel import Runs
from storage_core.errors import Corrupt
from storage_core.rows.keys import Positions
from storage_core.split.encodings import Encodings, by_dictionary
from storage_core.split.opened import OpenSplit
from storage_core.split.row_groups import ROWS_PER_GROUP

PIECE_BYTES = 64 * 2**20
"""About what the rows of a piece take in memory at most. While it is made there are two: as read, and in order."""

_LEAST_ROWS = 1024
_BATCHES_BYTES = 64 * 2**20
_LEAST_BATCH_ROWS = 1024
_MOST_BATCH_ROWS = 16_384
_VALUE_BYTES = 16


def output_schema(splits: Sequence[OpenSplit], schema: pa.Schema, encodings: Encodings) -> pa.Schema:
    """Return `schema` with the columns as dictionaries that every input has as one and the output is to have as one."""
    fields = []
    for field in schema:
        having = [split for split in splits if field.name in split.schema.names]
        coded = by_dictionary(encodings, field.name) and all(field.name in split.dictionaries() for split in having)
        type_ = pa.dictionary(pa.int32(), field.type) if coded else field.type
        fields.append(pa.field(field.name, type_, field.nullable))
    return pa.schema(fields)


def piece_rows(splits: Sequence[OpenSplit], schema: pa.Schema, piece_bytes: int = PIECE_BYTES) -> int:
    """Return of how many rows a piece is made: a row group, or where that takes more than `piece_bytes`, part of one.

    So small a piece stays in the caches while it is made, and a row group that is one needs no putting together.
    """
    stored = sum(split.add.uncompressedSizeBytes or 0 for split in splits)
    written = sum(split.rows + len(split.deleted) for split in splits)
    width = max(len(schema) * _VALUE_BYTES, stored // max(1, written))
    parts = -(-ROWS_PER_GROUP * width // piece_bytes)
    return max(_LEAST_ROWS, -(-ROWS_PER_GROUP // parts))


def pieces(splits: Sequence[OpenSplit], runs: Runs, schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    """Yield the output of `schema`, as `output_schema` returns it, in pieces of `rows` rows, the last of what is left.

    Every row of the inputs is in the output once, and every value with its row (MC-1, MC-2): checked before a piece is
    handed out. In memory are two pieces, and a batch of every input. Raises `Corrupt`: SS-1 naming the split for an
    input that is not sorted as the output; MC-1 or MC-2 for an output that is not what was read; and for an input that
    has not the rows that the order speaks of.
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
        del parts  # each column of the inputs goes when that of the output is made
        yield pa.table([_column(by_column.popleft(), way, field) for field in schema], schema=schema)
        consumed += counts
    for each in inputs:
        each.require_read()


Columns = Sequence[pa.Array]
"""Some rows of one input: an array per column of the output, in its order; of a column that the input lacks nulls."""


class _Input:
    """The rows of one split from first to last, as many at a time as somebody asks for."""

    def __init__(self, split: OpenSplit, schema: pa.Schema, batch_rows: int) -> None:
        self._split, self._schema = split, schema
        self._batches = (batch for _, rows in split.since(0, batch_rows) for batch in rows.to_batches())
        self._ahead: Columns = ()
        self._rows = 0

    def next(self, rows: int) -> list[Columns]:
        """Return the next rows, in parts as they come."""
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
        """Raise `Corrupt` when rows are left."""
        left = self._rows + sum(batch.num_rows for batch in self._batches)
        if left:
            raise Corrupt(f"MC-1: {left} rows of {self._split.add.path} have no place in the output")

    def _batch(self) -> tuple[Columns, int]:
        batch = next(self._batches, None)
        if batch is None:
            path = self._split.add.path
            raise Corrupt(f"{path}: fewer rows than its sort columns have", key=path)
        found = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        rows = batch.num_rows
        columns = [found[each.name] if each.name in found else pa.nulls(rows, each.type) for each in self._schema]
        return columns, rows


def _require_forwards(local: Runs, counts: Positions, splits: Sequence[OpenSplit]) -> None:
    """Of an input that is sorted, the next rows of the output are its next rows."""
    astray = (local.start < 0) | (local.start + local.count > counts[local.input])
    if np.any(astray):
        path = splits[int(local.input[int(astray.argmax())])].add.path
        raise Corrupt(f"SS-1: {path} is not sorted as it says", key=path)


def _column(inputs: Sequence[pa.Array], way: Route, field: pa.Field) -> pa.Array:
    column = take_column(inputs, way, field.type)
    require_same_values(field.name, inputs, way, column)
    return column
