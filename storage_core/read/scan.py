"""Scans over the rows of a snapshot, with or without its unmerged records (docs/architecture/reads.md)."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pyarrow as pa

from storage_core.base.errors import InvalidInput, Unavailable, typed
from storage_core.base.limits import QueryLimits
from storage_core.base.process import QUERY_BYTES, check_free_resources
from storage_core.base.text import quoted, shortened, unknown_names
from storage_core.engine.sandbox.process import Rows, prepare
from storage_core.engine.sandbox.result import Result
from storage_core.engine.statement import TABLE
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.read.answers import BATCH_ROWS, Conversions, parts, reader_of, require_rows
from storage_core.read.duckdb_view import Source
from storage_core.read.plan import Plan, RawPart, Watched
from storage_core.read.predicate import Filter, Predicate, folded, in_columns
from storage_core.read.sql_predicate import columns_of, from_sql
from storage_core.read.table_read import TableRead, TableView, described, plan, source_of
from storage_core.read.verified_files import VerifiedFiles, query_errors
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import MeteredStore


@dataclass(frozen=True, slots=True)
class Scan(Conversions):
    """The rows that a reader requested. No row is read before a conversion, and all conversions read the same snapshot.

    `filter` selects the rows for which it is true by DuckDB's rules. With a consistency above `snapshot`, unmerged
    records are merged into the base before the filter is evaluated. The newest record of a key wins (lesson 23).

    `limits` bound the resources that the filter may use. If a scan has a filter, the default is `QueryLimits()`.
    Otherwise the default is no limit. A scan never spills to disk.
    """

    store: ObjectStore
    snapshot: Snapshot
    columns: tuple[str, ...] | None = None
    filter: Filter | None = None
    records: pa.Table | None = None
    verified: VerifiedFiles = field(default_factory=VerifiedFiles)
    limits: QueryLimits | None = None
    raw: tuple[RawPart, ...] = ()
    """The raw logs from which some of the records come."""

    def require_distributed(self, rows: pa.Table) -> None:
        """Raise `Unavailable` if a raw log has an undistributed record for one of these rows.

        The table is keyed.

        The undistributed record applies later than a write of the same key now, and would undo this write.
        """
        from storage_core.write.region.records import matching  # only statements need this import

        waiting = sum(each.records for each in self.raw)
        if not waiting or self.records is None or not rows.num_rows:
            return
        key = self.snapshot.config.primary_key
        raw = self.records.slice(self.records.num_rows - waiting)  # the records of raw logs come last
        found = matching(raw, rows.select(key), key).num_rows
        if found:
            names = ", ".join(each.name for each in self.raw)
            raise Unavailable(
                f"{self.store.uri}: raw log {names} contains {found} records of matching rows that are not "
                "distributed yet. These records would later overwrite this change. First run tidemark distribute "
                f"{names}",
                records=found,
            )

    def __repr__(self) -> str:
        """Return one line that describes the scan. Reads nothing."""
        chosen = "" if self.columns is None else f", columns={list(self.columns)}"
        chosen += "" if self.filter is None else f", filter={self.filter.expression}"
        return f"Scan({self.store.uri!r}, version={self.snapshot.version}{shortened(chosen)})"

    def explain(self, *, analyze: bool = False) -> Plan:
        """Return the plan of this scan.

        With `analyze`, the scan also runs and discards its rows. The plan then includes the cost of the run.

        Cost:
            The requests of `table_read.plan` and of `described`. A run adds the requests in the analysis. `scan` has
            already read the unmerged records.
        """
        found = Plan((described(self.planned(is_explained=True), TABLE),))
        if not analyze:
            return found
        store = self.store if isinstance(self.store, MeteredStore) else MeteredStore(self.store)
        return found.analyzed([Watched(store, self.verified.footers.cached)], replace(self, store=store).to_reader)

    def to_reader(self, batch_rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """Return the rows as a stream of record batches, in bounded memory.

        The limit `seconds` bounds the time until the next batch. Errors in the rows are raised while the stream is
        read: see `query_errors`.

        Args:
            batch_rows: Maximum number of rows of a batch.
        """
        return self.read_from(*self._source(), batch_rows=batch_rows)

    def read_from(self, splits: Sequence[Add], source: Source, *, batch_rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """Return the wanted rows of a source in the same way as `to_reader`.

        Error messages contain the names of `splits`.
        """
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
        """Yield the rows in the order of their arrival, then check the files again."""
        with query_errors("scan", splits, limits, files=source.splits, columns=self.snapshot.schema.names):
            yield from rows
            self.verified.recheck(self.store, source.splits)

    def _as_fetched(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        """Yield the fetched rows in the order of their arrival, without a query."""
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
        """The condition of the wanted rows, with the column names of the table. None if all rows are wanted."""
        return None if self.filter is None else in_columns(self.filter.predicate, self.snapshot.schema.names)

    @property
    def columns_read(self) -> Collection[str] | None:
        """The wanted columns and the columns of the filter. None means all columns."""
        if self.filter is None or self.columns is None:
            return self.columns
        read = columns_of(self.filter, self.snapshot.schema.names)
        return None if read is None else read.union(self.columns)

    @property
    def _effective_limits(self) -> QueryLimits | None:
        """The given limits, or the default limits if only a filter is given.

        A filter needs limits because it may be expensive.

        Otherwise None.
        """
        return QueryLimits() if self.limits is None and self.filter is not None else self.limits

    def planned(self, *, is_explained: bool = False) -> TableRead:
        """Return the plan of the scan. Makes the requests of `table_read.plan`."""
        view = TableView(self.store, self.snapshot, self.verified, self.records, self.raw)
        return plan(view, self.predicate, columns=self.columns_read, query="scan", is_explained=is_explained)

    @check_free_resources("scan", size=QUERY_BYTES)
    def _source(self) -> tuple[Sequence[Add], Source]:
        if self._effective_limits is not None:
            prepare()
        read = self.planned()
        return read.splits, source_of(read, query="scan")

    @property
    def _text(self) -> str:
        """The SELECT over the view `t`."""
        import duckdb

        columns = (
            "*" if self.columns is None else ", ".join(str(duckdb.ColumnExpression(each)) for each in self.columns)
        )
        condition = "" if self.filter is None else f" WHERE {self.filter.expression}"
        return f"SELECT {columns} FROM {TABLE}{condition}"  # noqa: S608  # conditions are made of parts or were checked


def chosen_columns(columns: object, schema: pa.Schema) -> tuple[str, ...] | None:
    """Return the requested columns in the requested order, or None for all columns.

    Raises `InvalidInput` for an unknown name.
    """
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise InvalidInput(f"the columns are {columns!r}. Give a list with names of {schema.names}", columns=columns)
    names = tuple(columns)
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise InvalidInput(unknown_names("column", unknown, schema.names), columns=unknown)
    if not names:
        raise InvalidInput("a scan needs a column. For the number of rows, use `sql` with count(*)", columns=columns)
    return names


def wanted_filter(given: object) -> Filter | None:
    """Return a filter. `given` is a `Filter`, the text of a SQL condition, or None.

    Raises `InvalidInput` for a value of another type.
    """
    if isinstance(given, str):
        return from_sql(given)
    if given is None or isinstance(given, Filter):
        return given
    raise InvalidInput(
        f"the filter is {given!r}. Give a SQL condition, or an expression of col(…) such as col('n') > 5"
    )


def require_condition(wanted: Filter | None, schema: pa.Schema) -> None:
    """Raise `InvalidInput` if the filter, or a condition in it, is not a boolean for the rows of this schema.

    DuckDB determines the type of an expression that is not a plain column.
    """
    types = {folded(each.name): each.type for each in schema}
    unknown = []
    for text in () if wanted is None else wanted.unchecked:
        column = types.get(folded(text))
        if column is None:
            unknown.append(text)
        elif not pa.types.is_boolean(column):
            raise _not_boolean(text, schema)
    for text in unknown:
        query = f"SELECT {text} FROM {TABLE} LIMIT 0"  # noqa: S608  # a part of a checked condition
        with (
            query_errors("scan", columns=schema.names),
            Source(schema.empty_table()).answer(query, QueryLimits()) as result,
        ):
            is_boolean = all(map(pa.types.is_boolean, result.schema.types))
            list(result)
        if not is_boolean:
            raise _not_boolean(text, schema)


def _not_boolean(text: str, schema: pa.Schema) -> InvalidInput:
    column = next((each for each in schema if folded(each.name) == folded(text)), None)
    compared = schema[0] if column is None else column
    if pa.types.is_integer(compared.type) or pa.types.is_floating(compared.type):
        value = "= 1"
    else:
        value = "= 'a'" if pa.types.is_string(compared.type) else "is not null"
    which, name = ("a column", compared.name) if column is None else ("the column", text)
    return InvalidInput(
        f"the condition {quoted(text, 500)} is not true or false for a row. Compare {which} with a value, such as "
        f"{name} {value}",
        filter=text,
    )


def require_valid_filter(wanted: Filter, schema: pa.Schema) -> None:
    """Raise the error of a scan if DuckDB cannot evaluate the filter on rows of this schema."""
    require_condition(wanted, schema)
    with query_errors("scan", columns=schema.names):
        text = f"SELECT 1 FROM {TABLE} WHERE {wanted.expression}"  # noqa: S608  # made of parts, or was checked
        with Source(schema.empty_table()).answer(text, QueryLimits()) as result:
            list(result)
