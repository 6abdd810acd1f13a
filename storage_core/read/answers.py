"""The forms of a result: rows, Arrow tables, data frames and streams.

`Conversions` is the base of everything that can be converted. `ArrowRows` adds all attributes of an Arrow table. A
result can then be used as an Arrow table. `SqlResult` is the result of a query. A small result is in memory, and a
larger result is a stream.
"""

from __future__ import annotations

import atexit
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from storage_core.base.errors import PIPELINE, POLARS, InvalidInput, Unavailable, needs
from storage_core.base.text import quoted
from storage_core.engine.session import session
from storage_core.engine.statement import shown

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl


BATCH_ROWS = 8_192
"""The default number of rows of a batch.

The number is small because rows may be wide, and a whole batch is in memory.
"""


def require_rows(batch_rows: object) -> None:
    """Raise `InvalidInput` unless `batch_rows` is a positive number of rows."""
    if not isinstance(batch_rows, int) or batch_rows < 1:
        raise InvalidInput(f"a batch has at least one row, found batch_rows={quoted(batch_rows)}. Give 1 or more")


def parts(batches: Iterable[pa.RecordBatch], most: int) -> Generator[pa.RecordBatch]:
    """Yield the rows in batches of at most `most` rows."""
    for batch in batches:
        for first in range(0, batch.num_rows, most):
            yield batch.slice(first, most)


@contextmanager
def within_calendar_of_python(rows: pa.Table) -> Iterator[None]:
    """Raise `InvalidInput` if the block fails because of a date or time that Python cannot represent.

    The error contains the name of the first column with a value that Python cannot represent.
    """
    try:
        yield
    except (OverflowError, ValueError) as error:
        from storage_core.data.rows.times import BEYOND, first_beyond

        for name, column in zip(rows.column_names, rows.columns, strict=True):
            if (text := first_beyond(column)) is not None:
                raise InvalidInput(
                    f"column {quoted(name)}: {text} is {BEYOND}. Cast the column in the query, for example to VARCHAR.",
                    column=name,
                ) from error
        raise


_READING: Final[weakref.WeakSet[Generator[pa.RecordBatch]]] = weakref.WeakSet()


