"""Batch reads of the Spark data source: planned once on the driver, read by tasks with `storage_core`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from jobs.spark.source_options import ReadOptions
from jobs.spark.source_process import spare_collections
from jobs.spark.source_types import require_schema, spark_schema
from storage_core.read.portions import Portion, Wanted, portions, rows_of
from storage_core.read.sql_predicate import from_sql
from storage_core.table import Table


class TableReader(DataSourceReader):
    """The rows of a table at one version, or at a level above it, a portion per Spark partition."""

    def __init__(self, options: ReadOptions, schema: StructType, *, version: int, batch_rows: int) -> None:
        """Read `version` of the table, or at a level above `snapshot` what it holds when the query is planned."""
        self._options = options
        self._version = version
        self._schema = schema
        self._batch_rows = batch_rows

    def partitions(self) -> list[InputPartition]:
        """Return a partition per portion. Requests: those of opening the table, of a scan of it, and of `portions`."""
        options = self._options
        table = Table.open(options.uri, at=self._version if options.is_of_the_base else None)
        scan = table.scan(options.columns, options.filter, consistency=options.consistency)
        require_schema(self._schema, spark_schema(scan.snapshot.schema, options.columns))
        found = [InputPartition(each) for each in portions(scan)]
        spare_collections()
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a portion; Spark asks for one that has none where there is no other."""
        if partition.value is None:
            return iter(())
        options = self._options
        wanted = Wanted(columns=options.columns, filter=None if options.filter is None else from_sql(options.filter))
        return spark_batches(partition.value, wanted, self._schema, self._batch_rows)


def spark_batches(portion: Portion, wanted: Wanted, schema: StructType, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of a portion with the types that Spark has for the schema."""
    types = to_arrow_schema(schema, timezone="UTC")
    for batch in rows_of(portion, wanted, batch_rows=batch_rows):
        yield batch.cast(types)
    spare_collections()
