"""One SELECT that was checked, what it reads, and how a session of DuckDB is told."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import duckdb

BESIDE_BYTES = 512 * 2**20
"""What a query may take beside its `memory_bytes`: threads, heaps, and what functions make of batches at work."""
IDLE_SECONDS = 60
"""So long a sandbox waits for the next query."""

# As the catalogue has them: asked of the views themselves, they would be read from every file once more.
_COLUMNS = (
    "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? AND NOT internal ORDER BY column_index"
)


class TypesDiffer(Exception):  # noqa: N818  # a finding, which the caller takes for good or not
    """A view has other types than the rows it stands for."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that are made as they are read, by each reading anew; DuckDB begins one for each of its scans."""

    schema: pa.Schema
    read: Callable[[], Generator[pa.RecordBatch]]

    def __arrow_c_schema__(self) -> object:
        """Return the schema; where it is known DuckDB binds without beginning to read."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a reading, which makes nothing before it is asked for the first rows."""
        return pa.RecordBatchReader.from_batches(self.schema, self.read()).__arrow_c_stream__(requested_schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """What a session reads: rows in memory, streams of rows and files, by views over them."""

    rows: Mapping[str, pa.Table]
    streams: Mapping[str, Rows] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    views: tuple[str, ...] = ()
    """Statements that create views over `rows`, `streams`, `files` and each other, in this order."""
    same_types: tuple[tuple[str, str], ...] = ()
    """Pairs of views, of which the first begins with the columns of the second."""
    lasting: tuple[str, ...] = ()
    """Names of `rows` that are the same wherever they have this name, and may stay with a session."""

    def bind(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Create the views. Raises `TypesDiffer`."""
        for name, rows in {**self.rows, **self.streams}.items():
            connection.from_arrow(rows).create_view(name)
        for statement in self.views:
            connection.execute(statement)
        for pair in self.same_types:
            found, wanted = (connection.execute(_COLUMNS, [view]).fetchall() for view in pair)
            if found[: len(wanted)] != wanted:
                raise TypesDiffer


def joined(relations: Iterable[Relation]) -> Relation:
    """Return what a session reads that has all of these, whose names differ."""
    parts = list(relations)
    return Relation(
        rows={name: rows for each in parts for name, rows in each.rows.items()},
        streams={name: rows for each in parts for name, rows in each.streams.items()},
        files=tuple(file for each in parts for file in each.files),
        views=tuple(view for each in parts for view in each.views),
        same_types=tuple(pair for each in parts for pair in each.same_types),
        lasting=tuple(name for each in parts for name in each.lasting),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A SELECT over a relation, and the limits that its answer keeps to."""

    text: str
    relation: Relation
    seconds: float
    """For the whole answer, or to the next batch of what has become a stream: see `Result.stream`."""
    memory_bytes: int
    spill_bytes: int
    """On disk, for what memory does not hold."""
    batch_rows: int
    """Of the answer at a time, at most."""
