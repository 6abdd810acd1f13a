"""The answer of a query: held when it is small, a stream when it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Self

import pyarrow as pa

from storage_core.engine.tree import shown
from storage_core.errors import InvalidInput, Unavailable
from storage_core.read.arrow_rows import ArrowRows
from storage_core.read.conversions import BATCH_ROWS, parts, reader_of, require_rows

AT_ONCE_BYTES = 32 * 2**20
"""So much of an answer is read before `sql` returns, and with it what is wrong with most queries."""


class SqlResult(ArrowRows):
    """The rows that a query answers, which may be used as the Arrow table that they are.

    An answer of more than `AT_ONCE_BYTES` stays with the process that makes it until it is used: `to_reader` streams it
    once, in bounded memory; all else holds it whole. Closing it, and forgetting it, ends that process. Not for several
    threads at a time. While the rest is read, the errors of `Table.sql` are raised.
    """

    def __init__(
        self,
        schema: pa.Schema,
        batches: Iterator[pa.RecordBatch],
        *,
        on_stream: Callable[[], None],
        memory_bytes: int,
        query: str,
    ) -> None:
        """Read what is held at once. `on_stream` is called before the caller may take their time between batches."""
        self.schema = schema
        self._held: list[pa.RecordBatch] | None = []
        self._rest: Iterator[pa.RecordBatch] | None = batches
        self._memory_bytes = memory_bytes
        self._query = query
        self._hold(min(AT_ONCE_BYTES, memory_bytes))
        if self._rest is not None:
            on_stream()

    def to_reader(self, batch_rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """Return the rows as a stream of record batches of at most `batch_rows` rows.

        A larger answer than is held is streamed once: after that, `InvalidInput` is raised for all but its schema.
        """
        require_rows(batch_rows)
        rest, held = self._rest, self._batches
        if rest is not None:
            self._rest = self._held = None
        return reader_of(self.schema, parts(chain(held, rest or ()), batch_rows))

    def to_arrow(self) -> pa.Table:
        """Return all rows as one Arrow table. Raises `Unavailable` when they are more than `memory_bytes`."""
        self._hold(self._memory_bytes)
        if self._rest is not None:
            self.close()
            found = f"its answer is larger than `memory_bytes` = {self._memory_bytes}"
            advice = "take it as a stream (fetch_batches), ask for less, or raise it (--memory-mib)"
            raise Unavailable(f"{shown(self._query)}: {found}; {advice}", query=self._query)
        return pa.Table.from_batches(self._batches, self.schema)

    def close(self) -> None:
        """End the process that makes the rest of the rows, which are not to be had any more then."""
        if self._rest is not None:
            rest, self._rest, self._held = self._rest, None, None
            rest.close()  # type: ignore[attr-defined]  # a generator

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Show the rows that are held."""
        more = "" if self._rest is None else "\n… and more, which are not read yet"
        return f"{pa.Table.from_batches(self._held or [], self.schema)!r}{more}"

    @property
    def _batches(self) -> list[pa.RecordBatch]:
        if self._held is None:
            raise InvalidInput(f"{shown(self._query)}: its rows were taken as a stream or closed; run it again")
        return self._held

    def _hold(self, most: int) -> None:
        """Read rows until they are more than so many bytes, or all."""
        if self._rest is None:
            return
        held = sum(batch.nbytes for batch in self._batches)
        while held <= most:
            try:
                batch = next(self._rest, None)
            except BaseException:
                self.close()  # what is held is not the answer
                raise
            if batch is None:
                self._rest = None
                return
            self._batches.append(batch)
            held += batch.nbytes
