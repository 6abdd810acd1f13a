"""Scans: the rows of one snapshot, or of a snapshot and what is not merged into it yet (docs/architecture/reads.md)."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pyarrow as pa

from storage_core.engine.sandbox.pool import prepare
from storage_core.engine.sandbox.query import Rows
from storage_core.engine.sandbox.result import Result
from storage_core.engine.statement import TABLE
from storage_core.errors import InvalidInput
from storage_core.foreign_text import shortened
from storage_core.headroom import QUERY_BYTES, require_headroom
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.meter import MeteredStore
from storage_core.read.column_names import in_columns
from storage_core.read.columns_read import columns_of
from storage_core.read.conversions import BATCH_ROWS, Conversions, parts, reader_of, require_rows
from storage_core.read.plan import Plan, RawPart, Watched
from storage_core.read.planning import table_plan
from storage_core.read.predicate import Filter, Predicate
from storage_core.read.query_errors import query_errors
from storage_core.read.source import Source
from storage_core.read.splits_source import source_of
from storage_core.read.sql_predicate import from_sql
from storage_core.read.verified import Verified
from storage_core.settings.query import QueryLimits
from storage_core.system_errors import typed


@dataclass(frozen=True, slots=True)
class Scan(Conversions):
    """The rows a reader asked for, not read yet. Every conversion reads the same snapshot.

    `filter` keeps the rows where it is true, by DuckDB's rules. With a consistency above `snapshot`, records that are
    not merged are folded over the base before the filter applies (newest wins; lesson 23).
    `limits` bound what the filter may use, by default those of `QueryLimits`; nothing is spilled. Without a filter
    there are none unless given.
    """

    store: ObjectStore
    snapshot: Snapshot
    columns: tuple[str, ...] | None = None
    filter: Filter | None = None
    records: pa.Table | None = None
    verified: Verified = field(default_factory=Verified)
    limits: QueryLimits | None = None
    raw: tuple[RawPart, ...] = ()
    """What of the records is in raw logs."""

    def __repr__(self) -> str:
        """Say what is scanned, in a line; nothing is read."""
        chosen = "" if self.columns is None else f", columns={list(self.columns)}"
        chosen += "" if self.filter is None else f", filter={self.filter.expression}"
        return f"Scan({self.store.uri!r}, version={self.snapshot.version}{shortened(chosen)})"

    def explain(self, *, analyze: bool = False) -> Plan:
        """Return what this scan reads, and with `analyze` what it did: it is run, and its rows are thrown away.

        Requests: those of `table_plan`, and those that the analysis tells. What is not merged was read by `scan`.
        """
        planned = table_plan(
            self.store,
            self.snapshot,
            self.predicate,
            name=TABLE,
            columns=self.columns_read,
            verified=self.verified,
            records=self.records,
            raw=self.raw,
        )
        if not analyze:
            return Plan((planned,))
        store = self.store if isinstance(self.store, MeteredStore) else MeteredStore(self.store)
        return Plan((planned,)).analyzed(
            [Watched(store, self.verified.footers.cached)], replace(self, store=store).to_reader
        )

    def to_reader(self, batch_rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """Return the rows as a stream of record batches of at most `batch_rows` rows; memory stays bounded.

        `seconds` of the limits is the time to the next batch. Errors of the rows are raised while they are read: see
        `query_errors`.
        """
        return self.read_from(*self._source(), batch_rows=batch_rows)

    def read_from(self, splits: Sequence[Add], source: Source, *, batch_rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """Return what is wanted of the rows of a source as `to_reader` does; errors name the `splits`."""
        require_rows(batch_rows)
        limits = self._effective_limits
        if limits is None and source.fetched is not None:
            return reader_of(self._schema, parts(self._as_fetched(source.fetched), batch_rows))
        with query_errors("scan", splits, limits, files=source.splits, columns=self.snapshot.schema.names):
            rows: Result | pa.RecordBatchReader
            if limits is None:
                rows = source.opened().sql(self._text).to_arrow_reader(batch_rows)
            else:
                rows = source.answer(self._text, limits, batch_rows=batch_rows)
                rows.stream()
        return reader_of(rows.schema, self._batches(rows, splits, source, limits))

    def to_arrow(self) -> pa.Table:
        """Return all rows as one Arrow table with the table's types."""
        limits = self._effective_limits
        splits, source = self._source()
        if limits is None and source.fetched is not None:
            return pa.Table.from_batches(self._as_fetched(source.fetched), self._schema)
        with query_errors("scan", splits, limits, files=source.splits, columns=self.snapshot.schema.names):
            if limits is None:
                with source.opened() as connection:
                    rows = connection.sql(self._text).to_arrow_table()
            else:
                with source.answer(self._text, limits) as result:
                    rows = pa.Table.from_batches(result, result.schema)
            self.verified.recheck(self.store, source.splits)
            return rows.cast(self._schema)

    def _batches(
        self,
        rows: Result | pa.RecordBatchReader,
        splits: Sequence[Add],
        source: Source,
        limits: QueryLimits | None,
    ) -> Generator[pa.RecordBatch]:
        """The rows as they come; at the end the files are looked at again."""
        with query_errors("scan", splits, limits, files=source.splits, columns=self.snapshot.schema.names):
            yield from rows
            self.verified.recheck(self.store, source.splits)

    def _as_fetched(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        """The rows as they come, where nothing is asked of them."""
        with typed("scan"), closing(rows.read()) as batches:
            for batch in batches:
                columns = [batch.column(name) for name in self._schema.names]
                yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    @property
    def _schema(self) -> pa.Schema:
        schema = self.snapshot.schema
        return schema if self.columns is None else pa.schema([schema.field(name) for name in self.columns])

    @property
    def predicate(self) -> Predicate | None:
        """What is true of every row that is wanted, over columns as the table calls them; None where all are."""
        return None if self.filter is None else in_columns(self.filter.predicate, self.snapshot.schema.names)

    @property
    def columns_read(self) -> Collection[str] | None:
        """The columns that are wanted, and those of the filter; None for all."""
        if self.filter is None or self.columns is None:
            return self.columns
        read = columns_of(self.filter, self.snapshot.schema.names)
        return None if read is None else read.union(self.columns)

    @property
    def _effective_limits(self) -> QueryLimits | None:
        """Those given; the default ones where there is a filter, whose text may ask for much; else none."""
        return QueryLimits() if self.limits is None and self.filter is not None else self.limits

    @require_headroom("scan", size=QUERY_BYTES)
    def _source(self) -> tuple[Sequence[Add], Source]:
        if self._effective_limits is not None:
            prepare()
        return source_of(
            self.store,
            self.snapshot,
            self.predicate,
            verified=self.verified,
            records=self.records,
            columns=self.columns_read,
            query="scan",
        )

    @property
    def _text(self) -> str:
        """What is asked of the view `t`."""
        import duckdb

        columns = (
            "*" if self.columns is None else ", ".join(str(duckdb.ColumnExpression(each)) for each in self.columns)
        )
        condition = "" if self.filter is None else f" WHERE {self.filter.expression}"
        return f"SELECT {columns} FROM {TABLE}{condition}"  # noqa: S608  # conditions are made of parts or were checked


def chosen_columns(columns: object, schema: pa.Schema) -> tuple[str, ...] | None:
    """Return the columns asked for, in order; None stands for all. Raises `InvalidInput` for any but names of them."""
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise InvalidInput(f"columns are a list of names of {schema.names}, found {columns!r}", columns=columns)
    names = tuple(columns)
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise InvalidInput(f"no such column: {unknown}; the table has {schema.names}", columns=unknown)
    if not names:
        raise InvalidInput("a scan needs a column; for the number of rows ask `sql` for count(*)", columns=columns)
    return names


def wanted_filter(given: object) -> Filter | None:
    """Return the filter given as one, as the text of a SQL condition, or None. Raises `InvalidInput` for all else."""
    if isinstance(given, str):
        return from_sql(given)
    if given is None or isinstance(given, Filter):
        return given
    raise InvalidInput(f"a filter is a SQL condition or made by col(…), as in col('n') > 5; found {given!r}")


def require_sound(wanted: Filter, schema: pa.Schema) -> None:
    """Raise as a scan of a table with this schema does, for a filter that DuckDB cannot ask of its rows."""
    with query_errors("scan", columns=schema.names):
        text = f"SELECT 1 FROM {TABLE} WHERE {wanted.expression}"  # noqa: S608  # made of parts, or was checked
        with Source(schema.empty_table()).answer(text, QueryLimits()) as result:
            list(result)
