"""The columns of a sorted merge, a bounded piece of the output at a time (design page 04, "Kernel", step 2).

Each input is sorted as the output is, so the next rows of the output are the next rows of every input: all are read
forwards, once, in small batches, and nothing is held but one piece. Within a piece the columns are taken one by one.
Decision 0066.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa

from storage_core.compaction.kernel import Positions, Runs, take_column
from storage_core.errors import SEE_CORRUPT, Corrupt
from storage_core.rows import fingerprint
from storage_core.rows.fingerprint import RowFingerprint
from storage_core.split.encodings import Encodings, by_dictionary
from storage_core.split.read import BATCH_ROWS, OpenSplit

PIECE_BYTES = 64 * 2**20
"""About what the rows of a piece take in memory. While it is made there are three: read, put together, in order."""

MOST_ROWS = 2**20
_LEAST_ROWS = BATCH_ROWS
_MOST_BATCH_ROWS = 65_536
_VALUE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """The next rows of the output, and the fingerprint of the same rows as they were in the inputs."""

    rows: pa.Table
    before: RowFingerprint


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
    """Return of how many rows a piece is made so that it takes about `piece_bytes`: 8,192 at least, 2^20 at most."""
    stored = sum(split.add.uncompressedSizeBytes or 0 for split in splits)
    written = sum(split.rows + len(split.gone) for split in splits)
    width = max(len(schema) * _VALUE_BYTES, stored // max(1, written))
    return min(MOST_ROWS, max(_LEAST_ROWS, piece_bytes // width))


def pieces(splits: Sequence[OpenSplit], runs: Runs, schema: pa.Schema, rows: int) -> Iterator[Piece]:
    """Yield the output of `schema`, as `output_schema` returns it, in pieces of `rows` rows, the last of what is left.

    In memory are three times a piece at most, and a batch of every input. Raises `Corrupt` (SS-1) naming the split for
    an input that is not sorted as the output, and for one that has not the rows that the order speaks of.
    """
    batch_rows = min(_MOST_BATCH_ROWS, max(1024, rows // max(1, len(splits))))
    inputs = [_Input(split, batch_rows) for split in splits]
    consumed = np.zeros(len(splits), np.int64)
    for part in runs.pieces(rows):
        counts = np.zeros(len(splits), np.int64)
        np.add.at(counts, part.input, part.count)
        local = Runs(part.input, part.start - consumed[part.input], part.count)
        _require_forwards(local, counts, splits)
        yield _piece([each.next(int(count)) for each, count in zip(inputs, counts, strict=True)], local, schema)
        consumed += counts
    for each in inputs:
        each.require_read()


class _Input:
    """The rows of one split from first to last, as many at a time as somebody asks for."""

    def __init__(self, split: OpenSplit, batch_rows: int) -> None:
        self._split = split
        self._batches = (rows for _, rows in split.since(0, batch_rows))
        self._ahead = pa.table({})

    def next(self, rows: int) -> pa.Table | None:
        """Return the next rows; None for no rows."""
        parts: list[pa.Table] = []
        while rows:
            while self._ahead.num_rows == 0:
                self._ahead = self._batch()
            part = self._ahead.slice(0, rows)
            self._ahead = self._ahead.slice(part.num_rows)
            parts.append(part)
            rows -= part.num_rows
        return pa.concat_tables(parts) if parts else None

    def require_read(self) -> None:
        """Raise `Corrupt` when rows are left."""
        left = self._ahead.num_rows + sum(rows.num_rows for rows in self._batches)
        if left:
            raise Corrupt(f"MC-1: {left} rows of {self._split.add.path} have no place in the output; commit nothing")

    def _batch(self) -> pa.Table:
        batch = next(self._batches, None)
        if batch is None:
            path = self._split.add.path
            raise Corrupt(f"{path}: fewer rows than its sort columns have; {SEE_CORRUPT}", key=path)
        return batch


def _require_forwards(local: Runs, counts: Positions, splits: Sequence[OpenSplit]) -> None:
    """Of an input that is sorted, the next rows of the output are its next rows."""
    astray = (local.start < 0) | (local.start + local.count > counts[local.input])
    if np.any(astray):
        path = splits[int(local.input[int(astray.argmax())])].add.path
        raise Corrupt(f"SS-1: {path} is not sorted as it says; {SEE_CORRUPT}", key=path)


def _piece(tables: Sequence[pa.Table | None], local: Runs, schema: pa.Schema) -> Piece:
    input_rows = [0 if table is None else table.num_rows for table in tables]
    before = reduce(fingerprint.combine, (fingerprint.of(table) for table in tables if table is not None))
    positions = pa.array(local.positions(input_rows))
    by_name: Mapping[str, list[pa.ChunkedArray | None]] = {
        name: [_column(table, name) for table in tables] for name in schema.names
    }
    columns = [take_column(by_name[field.name], positions, input_rows, field.type) for field in schema]
    return Piece(pa.table(columns, schema=schema), before)


def _column(table: pa.Table | None, name: str) -> pa.ChunkedArray | None:
    return table.column(name) if table is not None and name in table.column_names else None
