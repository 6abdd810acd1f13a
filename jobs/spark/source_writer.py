"""Writes of the Spark data source: tasks write splits, the driver commits them once.

A batch is committed by the application and number that its options name, if any. A micro-batch of a stream is known by
the id of its query, which its checkpoint keeps, and by its number: one that Spark runs again after a failure is in the
table already or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jobs.spark.source_options import WriteOptions
from jobs.spark.source_process import spare_collections
from jobs.spark.source_types import arrow_schema
from storage_core.append import WrittenRows, commit_rows, fitting, write_rows
from storage_core.clock import SystemClock
from storage_core.errors import InvalidInput, TidemarkError
from storage_core.ids import SystemIds
from storage_core.split.context import context_of
from storage_core.table import Table

_QUERY = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task wrote, as JSON, and of a stream the id of the query whose task it was."""

    rows: str
    query: str | None = None


class TableWriter(DataSourceArrowWriter):
    """Appends a data frame in one commit."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        """Raise `InvalidInput` for what the table does not take: another mode, a keyed table, other columns."""
        if overwrite:
            raise InvalidInput(
                "the format tidemark appends and does not overwrite: write with mode('append'), and replace rows by a "
                "condition with Table.overwrite or Table.delete"
            )
        self._options = options
        self._version = _open(options.uri, schema).version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task as splits."""
        return Written(_written(self._options.uri, iterator, self._version).to_json())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit what the tasks wrote, unless the same work is committed already."""
        _commit(self._options.uri, _parts(messages), self._options.application)


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends each micro-batch of a query in one commit, once."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        """Raise `InvalidInput` as `TableWriter` does; what would overwrite is the output mode `complete`."""
        if overwrite:
            raise InvalidInput(
                "the format tidemark takes streams in the output mode append; for complete results use foreachBatch "
                "with Table.overwrite"
            )
        self._options = options
        _open(options.uri, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task as splits of the table as it is now: a query runs for as long as it likes."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY)
        return Written(_written(self._options.uri, iterator, None).to_json(), query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit the micro-batch, unless it is committed already."""
        query = next((each.query for each in messages if isinstance(each, Written)), None)
        if query is None:
            raise TidemarkError(f"Spark does not tell which query writes batch {batchId}: no task named it")
        _commit(self._options.uri, _parts(messages), (f"spark query {query}", batchId))


def _open(uri: str, schema: StructType) -> Table:
    """The table, if rows with these columns can be appended to it by tasks."""
    table = Table.open(uri)
    table.require_capable()
    if table.config.kind == "keyed":
        raise InvalidInput(
            f"{uri}: rows of a keyed table go through one writer, not through many tasks: put them with "
            "Table.open(uri).append(frame.toArrow()), of a stream in foreachBatch; by key, doing so again changes "
            "nothing",
            uri=uri,
        )
    list(fitting(arrow_schema(schema).empty_table(), table.schema))
    return table


def _written(uri: str, batches: Iterator[pa.RecordBatch], version: int | None) -> WrittenRows:
    table = Table.open(uri, at=version)
    first = next(batches, None)
    if first is None:
        return WrittenRows(version=table.version)

    def every() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    rows = pa.RecordBatchReader.from_batches(first.schema, every())
    pieces = fitting(rows, table.schema, table.config.nonzero_vectors)
    written = write_rows(table.store, context_of(table.snapshot), pieces, clock=SystemClock(), ids=SystemIds())
    spare_collections()
    return written


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenRows]:
    return [WrittenRows.from_json(each.rows) for each in messages if isinstance(each, Written)]


def _commit(uri: str, parts: Sequence[WrittenRows], application: tuple[str, int] | None) -> None:
    if parts:
        planned = Table.open(uri, at=min(each.version for each in parts))
        commit_rows(planned.log, planned.snapshot, parts, application)
