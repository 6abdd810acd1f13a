"""The table: one façade over the log, the regions, the indexes and the readers (docs/architecture/README.md).

An operation imports what only it needs when it is first asked for, so that a program pays for what it uses
(decision 0095).
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import pyarrow as pa

from storage_core.arguments import checked
from storage_core.cache.pieces import cached_pieces
from storage_core.clock import SystemClock
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.headroom import QUERY_BYTES, require_headroom
from storage_core.ids import SystemIds
from storage_core.log.log import TransactionLog
from storage_core.log.sharing import open_table_store
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.meter import MeteredStore
from storage_core.read.as_of import At, snapshot_at
from storage_core.read.verified import Verified
from storage_core.read.view import PAGE_BYTES, Consistency, View
from storage_core.rows.columns import without_metadata
from storage_core.settings.cache import CacheSettings
from storage_core.settings.table import MapMode, TableConfig
from storage_core.system_errors import typed

if TYPE_CHECKING:
    from storage_core.alteration import ColumnChange
    from storage_core.append import Appended
    from storage_core.cache.pieces import CacheCounts
    from storage_core.cloning.cloned import Cloned
    from storage_core.compaction.debt import Debt
    from storage_core.compaction.policy import Mode
    from storage_core.declaration import TableDeclaration
    from storage_core.dml.changed import Changed
    from storage_core.dml.keyed import Matching
    from storage_core.dml.statements import Target
    from storage_core.engine.parameters import Parameters
    from storage_core.forget.raw_table import RawTable
    from storage_core.forget.report import ForgetReport, Forgotten
    from storage_core.formats.tags import Tag
    from storage_core.history.restore import Restored
    from storage_core.importing.imported import Imported
    from storage_core.importing.source import Stream
    from storage_core.ingest.landing import LandingSpec
    from storage_core.log.history import HistoryEntry
    from storage_core.publishing.mirrored import Mirrored
    from storage_core.read.arrow_rows import HeldRows
    from storage_core.read.history_pages import HistoryPage
    from storage_core.read.lookup_plan import LookupPlan
    from storage_core.read.plan import Plan, Watched
    from storage_core.read.predicate import Condition, Filter, Predicate
    from storage_core.read.raw_rows import WithRawLogs
    from storage_core.read.scan import Scan
    from storage_core.read.sql import Opened, TableView
    from storage_core.read.sql_result import SqlResult
    from storage_core.region.options import WriterOptions
    from storage_core.region.router import TableWriter
    from storage_core.region.spec import DeclaredField
    from storage_core.region.unmerged import Captured
    from storage_core.rows.incoming import ArrowStream, Rows
    from storage_core.search.kept import Kept
    from storage_core.search.plan import SearchPlan
    from storage_core.search.recall import Recall
    from storage_core.search.searched import Searched
    from storage_core.settings.index import IndexDefinition
    from storage_core.settings.late_data import LateData
    from storage_core.settings.query import QueryLimits

P = ParamSpec("P")
R = TypeVar("R")
AUTO = "auto"
"""The window of a table unless it is said: 15 minutes where there is a time column, none elsewhere."""
_USUAL_WINDOW = "15m"


_loading = typed("this process")  # modules and libraries are loaded where they are used, as far as the system lets it


def _call(method: Callable[P, R]) -> Callable[P, R]:
    """A public call: with arguments of the types that it names, and errors of the system that are typed."""
    return _loading(checked(method))


class Table:
    """One table at one snapshot.

    Reads see the version the object was opened at, moved forward by its own commits and by `refresh`. A table opened
    with `at` stays at that version and refuses writes. Objects of this class are cheap; they hold no connection.
    """

    def __init__(self, store: MeteredStore, log: TransactionLog, snapshot: Snapshot, *, pinned: bool = False) -> None:
        self._store = store
        self._log = log
        self._view = View(log, snapshot, pinned=pinned)
        self._verified = Verified(log.cached)
        self._kept: Kept | None = None

    def __repr__(self) -> str:
        """Say which table this is, at which version; nothing is requested."""
        return f"Table({self.uri!r}, version={self.version})"

    @staticmethod
    @_call
    def create(
        uri: str | Path,
        schema: pa.Schema,
        *,
        time_column: str | None = None,
        sort_schema: str | None = None,
        window: str | int | None = AUTO,
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

        `time_column` windows the table by `window` (15 minutes unless it is said), above an hour only with
        `coarse_window`; `primary_key` makes it keyed, `regions` (`region.spec.declared_fields`) divides it among
        writers, and `map_columns={"attrs": "merge"}` lets patches merge the keys of that map instead of replacing it.
        `late_data` (`{"policy": "quarantine", "acceptance_window": "1h"}`) says what becomes of rows that arrive late;
        without it none is late. Whole windows leave when they ended as long ago as `retention` says, such as `"30d"`,
        or seconds. Splits have a Parquet Bloom filter of each of `bloom_filters`, for readers that look for single
        values. Splits are of one partition each of `partition_by`: columns, or transforms of them such as `day(ts)`,
        `bucket[16](id)` and `truncate[4](name)`. Generations of a keyed table get segments of `maintained_indexes`, of
        all `indexes` where it is not said. `settings` are those of `alter`, such as `{"splits.target_size": "64MiB"}`.
        Raises `InvalidInput` when the location holds a table already or the parts contradict each other,
        `Unsupported` when the store cannot hold a table. One LIST and one PUT; on S3 the store is probed before.
        """
        from storage_core import creation

        config = _new_config(
            schema,
            time_column=time_column,
            sort_schema=sort_schema,
            window=window,
            primary_key=primary_key,
            indexes=indexes,
            regions=regions,
            coarse_window=coarse_window,
            late_data=late_data,
            retention=retention,
            map_columns=map_columns,
            bloom_filters=bloom_filters,
            partition_by=partition_by,
            maintained_indexes=maintained_indexes,
            settings=settings,
        )
        store, log = _log_at(uri)
        return Table(store, log, creation.create(log, schema, config))

    @staticmethod
    @_call
    def declare(declaration: TableDeclaration, uri: str | Path | None = None) -> Table:
        """Open the declared table, creating it first where it does not exist. Idempotent, also under concurrency.

        Order, indexes, landing place and settings of the upkeep that changed in the declaration are committed to the
        table; splits that exist keep the order they were written in.
        Raises `InvalidInput` naming what else differs from the table, which keeps what it was created with.
        """
        from storage_core import creation

        store, log = _log_at(declaration.uri if uri is None else uri)
        return Table(store, log, creation.declare(log, declaration))

    @_call
    def alter(self, settings: Mapping[str, object]) -> Table:
        """Change settings in one commit, and return the table: `{"gc.retention": "90d", "compaction": {"factor": 12}}`.

        Names and values are those of declarations, and of `describe()["settings"]`; None is back to the default. Others
        stay, also what somebody else changes meanwhile; nothing is committed where all is as it is given. Each job
        follows at its next run, new splits at once; those that exist stay as they are. Raises `InvalidInput` naming
        a setting that there is not or that cannot change, or what is wrong with a value.
        """
        from storage_core import creation

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
        """Bring all rows of a source into the table at `uri`, which is made where there is none; in one commit, once.

        `source` is a folder of Parquet files or a Delta table (at a `version`, or its newest), each by its place, or a
        stream of Arrow data, such as a relation of DuckDB or a data frame, with a `name`. Nothing there is changed.
        Files may differ: columns are joined by name, lack or not, and widen as those of a table may. What cannot be
        joined is refused before anything is made, with the file, the column and both types. A new table is as declared,
        or has the columns of the source and what is given here, as of `create`; without it, no windows. Imported again,
        with what it held then, nothing is done; a stream is known by its name alone, whatever it holds: other rows need
        another name. The result has no `commit_id` then. Raises `InvalidInput` for a `declaration` beside what it
        declares; see `importing.run.import_rows`.
        """
        from storage_core import creation
        from storage_core.importing.given import AS_IT_IS, TableOptions, source_of
        from storage_core.importing.run import import_rows

        wanted = TableOptions(time_column=time_column, window=window, sort_schema=sort_schema, primary_key=primary_key)
        if declaration is not None and wanted != AS_IT_IS:
            raise InvalidInput(
                f"{uri}: the declaration of {declaration.name!r} declares what the table is; leave out time_column, "
                "window, sort_schema and primary_key",
                uri=uri,
            )
        given = source_of(source, name=name, version=version)
        _, log = _log_at(uri)

        def make(schema: pa.Schema, marks: Mapping[str, str]) -> Snapshot:
            if declaration is not None:
                given.require_fits(declaration.schema())
                return creation.declare(log, declaration, marks)
            config = _new_config(
                schema,
                time_column=time_column,
                window=AUTO if window is None else window,
                sort_schema=sort_schema,
                primary_key=primary_key,
            )
            return creation.create(log, schema, config, marks)

        return import_rows(log, given, make, name=name, wanted=wanted)

    @staticmethod
    @_call
    def open(uri: str | Path, at: At | None = None) -> Table:
        """Open a table at its newest version, or at a version number, a moment (ISO text or datetime, UTC) or a tag.

        Raises `NotFound` when there is no table, or no such version. Requests: one GET each for the hint and the
        checkpoint it names, one per version after it, one that finds no further version, and one LIST beyond it.
        """
        store, log = _log_at(uri)
        return Table(store, log, log.snapshot() if at is None else snapshot_at(log, at), pinned=at is not None)

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self._store.uri

    @property
    def version(self) -> int:
        """The version that reads see."""
        return self.snapshot.version

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return without_metadata(self.snapshot.schema)

    def landing(self) -> LandingSpec | None:
        """Return where files of this table land, as declared when it was created, or None."""
        from storage_core.ingest.landing import LANDING, LandingSpec

        text = self.snapshot.metadata.configuration.get(LANDING)
        return None if text is None else LandingSpec.from_json(text)

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot that reads see."""
        return self._view.snapshot

    @property
    def config(self) -> TableConfig:
        """The settings of the table."""
        return self.snapshot.config

    @property
    def store(self) -> MeteredStore:
        """The store of the table, which counts its requests."""
        return self._store

    @property
    def log(self) -> TransactionLog:
        """The transaction log of the table."""
        return self._log

    @property
    def cache_counts(self) -> CacheCounts:
        """What this object found in the cache on disk so far: hits, misses, bytes, failures. No request."""
        return self._log.cached.counts

    def require_capable(self) -> None:
        """Return when the store keeps its contract: called before the first write; on S3 that probes it once a process.

        Raises `Unsupported` naming what the store lacks. Requests: see `objectstore.probe`.
        """
        from storage_core import creation

        creation.require_capable(self._log)

    @_call
    def refresh(self) -> Table:
        """Move to the newest version and return the table; a pinned table stays. The GETs of `log.refresh`."""
        self._view.refresh()
        return self

    @_call
    def append(self, rows: Rows, *, application: tuple[str, int] | None = None) -> Appended:
        """Add rows in one commit; when this returns they are durable and every reader that opens the table sees them.

        Rows are split by window and sorted before they are written. On a keyed table the rows are put through a
        region writer and flushed instead: durable, visible to `latest` readers, in the base after the next merge.
        That claims the region and fences a live `writer()`, whose next write raises `WriterFenced`. Late rows are
        counted, and kept in quarantine or dropped where the table says so (decision 0051). No rows commit and claim
        nothing. Raises `InvalidInput` when a row does not fit; nothing is written then.

        `rows` is a mapping, a list of them, Arrow data, a data frame of pandas or Polars, or an object that gives a
        stream of Arrow data (`__arrow_c_stream__`). Times without a zone are UTC in a column of instants, and text in
        ISO 8601 is read in columns of dates and timestamps (docs/guide/2-own-data.md). A stream into an append table is
        read, sorted and written in pieces of 64 MiB, and committed at its end: when it breaks off, or a row of it does
        not fit, nothing is committed and the collector takes what was written. Into a keyed table it is read whole.

        With `application`, a name and a number, the work of that number is done once, as by `update`: rows that are
        appended again by the same work, or by work of a lower number, are not taken. It is of append tables only.
        """
        from storage_core.append import append, fitting, put

        self._require_writable()
        if self.snapshot.config.kind == "keyed":
            self._require_no_application(application)
            return put(self._log, self.snapshot, rows)
        pieces = fitting(rows, self.schema, self.config.nonzero_vectors)
        appended, self._view.snapshot = append(self._log, self.snapshot, pieces, application)
        return appended

    @_call
    def delete(self, filter: Condition, *, limits: QueryLimits | None = None) -> Changed:  # noqa: A002  # as of scan
        """Delete the rows that meet a condition, in one commit; `"true"` for every row.

        `filter` is as of `scan`. The rows are those of the version that the commit follows, whatever else commits
        meanwhile: none that met the condition is left in it, none that did not is gone. No file is rewritten: rows
        are hidden by deletion vectors, and a split without a row left leaves the table. What the log's statistics
        exclude is not read, and neither is a split of which they show that all of it goes. Where no row meets it
        nothing is committed. Raises `InvalidInput` for no condition and for one that may be another when it is
        evaluated again, `Unavailable` where the condition passes `limits`, `CommitConflict`.

        Of a keyed table the rows are those that `latest` shows: they are deleted by key in the logs of their regions,
        durable and gone for `committed` and `latest` readers when this returns, and out of the base after the next
        merge. A live writer goes on, and what it puts later comes back. While a row that matches has a record in one of
        the table's `raw_logs` that is not distributed, it is `Unavailable`. See `dml.keyed`.
        """
        from storage_core.dml import statements

        if self.config.kind == "keyed":
            matching = self._matching(filter, "delete", limits, self.config.primary_key)
            return statements.delete_by_key(self._log, self.snapshot, matching)
        return self._ran(statements.delete(self._target(limits), filter))

    @_call
    def update(
        self,
        values: Mapping[str, object],
        filter: Condition,  # noqa: A002  # as of scan
        *,
        application: tuple[str, int] | None = None,
        limits: QueryLimits | None = None,
    ) -> Changed:
        """Set columns of the rows that meet a condition, in one commit: to a value, or to an expression of the row.

        `{"status": 404, "n": tm.expr("n + 1")}`; an expression is SQL's over the columns of the row as it was. The
        rows are those of `delete`: they are hidden where they were, and written changed as new splits of their
        windows. With `application`, a name and a number, the work of that number is done once, however often it is
        asked for; `application` is of append tables only. Of a keyed table they are patched by key, as `delete`
        deletes them, and no column of the key is set. Raises what `delete` raises, and `InvalidInput` for a value that
        does not fit.
        """
        from storage_core.dml import statements
        from storage_core.settings.query import QueryLimits

        if self.config.kind != "keyed":
            return self._ran(statements.update(self._target(limits), values, filter, application))
        self._require_no_application(application)
        matching = self._matching(filter, "update", limits)
        return statements.update_by_key(self._log, self.snapshot, values, matching, limits=limits or QueryLimits())

    @_call
    def overwrite(
        self,
        rows: Rows,
        filter: Condition,  # noqa: A002  # as of scan
        *,
        application: tuple[str, int] | None = None,
        limits: QueryLimits | None = None,
    ) -> Changed:
        """Put rows in the place of those that meet a condition, in one commit: all that met it are gone, these are in.

        Of append tables only. Each row given meets the condition itself; `rows` and `filter` are as of `append` and
        `scan`, `application` as of `update`. Rows are never late. Raises what `delete` raises, and `InvalidInput` for a
        row that does not meet the condition: nothing is committed then.
        """
        from storage_core.dml import statements

        statements.require_append_table(self.snapshot, self.uri)
        return self._ran(statements.overwrite(self._target(limits), rows, filter, application))

    @_call
    def upsert(self, rows: Rows, *, on: str | Sequence[str]) -> Changed:
        """Add rows in the place of those with the same values in the columns `on`, in one commit.

        Rows of the table that have them are hidden, however many there are, so that afterwards one row has them. On a
        keyed table `on` is the primary key, and the rows are put through a writer as `append` does. `rows` are
        read whole. Rows are never late in an append table. Raises `InvalidInput` for rows given that do not differ in
        `on`, or lack a value there.
        """
        from storage_core.dml import statements

        if self.config.kind == "keyed":
            self._require_writable()
            return statements.put_by_key(self._log, self.snapshot, rows, on)
        return self._ran(statements.upsert(self._target(None), rows, on))

    @_call
    def forget(
        self,
        filter: Condition,  # noqa: A002  # as of scan
        *,
        raw_logs: Sequence[RawTable] = (),
        limits: QueryLimits | None = None,
    ) -> Forgotten:
        """Erase the rows that meet a condition: out of the table now, and out of every store as the collector goes.

        They are deleted as by `delete`, the splits and index segments that hold them are ended, and quarantine entries
        and chunks of raw logs become due: of those that the table's setting names and of `raw_logs`, others that it
        takes rows from. What waits for the retention of versions or for a tag is in the report, object by object and
        until when; `forget_report` makes it again later. Running it again is right at any time. Rows that are written
        later, landed again or distributed later are not forgotten. Raises what `delete` raises.
        """
        from storage_core.forget import forget

        target = self._target(limits)
        keyed = self.config.kind == "keyed"
        matching = self._matching(filter, "forget", limits, self.config.primary_key) if keyed else None
        done = forget.of(target, filter, self._feeding(target.head, raw_logs)).forget(matching)
        self._view.refresh()
        return done

    @_call
    def forget_report(
        self,
        filter: Condition,  # noqa: A002  # as of scan
        *,
        raw_logs: Sequence[RawTable] = (),
        limits: QueryLimits | None = None,
    ) -> ForgetReport:
        """Return what still holds rows that meet a condition, by a search of every object; `forget` forgets them.

        Nothing is written, and the view stays where it is: the report is of the newest version. Arguments as of
        `forget`. It reads all splits that no version names, or only older ones.
        """
        from storage_core.dml.statements import Target
        from storage_core.forget import forget
        from storage_core.settings.query import QueryLimits

        head = self._log.refresh(self.snapshot)
        target = Target(self._log, head, self._verified, limits or QueryLimits())
        return forget.of(target, filter, self._feeding(head, raw_logs)).report(head)

    def _feeding(self, head: Snapshot, given: Sequence[RawTable]) -> Sequence[RawTable]:
        """The raw logs whose rows the table takes."""
        from storage_core.forget.raw import with_named

        return with_named(given, head.config.raw_logs, self._view.raw_store)

    def _target(self, limits: QueryLimits | None) -> Target:
        """What a statement works on: the newest version."""
        from storage_core.dml.statements import Target
        from storage_core.settings.query import QueryLimits

        self._require_writable()
        return Target(self._log, self._view.refresh(), self._verified, limits or QueryLimits())

    def _matching(
        self, condition: object, verb: str, limits: QueryLimits | None, columns: Sequence[str] | None = None
    ) -> Matching:
        """What reads the rows of a keyed table that meet a condition now, none of which raw logs may change later."""
        from storage_core.dml.statements import required_filter
        from storage_core.read.raw_rows import require_distributed

        self._require_writable()
        wanted = required_filter(condition, verb, self.snapshot.schema.names)

        def matching() -> tuple[Snapshot, pa.Table]:
            found = self.scan(columns, wanted, consistency=Consistency.LATEST, limits=limits)
            rows = found.to_arrow()
            require_distributed(found, rows)
            return found.snapshot, rows

        return matching

    def _ran(self, outcome: tuple[Changed, Snapshot]) -> Changed:
        done, self._view.snapshot = outcome
        return done

    @_call
    def writer(
        self, *, region: Mapping[str, object] | str | None = None, options: WriterOptions | None = None
    ) -> TableWriter:
        """Return a writer of a keyed table, a context manager with `put`, `patch`, `reset`, `delete`, `flush`.

        A table of one region is claimed at once. Of a table with several, each region is claimed by the first row that
        falls into it (`RoutingWriter` says what is atomic then); with `region`, a value per field of the region spec,
        only that one, and rows of others are refused. Claiming fences earlier writers. Raises `InvalidInput` on an
        append table, `RegionClosed` while the region spec is being changed.

        A text as `region` names a region that no spec governs, of a table with the setting `regions_by_hand`: it takes
        any row. The caller promises that no key it writes there has unmerged records in another region; statements keep
        to that. Where it does not hold, readers see the records of both folded, those of the spec's region below those
        by hand, these by id; and the base has what was merged last, one row per key.
        """
        from storage_core.region.router import open_writer

        self._require_writable()
        return open_writer(self._log, self.snapshot, region=region, options=options)

    @_call
    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | str | None = None,  # noqa: A002  # the name that readers of this kind of library expect
        *,
        at: At | None = None,
        consistency: str = Consistency.SNAPSHOT,
        limits: QueryLimits | None = None,
    ) -> Scan:
        """Return a scan of the chosen columns and rows; nothing is read until it is converted.

        `filter` is an expression (`col("status") >= 500`) or a SQL condition as text. `at` reads an older version.
        `consistency` is `snapshot`, or `committed` (of keyed tables flushed generations too) or `latest` (every
        acknowledged row, also those in `raw_logs` of the table that are not distributed yet). Raises `InvalidInput` for
        an unknown column, and for no column. A filter that takes more time or memory than `limits` allow, by default
        those of `QueryLimits`, is `Unavailable` when rows are read.
        """
        from storage_core.read.regions import matching_regions
        from storage_core.read.scan import Scan, chosen_columns, wanted_filter

        wanted = wanted_filter(filter)
        regions = partial(matching_regions, self._store, predicate=None if wanted is None else wanted.predicate)
        snapshot, records, raw = self._view.records(at, consistency, regions)
        chosen = chosen_columns(columns, snapshot.schema)
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
        """Return the answer of one SELECT that calls this table `t`, in DuckDB's dialect; it reads nothing else.

        `parameters` are the values of `?`, `$1` or `$name` in it: a list, or values by name. `tables` are further ones
        by name: tables, read as they see themselves with the same consistency, and Arrow data, which is held whole.
        Raises `Unavailable` when it takes more time or memory than `limits` allow, by default those of `QueryLimits`.
        """
        from storage_core.read import sql

        opened = self._sources(at, consistency, tables)
        return sql.query(opened, query, limits=limits, parameters=parameters)

    def _sources(
        self, at: At | None, consistency: str, tables: Mapping[str, Table | ArrowStream] | None
    ) -> dict[str, Opened | pa.Table]:
        """What a query reads by name: this table, and further ones."""
        from storage_core.engine.statement import TABLE
        from storage_core.read import sql

        others = {} if tables is None else {name: tables[name] for name in sql.other_names(tables)}
        opened = {name: _opened(name, each, consistency) for name, each in others.items()}
        return {TABLE: partial(self._opened, at, consistency), **opened}

    def _opened(self, at: At | None, consistency: str, predicate: Predicate | None) -> TableView:
        from storage_core.read.regions import matching_regions
        from storage_core.read.sql import TableView

        regions = partial(matching_regions, self._store, predicate=predicate)
        snapshot, records, raw = self._view.records(at, consistency, regions)
        return TableView(self._store, snapshot, self._verified, records, raw)

    def get(self, key: object, *, at: At | None = None, consistency: str | None = None) -> dict[str, object] | None:
        """Return the row with this primary key, or None. Sees every acknowledged row unless told otherwise.

        `consistency` is that of `scan`, but `latest` unless given; an older version has `snapshot` only.
        Requests besides those of the view, of what this object does not keep: from the newest unmerged generation on,
        until a record tells the whole row, of each whose bounds and Bloom filter admit the key its key index and its
        entries, before them its manifest and its filter where the region's manifest has no copies; per split whose
        bounds admit the key those of `key_splits.rows`. The row is sought while it is looked for a newer version; where
        there is one, it is sought again. `explain_get` tells all this of a key.
        """
        return self.get_many([key], at=at, consistency=consistency)[0]

    @_call
    def get_many(
        self, keys: Sequence[object], *, at: At | None = None, consistency: str | None = None
    ) -> list[dict[str, object] | None]:
        """Return the rows with these primary keys in their order, None where there is none; all of one view.

        Requests: those of `get`, once per region that holds one of the keys, not once per key.
        """
        from storage_core.read import lookup
        from storage_core.read.regions import holding_regions

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

        with require_headroom(
            "a lookup by key", size=QUERY_BYTES
        ):  # also of the threads: one without memory never starts
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
        filter: Filter | str | None = None,  # noqa: A002  # as of `scan`
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
        """Return the best `limit` rows for a query, or a vector, on an index, with a `score` column, best first.

        All matches are found however far index and merge lag: what no segment covers is read and indexed on the fly, or
        scored exactly by its vectors. With `latest` every acknowledged row is searched as its patches made it; what a
        writer was given with `durable=False` once it is durable. Deleted and superseded rows are never found, and weigh
        in scores of full text until they are compacted away (decision 0094). A full-text query that does not parse
        (`can't`), or names no column of the index, asks for any of its words; with `syntax="strict"` it is refused;
        `boosts` multiplies the scores of columns. A bitmap index takes a value, a list of them, or by column one of
        these or conditions, as in `{"status": {">=": 500}}`.
        A `vector`, a list or an array of numbers, finds the nearest rows of those with one: `distance` is the metric's
        own, `score` 1 - distance (cosine) or -distance (l2, dot), both from exact vectors; `nprobe` clusters of each
        segment are looked into. `index` may be left out where one alone takes a vector, or a query.
        A query and a vector, or several indexes: each ranks its rows, and the ranks (`fusion="rrf"`) or scores
        ("linear") are added up, times the `weights` by index, into `score`; an index of full text with the weight 0
        filters instead. Rank and score of each index stand beside it, as `<index>_rank` and `<index>_score`, null for
        rows that are not among its best (`search.hybrid.search`).
        `order_by` a column returns the rows in its order instead, without a score: greatest first, which of times is
        newest first, or with `descending=False` least first; nulls are last. `snippets` adds a struct with a fragment
        of each text of the index as HTML, in which what matched is in `<b>` and all else escaped (`text_snippets`).
        `filter`, `columns`, `consistency` and `limits` are those of `scan`: only rows that meet the filter count
        towards `limit` and `offset`, the number of best rows to leave out. Rows with equal scores have one order, so
        pages of one version neither overlap nor leave a row out. Unpacked segments stay in
        `cache_dir`, a folder that nobody else may write to; None keeps them for this call only. Open searchers, decoded
        pages and bitmaps are kept with this object, in bounded memory and temporary files (`index.searchers`,
        `split.kept_values`). Raises `NotFound` for an unknown index, `InvalidInput` for an unknown column and for a
        query, vector or filter that is none.
        """
        from storage_core.read.arrow_rows import HeldRows
        from storage_core.read.scan import chosen_columns
        from storage_core.search.hybrid import search
        from storage_core.search.question import SearchQuestion

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
            from storage_core.search.ordered import Order, refuse_scores, search_ordered

            order = Order.of(order_by, descending)
            of_scores = {"vector": vector, "boosts": boosts, "nprobe": nprobe, "weights": weights}
            refuse_scores(of_scores | {"fusion": None if fusion == "rrf" else fusion})
            found = partial(
                search_ordered, searched, query, order, index=index, syntax=syntax, limit=limit, offset=offset
            )
        if snippets is not False:
            from storage_core.search.snippets import with_snippets

            found = partial(with_snippets, found, searched.snapshot, query, index=index, syntax=syntax, wanted=snippets)
        return HeldRows(found(chosen))

    @_call
    def search_count(
        self,
        query: object,
        *,
        index: str | Sequence[str] | None = None,
        filter: Filter | str | None = None,  # noqa: A002  # as of `scan`
        syntax: str = "lenient",
        at: At | None = None,
        consistency: str = Consistency.SNAPSHOT,
        cache_dir: Path | None = None,
        limits: QueryLimits | None = None,
    ) -> int:
        """Return how many rows a search for the query finds, exactly, however far index and merge lag.

        No row is read for it but the columns of a filter that no bitmap index answers. The parameters are those of
        `search`, which has what is raised; an index of vectors has no matches to count.
        """
        from storage_core.search.matches import Query, matched

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
        filter: Filter | str | None = None,  # noqa: A002  # as of `scan`
        syntax: str = "lenient",
        at: At | None = None,
        consistency: str = Consistency.SNAPSHOT,
        cache_dir: Path | None = None,
        limits: QueryLimits | None = None,
    ) -> HeldRows:
        """Return the `limit` most frequent values of a column among all rows that match: `value`, `count`.

        Of `by`, which a bitmap index is over; exact however far the indexes and the merge lag. Most frequent first,
        then by value; null is a value too. The other parameters are those of `search_count`. See `search.facets`.
        """
        from storage_core.read.arrow_rows import HeldRows
        from storage_core.search.facets import search_facets
        from storage_core.search.matches import Query
        from storage_core.search.question import page

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
        from storage_core.read.scan import wanted_filter
        from storage_core.search.kept import Kept
        from storage_core.search.searched import Searched

        wanted = wanted_filter(given)
        self._kept = self._kept or Kept(self._verified, values=self._view.kept)
        snapshot, captured = self._view.captured(at, consistency)
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
        filter: Filter | str | None = None,  # noqa: A002  # as of `search`
        *,
        nprobe: int | None = None,
        seed: int = 0,
        cache_dir: Path | None = None,
        limits: QueryLimits | None = None,
    ) -> Recall:
        """Return how many of the `k` nearest rows searches by vector find, measured against all rows of this version.

        `queries` are vectors, or a number of rows drawn by `seed`, 100 by default, whose vectors they are. `filter`,
        `nprobe`, `cache_dir` and `limits` are those of `search`; `index` may be left out where the table has one index
        of vectors. All vectors are read once, in bounded memory. See `search.recall`.
        """
        from storage_core.search.recall import recall

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
        """Return what `sql` reads for this query, and what each step leaves out: print it, or take `to_dict()`.

        With `analyze` the query is run, its rows are thrown away as they come, and what it did is told beside.
        Requests: of each table those of its view, every manifest, and the footers of splits that are read by ranges
        (`read.planning`), which are not kept: a read after it makes the requests that are foretold. Not counted are
        those of opening the tables, and above `snapshot` those that find what newer records supersede
        (`TablePlan.newer_records`).
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
        filter: Filter | str | None = None,  # noqa: A002  # as of `scan`
        syntax: str = "lenient",
        boosts: Mapping[str, float] | None = None,
        at: At | None = None,
        consistency: str = Consistency.SNAPSHOT,
        nprobe: int | None = None,
        cache_dir: Path | None = None,
        limits: QueryLimits | None = None,
        analyze: bool = False,
    ) -> SearchPlan:
        """Return what `search` asks for these arguments, index by index and source by source, and how it filters.

        Print it, or take `to_dict()`. With `analyze` it is run as well, and what it did is told beside: only a run
        knows how many rows meet a filter, and so whether vectors are scored exactly or clusters are looked into, and
        how many. Without a query and a vector: of the indexes that are named. Requests without `analyze`: those of the
        view, every manifest where there is a filter, and maps where segments answer for a part of a split; no segment
        and no split is read.
        """
        from storage_core.read.plan import analysis
        from storage_core.read.scan import chosen_columns
        from storage_core.search.explain import indexes_of, planned, search_plan
        from storage_core.search.hybrid import search
        from storage_core.search.question import SearchQuestion
        from storage_core.search.trace import Trace

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
        """Return what `get` asks for this key, in its region and of the base: print it, or take `to_dict()`.

        With `analyze` it is run as well, and what it did is told beside. Requests: those of `lookup_planning.plan`,
        which keeps nothing: a `get` after it makes those that are foretold, or fewer.
        """
        from storage_core.read import lookup, lookup_planning

        seen = self._view.level(consistency, at, usual=Consistency.LATEST)
        wanted = lookup.key_rows(self.snapshot, [key])
        plan = lookup_planning.plan(self._store, self._view, wanted, at=at, consistency=seen, verified=self._verified)
        if not analyze:
            return plan
        return plan.analyzed([self._watched], lambda: int(self.get(key, at=at, consistency=seen) is not None))

    @_call
    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """Return the commits up to this version, newest first, at most `limit`. One GET per version file."""
        if limit is not None and limit < 0:
            raise InvalidInput(f"limit is {quoted(limit)}. Give a number of commits, or None for all.", limit=limit)
        return list(islice(self._log.history(self.version), None if limit is None else min(limit, self.version + 1)))

    @_call
    def changes(self, start: At, end: At | None = None) -> pa.RecordBatchReader:
        """Return the rows that the commits after `start`, up to `end` or this version, added and removed.

        See `read.changes`: the columns of the table, `_change_type`, `_commit_version` and `_commit_timestamp`.
        """
        from storage_core.read.changes import changes

        last = self.snapshot if end is None else snapshot_at(self._log, end)
        return changes(self._store, snapshot_at(self._log, start), last)

    def read_history(
        self, *, token: str | None = None, page_bytes: int = PAGE_BYTES, consistency: str | None = None
    ) -> HistoryPage:
        """Return one page of the table's records, the first one or the one that the token leads to.

        The pages hold the rows of the base as puts and then, unless `consistency` (`latest`) says less, every
        acknowledged record that is not merged: folded under the schema of the table (`rows.fold`), whose columns say
        their defaults, the table at the moment of the first page. Give `token` of each page for the next one, in this
        process or another, until it is None. See `read.history_pages`.
        """
        # There always is a first page.
        return next(self.read_history_pages(token=token, page_bytes=page_bytes, consistency=consistency))

    @_call
    def read_history_pages(
        self, *, token: str | None = None, page_bytes: int = PAGE_BYTES, consistency: str | None = None
    ) -> Iterator[HistoryPage]:
        """Yield the pages that `read_history` returns one after the other, each source opened once.

        A table opened with `at` has a history of its version only, with the consistency `snapshot`.
        """
        from storage_core.read.history_pages import read_pages

        return read_pages(self._view, token=token, page_bytes=page_bytes, consistency=consistency)

    @_call
    def add_column(self, name: str, type: pa.DataType | str, *, default: object = None) -> Table:  # noqa: A002
        """Add a nullable column behind the others, in one commit, and return the table; no row is rewritten.

        Rows that were written before, under a schema without it, have `default` in it, or null. Of rows written from
        then on it is null where they do not give it, like any column. `type` is Arrow's, or text as in a declaration.
        Raises `InvalidInput` for a column that is there, and for a default that is no value of the type.
        """
        from storage_core import alteration

        return self._altered(alteration.add_column(name, type, default))

    @_call
    def widen_column(self, name: str, type: pa.DataType | str) -> Table:  # noqa: A002
        """Give a column a wider type, in one commit, and return the table; no row is rewritten.

        Integers may become wider integers, `float` `double`, decimals longer ones of the same scale, and dates
        timestamps, at midnight. Any other change raises `InvalidInput`, which says what to do instead.
        """
        from storage_core import alteration

        return self._altered(alteration.widen_column(name, type))

    @_call
    def relax_column(self, name: str) -> Table:
        """Let a required column be null from now on, in one commit, and return the table."""
        from storage_core import alteration

        return self._altered(alteration.relax_column(name))

    @_call
    def rename_column(self, old: str, new: str) -> Table:
        """Give a column another name, in one commit, and return the table; its values stay where they are.

        Raises `InvalidInput` for a column of the key, the time, the order of rows, regions, an index or another setting
        that names it; the error says what to do.
        """
        from storage_core import alteration

        return self._altered(alteration.rename_column(old, new))

    @_call
    def drop_column(self, name: str) -> Table:
        """Take a column away, in one commit, and return the table; older versions have it still.

        A column of this name that is added later is another one: it never shows the values of this one. Raises what
        `rename_column` raises.
        """
        from storage_core import alteration

        return self._altered(alteration.drop_column(name))

    def _altered(self, change: ColumnChange) -> Table:
        from storage_core.alteration import change_column

        self._require_writable()
        self._view.snapshot = change_column(self._log, self.snapshot, change)
        return self

    @_call
    def set_regions(self, regions: Sequence[DeclaredField], *, quarantine: bool = False) -> Table:
        """Divide the table anew, by fields as in `create` (none: one region for all), and return it.

        When this returns every acknowledged row of the old regions is in the base, they are closed, and writers follow
        the new spec. Until then writes are refused: a live writer is fenced, and opening one raises `RegionClosed`.
        Readers notice nothing. The old regions are merged here, in this process; run the merge job just before to keep
        that short. Interrupted at any point, calling it again finishes. A record that cannot be merged ends it, named
        by region, generation, row and key; with `quarantine` all records of its key that are not merged go to
        quarantine, and the base keeps what it has of that key. Raises `InvalidInput` when the fields cannot
        divide the table, `CommitConflict` when others keep committing to the same rows. See decision 0040.
        """
        from storage_core.region.repartition import change_regions
        from storage_core.region.spec import declared_fields

        self._require_writable()
        self._view.snapshot = change_regions(self._log, declared_fields(regions, self.schema), quarantine=quarantine)
        return self

    @_call
    def restore(self, to: At, *, commit_id: str | None = None) -> Restored:
        """Make the table what it was at a version, a moment or a tag, by one commit on top; see `history.restore`.

        Rows of a keyed table that are acknowledged and not merged stay, and the next merge applies them. Nothing that
        was ingested or merged since is ingested or merged again.
        """
        from storage_core.history.restore import restore

        self._require_writable()
        target = snapshot_at(self._log, to)
        done = restore(self._log, target, commit_id=commit_id)
        self._view.snapshot = done.snapshot
        return done

    @_call
    def clone(self, uri: str | Path, *, version: At | None = None, deep: bool = False) -> Cloned:
        """Make a table of this version, or of an older one, at an empty place, and return what it holds.

        A shallow clone writes a log and shares the files with this table, which a tag keeps here for as long as it
        stands: both go on by themselves from there, and neither's collector takes what the other needs. A `deep` clone
        has copies of everything, each verified. Rows of a keyed table that no merge has applied are not in it. See
        `cloning.clone.clone`.
        """
        from storage_core.cloning.clone import clone
        from storage_core.read.unmerged_metrics import unmerged_metrics

        self.require_capable()
        snapshot = self.snapshot if version is None else snapshot_at(self._log, version)
        done = clone(self._log, snapshot, _log_at(uri)[1], deep=deep)
        if self.config.kind != "keyed":
            return done
        is_newest = snapshot.version == self._log.refresh(snapshot).version
        waiting = unmerged_metrics(self._store, snapshot) if is_newest else None
        count = None if waiting is None else sum(each.generation_records + each.wal_records for each in waiting)
        return replace(done, unmerged=count)

    @_call
    def publish(self, format: str = "delta") -> Mirrored:  # noqa: A002  # as the command and declarations call it
        """Show all versions up to the newest in another format, beside the table, and return what is shown.

        `delta` writes a `_delta_log` that names the same splits, one Delta commit per version; readers of Delta then
        read the table where it is. Of a keyed table they see the base: what is merged. Nothing is rewritten; what
        was shown already stays, and whatever ends this, the next call goes on. The setting `publish` says how deleted
        rows are shown. `iceberg` writes metadata of Iceberg in `_iceberg`, a snapshot per version, from the extra of
        that name; versions with deleted rows wait for a compaction. See `publishing.delta.publish_delta` and
        `publishing.iceberg.publish_iceberg`.
        """
        from storage_core.publishing.shown import format_of, publish_as

        wanted = format_of(format)
        self._require_writable()
        return publish_as(self._log, wanted, self.config.publish)

    @_call
    def tag(self, name: str, version: At | None = None, *, expires: dt.timedelta | None = None) -> Tag:
        """Keep a version, by default this one, readable as `at=name`: for ever, or for a while from now.

        A tag of this name is moved. Raises `SnapshotExpired` when the version is no longer whole; see `log.tags`.
        """
        from storage_core.history.tagging import set_tag

        self.require_capable()
        target = self.snapshot if version is None else snapshot_at(self._log, version)
        return set_tag(self._log, name, target, lasts=expires)

    @_call
    def untag(self, name: str) -> Tag:
        """Remove a tag and return it; its version is retained no longer than others. Raises `NotFound`."""
        from storage_core.log.tags import remove_tag

        self.require_capable()
        return remove_tag(self._log, name)

    @_call
    def tags(self) -> list[Tag]:
        """Return the tags that have not expired, by name. One GET."""
        from storage_core.log.tags import read_tags

        return read_tags(self._store).live(self._log.clock.now_ms())

    @_call
    def describe(self, *, recall: bool = False) -> dict[str, object]:
        """Return the table's metrics as plain data; the fields are a contract (`docs/spec.md`).

        With `recall` that of each index of vectors is measured now, as `recall` does, which reads all vectors.
        """
        from storage_core.named_settings import shown
        from storage_core.read import describe

        wanted = [each.name for each in self.config.indexes if recall and each.kind == "vector"]
        recalls = {name: self.recall(name).recall for name in wanted}
        about = describe.describe(self._store, self.snapshot, now_ms=self._log.clock.now_ms(), recalls=recalls)
        return {**about, "settings": shown(self.config)}

    @_call
    def describe_state(self) -> dict[str, object]:
        """Return what the state behind this version is made of and what opening costs, as plain data (`docs/spec.md`).

        The table is opened once more for it, and each manifest costs a HEAD.
        """
        from storage_core.read.describe_state import describe_state

        return describe_state(self._log, self.snapshot)

    @_call
    def checkpoint(self, *, compact: bool = False) -> Table:
        """Make sure that this version has a state, so that opening is fast, and return the table. Idempotent.

        With `compact` the state has the fewest manifests and no tombstone; where the version has another one already,
        it is that of a version that follows and changes nothing. See `log.checkpoints.compact`.
        """
        self._require_writable()
        if compact:
            from storage_core.log.checkpoints.compact import compact_state

            self._view.snapshot = compact_state(self._log, self.snapshot).snapshot
        else:
            self._view.snapshot = self._log.checkpoint(self.snapshot).snapshot
        return self

    @_call
    def files(self) -> list[dict[str, object]]:
        """Return one plain object per live split; the fields are a contract (`docs/spec.md`)."""
        from storage_core.read import describe

        return list(describe.files(self.snapshot))

    @_call
    def debt(self, mode: Mode | None = None) -> list[Debt]:
        """Return the windows where a compaction of this mode (`finalize`) or the retention has, or will have, work.

        With what it is, why, how many bytes, and what the next run costs (`compaction.debt`). No request. Raises
        `InvalidInput` for another mode.
        """
        from storage_core.compaction.debt import debt
        from storage_core.compaction.policy import Mode

        if mode is not None and mode not in tuple(Mode):
            raise InvalidInput(f"mode is {quoted(mode)}. Give one of {', '.join(Mode)}.", argument="mode")
        mode = None if mode is None else Mode(mode)
        return debt(self.snapshot, now_ms=self._log.clock.now_ms(), mode=mode or Mode.FINALIZE)

    def _require_no_application(self, application: object) -> None:
        """Return where no work of an application is done, on a keyed table."""
        if application is not None:
            raise InvalidInput(f"{self.uri}: the work of an application is told by its commit, and records have none")

    def _require_writable(self) -> None:
        if self._view.pinned:
            raise InvalidInput(f"{self.uri}: opened at version {self.version}; open it without `at` to write")
        self.require_capable()


