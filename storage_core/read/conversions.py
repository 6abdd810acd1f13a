"""Rows in the form that a caller works with: one list of forms for scans and for the answers of queries."""

from __future__ import annotations

import atexit
import weakref
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from storage_core.engine.session import session
from storage_core.errors import InvalidInput
from storage_core.extras import PIPELINE, POLARS, needs
from storage_core.foreign_text import quoted

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

BATCH_ROWS = 8_192
"""By default: rows may be wide, and batches are made whole."""


def require_rows(batch_rows: object) -> None:
    """Return for a number of rows that a batch can have. Raises `InvalidInput`."""
    if not isinstance(batch_rows, int) or batch_rows < 1:
        raise InvalidInput(f"a batch has at least one row, found batch_rows={quoted(batch_rows)}")


def parts(batches: Iterable[pa.RecordBatch], most: int) -> Generator[pa.RecordBatch]:
    """Yield the rows in batches of at most so many."""
    for batch in batches:
        for first in range(0, batch.num_rows, most):
            yield batch.slice(first, most)


@contextmanager
def within_calendar_of_python(rows: pa.Table) -> Iterator[None]:
    """Raise `InvalidInput` naming the first column with a date or time that Python cannot represent, if one fails."""
    try:
        yield
    except (OverflowError, ValueError) as error:
        from storage_core.rows.calendar import BEYOND, first_beyond

        for name, column in zip(rows.column_names, rows.columns, strict=True):
            if (text := first_beyond(column)) is not None:
                raise InvalidInput(
                    f"column {quoted(name)}: {text} is {BEYOND}. Cast it in the query, for example to VARCHAR.",
                    column=name,
                ) from error
        raise


_READING: Final[weakref.WeakSet[Generator[pa.RecordBatch]]] = weakref.WeakSet()


def reader_of(schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return the batches as a stream, which ends when it is forgotten, and with the program.

    Arrow closes no generator: `close` of the stream ends nothing.
    """
    _READING.add(batches)
    return pa.RecordBatchReader.from_batches(schema, batches)


@atexit.register
def _end_all() -> None:
    """End what is still read while its libraries are there: DuckDB tells at length of what outlives it."""
    for batches in [*_READING]:
        with suppress(ValueError):  # a thread that goes on at the end of the program is just reading
            batches.close()


class Conversions(ABC):
    """Rows that can be had as a stream or whole."""

    __slots__ = ()

    @abstractmethod
    def to_reader(self, batch_rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """Return the rows as a stream of record batches of at most `batch_rows` rows; memory stays bounded.

        What reads ahead for it, and holds memory for that, ends when it is forgotten (`del`), not by its `close`.
        """

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """Return all rows as one Arrow table."""

    def fetch_batches(self, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the rows in record batches of at most `batch_rows` rows: see `to_reader`."""
        yield from self.to_reader(batch_rows)

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas data frame.

        Raises `Unavailable` if pandas is not installed, and `InvalidInput` for a date that Python cannot represent.
        """
        with needs(PIPELINE, "to_pandas"):
            import pandas as pd  # noqa: F401  # before the rows are read
        rows = self.to_arrow()
        with within_calendar_of_python(rows):
            return rows.to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a Polars data frame. Raises `Unavailable` where Polars is not installed."""
        with needs(POLARS, "to_polars"):
            import polars as pl
        return pl.DataFrame(self.to_arrow())

    def to_duckdb(self) -> duckdb.DuckDBPyRelation:
        """Return the rows, which are read now, as a DuckDB relation.

        Its session can open no file: DuckDB's right to read a split would be one to write it, by any text it is given.
        """
        return session().from_arrow(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as a stream for any library that takes Arrow data: see `to_reader`."""
        return self.to_reader().__arrow_c_stream__(requested_schema)