def reader_of(schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return the batches as a stream. The stream ends when it is garbage-collected or the program ends.

    The method `close` of the stream has no effect, because Arrow does not close a generator.
    """
    _READING.add(batches)
    return pa.RecordBatchReader.from_batches(schema, batches)


@atexit.register
def _end_all() -> None:
    """Close all streams while their libraries are still loaded.

    Otherwise some objects exist longer than DuckDB, and DuckDB prints long messages about these objects.
    """
    for batches in [*_READING]:
        with suppress(ValueError):  # another thread is still reading at the end of the program
            batches.close()


class Conversions(ABC):
    """Rows that can be converted to a stream or to a whole table."""

    __slots__ = ()

    @abstractmethod
    def to_reader(self, batch_rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """Return the rows as a stream of record batches of at most `batch_rows` rows, in bounded memory.

        A stream may read ahead and hold memory for that. It releases the memory when it is garbage-collected (`del`),
        not when `close` is called.
        """

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """Return all rows as one Arrow table."""

    def fetch_batches(self, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the rows in record batches of at most `batch_rows` rows (see `to_reader`)."""
        yield from self.to_reader(batch_rows)

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas data frame.

        Raises:
            Unavailable: pandas is not installed.
            InvalidInput: Python cannot represent a date or time of the rows.
        """
        with needs(PIPELINE, "to_pandas"):
            import pandas as pd  # noqa: F401  # before the rows are read
        rows = self.to_arrow()
        with within_calendar_of_python(rows):
            return rows.to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a Polars data frame. Raises `Unavailable` if Polars is not installed."""
        with needs(POLARS, "to_polars"):
            import polars as pl
        return pl.DataFrame(self.to_arrow())

    def to_duckdb(self) -> duckdb.DuckDBPyRelation:
        """Read the rows now, and return them as a DuckDB relation.

        The DuckDB session of the relation cannot open any file. If a session may read a split, SQL text in the session
        could also write the split.
        """
        return session().from_arrow(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as a stream for any library that accepts Arrow data: see `to_reader`."""
        return self.to_reader().__arrow_c_stream__(requested_schema)


class ArrowRows(Conversions):
    """Rows with all attributes of their Arrow table, such as `num_rows`, `column` and `to_pylist`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the Arrow table that contains all rows."""
        if name.startswith("_") or not hasattr(pa.Table, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self.to_arrow(), name)

    def to_pylist(self, **options: Any) -> list[dict[str, Any]]:
        """Return the rows as dictionaries. Raises `InvalidInput` for a date or time that Python cannot represent."""
        rows = self.to_arrow()
        with within_calendar_of_python(rows):
            return [*rows.to_pylist(**options)]

    def to_pydict(self, **options: Any) -> dict[str, list[Any]]:
        """Return the columns as lists. Raises `InvalidInput` for a date or time that Python cannot represent."""
        rows = self.to_arrow()
        with within_calendar_of_python(rows):
            return {**rows.to_pydict(**options)}

    def __getitem__(self, key: object) -> Any:
        """Return a column or rows, as an Arrow table does."""
        return self.to_arrow()[key]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.to_arrow())

    def __eq__(self, other: object) -> bool:
        """Return whether the other object has the same rows and the same schema."""
        rows = other.to_arrow() if isinstance(other, ArrowRows) else other
        return isinstance(rows, pa.Table) and bool(self.to_arrow().equals(rows))

    def equals(self, other: object) -> bool:
        """Return whether the other object has the same rows and the same schema."""
        return self == other

    __hash__ = None  # type: ignore[assignment]  # as of an Arrow table


class HeldRows(ArrowRows):
    """The rows of a search result, in memory."""

    __slots__ = ("_rows",)

    def __init__(self, rows: pa.Table) -> None:
        """Keep these rows."""
        self._rows = rows

    def to_reader(self, batch_rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """Return the rows as a stream of record batches of at most `batch_rows` rows."""
        require_rows(batch_rows)
        return self._rows.to_reader(batch_rows)

    def to_arrow(self) -> pa.Table:
        """Return all rows as one Arrow table."""
        return self._rows

    def __repr__(self) -> str:
        """Return the text of the rows."""
        return repr(self._rows)


AT_ONCE_BYTES = 32 * 2**20
"""The number of bytes of a result that `sql` reads before it returns.

Most query errors occur while these bytes are read.
"""


class SqlResult(ArrowRows):
    """The rows of a query result. The object can be used as an Arrow table.

    If a result has more than `AT_ONCE_BYTES`, the computing process keeps the remaining rows. The process keeps these
    rows until the caller reads them. `to_reader` streams the result once, in bounded memory. All methods except
    `to_reader` hold the whole result in memory. The computing process ends when the result is closed or
    garbage-collected.

    If a method reads the remaining rows, it raises the errors of `Table.sql`. Only one thread at a time may use a
    result.
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
        """Read the first part of the result.

        `on_stream` is called before a possibly long wait between batches.
        """
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

        Raises:
            InvalidInput: The result was streamed before. A result that is only partly in memory can be streamed once.
                Afterwards only its schema is available.
        """
        require_rows(batch_rows)
        rest, held = self._rest, self._batches
        if rest is not None:
            self._rest = self._held = None
        return reader_of(self.schema, parts(chain(held, rest or ()), batch_rows))

    def to_arrow(self) -> pa.Table:
        """Return all rows as one Arrow table. Raises `Unavailable` if the rows are larger than `memory_bytes`."""
        self._hold(self._memory_bytes)
        if self._rest is not None:
            self.close()
            found = f"the answer is larger than `memory_bytes` = {self._memory_bytes}"
            advice = "Read the answer as a stream (fetch_batches), query fewer rows, or raise the limit (--memory-mib)"
            raise Unavailable(f"{shown(self._query)}: {found}. {advice}", query=self._query)
        return pa.Table.from_batches(self._batches, self.schema)

    def close(self) -> None:
        """End the process that computes the rest of the rows. Afterwards, the rows are not available."""
        if self._rest is not None:
            rest, self._rest, self._held = self._rest, None, None
            rest.close()  # type: ignore[attr-defined]  # a generator

    def __enter__(self) -> Self:
        """Return this result."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close this result."""
        self.close()

    def __repr__(self) -> str:
        """Return the text of the rows that are in memory."""
        more = "" if self._rest is None else "\n… and more, which are not read yet"
        return f"{pa.Table.from_batches(self._held or [], self.schema)!r}{more}"

    @property
    def _batches(self) -> list[pa.RecordBatch]:
        if self._held is None:
            raise InvalidInput(
                f"{shown(self._query)}: its rows were read as a stream, or the answer is closed. Run the query again"
            )
        return self._held

    def _hold(self, most: int) -> None:
        """Read rows until the result has more than `most` bytes in memory, or is complete."""
        if self._rest is None:
            return
        held = sum(batch.nbytes for batch in self._batches)
        while held <= most:
            try:
                batch = next(self._rest, None)
            except BaseException:
                self.close()  # the rows in memory are not the whole result
                raise
            if batch is None:
                self._rest = None
                return
            self._batches.append(batch)
            held += batch.nbytes
