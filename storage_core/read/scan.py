"""Scans: the rows of one snapshot, or of a snapshot and what is not merged into it yet (design page 07)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.predicate import Filter
from storage_core.read.pruning import Pruned, prune
from storage_core.read.relation import Verified, query_errors, rows_relation, session, splits_relation
from storage_core.rows import fold
from storage_core.split.read import conform_split, read_split

if TYPE_CHECKING:
    import pandas as pd

BATCH_ROWS = 65_536


class Consistency(StrEnum):
    """What a read sees: the base table; plus flushed generations; plus the durable WAL tail of every region."""

    SNAPSHOT = "snapshot"
    COMMITTED = "committed"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Scan:
    """The rows a reader asked for, not read yet. Every conversion reads the same snapshot.

    `filter` keeps the rows where it is true, by DuckDB's rules. With a consistency above `snapshot`, records that are
    not merged are folded over the base before the filter applies (newest wins; lesson 23), so nothing is pruned.
    """

    store: ObjectStore
    snapshot: Snapshot
    columns: tuple[str, ...] | None = None
    filter: Filter | None = None
    records: pa.Table | None = None
    verified: Verified = field(default_factory=Verified)

    def explain(self) -> Pruned:
        """Return the splits this scan reads and what each pruning step left out. No request."""
        config = self.snapshot.config
        predicate = None if self.filter is None or self.records is not None else self.filter.predicate
        splits = self.snapshot.splits.values()
        return prune(splits, predicate, schema=self.snapshot.schema, time_column=config.time_column)

    def to_duckdb(self) -> duckdb.DuckDBPyRelation:
        """Return the rows as a DuckDB relation; it streams from the splits of a local store."""
        relation, splits = self._relation()
        with query_errors("scan", splits):
            if self.filter is not None:
                relation = relation.filter(self.filter.expression)
            if self.columns is not None:
                relation = relation.select(*(duckdb.ColumnExpression(name) for name in self.columns))
        return relation

    def to_reader(self, batch_rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """Return the rows as a stream of record batches of at most `batch_rows` rows; memory stays bounded.

        Errors of the rows are raised while they are read: see `query_errors`.
        """
        splits = self.explain().splits
        with query_errors("scan", splits):
            reader = self.to_duckdb().to_arrow_reader(batch_rows)
        return pa.RecordBatchReader.from_batches(reader.schema, _batches(reader, splits))

    def to_arrow(self) -> pa.Table:
        """Return all rows as one Arrow table with the table's types."""
        splits = self.explain().splits
        with query_errors("scan", splits):
            rows = self.to_duckdb().to_arrow_table()
        names = self.columns if self.columns is not None else self.snapshot.schema.names
        return rows.cast(pa.schema([self.snapshot.schema.field(name) for name in names]))

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas data frame."""
        return self.to_arrow().to_pandas()

    def _relation(self) -> tuple[duckdb.DuckDBPyRelation, Sequence[Add]]:
        connection = session()
        if self.records is not None:
            return rows_relation(connection, merged_rows(self.store, self.snapshot, self.records)), ()
        splits = self.explain().splits
        return splits_relation(connection, self.store, splits, self.snapshot.schema, verified=self.verified), splits


def _batches(reader: pa.RecordBatchReader, splits: Sequence[Add]) -> Iterator[pa.RecordBatch]:
    with query_errors("scan", splits):
        yield from reader


def merged_rows(store: ObjectStore, snapshot: Snapshot, records: pa.Table) -> pa.Table:
    """Return the base rows with the records folded over them, newest wins per key."""
    key = snapshot.config.primary_key
    schema = snapshot.schema
    base = [conform_split(read_split(store, add), schema) for add in snapshot.splits.values()]
    rows = pa.concat_tables(base) if base else schema.empty_table()
    return fold.apply(rows, fold.fold(records, key), key)
