"""The streaming source of the Spark data source: a table at a version, then what each later version did to its rows.

An offset of Spark is a position of `storage_core.read.follow`. A query that goes on from its checkpoint reads between
the offsets that are there, whatever the table holds by now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from jobs.spark.source_options import ReadOptions
from jobs.spark.source_reader import spark_batches
from jobs.spark.source_types import change_schema, require_schema, spark_schema
from storage_core.read.follow import BEGINNING, Change, Follower, Limit, Position, changed_rows
from storage_core.read.portions import Wanted
from storage_core.table import Table


class TableStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The rows of a table as they come: those at `version`, unless its changes are followed, and then all later ones.

    Spark makes one on the driver, which lives as long as the query, and another one whose `read` tasks call.
    """

    def __init__(self, options: ReadOptions, schema: StructType, *, version: int, batch_rows: int) -> None:
        self._options = options
        self._schema = schema
        self._version = version
        self._batch_rows = batch_rows
        self._last: int | None = None
        self._follower: Follower | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's names, here and below
        """Return where every query begins: Spark asks again until the first micro-batch is committed."""
        return asdict(BEGINNING)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options name."""
        match self._options.limit:
            case None:
                return ReadAllAvailable()
            case Limit("rows", most):
                return ReadMaxRows(most)
            case Limit("bytes", most):
                return ReadMaxBytes(most)
            case Limit(_, most):
                return ReadMaxFiles(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next micro-batch reads. Requests and errors: those of `Follower.advance`."""
        end = self._following().advance(Position(**start), _limit_of(limit), last=self._last)
        return asdict(end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no version that is committed from now on."""
        self._last = Table.open(self._options.uri).version

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the work between two offsets, a portion or a version per task."""
        return [InputPartition(each) for each in self._following().work(Position(**start), Position(**end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a portion, or what a version did to rows."""
        if not isinstance(partition.value, Change):
            wanted = Wanted(columns=self._options.columns)
            yield from spark_batches(partition.value, wanted, self._schema, self._batch_rows)
            return
        types = to_arrow_schema(self._schema, timezone="UTC")
        for batch in changed_rows(partition.value, with_labels=self._options.changes):
            for first in range(0, batch.num_rows, self._batch_rows):
                yield batch.select(types.names).slice(first, self._batch_rows).cast(types)

    def _following(self) -> Follower:
        """What reads the log. Raises `InvalidInput` where the table has other columns than the query."""
        if self._follower is None:
            table = Table.open(self._options.uri)
            columns = spark_schema(table.snapshot.schema, self._options.columns)
            require_schema(self._schema, change_schema(columns) if self._options.changes else columns)
            changes = self._options.changes
            self._follower = Follower(table.log, table.snapshot.schema, first=self._version, as_changes=changes)
        return self._follower


def _limit_of(limit: ReadLimit) -> Limit | None:
    match limit:
        case ReadMaxRows(max_rows=most):
            return Limit("rows", most)
        case ReadMaxBytes(max_bytes=most):
            return Limit("bytes", most)
        case ReadMaxFiles(max_files=most):
            return Limit("files", most)
        case _:
            return None
