"""Sorted rows that pass in pieces, as splits of about the target size (step 3)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from storage_core.ids import Ids
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.split.encode import encoded_bytes_per_row
from storage_core.split.encodings import Encodings, choose
from storage_core.split.writer import SplitHead, SplitWriter

IN_MEMORY_BYTES: Final = 32 * 2**20
"""What encoded bytes may wait in memory. On disk they cost a tenth of a second per 100 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is known of the rows before they pass.

    `rows` is how many there are, `most_bytes` about what they take at most, `may_hold_nan` the columns that may hold
    NaN. `next_key` maps a row, counted from 0 over all, to the first from there on whose key is not that of the row
    before it, or to `rows`. `encodings` None: they are chosen from the first piece; empty: they are Parquet's own.
    """

    rows: int
    most_bytes: int
    may_hold_nan: Collection[str]
    next_key: Callable[[int], int]
    encodings: Encodings | None = None


class RollingWriter:
    """Sorted rows that pass in pieces, as splits of about the target size, cut only where the key changes.

    So the row keys of the splits do not overlap. A run of equal keys is never cut, whatever its size. The number of
    splits is rounded, not rounded up: with more than one, each has at least about three quarters of the target, and
    the planner does not take it for a small split that should be merged again. Where to cut is found anew after each
    piece, by what the rows so far really took. One PUT per split; when one fails the earlier ones are orphans.
    """

    def __init__(self, store: ObjectStore, head: SplitHead, expected: Expected, ids: Ids) -> None:
        self._store, self._head, self._expected, self._ids = store, head, expected, ids
        self._encodings: Encodings = {} if expected.encodings is None else expected.encodings
        self._bytes_per_row = 0.0
        self._writer: SplitWriter | None = None
        self._first = 0
        self._done = 0
        self._closed = (0, 0)
        self._adds: list[Add] = []

    def add(self, rows: pa.Table) -> None:
        """Write the next rows; raises what `write_split` raises."""
        if self._done == 0:
            self._prepare(rows)
        while rows.num_rows:
            cut = self._cut()
            piece = rows.slice(0, cut - self._done)
            self._write(piece)
            rows = rows.slice(piece.num_rows)
            if self._done == cut:
                self._close()

    def finish(self) -> list[Add]:
        """Return the actions that add the splits, in the order of the rows; no rows, no splits."""
        self._close()
        return self._adds

    def _prepare(self, rows: pa.Table) -> None:
        expected, context = self._expected, self._head.context
        if expected.encodings is None:
            self._encodings = choose(rows, expected.rows, context.codec)
        if expected.most_bytes > context.target_bytes:
            self._bytes_per_row = encoded_bytes_per_row(rows, context.order, self._encodings, context.codec)

    def _write(self, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        if self._writer is None:
            self._first = self._done
            self._writer = SplitWriter(
                self._head,
                self._ids.uuid(),
                rows.schema,
                self._encodings,
                rows=self._expected.rows - self._done,
                may_hold_nan=self._expected.may_hold_nan,
                on_disk=self._expected.most_bytes > IN_MEMORY_BYTES,
            )
        self._writer.add(rows)
        self._done += rows.num_rows
        self._measure(*self._writer.written)

    def _close(self) -> None:
        if self._writer is not None:
            add = self._writer.finish(self._store)
            self._measure(self._writer.rows, add.size)
            self._closed = (self._closed[0] + self._writer.rows, self._closed[1] + add.size)
            self._adds.append(add)
            self._writer = None

    def _measure(self, rows: int, size: int) -> None:
        """What the rows so far really took tells more than the sample of the first."""
        if self._bytes_per_row and rows:
            self._bytes_per_row = (self._closed[1] + size) / (self._closed[0] + rows)

    def _cut(self) -> int:
        """The row before which the split that is being written ends, as far as one can tell now."""
        rows, written = (0, 0) if self._writer is None else self._writer.written
        first = self._done if self._writer is None else self._first
        total = written + (self._expected.rows - first - rows) * self._bytes_per_row
        splits = round(total / self._head.context.target_bytes)
        if splits <= 1:
            return self._expected.rows
        wanted = first + rows + int(max(0.0, total / splits - written) / self._bytes_per_row)
        return self._expected.next_key(max(wanted, first + 1, self._done))
