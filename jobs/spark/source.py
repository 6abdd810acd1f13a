"""The Spark data source `tidemark`: `spark.read.format("tidemark").load(uri)` and its like (decision 0156).

Spark calls it in Python processes of the driver and of the executors, which import it from the code that `register`
sends along. What is read, written and committed is that of `storage_core`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from jobs.spark.session import is_elsewhere, ship_code
from jobs.spark.source_options import read_options, sink_options, write_options
from jobs.spark.source_process import spare_collections
from jobs.spark.source_reader import TableReader
from jobs.spark.source_stream import TableStream
from jobs.spark.source_types import change_schema, spark_schema
from jobs.spark.source_writer import StreamWriter, TableWriter
from storage_core.errors import InvalidInput
from storage_core.read.scan import require_sound
from storage_core.read.view import Consistency
from storage_core.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


class TableSource(DataSource):
    """A table as Spark reads and writes it. The class that is registered is one of its own: see `source_for`."""

    batch_rows: ClassVar[int] = 10_000

    _version: int | None = None

    @classmethod
    def name(cls) -> str:
        """Return what the format is called."""
        return "tidemark"

    def schema(self) -> StructType:
        """Return the columns that are read; every query over what is loaded sees the version that is newest now.

        Raises `NotFound` without a table, `InvalidInput` for options that the table contradicts. Requests: those of
        opening it.
        """
        options = read_options(self.options)
        table = Table.open(options.uri, at=options.at)
        is_refused = options.at is not None or options.consistency not in [*Consistency]
        level = options.consistency if is_refused else Consistency.SNAPSHOT
        scan = table.scan(options.columns, options.filter, consistency=level)
        if scan.filter is not None:
            require_sound(scan.filter, scan.snapshot.schema)
        self._version = table.version
        columns = spark_schema(table.schema, options.columns)
        spare_collections()
        return change_schema(columns) if options.changes else columns

    def reader(self, schema: StructType) -> TableReader:
        """Return a reader of a batch."""
        options = read_options(self.options)
        options.require_batch()
        return TableReader(options, schema, version=self._loaded, batch_rows=self.batch_rows)

    def streamReader(self, schema: StructType) -> TableStream:  # noqa: N802  # Spark's name
        """Return a reader of a stream."""
        options = read_options(self.options)
        options.require_stream()
        return TableStream(options, schema, version=self._loaded, batch_rows=self.batch_rows)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:  # noqa: FBT001  # as Spark calls it
        """Return a writer of a batch."""
        return TableWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """Return a writer of a stream."""
        return StreamWriter(sink_options(self.options), schema, overwrite=overwrite)

    @property
    def _loaded(self) -> int:
        """The version that was the newest when this was loaded."""
        if self._version is None:
            raise InvalidInput("the format tidemark knows its columns: leave schema(…) out, choose by option columns")
        return self._version


def register(spark: SparkSession) -> None:
    """Make the format `tidemark` known to a session, and its code to the session's workers.

    Batches have as many rows as the setting of the session says now.
    """
    if is_elsewhere(spark):
        ship_code(spark)
    spark.dataSource.register(source_for(spark))


def source_for(spark: SparkSession) -> type[TableSource]:
    """Return the class to register: what it says of itself travels with it, its base is imported where it is used."""
    rows = int(spark.conf.get(BATCH_ROWS, "0") or 0)
    return type(f"{TableSource.__name__}Here", (TableSource,), {"batch_rows": rows} if rows > 0 else {})
