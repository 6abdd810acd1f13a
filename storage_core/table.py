"""The public table class, `Table`, and `exists`.

`Table` combines the transaction log, the regions, the indexes and the readers of one table. The page
docs/architecture/README.md describes these parts.

Most methods import their implementation only when they are called. A program therefore loads only the code that it uses
(decision 0042).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import pyarrow as pa

from storage_core.base.arguments import checked
from storage_core.base.errors import InvalidInput, NotFound, typed
from storage_core.base.process import QUERY_BYTES, check_free_resources
from storage_core.base.text import choice_of, quoted
from storage_core.data.rows.columns import without_metadata
from storage_core.data.settings.table import MapMode, TableConfig
from storage_core.log.log import TransactionLog, log_at
from storage_core.log.snapshot import Snapshot
from storage_core.read.verified_files import VerifiedFiles
from storage_core.read.view import PAGE_BYTES, At, Consistency, View, snapshot_at
from storage_core.store.meter import MeteredStore

if TYPE_CHECKING:
    from storage_core.base.limits import QueryLimits
    from storage_core.change.creation import ColumnChange
    from storage_core.change.declaration import TableDeclaration
    from storage_core.change.statement import Changed
    from storage_core.change.statements import Matching, Target
    from storage_core.compact.pending_work import PendingWindow
    from storage_core.data.formats.documents import Tag
    from storage_core.data.rows.incoming import ArrowStream, Rows
    from storage_core.data.settings.index import IndexDefinition
    from storage_core.data.settings.layout import Mode
    from storage_core.data.settings.table import LateData
    from storage_core.engine.statement import Parameters
    from storage_core.interop.import_files import Stream
    from storage_core.interop.import_given import Imported
    from storage_core.interop.publishing import Mirrored
    from storage_core.log.sharing import Cloned
    from storage_core.log.versions import HistoryEntry
    from storage_core.maintain.forget_report import ForgetReport, Forgotten, RawTable
    from storage_core.maintain.history import Restored
    from storage_core.read.answers import HeldRows, SqlResult
    from storage_core.read.history import HistoryPage
    from storage_core.read.lookup import LookupPlan
    from storage_core.read.plan import Plan, Watched
    from storage_core.read.predicate import Condition, Filter, Predicate
    from storage_core.read.scan import Scan
    from storage_core.read.search.matches import Searched
    from storage_core.read.search.plan import SearchPlan
    from storage_core.read.search.search_cache import SearchCache
    from storage_core.read.search.vectors import Recall
    from storage_core.read.sql import Opened
    from storage_core.read.table_read import TableView
    from storage_core.read.unmerged_records import WithRawLogs
    from storage_core.store.pieces import CacheCounts
    from storage_core.write.append import Appended
    from storage_core.write.ingest.landing import LandingSpec
    from storage_core.write.region.captured_regions import Captured
    from storage_core.write.region.records import WriterOptions
    from storage_core.write.region.router import TableWriter
    from storage_core.write.region.spec import DeclaredField

P = ParamSpec("P")
R = TypeVar("R")


_loading = typed("this process")  # Modules are loaded at their first use, and the system can refuse to load a module.


def _call(method: Callable[P, R]) -> Callable[P, R]:
    """Return the method with checks of argument types.

    The method raises errors of this project instead of system errors.
    """
    return _loading(checked(method))


class Table:
    """A table, read at one snapshot.

    Reads use the version at which the object was opened. A commit through this object moves the object to the new
    version, and `refresh` moves it to the newest version. A table opened with `at` stays at that version and refuses
    writes. An object of this class is cheap to create and has no open connection.
    """

    def __init__(self, store: MeteredStore, log: TransactionLog, snapshot: Snapshot, *, pinned: bool = False) -> None:
        self._store = store
        self._log = log
        self._view = View(log, snapshot, pinned=pinned)
        self._verified = VerifiedFiles(log.cached)
        self._kept: SearchCache | None = None

    def __repr__(self) -> str:
        """Return the location and the version of the table. Makes no request."""
        return f"Table({self.uri!r}, version={self.version})"

    @staticmethod
    @_call
    def create(
        uri: str | Path,
        schema: pa.Schema,
        *,
        time_column: str | None = None,
        sort_schema: str | None = None,
        window: str | int | None = "auto",
        primary_key: str | Sequence[str] | None = None,
        indexes: Sequence[IndexDefinition | Mapping[str, object]] = (),
        regions: Sequence[DeclaredField] = (),
        coarse_window: bool = False,
        late_data: LateData | Mapping[str, object] | None = None,
        retention: str | int | None = None,
        map_columns: Mapping[str, MapMode] | None = None,
        bloom_filters: Sequence[str] = (),
        partition_by: str | Sequence[str] = (),
        maintained_indexes: Sequence[str] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Table:
        """Create an empty table and return it at version 0.

        A table without a `primary_key` is an append table. A table with a `primary_key` is a keyed table: rows are put,
        patched and deleted by key.

        Args:
            uri: Location of the new table: a path, or `s3://bucket/prefix`.
            schema: Columns of the table, as an Arrow schema. Two names that differ only in upper and lower case are
                refused.
            time_column: Name of a timestamp column with the event time. Windows, late rows and `retention` use this
                column. None: the table has no windows.
            sort_schema: Order of the rows in a split, such as `"visitor|url|timestamp/V2"`. `timestamp` means the time
                column. None: by time.
            window: Span of event time that one split may cover, such as `"15m"`, or an integer in seconds. `"auto"`: 15
                minutes if there is a `time_column`, else no windows. None: no windows. A keyed table can have windows
                only if the time column is part of its key.
            primary_key: Name of the key column, or several names in key order. None: an append table.
            indexes: Search indexes, each an `IndexDefinition` or a mapping such as
                `{"name": "urls", "kind": "fulltext", "columns": ["url"]}`. Kinds: `fulltext`, `bitmap`, `vector`,
                `primary_key`. Default: no index.
            regions: Fields that divide the keys of a keyed table among writers, such as
                `{"transform": "bucket", "source": "id", "n": 4}`. The function `region.spec.declared_fields` documents
                the form. Default: one region.
            coarse_window: True allows a `window` longer than one hour.
            late_data: Treatment of rows that arrive late, such as
                `{"policy": "quarantine", "acceptance_window": "1h"}`. The policies are `accept`, `quarantine` and
                `drop`. None: no row is late.
            retention: Age at which a whole window is dropped, counted from the end of the window, such as `"30d"`, or
                an integer in seconds. None: rows stay.
            map_columns: Mode of each map column for patches of a keyed table. `{"attrs": "merge"}` merges the entries
                of a patch into the map. `"replace"` replaces the whole map and is the default mode.
            bloom_filters: Names of columns for which each split gets a Parquet Bloom filter. Readers use these filters
                to look up single values. Default: none.
            partition_by: Columns or transforms of columns, such as `day(ts)`, `bucket[16](id)` or `truncate[4](name)`.
                Each split contains rows of one partition only. A keyed table can be partitioned only by columns of its
                key. Default: no partitions.
            maintained_indexes: Names of the indexes for which the generations of a keyed table get index segments.
                None: all `indexes`.
            settings: Further settings by name, as in `alter`, such as `{"splits.target_size": "64MiB"}`. None: the
                defaults.

        Returns:
            The new table at version 0.

        Raises:
            InvalidInput: The location already contains a table, or the arguments contradict each other.
            Unsupported: The store cannot hold a table.

        Cost:
            One LIST and one PUT. On S3, a probe of the store precedes them.
        """
        from storage_core.change import creation
        from storage_core.change.definition import new_config

        given = {
            "time_column": time_column,
            "sort_schema": sort_schema,
            "window": window,
            "primary_key": primary_key,
            "indexes": indexes,
            "regions": regions,
            "coarse_window": coarse_window,
            "late_data": late_data,
            "retention": retention,
            "map_columns": map_columns,
            "bloom_filters": bloom_filters,
            "partition_by": partition_by,
            "maintained_indexes": maintained_indexes,
        }
        config = new_config(schema, given, settings or {})
        store, log = log_at(uri)
        return Table(store, log, creation.create(log, schema, config))

    @staticmethod
    @_call
    def declare(declaration: TableDeclaration, uri: str | Path | None = None) -> Table:
        """Open the declared table, and create the table first if the location has none.

        The call is idempotent, even if several processes declare the same table concurrently. An existing table follows
        its declaration. The call commits new and wider columns, the order, the indexes, the landing location and the
        maintenance settings. Existing splits keep their order.

        Args:
            declaration: The declaration, such as one read from a file in `tables/`.
            uri: Location of the table. None: the location in the declaration.

        Returns:
            The table at its newest version.

        Raises:
            InvalidInput: The declaration differs from the table in a setting that cannot change. The error names the
                setting, and the table keeps its own value.
        """
        from storage_core.change import creation

        store, log = log_at(declaration.uri if uri is None else uri)
        return Table(store, log, creation.declare(log, declaration))

    @_call
    def alter(self, settings: Mapping[str, object]) -> Table:
        """Change settings of the table in one commit.

        Other settings keep their values, even if another process changes settings concurrently. No commit is made if
        every given setting already has its value. A job uses the new settings from its next run. New splits follow the
        new settings at once, and existing splits stay as they are.

        Args:
            settings: Values by name, such as `{"gc.retention": "90d", "compaction": {"factor": 12}}`. Names and values
                are the same as in declarations and in `describe()["settings"]`. A value of None restores the default.

        Returns:
            This table, moved to the new version.

        Raises:
            InvalidInput: A setting is unknown or cannot change, or a value is invalid. The error names the setting.
        """
        from storage_core.change import creation

        self._require_writable()
        self._view.snapshot = creation.change_settings(self._log, self.snapshot, settings)
        return self

    @staticmethod
    @_call
    def import_from(
        uri: str | Path,
        source: str | Path | ArrowStream | Stream,
        *,
        name: str | None = None,
        version: int | None = None,
        declaration: TableDeclaration | None = None,
        time_column: str | None = None,
        window: str | int | None = None,
        sort_schema: str | None = None,
        primary_key: str | Sequence[str] | None = None,
    ) -> Imported:
        """Import all rows of a source into a table. Each source is imported only once.

        The table is created if `uri` has none. The source is not changed. The rows of an append table become visible in
        one commit. Files of one source may differ: columns are joined by name, a file may lack columns, and types widen
        as in `widen_column`. If the files cannot be joined, the import fails before a table is created. The error names
        the file, the column and both types.

        A second import of the same source with the same content does nothing. The `name` alone identifies a stream, so
        new rows need a new name. `interop.importing.import_rows` describes the import.

        Args:
            uri: Location of the table.
            source: Location of a folder of Parquet files or of a Delta table. Or a stream of Arrow data, such as a
                DuckDB relation or a data frame, which needs a `name`.
            name: Recorded name of the import. None: the location of the source.
            version: Version of a Delta table to import. None: its newest version.
            declaration: Declaration of the table to create. None: the new table has the columns of the source and the
                settings of the four arguments below.
            time_column: Time column of a new table, as in `create`. None: the table has no windows.
            window: Window of a new table, as in `create`. None: 15 minutes with a `time_column`, else no windows.
            sort_schema: Order of rows of a new table, as in `create`. None: by time.
            primary_key: Key of a new table, as in `create`. None: an append table.

        Returns:
            The outcome of the import. It has no `commit_id` if the source was already imported.

        Raises:
            InvalidInput: The source cannot be imported, or one of the last four arguments is given together with a
                `declaration`.
        """
        from storage_core.change import creation
        from storage_core.change.definition import new_config
        from storage_core.interop.import_given import AS_IT_IS, TableOptions, source_of
        from storage_core.interop.importing import import_rows

        wanted = TableOptions(time_column=time_column, window=window, sort_schema=sort_schema, primary_key=primary_key)
        if declaration is not None and wanted != AS_IT_IS:
            raise InvalidInput(
                f"{uri}: the declaration of {declaration.name!r} defines these settings. Leave out time_column, "
                "window, sort_schema and primary_key",
                uri=uri,
            )
        given = source_of(source, name=name, version=version)
        _, log = log_at(uri)

        def make(schema: pa.Schema, marks: Mapping[str, str]) -> Snapshot:
            if declaration is not None:
                given.require_fits(declaration.schema())
                return creation.declare(log, declaration, marks)
            return creation.create(log, schema, new_config(schema, wanted.settings(), {}), marks)

        return import_rows(log, given, make, name=name, wanted=wanted)

    @staticmethod
    @_call
    def open(uri: str | Path, at: At | None = None) -> Table:
        """Open an existing table.

        Args:
            uri: Location of the table: a path, or `s3://bucket/prefix`.
            at: Version to open: a version number, a time (ISO text or a datetime, in UTC if it has no zone) or the name
                of a tag. The table then stays at this version and refuses writes. None: the newest version, and the
                table is writable.

        Returns:
            The table at that version.

        Raises:
            NotFound: There is no table at `uri`, or the version does not exist or is no longer retained.

        Cost:
            One GET for the hint and one GET for the checkpoint that the hint names. One GET for each version after the
            checkpoint, and one GET that finds no further version. One LIST of the log after that version.
        """
        store, log = log_at(uri)
        try:
            return Table(store, log, log.snapshot() if at is None else snapshot_at(log, at), pinned=at is not None)
        except NotFound as error:
            raise _with_declared_location(str(uri), error) from error.__cause__

    @property
    def uri(self) -> str:
        """The location of the table."""
        return self._store.uri

    @property
    def version(self) -> int:
        """The version of the table that read operations use."""
        return self.snapshot.version

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table, as an Arrow schema."""
        return without_metadata(self.snapshot.schema)

    def landing(self) -> LandingSpec | None:
        """Return the declared landing location of the table and its format, or None if the table has none."""
        from storage_core.write.ingest.landing import landing_of

        return landing_of(self.snapshot.metadata.configuration)

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot from which this table reads."""
        return self._view.snapshot

    @property
    def config(self) -> TableConfig:
        """The settings of the table."""
        return self.snapshot.config

    @property
    def store(self) -> MeteredStore:
        """The object store of the table. The store object counts its requests."""
        return self._store

    @property
    def log(self) -> TransactionLog:
        """The transaction log of the table."""
        return self._log

    @property
    def cache_counts(self) -> CacheCounts:
        """The hits, misses, bytes and failures of this object's disk cache so far. Makes no request."""
        return self._log.cached.counts

    def require_capable(self) -> None:
        """Check that the store provides the guarantees that a table needs.

        A table calls this method before its first write. On S3 the check probes the store once per process.

        Raises:
            Unsupported: The store lacks a guarantee. The error names the guarantee.

        Cost:
            See `store.resolve`.
        """
        self._log.require_capable()

    @_call
    def refresh(self) -> Table:
        """Move to the newest version.

        Returns:
            This table. A table opened with `at` stays at its version.

        Cost:
            The GETs of `log.refresh`.
        """
        self._view.refresh()
        return self

    @_call
    def append(self, rows: Rows, *, application: tuple[str, int] | None = None) -> Appended:
        """Add rows in one commit.

        After the call returns, the rows are durable, and every reader that opens the table sees them. The rows are
        split by window and sorted before they are written. Late rows are counted. If the table has a policy for them,
        late rows go to quarantine or are dropped (docs/architecture/ingestion.md). An empty input commits nothing and
        claims no region.

        On a keyed table a region writer puts and flushes the rows. They are then durable and visible to `latest`
        readers, and the next merge adds them to the base. The region writer claims the region, which fences a live
        `writer()`. The next write of that writer raises `WriterFenced`.

        A stream into an append table is read, sorted and written in pieces of 64 MiB, and committed at its end. If the
        stream breaks off or a row does not fit, nothing is committed and the collector deletes the written files. A
        stream into a keyed table is read as a whole.

        Args:
            rows: A mapping, a list of mappings, Arrow data, a pandas or Polars data frame, or an object with an Arrow
                stream (`__arrow_c_stream__`). A time without a zone is read as UTC if the column has a zone. ISO 8601
                text is accepted in date and timestamp columns (docs/guide/2-own-data.md).
            application: Name and sequence number of the work that appends these rows. Each number is applied once. A
                later call with the same number or a lower number adds no rows. Append tables only. None: every call
                adds its rows.

        Returns:
            The outcome, with the number of rows and the number of late rows.

        Raises:
            InvalidInput: A row does not fit. Nothing is committed.
        """
        from storage_core.write.append import append, fitting, put

        self._require_writable()
        if self.snapshot.config.kind == "keyed":
            self._require_no_application(application)
            return put(self._log, self.snapshot, rows)
        pieces = fitting(rows, self.schema, self.config.nonzero_vectors)
        appended, self._view.snapshot = append(self._log, self.snapshot, pieces, application)
        return appended

    @_call
    def delete(self, filter: Condition, *, limits: QueryLimits | None = None) -> Changed:  # noqa: A002  # as in `scan`
        """Delete the rows that match a condition.

        On an append table one commit deletes the rows. The condition is evaluated on the version directly before the
        new version, even if others commit concurrently. The new version contains all rows that did not meet the
        condition and no row that met it. Nothing is committed if no row matches.

        No file is rewritten. Deletion vectors hide the rows. If all rows of a split are deleted, the split leaves the
        table. The delete does not read a split if the statistics of the log show that no row or every row matches.

        On a keyed table, the delete uses the rows of a `latest` read, and deletes their keys in the logs of the
        regions. After the call returns, the deletes are durable and `committed` and `latest` readers no longer see the
        rows. The next merge removes the rows from the base. A live writer continues. If this writer puts a deleted row
        again, the row is in the table again. `change.statements` describes the details.

        Args:
            filter: Condition as in `scan`. `"true"` deletes every row.
            limits: Time and memory for evaluating the condition. None: the defaults of `QueryLimits`.

        Returns:
            The outcome, with the number of deleted rows.

        Raises:
            InvalidInput: There is no condition, or a second evaluation of the condition could give another result.
            Unavailable: The condition exceeds `limits`. A keyed table also raises this error if one of its `raw_logs`
                contains a record of a matching row that is not distributed yet.
            CommitConflict: In every attempt, another writer first committed a change of the same rows.
        """
        from storage_core.change import statements

        if self.config.kind == "keyed":
            matching = self._matching(filter, "delete", limits, self.config.primary_key)
            return statements.delete_by_key(self._log, self.snapshot, matching)
        return self._ran(statements.delete(self._target(limits), filter))

    @_call
    def update(
        self,
        values: Mapping[str, object],
        filter: Condition,  # noqa: A002  # as in `scan`
        *,
        application: tuple[str, int] | None = None,
        limits: QueryLimits | None = None,
    ) -> Changed:
        """Set columns of the rows that match a condition.

        On an append table one commit hides the old rows and adds the changed rows as new splits of their windows. The
        rows are selected as in `delete`. On a keyed table, the rows are patched by key, just as `delete` deletes by
        key.

        Args:
            values: New value by column: a constant, or a SQL expression over the columns of the old row. Example:
                `{"status": 404, "n": tm.expr("n + 1")}`. Columns of the primary key cannot be set.
            filter: Condition as in `scan`.
            application: Name and sequence number of this work, as in `append`. A number is applied once, even if the
                call is repeated. Append tables only. None: every call is applied.
            limits: Time and memory for the condition and the expressions. None: the defaults of `QueryLimits`.

        Returns:
            The outcome, with the number of changed rows.

        Raises:
            InvalidInput: A value does not fit its column, or `delete` would refuse the condition.
            Unavailable: As in `delete`.
            CommitConflict: As in `delete`.
        """
        from storage_core.base.limits import QueryLimits
        from storage_core.change import statements

        if self.config.kind != "keyed":
            return self._ran(statements.update(self._target(limits), values, filter, application))
        self._require_no_application(application)
        matching = self._matching(filter, "update", limits)
        return statements.update_by_key(self._log, self.snapshot, values, matching, limits=limits or QueryLimits())

    @_call
    def overwrite(
        self,
        rows: Rows,
        filter: Condition,  # noqa: A002  # as in `scan`
        *,
        application: tuple[str, int] | None = None,
        limits: QueryLimits | None = None,
    ) -> Changed:
        """Replace the rows that match a condition with other rows, in one commit.

        Append tables only. After the commit, the table contains all given rows, and no old row that met the condition.
        The given rows are never late.

        Args:
            rows: New rows, as in `append`. Each of them must meet the condition.
            filter: Condition as in `scan`.
            application: Name and sequence number of this work, as in `update`. None: every call is applied.
            limits: Time and memory for the condition. None: the defaults of `QueryLimits`.

        Returns:
            The outcome, with the numbers of deleted and added rows.

        Raises:
            InvalidInput: A given row does not meet the condition, or `delete` would refuse the condition. Nothing is
                committed.
            Unavailable: As in `delete`.
            CommitConflict: As in `delete`.
        """
        from storage_core.change import statements

        statements.require_append_table(self.snapshot, self.uri)
        return self._ran(statements.overwrite(self._target(limits), rows, filter, application))

    @_call
    def upsert(self, rows: Rows, *, on: str | Sequence[str]) -> Changed:
        """Add rows, and replace the rows that have the same values in the columns `on`.

        On an append table, one commit adds the rows and hides all old rows with the same values. Afterwards each
        combination of these values has exactly one row. The rows are never late. On a keyed table a region writer puts
        the rows, as in `append`.

        Args:
            rows: New rows, as in `append`. They are read as a whole.
            on: Name of a column, or several names. On a keyed table it must be the primary key.

        Returns:
            The outcome, with the number of rows.

        Raises:
            InvalidInput: Two given rows have the same values in `on`, or a given row has no value in one of these
                columns.
        """
        from storage_core.change import statements

        if self.config.kind == "keyed":
            self._require_writable()
            return statements.put_by_key(self._log, self.snapshot, rows, on)
        return self._ran(statements.upsert(self._target(None), rows, on))

    @_call
    def forget(
        self,
        filter: Condition,  # noqa: A002  # as in `scan`
        *,
        raw_logs: Sequence[RawTable] = (),
        limits: QueryLimits | None = None,
    ) -> Forgotten:
        """Erase the rows that match a condition from the table and, over time, from every store.

        The call deletes the rows as `delete` does. It also rewrites the splits and removes the index segments that
        contain the rows, and marks quarantine entries and raw log chunks for erasure. The collector removes the objects
        later. Some objects stay until the retention of versions ends or a tag is removed. The report lists each of
        these objects and the time until which it stays.

        The call can be repeated at any time. Rows that are written, landed or distributed after the call are not
        erased.

        Args:
            filter: Condition as in `scan`.
            raw_logs: Further raw logs from which the table receives rows. The raw logs in the table's setting
                `raw_logs` are always included. Default: none.
            limits: Time and memory for the condition. None: the defaults of `QueryLimits`.

        Returns:
            The outcome with the report. `forget_report` creates a new report later.

        Raises:
            InvalidInput: As in `delete`.
            Unavailable: As in `delete`.
            CommitConflict: As in `delete`.
        """
        from storage_core.maintain import forget

        target = self._target(limits)
        keyed = self.config.kind == "keyed"
        matching = self._matching(filter, "forget", limits, self.config.primary_key) if keyed else None
        done = forget.of(target, filter, self._feeding(target.head, raw_logs)).forget(matching)
        self._view.refresh()
        return done

    @_call
    def forget_report(
        self,
        filter: Condition,  # noqa: A002  # as in `scan`
        *,
        raw_logs: Sequence[RawTable] = (),
        limits: QueryLimits | None = None,
    ) -> ForgetReport:
        """Return a report of the objects that still contain matching rows.

        The report covers the objects of the newest version and of older versions, and objects that no version
        references. Nothing is written, and this object stays at its version. Use `forget` to erase the rows.

        Args:
            filter: Condition as in `scan`.
            raw_logs: Further raw logs, as in `forget`. Default: none.
            limits: Time and memory for the condition. None: the defaults of `QueryLimits`.

        Returns:
            The report, object by object.

        Cost:
            Reads all splits that the newest version does not reference.
        """
        from storage_core.base.limits import QueryLimits
        from storage_core.change.statements import Target
        from storage_core.maintain import forget

        head = self._log.refresh(self.snapshot)
        target = Target(self._log, head, self._verified, limits or QueryLimits())
        return forget.of(target, filter, self._feeding(head, raw_logs)).report(head)

    def _feeding(self, head: Snapshot, given: Sequence[RawTable]) -> Sequence[RawTable]:
        """Return the raw logs that supply rows to the table. The argument and the settings name the raw logs."""
        from storage_core.maintain.forget import with_named

        return with_named(given, head.config.raw_logs, self._view.raw_store)

    def _target(self, limits: QueryLimits | None) -> Target:
        """Move to the newest version and return it as the target of a statement."""
        from storage_core.base.limits import QueryLimits
        from storage_core.change.statements import Target

        self._require_writable()
        return Target(self._log, self._view.refresh(), self._verified, limits or QueryLimits())

    def _matching(
        self, condition: object, verb: str, limits: QueryLimits | None, columns: Sequence[str] | None = None
    ) -> Matching:
        """Return a function that reads the current matching rows of a keyed table.

        The function refuses rows that records in raw logs can still change.
        """
        from storage_core.change.statements import required_filter

        self._require_writable()
        wanted = required_filter(condition, verb, self.snapshot.schema)

        def matching() -> tuple[Snapshot, pa.Table]:
            found = self.scan(columns, wanted, consistency=Consistency.LATEST, limits=limits)
            rows = found.to_arrow()
            found.require_distributed(rows)
            return found.snapshot, rows

        return matching

    def _ran(self, outcome: tuple[Changed, Snapshot]) -> Changed:
        done, self._view.snapshot = outcome
        return done

    @_call
    def writer(
        self, *, region: Mapping[str, object] | str | None = None, options: WriterOptions | None = None
    ) -> TableWriter:
        """Return a writer of a keyed table.

        The writer is a context manager with the methods `put`, `patch`, `reset`, `delete` and `flush`. A claim of a
        fences the earlier writers of this region. If the table has one region, the writer claims it immediately. If the
        table has several regions, the writer claims each region at the first row for that region. `RoutingWriter`
        documents which writes are atomic in this case.

        A manual region is a region that the caller names as text (see `region`). The caller must not write a key there
        that has unmerged records in another region. `delete` and the other statements follow this rule. If a caller
        breaks the rule, readers fold the records of both regions. Readers first apply the records of regions of the
        region spec, then the records of manual regions in the order of the region ids. The base contains one row per
        key: the last merged row.

        Args:
            region: Region to write: one value for each field of the region spec. Only this region is claimed, and rows
                of other regions are refused. A text is the name of a manual region outside the region spec. A manual
                region needs the setting `regions_by_hand` and accepts every row. None: all regions.
            options: Buffer sizes, flush thresholds and durability of the writer. None: the defaults of `WriterOptions`.

        Returns:
            The writer.

        Raises:
            InvalidInput: The table is an append table.
            RegionClosed: The region spec is being changed.
        """
        from storage_core.write.region.router import open_writer

        self._require_writable()
        return open_writer(self._log, self.snapshot, region=region, options=options)

    @_call
    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | str | None = None,  # noqa: A002  # the name that readers of similar libraries expect
        *,
        at: At | None = None,
        consistency: str = Consistency.SNAPSHOT,
        limits: QueryLimits | None = None,
    ) -> Scan:
        """Return a scan of the chosen columns and rows.

        The scan reads data only when the caller converts the scan, for example with `to_arrow`.

        Args:
            columns: Names of the columns to return. None: all columns.
            filter: Expression such as `col("status") >= 500`, or a SQL condition as text. None: all rows.
            at: Older version to read: a version number, a time or a tag, as in `open`. None: the version of this
                object.
            consistency: `snapshot` (the default) reads the base. `committed` adds the flushed generations of a keyed
                table. `latest` adds every acknowledged row, including rows in the table's `raw_logs` that are not
                distributed yet.
            limits: Time and memory for the filter. None: the defaults of `QueryLimits`.

        Returns:
            The scan.

        Raises:
            InvalidInput: A column is unknown, or `columns` is empty.
            Unavailable: The filter exceeds `limits`. Raised when rows are read.
        """
        from storage_core.read.lookup import matching_regions
        from storage_core.read.scan import Scan, chosen_columns, require_condition, wanted_filter

        wanted = wanted_filter(filter)
        regions = partial(matching_regions, self._store, predicate=None if wanted is None else wanted.predicate)
        snapshot, records, raw = self._view.records(at, consistency, regions)
        chosen = chosen_columns(columns, snapshot.schema)
        require_condition(wanted, snapshot.schema)
        return Scan(self._store, snapshot, chosen, wanted, records, self._verified, limits, raw)

    @_call
    def sql(
        self,
        query: str,
        *,
        at: At | None = None,
        consistency: str = Consistency.SNAPSHOT,
        limits: QueryLimits | None = None,
        parameters: Parameters | None = None,
        tables: Mapping[str, Table | ArrowStream] | None = None,
    ) -> SqlResult:
        """Run one SELECT in DuckDB's dialect and return its result.

        The query calls this table `t`. It can read only `t` and the `tables` given here.

        Args:
            query: Text of the SELECT.
            at: Older version of this table to read, as in `scan`. None: the version of this object.
            consistency: Consistency of all tables, as in `scan`. Default: `snapshot`.
            limits: Time and memory for the query. None: the defaults of `QueryLimits`.
            parameters: Values for `?` and `$1` as a list, or values for `$name` by name. None: no parameters.
            tables: Further tables by name. A `Table` is read at its own version, with the same consistency. Arrow data
                is held in memory as a whole. None: no further tables.

        Returns:
            The result.

        Raises:
            InvalidInput: The text is not a single valid SELECT, or the parameters do not match the query.
            Unavailable: The query exceeds `limits`.
        """
        from storage_core.read import sql

        opened = self._sources(at, consistency, tables)
        return sql.query(opened, query, limits=limits, parameters=parameters)

    def _sources(
        self, at: At | None, consistency: str, tables: Mapping[str, Table | ArrowStream] | None
    ) -> dict[str, Opened | pa.Table]:
        """Return the tables of a query by name: this table and the further tables."""
        from storage_core.engine.statement import TABLE
        from storage_core.read import sql

        others = {} if tables is None else {name: tables[name] for name in sql.other_names(tables)}
        opened = {name: _opened(name, each, consistency) for name, each in others.items()}
        return {TABLE: partial(self._opened, at, consistency), **opened}

    def _opened(self, at: At | None, consistency: str, predicate: Predicate | None) -> TableView:
        from storage_core.read.lookup import matching_regions
        from storage_core.read.table_read import TableView

        regions = partial(matching_regions, self._store, predicate=predicate)
        snapshot, records, raw = self._view.records(at, consistency, regions)
        return TableView(self._store, snapshot, self._verified, records, raw)

    def get(self, key: object, *, at: At | None = None, consistency: str | None = None) -> dict[str, object] | None:
        """Return the row with this primary key, or None if no row has this key.

        By default the lookup sees every acknowledged row. The lookup and the check for a newer version run
        concurrently. If there is a newer version, the lookup runs again.

        Args:
            key: Value of the key column. For a key of several columns: the values in key order, or a mapping.
            at: Older version to read, as in `scan`. It requires the consistency `snapshot`. None: the version of this
                object.
            consistency: As in `scan`. None: `latest`, or `snapshot` if the lookup reads an older version.

        Returns:
            The row as values by column, or None.

        Cost:
            The requests of the view, plus the requests below for data that this object has not cached. The lookup goes
            through the unmerged generations, newest first, until a record determines the whole row. It reads the key
            index and the entries of a generation if the bounds and the Bloom filter admit the key. It also reads the
            manifest and the filter of a generation if the region's manifest has no copies. For each split that may
            contain the key according to the bounds, it makes the requests of `key_splits.rows`. `explain_get` lists all
            of these requests for one key.
        """
        return self.get_many([key], at=at, consistency=consistency)[0]

    @_call
    def get_many(
        self, keys: Sequence[object], *, at: At | None = None, consistency: str | None = None
    ) -> list[dict[str, object] | None]:
        """Return the rows with these primary keys, all from one view.

        Args:
            keys: Primary keys, each as in `get`.
            at: As in `get`.
            consistency: As in `get`.

        Returns:
            One entry per key, in the order of `keys`: the row as values by column, or None if no row has the key.

        Cost:
            The requests of `get`. They are made once per region that contains one of the keys, not once per key.
        """
        from storage_core.read import lookup
        from storage_core.read.lookup import holding_regions

        wanted = lookup.key_rows(self.snapshot, keys)
        seen = self._view.level(consistency, at, usual=Consistency.LATEST)
        if not wanted.num_rows:
            return []

        def answer(snapshot: Snapshot, captured: Captured | WithRawLogs | None) -> list[dict[str, object] | None]:
            own = lookup.keys_in(snapshot, wanted)
            records = None if captured is None else captured.above(snapshot, keys=own)
            return lookup.get_many(
                self._store, snapshot, own, records=records, verified=self._verified, kept=self._view.kept
            )

        with check_free_resources(
            "a lookup by key", size=QUERY_BYTES
        ):  # this check includes the memory that the threads of the lookup need to start
            return self._view.answered(at, seen, partial(holding_regions, self._store, keys=wanted), answer)

    @_call
    def search(
        self,
        query: object = None,
        *,
        vector: object = None,
        index: str | Sequence[str] | None = None,
        fusion: str = "rrf",
        weights: Mapping[str, float] | None = None,
        limit: int = 10,
        offset: int = 0,
        columns: Sequence[str] | None = None,
        filter: Filter | str | None = None,  # noqa: A002  # as in `scan`
        syntax: str = "lenient",
        boosts: Mapping[str, float] | None = None,
        at: At | None = None,
        consistency: str = Consistency.SNAPSHOT,
        nprobe: int | None = None,
        order_by: str | None = None,
        descending: bool = True,
        snippets: bool = False,
        cache_dir: Path | None = None,
        limits: QueryLimits | None = None,
    ) -> HeldRows:
        """Return the best rows for a query or a vector, best first, with a `score` column.

        The search finds all matches, including rows that are not indexed or merged yet. It reads and indexes rows
        without an index segment during the search, or scores these rows exactly by their embeddings. With the
        consistency `latest` it searches every acknowledged row, with all patches applied. A row written with
        `durable=False` is searched once it is durable. Deleted and superseded rows are never returned, but count in
        full-text scores until compaction removes them (decision 0022).

        With a query and a vector, or with several indexes, the search combines several rankings. Each index ranks its
        rows. The `score` is the sum of reciprocal ranks or of scaled scores (see `fusion`), each multiplied by the
        weight of its index. The columns `<index>_rank` and `<index>_score` contain the rank and the score in each
        index. They are null for a row that is not among the best rows of the index (`search.hybrid.search`).

        Rows with equal scores have a fixed order. Pages of one version therefore do not overlap or miss a row. This
        object keeps open searchers, decoded pages and bitmaps in bounded memory and in temporary files
        (`read.search.search_cache`, `split.fetch`).

        Args:
            query: Text for a full-text index. If the text does not parse (such as `can't`) or uses a column outside the
                index, the search finds all rows with any of its words. For a bitmap index: a value, a list of values,
                or a mapping from columns to values, lists or conditions, such as `{"status": {">=": 500}}`. None:
                search by `vector` only.
            vector: Embedding as a list or array of numbers. The result has the nearest rows. The column `distance`
                contains the metric's distance. The `score` is 1 - distance (cosine) or -distance (l2, dot). Both are
                computed from the exact embeddings. None: search by `query` only.
            index: Name of the index, or several names. None: the only index that accepts the query or the vector.
            fusion: How rankings are combined: `"rrf"` (the default) adds reciprocal ranks, `"linear"` adds scaled
                scores.
            weights: Weight by index name, at least 0, and above 0 for at least one index. A full-text index with the
                weight 0 only filters. None: 1 for each.
            limit: Largest number of rows to return. Default: 10.
            offset: Number of best rows to skip. Default: 0.
            columns: Names of the columns to return, as in `scan`. None: all columns.
            filter: Condition as in `scan`. Only rows that meet it count towards `limit` and `offset`. None: all rows.
            syntax: `"lenient"` (the default) or `"strict"`, which refuses a full-text query that does not parse.
            boosts: Factor by column for full-text scores. None: 1 for each.
            at: Older version to read, as in `scan`. None: the version of this object.
            consistency: As in `scan`. Default: `snapshot`.
            nprobe: Number of clusters to read in each segment of a vector index. None: chosen for each segment.
            order_by: Column that orders the rows instead of the score. The result then has no `score` column.
                Nulls are last. None: by score.
            descending: With `order_by`: True (the default) returns the greatest value first. For times this is the
                newest time.
            snippets: True adds a struct with one HTML fragment for each text column of the index. Matches are in `<b>`,
                and all other text is escaped (`index.fulltext.snippets`).
            cache_dir: Folder for unpacked index segments. No other user may be able to write to this folder. None: the
                segments are kept for this call only.
            limits: Time and memory for the filter, as in `scan`. None: the defaults of `QueryLimits`.

        Returns:
            The rows, held in memory.

        Raises:
            NotFound: The index is unknown.
            InvalidInput: A column is unknown, or the query, the vector or the filter is invalid.
        """
        from storage_core.read.answers import HeldRows
        from storage_core.read.scan import chosen_columns
        from storage_core.read.search.hybrid import search
        from storage_core.read.search.search_request import SearchQuestion

        searched = self._searched(at, consistency, filter, limits=limits, cache_dir=cache_dir)
        chosen = chosen_columns(columns, searched.snapshot.schema)

        given = SearchQuestion(
            query=query,
            vector=vector,
            index=index,
            fusion=fusion,
            weights=weights,
            syntax=syntax,
            boosts=boosts,
            nprobe=nprobe,
        )
        found: Callable[..., pa.Table] = partial(search, searched, given, limit=limit, offset=offset)
        if order_by is not None or descending is not True:
            from storage_core.read.search.ranking import Order, refuse_scores, search_ordered

            order = Order.of(order_by, descending)
            of_scores = {"vector": vector, "boosts": boosts, "nprobe": nprobe, "weights": weights}
            refuse_scores(of_scores | {"fusion": None if fusion == "rrf" else fusion})
            found = partial(
                search_ordered, searched, query, order, index=index, syntax=syntax, limit=limit, offset=offset
            )
        if snippets is not False:
            from storage_core.read.search.order import with_snippets

            found = partial(with_snippets, found, searched.snapshot, query, index=index, syntax=syntax, wanted=snippets)
        return HeldRows(found(chosen))

    @_call
    def search_count(
        self,
        query: object,
        *,
        index: str | Sequence[str] | None = None,
        filter: Filter | str | None = None,  # noqa: A002  # as in `scan`
        syntax: str = "lenient",
        at: At | None = None,
        consistency: str = Consistency.SNAPSHOT,
        cache_dir: Path | None = None,
        limits: QueryLimits | None = None,
    ) -> int:
        """Return the exact number of rows that a search for the query finds.

        The count includes rows that are not indexed or not merged yet.

        Args:
            query: Query for a full-text or bitmap index, as in `search`. A vector index has no matches to count.
            index: As in `search`. None: the only index that accepts the query.
            filter: Condition as in `scan`. None: all rows.
            syntax: As in `search`. Default: `"lenient"`.
            at: Older version to read, as in `scan`. None: the version of this object.
            consistency: As in `scan`. Default: `snapshot`.
            cache_dir: As in `search`. None: segments are kept for this call only.
            limits: As in `search`. None: the defaults of `QueryLimits`.

        Returns:
            The number of rows.

        Raises:
            NotFound: As in `search`.
            InvalidInput: As in `search`.

        Cost:
            No row is read, except the columns of a filter that no bitmap index can answer.
        """
        from storage_core.read.search.matches import Query, matched

        searched = self._searched(at, consistency, filter, limits=limits, cache_dir=cache_dir)
        wanted = Query.of(searched.snapshot, query, index=index, syntax=syntax)
        return matched(searched, wanted, lambda matches: matches.number())

    @_call
    def search_facets(
        self,
        query: object,
        by: str,
        *,
        limit: int = 10,
        index: str | Sequence[str] | None = None,
        filter: Filter | str | None = None,  # noqa: A002  # as in `scan`
        syntax: str = "lenient",
        at: At | None = None,
        consistency: str = Consistency.SNAPSHOT,
        cache_dir: Path | None = None,
        limits: QueryLimits | None = None,
    ) -> HeldRows:
        """Return the most frequent values of a column among all rows that match a query.

        The counts are exact, even if rows are not indexed or merged yet. See `read.search.matches`.

        Args:
            query: Query for a full-text or bitmap index, as in `search`.
            by: Column with the values to count. A bitmap index must cover the column.
            limit: Largest number of values to return. Default: 10.
            index: As in `search`. None: the only index that accepts the query.
            filter: Condition as in `scan`. None: all rows.
            syntax: As in `search`. Default: `"lenient"`.
            at: Older version to read, as in `scan`. None: the version of this object.
            consistency: As in `scan`. Default: `snapshot`.
            cache_dir: As in `search`. None: segments are kept for this call only.
            limits: As in `search`. None: the defaults of `QueryLimits`.

        Returns:
            The columns `value` and `count`, the most frequent value first, then by value. Null is counted as a value.

        Raises:
            NotFound: As in `search`.
            InvalidInput: As in `search`.
        """
        from storage_core.read.answers import HeldRows
        from storage_core.read.search.matches import Query, search_facets
        from storage_core.read.search.search_request import page

        searched = self._searched(at, consistency, filter, limits=limits, cache_dir=cache_dir)
        wanted = Query.of(searched.snapshot, query, index=index, syntax=syntax)
        most, _ = page(limit)
        return HeldRows(search_facets(searched, wanted, by, most))

    def _searched(
        self,
        at: At | None,
        consistency: str,
        given: Filter | str | None,
        *,
        limits: QueryLimits | None,
        cache_dir: Path | None,
    ) -> Searched:
        from storage_core.read.scan import require_condition, wanted_filter
        from storage_core.read.search.matches import Searched
        from storage_core.read.search.search_cache import SearchCache

        wanted = wanted_filter(given)
        self._kept = self._kept or SearchCache(self._verified, values=self._view.kept)
        snapshot, captured = self._view.captured(at, consistency)
        require_condition(wanted, snapshot.schema)
        return Searched(
            store=self._store,
            snapshot=snapshot,
            unmerged=() if captured is None else captured.parts(snapshot),
            raw=() if captured is None else captured.raw_parts,
            filter=wanted,
            limits=limits,
            cache_dir=cache_dir,
            kept=self._kept,
        )

    @_call
    def recall(
        self,
        index: str | None = None,
        queries: object = None,
        k: int = 10,
        filter: Filter | str | None = None,  # noqa: A002  # as in `search`
        *,
        nprobe: int | None = None,
        seed: int = 0,
        cache_dir: Path | None = None,
        limits: QueryLimits | None = None,
    ) -> Recall:
        """Measure the recall of searches by vector, against all rows of this version.

        The recall is the share of the `k` nearest rows that a search by vector finds. See `read.search.vectors`.

        Args:
            index: Name of the vector index. None: the only vector index of the table.
            queries: Embeddings to search for, or a number of rows to draw at random. The embeddings of the drawn rows
                are then the queries. None: 100 rows.
            k: Number of nearest rows for each query. Default: 10.
            filter: Condition as in `search`. None: all rows.
            nprobe: As in `search`. None: chosen for each segment.
            seed: Seed for drawing the rows. Default: 0.
            cache_dir: As in `search`. None: segments are kept for this call only.
            limits: As in `search`. None: the defaults of `QueryLimits`.

        Returns:
            The recall, and the numbers of its computation.

        Cost:
            Reads all embeddings once, in bounded memory.
        """
        from storage_core.read.search.vectors import recall

        searched = self._searched(None, Consistency.SNAPSHOT, filter, limits=limits, cache_dir=cache_dir)
        return recall(searched, index=index, queries=queries, k=k, nprobe=nprobe, seed=seed)

    @_call
    def explain(
        self,
        query: str,
        *,
        at: At | None = None,
        consistency: str = Consistency.SNAPSHOT,
        limits: QueryLimits | None = None,
        parameters: Parameters | None = None,
        tables: Mapping[str, Table | ArrowStream] | None = None,
        analyze: bool = False,
    ) -> Plan:
        """Return the plan of a query: the data that `sql` reads, and the data that each step prunes.

        Print the plan, or convert it with `to_dict()`.

        Args:
            query: As in `sql`.
            at: As in `sql`.
            consistency: As in `sql`.
            limits: As in `sql`.
            parameters: As in `sql`.
            tables: As in `sql`.
            analyze: True also runs the query, discards its rows as they arrive, and adds the measurements to the plan.

        Returns:
            The plan.

        Cost:
            For each table: the requests of its view, every manifest, and the footers of splits that are read by ranges
            (`table_read.described`). The footers are not cached, so a later read makes all requests of the plan. The
            plan does not count the requests that open the tables. If the consistency is above `snapshot`, newer records
            supersede rows. The plan does not count the requests that find these rows (`TablePlan.newer_records`).
        """
        from storage_core.read import sql

        read = (self, *(() if tables is None else tables.values()))
        watched = [each._watched for each in read if isinstance(each, Table)]  # noqa: SLF001  # of the same class
        opened = self._sources(at, consistency, tables)
        return sql.explain(opened, query, limits=limits, parameters=parameters, analyze=watched if analyze else None)

    @property
    def _watched(self) -> Watched:
        from storage_core.read.plan import Watched

        return Watched(self._store, self._log.cached)

    @_call
    def explain_search(
        self,
        query: object = None,
        *,
        vector: object = None,
        index: str | Sequence[str] | None = None,
        fusion: str = "rrf",
        weights: Mapping[str, float] | None = None,
        limit: int = 10,
        offset: int = 0,
        columns: Sequence[str] | None = None,
        filter: Filter | str | None = None,  # noqa: A002  # as in `scan`
        syntax: str = "lenient",
        boosts: Mapping[str, float] | None = None,
        at: At | None = None,
        consistency: str = Consistency.SNAPSHOT,
        nprobe: int | None = None,
        cache_dir: Path | None = None,
        limits: QueryLimits | None = None,
        analyze: bool = False,
    ) -> SearchPlan:
        """Return the plan of a search: the work by index and by source, and the use of the filter.

        Print the plan, or convert it with `to_dict()`. Some values are known only after a run with `analyze`. Examples
        are the number of rows that meet the filter, and the number of clusters that a search by vector reads.

        Args:
            query: As in `search`. Without a query and a vector, the plan covers the indexes named in `index`.
            vector: As in `search`.
            index: As in `search`.
            fusion: As in `search`.
            weights: As in `search`.
            limit: As in `search`.
            offset: As in `search`.
            columns: As in `search`.
            filter: As in `search`.
            syntax: As in `search`.
            boosts: As in `search`.
            at: As in `search`.
            consistency: As in `search`.
            nprobe: As in `search`.
            cache_dir: As in `search`.
            limits: As in `search`.
            analyze: True also runs the search and adds the measurements to the plan.

        Returns:
            The plan.

        Cost:
            Without `analyze`: the requests of the view, and the maps of segments that cover only a part of a split.
            With a filter, also every manifest. No segment and no split is read.
        """
        from storage_core.read.plan import analysis
        from storage_core.read.scan import chosen_columns
        from storage_core.read.search.hybrid import search
        from storage_core.read.search.matches import Trace
        from storage_core.read.search.plan import indexes_of, planned, search_plan
        from storage_core.read.search.search_request import SearchQuestion

        searched = self._searched(at, consistency, filter, limits=limits, cache_dir=cache_dir)
        given = SearchQuestion(
            query=query,
            vector=vector,
            index=index,
            fusion=fusion,
            weights=weights,
            syntax=syntax,
            boosts=boosts,
            nprobe=nprobe,
        )
        indexes, chosen = indexes_of(searched.snapshot, given), chosen_columns(columns, searched.snapshot.schema)
        if not analyze:
            return search_plan(searched, indexes, planned(searched, indexes))
        trace = Trace()

        def run() -> int:
            found = search(searched, given, chosen, limit=limit, offset=offset, trace=trace)
            return int(found.num_rows)

        done = analysis([self._watched], run)
        return search_plan(searched, indexes, trace, done=done)

    @_call
    def explain_get(
        self, key: object, *, at: At | None = None, consistency: str | None = None, analyze: bool = False
    ) -> LookupPlan:
        """Return the plan of a lookup: the data that `get` reads for this key, in its region and in the base.

        Print the plan, or convert it with `to_dict()`.

        Args:
            key: As in `get`.
            at: As in `get`.
            consistency: As in `get`.
            analyze: True also runs the lookup and adds the measurements to the plan.

        Returns:
            The plan.

        Cost:
            The requests of `lookup.explained`. They fill no cache, so a later `get` makes the planned requests or
            fewer.
        """
        from storage_core.read import lookup

        seen = self._view.level(consistency, at, usual=Consistency.LATEST)
        wanted = lookup.key_rows(self.snapshot, [key])
        plan = lookup.explained(self._store, self._view, wanted, at=at, consistency=seen, verified=self._verified)
        if not analyze:
            return plan
        return plan.analyzed([self._watched], lambda: int(self.get(key, at=at, consistency=seen) is not None))

    @_call
    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """Return the commits up to this version, newest first.

        Args:
            limit: Largest number of commits, at least 0. None: all retained commits.

        Returns:
            One entry per commit.

        Raises:
            InvalidInput: `limit` is negative.

        Cost:
            One GET for each version file.
        """
        if limit is not None and limit < 0:
            raise InvalidInput(f"limit is {quoted(limit)}. Give a number of commits, or None for all", limit=limit)
        return list(islice(self._log.history(self.version), None if limit is None else min(limit, self.version + 1)))

    @_call
    def changes(self, start: At, end: At | None = None) -> pa.RecordBatchReader:
        """Return the rows that commits added and removed. See `read.changes`.

        Args:
            start: Version, time or tag, as in `open`. The commits after it are read.
            end: Version, time or tag of the last commit to read. None: the version of this object.

        Returns:
            A stream with the columns of the table and `_change_type`, `_commit_version` and `_commit_timestamp`.
        """
        from storage_core.read.changes import changes

        last = self.snapshot if end is None else snapshot_at(self._log, end)
        return changes(self._store, snapshot_at(self._log, start), last)

    def read_history(
        self, *, token: str | None = None, page_bytes: int = PAGE_BYTES, consistency: str | None = None
    ) -> HistoryPage:
        """Return one page of the table's records.

        The first pages contain the rows of the base as put records. The later pages contain the acknowledged records
        that are not merged. All records have the columns of the table's schema. If a whole row is older than a column,
        it has the default of the column. `rows.fold` computes the rows of the table from the records of all pages. All
        pages show the table at the time of the first page. See `read.history`.

        Args:
            token: The `token` of the previous page. It can be used in this process or in another. None: the first page.
            page_bytes: Largest size of a page in bytes. A page contains at least one record, of any size. Default:
                5,000,000.
            consistency: As in `scan`: a level below `latest` omits unmerged records. None: `latest`.

        Returns:
            The page. Its `token` is None on the last page. If its `restarted` is True, discard all earlier pages. The
            history then starts again with this page, because the collector has deleted the earlier state.

        Raises:
            InvalidInput: The token is damaged or belongs to another table.
            SnapshotExpired: The collector has deleted the state of the token, and the history was already restarted.
            Unsupported: A newer release wrote the token.
        """
        # There is always a first page.
        return next(self.read_history_pages(token=token, page_bytes=page_bytes, consistency=consistency))

    @_call
    def read_history_pages(
        self, *, token: str | None = None, page_bytes: int = PAGE_BYTES, consistency: str | None = None
    ) -> Iterator[HistoryPage]:
        """Yield the pages that `read_history` returns, one after the other. Each source is opened once.

        Args:
            token: As in `read_history`.
            page_bytes: As in `read_history`.
            consistency: As in `read_history`. A table opened with `at` has the history of its version only, with the
                consistency `snapshot`.

        Returns:
            An iterator over the pages.
        """
        from storage_core.read.history import read_pages

        return read_pages(self._view, token=token, page_bytes=page_bytes, consistency=consistency)

    @_call
    def add_column(self, name: str, type: pa.DataType | str, *, default: object = None) -> Table:  # noqa: A002
        """Add a nullable column after the existing columns, in one commit.

        No row is rewritten. Rows written before the commit have the `default`. A row written after the commit has null
        if it was written without a value for the column, as for every other column.

        Args:
            name: Name of the new column.
            type: Arrow type, or a type name as in a declaration, such as `"long"`.
            default: Value for rows written before the commit. None: null.

        Returns:
            This table, moved to the new version.

        Raises:
            InvalidInput: The column exists, or the default is not a value of the type.
        """
        from storage_core.change import creation

        return self._altered(creation.add_column(name, type, default))

    @_call
    def widen_column(self, name: str, type: pa.DataType | str) -> Table:  # noqa: A002
        """Change the type of a column to a wider type, in one commit.

        No row is rewritten.

        Args:
            name: Name of the column.
            type: The wider type: Arrow type or type name. An integer type can become a wider integer type, and `float`
                can become `double`. A decimal can get more digits at the same scale. A date can become a timestamp at
                midnight.

        Returns:
            This table, moved to the new version.

        Raises:
            InvalidInput: The new type is not one of these wider types. The error contains the remedy.
        """
        from storage_core.change import creation

        return self._altered(creation.widen_column(name, type))

    @_call
    def relax_column(self, name: str) -> Table:
        """Make a required column nullable, in one commit.

        Args:
            name: Name of the column.

        Returns:
            This table, moved to the new version.
        """
        from storage_core.change import creation

        return self._altered(creation.relax_column(name))

    @_call
    def rename_column(self, old: str, new: str) -> Table:
        """Rename a column, in one commit.

        No row is rewritten.

        Args:
            old: Current name of the column.
            new: New name of the column.

        Returns:
            This table, moved to the new version.

        Raises:
            InvalidInput: The column is part of the key, the time column, the order of rows, the regions, an index or
                another setting. The error contains the remedy.
        """
        from storage_core.change import creation

        return self._altered(creation.rename_column(old, new))

    @_call
    def drop_column(self, name: str) -> Table:
        """Remove a column, in one commit.

        Older versions keep the column. A later column of the same name is a different column. It never shows the values
        of the removed column.

        Args:
            name: Name of the column.

        Returns:
            This table, moved to the new version.

        Raises:
            InvalidInput: As in `rename_column`.
        """
        from storage_core.change import creation

        return self._altered(creation.drop_column(name))

    def _altered(self, change: ColumnChange) -> Table:
        from storage_core.change.creation import change_column

        self._require_writable()
        self._view.snapshot = change_column(self._log, self.snapshot, change)
        return self

    @_call
    def set_regions(self, regions: Sequence[DeclaredField], *, quarantine: bool = False) -> Table:
        """Divide the rows of a keyed table into new regions.

        After the call returns, every acknowledged row of the old regions is in the base. The old regions are closed,
        and writers follow the new region spec. Until then, the table refuses writes: a live writer is fenced, and a new
        writer raises `RegionClosed`. Readers are not affected.

        This process merges the old regions. To shorten the call, run the merge job just before it. If the call is
        interrupted, call it again to finish. See decision 0010.

        Args:
            regions: Fields as in `create`. Empty: one region for all keys.
            quarantine: Treatment of a record that cannot be merged. False (the default): the call fails, and the
                error names the region, the generation, the row and the key. True: all unmerged records of this key go
                to quarantine, and the base keeps its row of the key.

        Returns:
            This table, moved to the new version.

        Raises:
            InvalidInput: The fields cannot divide the table.
            CommitConflict: In every attempt, another writer first committed a change of the same rows.
        """
        from storage_core.write.region.repartition import change_regions
        from storage_core.write.region.spec import declared_fields

        self._require_writable()
        self._view.snapshot = change_regions(self._log, declared_fields(regions, self.schema), quarantine=quarantine)
        return self

    @_call
    def restore(self, to: At, *, commit_id: str | None = None) -> Restored:
        """Restore the content of an older version with one new commit. See `maintain.history`.

        Unmerged rows of a keyed table are kept, and the next merge applies them. Files and records that were ingested
        or merged since that version are not ingested or merged again.

        Args:
            to: Version, time or tag to restore, as in `open`.
            commit_id: Id for the commit. A repeated call with the same id finds its own commit and changes nothing.
                None: a new id.

        Returns:
            The outcome, with the new snapshot.

        Raises:
            SnapshotExpired: Splits of that version are deleted or about to be deleted. Nothing is written.
            CommitConflict: Other writers committed first in every attempt. Nothing is written.
        """
        from storage_core.maintain.history import restore

        self._require_writable()
        target = snapshot_at(self._log, to)
        done = restore(self._log, target, commit_id=commit_id)
        self._view.snapshot = done.snapshot
        return done

    @_call
    def clone(self, uri: str | Path, *, version: At | None = None, deep: bool = False) -> Cloned:
        """Clone one version of this table to an empty location. See `maintain.clone.clone`.

        A shallow clone has its own log and shares the data files with this table. A tag on this table keeps the shared
        files as long as the tag exists. Both tables then change independently. The collectors do not delete a file that
        the other table needs. A deep clone contains a verified copy of every file. Unmerged rows of a keyed table are
        not cloned.

        Args:
            uri: Location of the clone. It must be empty.
            version: Version, time or tag to clone, as in `open`. None: the version of this object.
            deep: True copies all files. False (the default) shares them.

        Returns:
            The content of the clone and, for a keyed table at its newest version, the number of unmerged records.
        """
        from storage_core.maintain.clone import clone
        from storage_core.read.describe import unmerged_metrics

        self.require_capable()
        snapshot = self.snapshot if version is None else snapshot_at(self._log, version)
        done = clone(self._log, snapshot, log_at(uri)[1], deep=deep)
        if self.config.kind != "keyed":
            return done
        is_newest = snapshot.version == self._log.refresh(snapshot).version
        waiting = unmerged_metrics(self._store, snapshot) if is_newest else None
        count = None if waiting is None else sum(each.generation_records + each.wal_records for each in waiting)
        return replace(done, unmerged=count)

    @_call
    def publish(self, format: str = "delta") -> Mirrored:  # noqa: A002  # the commands and declarations use this name
        """Publish all versions up to the newest version in another table format, in the table's folder.

        `delta` writes a `_delta_log` that references the same splits, with one Delta commit per version. Delta readers
        then read the table at its own location. `iceberg` writes Iceberg metadata in `_iceberg`, with one snapshot per
        version. It needs the extra `iceberg`. Versions with deleted rows are published to Iceberg after a compaction.
        Readers of a keyed table see the base, which contains the merged rows.

        No data is rewritten, and versions that are already published stay. If the call is interrupted, the next call
        continues. The setting `publish` controls how deleted rows are published. See
        `interop.delta_mirror.publish_delta` and `interop.iceberg.publish_iceberg`.

        Args:
            format: `"delta"` (the default) or `"iceberg"`.

        Returns:
            The published versions.
        """
        from storage_core.interop.steps import format_of, publish_as

        wanted = format_of(format)
        self._require_writable()
        return publish_as(self._log, wanted, self.config.publish)

    @_call
    def tag(self, name: str, version: At | None = None, *, expires: dt.timedelta | None = None) -> Tag:
        """Keep a version readable under a name. Readers open the version with `at=name`.

        An existing tag of this name moves to the version. `log.log` describes tags.

        Args:
            name: Name of the tag. It starts with a letter.
            version: Version, time or tag to keep, as in `open`. None: the version of this object.
            expires: Time from now after which the tag expires. None: the tag does not expire.

        Returns:
            The tag.

        Raises:
            SnapshotExpired: Some files of the version are already deleted.
        """
        from storage_core.maintain.history import set_tag

        self.require_capable()
        target = self.snapshot if version is None else snapshot_at(self._log, version)
        return set_tag(self._log, name, target, lasts=expires)

    @_call
    def untag(self, name: str) -> Tag:
        """Remove a tag and return it.

        Afterwards the version is retained like a version without a tag.

        Args:
            name: Name of the tag.

        Raises:
            NotFound: There is no tag of this name.
        """
        from storage_core.log.log import remove_tag

        self.require_capable()
        return remove_tag(self._log, name)

    @_call
    def tags(self) -> list[Tag]:
        """Return the tags that have not expired, ordered by name. Makes one GET."""
        from storage_core.log.log import read_tags

        return read_tags(self._store).live(self._log.clock.now_ms())

    @_call
    def describe(self, *, recall: bool = False) -> dict[str, object]:
        """Return the table's metrics as plain data.

        The fields are a contract (`docs/spec.md`).

        Args:
            recall: True also measures the recall of each vector index, as `recall` does. This reads all embeddings.
                Default: False.

        Returns:
            The metrics by name, with the table's settings under `settings`.
        """
        from storage_core.data.settings.table import shown
        from storage_core.read import describe

        wanted = [each.name for each in self.config.indexes if recall and each.kind == "vector"]
        recalls = {name: self.recall(name).recall for name in wanted}
        about = describe.describe(self._store, self.snapshot, now_ms=self._log.clock.now_ms(), recalls=recalls)
        return {**about, "settings": shown(self.config)}

    @_call
    def describe_state(self) -> dict[str, object]:
        """Return the parts of this version's state and the cost of opening the version, as plain data (`docs/spec.md`).

        Cost:
            Opens the table once more, and makes one HEAD for each manifest.
        """
        from storage_core.read.describe import describe_state

        return describe_state(self._log, self.snapshot)

    @_call
    def checkpoint(self, *, compact: bool = False) -> Table:
        """Write a checkpoint of this version if it has no checkpoint. The version then opens fast. Idempotent.

        Args:
            compact: True writes a state with the fewest manifests and no tombstone. If the version already has another
                state, the method commits a new version without changes and writes the state of that version. See
                `log.log`. Default: False.

        Returns:
            This table.
        """
        self._require_writable()
        if compact:
            from storage_core.log.log import compact_state

            self._view.snapshot = compact_state(self._log, self.snapshot).snapshot
        else:
            self._view.snapshot = self._log.checkpoint(self.snapshot).snapshot
        return self

    @_call
    def files(self) -> list[dict[str, object]]:
        """Return one plain object per live split. The fields are a contract (`docs/spec.md`)."""
        from storage_core.read import describe

        return list(describe.files(self.snapshot))

    @_call
    def debt(self, mode: Mode | None = None) -> list[PendingWindow]:
        """Return the windows with pending work of compaction or retention, now or later.

        Each entry contains the work, its reason, its bytes and the cost of the next run (`compact.pending_work`).

        Args:
            mode: Mode of the compaction. None: `finalize`.

        Returns:
            The pending work.

        Raises:
            InvalidInput: The mode is unknown.

        Cost:
            No request.
        """
        from storage_core.compact.pending_work import find_pending_windows
        from storage_core.data.settings.layout import Mode

        if mode is not None and mode not in tuple(Mode):
            raise InvalidInput(choice_of("mode", mode, [*Mode]), argument="mode")
        mode = None if mode is None else Mode(mode)
        return find_pending_windows(self.snapshot, now_ms=self._log.clock.now_ms(), mode=mode or Mode.FINALIZE)

    def _require_no_application(self, application: object) -> None:
        """Raise `InvalidInput` if an `application` is given. A keyed table does not support this argument."""
        if application is not None:
            raise InvalidInput(f"{self.uri}: a keyed table does not support `application`. Leave it out")

    def _require_writable(self) -> None:
        if self._view.pinned:
            raise InvalidInput(f"{self.uri}: opened at version {self.version}. Open the table without `at` to write")
        self.require_capable()