def exists(uri: str | Path) -> bool:
    """Return whether there is a table at this location. One LIST."""
    _, log = _log_at(uri)
    return log.exists()


def _log_at(uri: str | Path) -> tuple[MeteredStore, TransactionLog]:
    store = MeteredStore(open_table_store(uri))
    cached = cached_pieces(CacheSettings.of(os.environ))
    return store, TransactionLog(store, clock=SystemClock(), ids=SystemIds(), cached=cached)


def _opened(name: str, given: object, consistency: str) -> Opened | pa.Table:
    if isinstance(given, Table):
        return partial(given._opened, None, consistency)  # noqa: SLF001  # of this class
    from storage_core.rows.incoming import is_stream, read_whole, validated_rows

    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    rows = read_whole(given) if is_stream(given) else given
    if not isinstance(rows, pa.Table):
        raise InvalidInput(f"{name} of a query is a table or Arrow data, found {quoted(given)}", name=name)
    try:
        return rows if is_stream(given) else validated_rows(rows)
    except InvalidInput as error:
        raise error.reworded(f"table {quoted(name)}: {error.found}", name=name) from error


def _new_config(
    schema: pa.Schema,
    *,
    time_column: str | None = None,
    sort_schema: str | None = None,
    window: str | int | None = AUTO,
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
) -> TableConfig:
    """Return the settings of a new table; see `Table.create`. Raises `InvalidInput` for contradictory ones."""
    from storage_core.definition import check_new, index_definitions, key_columns, late_setting, listed_names
    from storage_core.named_settings import changed
    from storage_core.region.spec import first_specs
    from storage_core.rows.sort_schema import parse as parse_sort_schema
    from storage_core.rows.windows import parse_duration, parse_milliseconds

    if time_column is None and (window not in (None, AUTO) or coarse_window):
        found = "coarse_window" if window in (None, AUTO) else f"window={window!r}"
        raise InvalidInput(f"{found} needs a time_column: windows are of the time of an event")
    if window == AUTO:
        window = None if time_column is None else _USUAL_WINDOW
    config = TableConfig(
        time_column=time_column,
        sort_schema=sort_schema,
        window_seconds=None if window is None else parse_duration(window),
        coarse_window=coarse_window,
        primary_key=key_columns(primary_key),
        indexes=index_definitions(indexes),
        late_data=late_setting(late_data),
        retention_ms=None if retention is None else parse_milliseconds(retention),
        region_specs=first_specs(regions, schema),
        map_columns=map_columns or {},
        bloom_filters=listed_names("bloom_filters", bloom_filters),
        partition_by=key_columns(partition_by, "partition_by"),
        maintained_indexes=None
        if maintained_indexes is None
        else listed_names("maintained_indexes", maintained_indexes),
    )
    config = changed(config, settings or {})
    check_new(schema, config)  # before the canonical text drops the types that were spelled out
    if config.sort_schema is not None:
        config = replace(config, sort_schema=parse_sort_schema(config.sort_schema, time_column).text)
    return config