def exists(uri: str | Path) -> bool:
    """Return whether there is a table at this location. Makes one LIST."""
    _, log = log_at(uri)
    return log.exists()


def _opened(name: str, given: object, consistency: str) -> Opened | pa.Table:
    if isinstance(given, Table):
        return partial(given._opened, None, consistency)  # noqa: SLF001  # of this class
    from storage_core.data.rows.incoming import is_stream, read_whole, validated_rows

    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    rows = read_whole(given) if is_stream(given) else given
    if not isinstance(rows, pa.Table):
        raise InvalidInput(
            f"the table {quoted(name)} of the query is {quoted(given)}. Give a Table or Arrow data", name=name
        )
    try:
        return rows if is_stream(given) else validated_rows(rows)
    except InvalidInput as error:
        raise error.reworded(f"table {quoted(name)}: {error.found}", name=name) from error


def _with_declared_location(text: str, error: NotFound) -> NotFound:
    """Return the error of a location without a table.

    If the text is the name of a declared table, the message contains the location of this table.

    Cost: if there is no table, the files of the declarations are read.
    """
    from storage_core.change.declaration import find_declared

    if "uri" not in error.context or "/" in text or (found := find_declared(text)) is None:
        return error
    file, uri = found
    return error.reworded(
        f"{text!r} is the name of a table declared in {file}, and not the location of a table. Table.open takes a "
        f"location. Open {uri!r}",
        uri=uri,
    )
