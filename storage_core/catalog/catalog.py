"""The SQL catalog: a cache of transaction logs in a SQL database, for queries over all tables (decision 0035).

All content of the catalog is derived from the logs. For each table, the catalog stores the last version that it applied
from the log. A catalog can be created again at any time. No decision depends on the catalog. A table that is opened
through the catalog still reads its own log.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection

from storage_core.base.arguments import checked
from storage_core.base.errors import InvalidInput, NotFound, SnapshotExpired
from storage_core.base.limits import CacheSettings
from storage_core.catalog.answers import (
    CompactionCandidate,
    ExpiredWindow,
    FoundSplit,
    Page,
    Place,
    Refreshed,
    SplitChange,
    record,
)
from storage_core.catalog.database import Database
from storage_core.catalog.refresher import Refresher
from storage_core.catalog.schema import GONE, LIVE, REGIONS, SEGMENTS, SPLITS, TABLES
from storage_core.catalog.table_entry import (
    Columns,
    TableEntry,
    another_table,
    every_known,
    files_of,
    known_by,
    pieces,
    split_rows,
    texts_of,
)
from storage_core.data.rows.schema import from_schema_string
from storage_core.data.rows.sort_order import nameless
from storage_core.log.codec import commit_info
from storage_core.log.log import TransactionLog
from storage_core.log.replay import open_head
from storage_core.log.sharing import open_table_store
from storage_core.log.snapshot import Snapshot
from storage_core.log.versions import read_version
from storage_core.read.predicate import And, Compare, Comparison, Predicate, in_columns
from storage_core.read.pruning import prune_table
from storage_core.store.meter import MeteredStore
from storage_core.store.pieces import cached_pieces
from storage_core.store.resolve import name_of, scheme_of
from storage_core.table import Table

if TYPE_CHECKING:
    from storage_core.read.predicate import Filter

# Check of the catalog: it compares the catalog with the log at the same version.


MOST_SHOWN: Final = 20
_PIECE: Final = 500
_OBJECTS: Final = ("partition_values", "min_values", "max_values", "null_counts", "regexes")


@dataclass(slots=True)
class Checked:
    """The result of a check: `differences` is the number of differences, and `shown` contains the first differences."""

    name: str
    uri: str
    version: int
    splits: int = 0
    differences: int = 0
    shown: list[str] = field(default_factory=list)

    def differs(self, text: str) -> None:
        """Add a difference."""
        self.differences += 1
        if len(self.shown) < MOST_SHOWN:
            self.shown.append(text)


def check(connection: Connection, known: TableEntry, log: TransactionLog) -> Checked:
    """Compare a table in the catalog with the log's snapshot of the same version.

    Raises `NotFound` if the table no longer exists.

    Cost:
        The requests of opening the version and of reading every manifest. One SQL statement per 500 splits.
    """
    found = Checked(known.name, known.uri, known.head_version)
    try:
        snapshot = log.snapshot(version=known.head_version)
    except NotFound:
        newest = log.snapshot()
        if known.is_of(newest):
            found.differs(f"version {known.head_version} cannot be opened any more. The newest is {newest.version}")
            return found
        snapshot = newest
    if not known.is_of(snapshot):
        found.differs(f"table_id is {known.table_id} in the catalog, but {snapshot.table_id} in the log")
        return found
    _check_head(found, known, snapshot, log)
    _check_splits(connection, found, known, snapshot)
    _check_others(connection, found, known, snapshot)
    return found


def _check_head(found: Checked, known: TableEntry, snapshot: Snapshot, log: TransactionLog) -> None:
    info = commit_info(read_version(log.store, snapshot.version) or ())
    if info is not None and info.commitId != known.head_commit_id:
        found.differs(
            f"the commit of version {snapshot.version} is {known.head_commit_id} in the catalog, but "
            f"{info.commitId} in the log"
        )
    wanted = TableEntry.of(snapshot, name=known.name, uri=known.uri, commit_id=known.head_commit_id)
    for name in ("head_timestamp_ms", "protocol", "schema_string", "configuration"):
        if getattr(known, name) != getattr(wanted, name):
            found.differs(
                f"{name} is {getattr(known, name)!r} in the catalog, but {getattr(wanted, name)!r} in the log"
            )


def _check_splits(connection: Connection, found: Checked, known: TableEntry, snapshot: Snapshot) -> None:
    columns = known.columns
    for table in snapshot.splits.read_uncached():
        for piece in pieces(split_rows(table, columns, known.table_id), _PIECE):
            wanted = {row["split_id"]: row for row in piece.to_pylist()}
            there = _live(connection, known, [*wanted])
            for path, row in wanted.items():
                _compare(found, path, _plain(row, columns), None if path not in there else _plain(there[path], columns))
            found.splits += len(wanted)
    totals = {"splits": len(snapshot.splits), "rows": snapshot.rows, "bytes": snapshot.bytes}
    about = connection.execute(sa.select(TABLES).where(TABLES.c.table_id == known.table_id)).mappings().one()
    for name, value in totals.items():
        if about[f"live_{name}"] != value:
            found.differs(f"live_{name} is {about[f'live_{name}']} in the catalog, but {value} in the log")
    live = connection.execute(
        sa.select(sa.func.count()).select_from(SPLITS).where(SPLITS.c.table_id == known.table_id, LIVE)
    ).scalar_one()
    if live != found.splits:
        found.differs(f"{live} splits are live in the catalog, but {found.splits} in the log")


def _live(connection: Connection, known: TableEntry, paths: list[str]) -> dict[str, Mapping[str, Any]]:
    wanted = sa.select(SPLITS).where(SPLITS.c.table_id == known.table_id, SPLITS.c.split_id.in_(paths), LIVE)
    return {row["split_id"]: dict(row) for row in connection.execute(wanted).mappings()}


def _plain(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """Return the row with decoded JSON objects. Two spellings of the same object are then equal."""
    plain = {name: value for name, value in row.items() if name != "removed_version"}
    names = columns.names
    for name in _OBJECTS:
        known = None if name == "partition_values" else names
        plain[name] = None if row[name] is None else texts_of(row[name], known)
    return plain


def _compare(found: Checked, path: str, wanted: Mapping[str, Any], there: Mapping[str, Any] | None) -> None:
    if there is None:
        found.differs(f"{path}: not live in the catalog")
        return
    for name in wanted:
        if wanted[name] != there[name]:
            found.differs(f"{path}: {name} is {there[name]!r} in the catalog, but {wanted[name]!r} in the log")


def _check_others(connection: Connection, found: Checked, known: TableEntry, snapshot: Snapshot) -> None:
    wanted = sa.select(SEGMENTS).where(SEGMENTS.c.table_id == known.table_id, SEGMENTS.c.removed_version.is_(None))
    segments = {
        row["segment_id"]: (row["index_name"], row["kind"], row["bytes"], row["rows"], json.loads(row["covers"]))
        for row in connection.execute(wanted).mappings()
    }
    of_log = {
        path: (each.index, each.kind, each.size, each.numRecords, list(each.covers))
        for path, each in snapshot.segments.items()
    }
    regions = sa.select(REGIONS.c.region, REGIONS.c.merged_generation).where(REGIONS.c.table_id == known.table_id)
    merged = {str(region): int(generation) for region, generation in connection.execute(regions)}
    for text in _differing("segment", segments, of_log):
        found.differs(text)
    for text in _differing("region", merged, dict(snapshot.merged_generations)):
        found.differs(text)


def _differing(what: str, there: Mapping[str, object], wanted: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(there.keys() | wanted.keys()):
        if there.get(name) != wanted.get(name):
            yield f"{what} {name} is {there.get(name)!r} in the catalog, but {wanted.get(name)!r} in the log"


# The four queries that the catalog answers with its indexes, as statements.
#
# All four statements return pages: `after` is the position at which the previous page ended. Each statement seeks in an
# index to the start of its page. The cost therefore does not depend on the number of splits. If a split spans a long
# time, a query for a time range may read more rows than it returns (`docs/spec.md`, "SQL catalog").


Statement = sa.Select[Any] | sa.CompoundSelect[Any]
REMOVED: Final = 0
ADDED: Final = 1
"""The sort order of changes. Within a version, removed splits come before added splits."""

_SCOPE: Final = ("source_id", "partition_id", "schema_ref", "window_seconds")
_CANDIDATE: Final = (
    *("split_id", "window_start", "window_seconds", "sort_schema", "source_id", "partition_id", "schema_ref"),
    *("rows", "deleted_rows", "bytes", "merge_ops", "added_version", "added_at_ms"),
)


def candidates(
    table_id: str, sort_schema: str, *, after: tuple[int | None, str] | None, limit: int, windowed: bool
) -> Statement:
    """Return the statement for live splits of a sort schema, ordered by window and path.

    If `windowed` is True, the statement returns splits with a window, otherwise splits without a window. The column
    `beside` shows whether another split has the same scope and window. The database computes this column only for the
    rows of the page.
    """
    s, other = SPLITS, SPLITS.alias("other")
    of_scope = [s.c.table_id == table_id, s.c.sort_schema == sort_schema, LIVE]
    if windowed:
        of_scope.append(s.c.window_start.is_not(None))
        if after is not None:
            of_scope.append(sa.tuple_(s.c.window_start, s.c.split_id) > sa.tuple_(*after))
    else:
        of_scope.append(s.c.window_start.is_(None))
        if after is not None and after[0] is None:
            of_scope.append(s.c.split_id > after[1])
    same = [other.c.table_id == s.c.table_id, other.c.sort_schema == s.c.sort_schema]
    same.append(other.c.window_start == s.c.window_start if windowed else other.c.window_start.is_(None))
    same += [other.c[name].is_not_distinct_from(s.c[name]) for name in _SCOPE]
    same += [other.c.split_id != s.c.split_id, other.c.removed_version.is_(None)]
    # The limit makes the database run this lookup once per row. No planner turns the lookup into a join of the whole
    # table.
    beside = sa.select(sa.literal_column("1")).where(*same).limit(1).scalar_subquery().label("beside")
    order = (s.c.window_start, s.c.split_id) if windowed else (s.c.split_id,)
    return sa.select(*(s.c[name] for name in _CANDIDATE), beside).where(*of_scope).order_by(*order).limit(limit)


def longest(table_id: str) -> sa.Select[Any]:
    """Return the statement that queries the longest time span of any split of the table, in microseconds.

    This value never decreases.
    """
    return sa.select(TABLES.c.longest_time_us).where(TABLES.c.table_id == table_id)


def in_time(
    table_id: str,
    times: tuple[int | None, int | None],
    longest_us: int,
    *,
    after: tuple[int | None, str] | None,
    limit: int,
    timed: bool,
) -> Statement:
    """Return the statement for live splits that may have rows in a range of times, ordered by time and path.

    The times are in microseconds, and the end is excluded. If `timed` is True, the statement selects the splits whose
    times are known. If `timed` is False, it selects all other splits. No split covers more time than `longest_us`. A
    split with rows in the range therefore begins at most `longest_us` before the range.
    """
    s, (since, until) = SPLITS, times
    wanted = [s.c.table_id == table_id, LIVE]
    if not timed:
        wanted.append(s.c.min_time_us.is_(None))
        if after is not None and after[0] is None:
            wanted.append(s.c.split_id > after[1])
        return sa.select(s).where(*wanted).order_by(s.c.split_id).limit(limit)
    wanted.append(s.c.min_time_us.is_not(None))
    if since is not None:
        wanted += [s.c.min_time_us >= since - longest_us, s.c.max_time_us >= since]
    if until is not None:
        wanted.append(s.c.min_time_us < until)
    if after is not None:
        wanted.append(sa.tuple_(s.c.min_time_us, s.c.split_id) > sa.tuple_(*after))
    return sa.select(s).where(*wanted).order_by(s.c.min_time_us, s.c.split_id).limit(limit)


def expired(table_id: str, cutoff_s: int, limit: int) -> Statement:
    """Return the statement for windows that ended at or before `cutoff_s`. Each row also has the number of live splits.

    The statement reads only the index.
    """
    s = SPLITS
    by = (s.c.window_end, s.c.window_start)
    counted = sa.select(*by, sa.func.count().label("splits"))
    gone = counted.where(s.c.table_id == table_id, LIVE, s.c.window_end <= cutoff_s)
    return gone.group_by(*by).order_by(*by).limit(limit)


def changed(table_id: str, after: tuple[int, int, str | None], limit: int) -> Statement:
    """Return the statement for splits added and removed after a version, ordered by version, kind and path.

    `after` is the position at which the previous page ended. If the kind in `after` is `ADDED` and its path is None,
    the page starts after all changes of the version in `after`.
    """
    s, (version, kind, path) = SPLITS, after
    gone = _later(s.c.removed_version, version, path if kind == REMOVED else None)
    came = _later(s.c.added_version, version, path) if kind == ADDED else s.c.added_version >= version
    left = _changes(REMOVED, s.c.removed_version, limit, s.c.table_id == table_id, GONE, gone)
    joined = _changes(ADDED, s.c.added_version, limit, s.c.table_id == table_id, came)
    both = sa.union_all(sa.select(left.subquery()), sa.select(joined.subquery()))
    return both.order_by("version", "kind", "split_id").limit(limit)


def _later(column: sa.ColumnElement[Any], version: int, path: str | None) -> sa.ColumnElement[bool]:
    """Return the condition that skips all index entries up to the end of the previous page."""
    return column > version if path is None else sa.tuple_(column, SPLITS.c.split_id) > sa.tuple_(version, path)


def _changes(
    kind: int, version: sa.ColumnElement[Any], limit: int, *conditions: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    s = SPLITS
    shown = (s.c[name] for name in ("split_id", "window_start", "rows", "deleted_rows", "bytes"))
    found = sa.select(version.label("version"), sa.literal_column(str(kind)).label("kind"), *shown)
    return found.where(*conditions).order_by(version, s.c.split_id).limit(limit)


# Query plans of the database.


def plan_of(connection: Connection, statement: Statement) -> str:
    """Return the database's query plan for a statement, one line per step. The statement is not run."""
    text = str(statement.compile(connection, compile_kwargs={"literal_binds": True}))
    if connection.dialect.name == "postgresql":
        found = connection.exec_driver_sql(f"EXPLAIN {text}")
        return "\n".join(str(row[0]) for row in found)
    return "\n".join(str(row[-1]) for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}"))


# Pruning: the statistics in the catalog determine which splits of a page a scan would read.


Times = tuple[dt.datetime | None, dt.datetime | None]


def pruned(
    rows: Sequence[Mapping[str, Any]], known: TableEntry, times: Times, given: Filter | str | None
) -> Iterator[FoundSplit]:
    """Yield the rows of `splits` that may contain a row within the times and the filter."""
    schema, config, columns = from_schema_string(known.schema_string), known.config, known.columns
    conditions = [*_within(schema, config.time_column, times), *_filtered(given, schema)]
    predicate = And(tuple(conditions)) if conditions else None
    files = files_of(rows, columns)
    kept = prune_table(
        files, predicate, schema=schema, time_column=config.time_column, partition_by=config.partition_fields
    )
    names = columns.names
    for row, keep in zip(rows, kept.keep.to_pylist(), strict=True):
        if keep:
            bounds = {name: texts_of(row[name], names) for name in ("min_values", "max_values")}
            yield record(FoundSplit, row, **bounds)


def _filtered(given: Filter | str | None, schema: pa.Schema) -> list[Predicate]:
    if given is None:
        return []
    from storage_core.read.scan import require_valid_filter, wanted_filter  # it loads DuckDB, which only filters need

    wanted = wanted_filter(given)
    if wanted is None:
        return []
    require_valid_filter(wanted, schema)
    found = in_columns(wanted.predicate, schema.names)
    return [] if found is None else [found]


def _within(schema: pa.Schema, time_column: str | None, times: Times) -> Iterator[Predicate]:
    if time_column is None:
        return
    naive = schema.field(time_column).type.tz is None
    for comparison, time in zip((Comparison.GE, Comparison.LT), times, strict=True):
        if time is not None:
            yield Compare(time_column, comparison, time.replace(tzinfo=None) if naive else time)


MOST_ROWS: Final = 500
Row = dict[str, Any]
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_Position = TypeVar("_Position")
ChangePlace = tuple[int, int, str | None]


class _Step(Protocol):
    """A function that returns the statement for one page."""

    def __call__(self, *, after: Place | None) -> Statement:
        """Return the statement for the page that starts after this position."""
        ...


class Catalog:
    """A catalog. Several processes may refresh and query the catalog concurrently. See `open_catalog`."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._plans: list[str] | None = None

    def __repr__(self) -> str:
        return f"Catalog({self.database.place!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self.database.close()

    @checked
    def refresh(self, uri: str, *, name: str | None = None) -> Refreshed:
        """Apply the new versions of a table's log to the catalog, or add the table to the catalog.

        Idempotent. See `Refresher.refresh`.

        Args:
            uri: Location of the table.
            name: Name of a new table in the catalog. None: the last part of its URI.

        Returns:
            The outcome.
        """
        return self._refresher(uri, name).refresh()

    @checked
    def rebuild(self, uri: str, *, name: str | None = None) -> Refreshed:
        """Create the entries of a table again from its log.

        The new entries replace all entries of the table and of its location.

        See `Refresher.rebuild`.

        Args:
            uri: Location of the table.
            name: Name of the table, as in `refresh`.

        Returns:
            The outcome.
        """
        return self._refresher(uri, name).rebuild()

    @checked
    def check(self, table: str) -> Checked:
        """Compare a table with the log's snapshot of the version in the catalog. Changes nothing.

        Args:
            table: Name, location or id of the table.

        Returns:
            The numbers of splits and differences, and the first differences.
        """
        with self.database.read() as connection:
            known = self._known(connection, table)
            return check(connection, known, _log_at(known.uri)[1])

    def tables(self) -> list[TableEntry]:
        """Return the entry of every table, ordered by name."""
        with self.database.read() as connection:
            return every_known(connection)

    def __getitem__(self, table: str) -> Table:
        """Open a table, by name, location or id, at the head of its log.

        All data comes from the log. The version in the catalog only replaces the LIST of the versions after the hint.

        Raises:
            NotFound: The catalog does not contain the table, or the table does not exist.
            InvalidInput: Another table is at the location.
        """
        with self.database.read() as connection:
            known = self._known(connection, table)
        store, log = _log_at(known.uri)
        snapshot = open_head(store, log.cached, seen=known.head_version)
        if not known.is_of(snapshot):
            raise another_table(known, snapshot.table_id, self.database.place)
        return Table(store, log, snapshot)

    def compaction_candidates(
        self, table: str, *, sort_schema: str | None = None, after: Place | None = None, limit: int = MOST_ROWS
    ) -> Page[CompactionCandidate, Place]:
        """Return live splits that have the same scope and window as another live split.

        Args:
            table: Name, location or id of the table.
            sort_schema: Sort schema of the splits. None: the sort schema of the table.
            after: Position in the field `after` of the previous page. None: the first page.
            limit: Largest number of splits to read. Default: 500. A page may be empty although another page follows.

        Returns:
            The page, ordered by window (null last) and path.

        Cost:
            One SQL statement. At the end of the splits with a window, a second statement.
        """
        with self._asking(table, limit) as (connection, known):
            order = known.sort_schema if sort_schema is None else nameless(sort_schema)
            steps = [
                partial(candidates, known.table_id, order, limit=limit, windowed=windowed) for windowed in (True, False)
            ]
            rows = self._in_two(connection, steps, after, limit=limit)
        found = tuple(record(CompactionCandidate, row) for row in rows if row["beside"])
        return Page(found, _next(rows, limit, lambda row: (row["window_start"], row["split_id"])), known.head_version)

    def splits_between(
        self,
        table: str,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        *,
        filter: Filter | str | None = None,  # noqa: A002  # as in `scan`
        after: Place | None = None,
        limit: int = MOST_ROWS,
    ) -> Page[FoundSplit, Place]:
        """Return the live splits that may contain matching rows.

        A row matches if it is in the time range and matches the filter.

        A scan of the same version would read exactly these splits.

        Args:
            table: Name, location or id of the table.
            since: Start of the range, inclusive, in UTC if it has no zone. None: no start.
            until: End of the range, exclusive, in UTC if it has no zone. None: no end.
            filter: Condition as in `Table.scan`. None: all rows.
            after: Position in the field `after` of the previous page. None: the first page.
            limit: Largest number of splits to read. Default: 500. A page may be empty although another page follows.

        Returns:
            The page.
        """
        times = (_utc(since), _utc(until))
        range_us = (_microseconds(times[0]), _microseconds(times[1]))
        with self._asking(table, limit) as (connection, known):
            longest_us = connection.execute(longest(known.table_id)).scalar_one() if since is not None else 0
            steps = [
                partial(in_time, known.table_id, range_us, longest_us, limit=limit, timed=timed)
                for timed in (True, False)
            ]
            rows = self._in_two(connection, steps, after, limit=limit)
        found = tuple(pruned(rows, known, times, filter))
        return Page(found, _next(rows, limit, lambda row: (row["min_time_us"], row["split_id"])), known.head_version)

    def expired_windows(
        self, table: str | None = None, *, now_ms: int | None = None, limit: int = MOST_ROWS
    ) -> list[ExpiredWindow]:
        """Return the oldest windows that are older than the retention of their table.

        Reads no metadata of splits.

        Args:
            table: Name, location or id of the table. None: all tables.
            now_ms: Current time in ms since the epoch. None: the clock of this machine.
            limit: Largest number of windows per table. Default: 500.

        Returns:
            The windows.
        """
        now = self.database.clock.now_ms() if now_ms is None else now_ms
        found = []
        with self.database.read() as connection:
            wanted = every_known(connection) if table is None else [self._known(connection, table)]
            for known in wanted:
                retention_ms = known.config.retention_ms
                if retention_ms is not None:
                    statement = expired(known.table_id, (now - retention_ms) // 1000, limit)
                    rows = self._rows(connection, statement)
                    found += [record(ExpiredWindow, row, table=known.name) for row in rows]
        return found

    def changes_since(
        self, table: str, version: int, *, after: ChangePlace | None = None, limit: int = MOST_ROWS
    ) -> Page[SplitChange, ChangePlace]:
        """Return the splits added and removed after a version.

        The changes are ordered by version. Within a version, removed splits come before added splits, ordered by path.

        Args:
            table: Name, location or id of the table.
            version: Version after which the changes are returned.
            after: Position in the field `after` of the previous page. None: the first page.
            limit: Largest number of changes. Default: 500.

        Returns:
            The page.

        Raises:
            SnapshotExpired: The version is older than the first version from which the catalog has changes.
            NotFound: The version is newer than the version of the table in the catalog.
        """
        begin: ChangePlace = (version, ADDED, None) if after is None else after
        with self._asking(table, limit) as (connection, known):
            if version < known.first_version:
                raise SnapshotExpired(
                    f"{known.uri}: the catalog has no changes before version {known.first_version}, so not since "
                    f"{version}. Read all live splits, then the changes after version {known.head_version}",
                    first_version=known.first_version,
                )
            if version > known.head_version:
                raise NotFound(
                    f"{known.uri}: the catalog has versions only up to {known.head_version}, not {version}. Refresh "
                    "the catalog",
                    version=version,
                )
            rows = self._rows(connection, changed(known.table_id, begin, limit))
        found = tuple(record(SplitChange, row, change="added" if row["kind"] == ADDED else "removed") for row in rows)
        place = _next(rows, limit, lambda row: (row["version"], row["kind"], row["split_id"]))
        return Page(found, place, known.head_version)

    @checked
    def sql(self, statement: str) -> tuple[list[str], list[tuple[object, ...]]]:
        """Run one read-only SQL statement on the database and return the column names and all rows.

        Args:
            statement: SQL in the dialect of the database.

        Returns:
            The column names and the rows, held in memory.

        Raises:
            InvalidInput: The database refuses the statement. In PostgreSQL, the error is also raised if the role can
                get rights over the server.
        """
        return self.database.ask(statement)

    @contextmanager
    def explaining(self) -> Iterator[list[str]]:
        """Yield a list. Each statement in the block adds the database's query plan to the list."""
        self._plans = []
        try:
            yield self._plans
        finally:
            self._plans = None

    def _refresher(self, uri: str, name: str | None) -> Refresher:
        return Refresher(self.database, _log_at(uri)[1], name or name_of(uri))

    def _known(self, connection: Connection, table: str) -> TableEntry:
        is_path = "/" in table and scheme_of(table) is None
        return known_by(connection, open_table_store(table).uri if is_path else table, self.database.place)

    @contextmanager
    def _asking(self, table: str, limit: int) -> Iterator[tuple[Connection, TableEntry]]:
        """Yield a connection and the entry of the table. The connection sees one state of the database."""
        if limit < 1:
            raise InvalidInput(f"a page has at least 1 row, found limit={limit}. Give 1 or more", limit=limit)
        with self.database.read() as connection:
            yield connection, self._known(connection, table)

    def _rows(self, connection: Connection, statement: Statement) -> list[Row]:
        if self._plans is not None:
            self._plans.append(plan_of(connection, statement))
        found = connection.execute(statement)
        names = tuple(found.keys())
        return [dict(zip(names, row, strict=True)) for row in found.all()]

    def _in_two(self, connection: Connection, steps: Sequence[_Step], after: Place | None, *, limit: int) -> list[Row]:
        """Return the rows of two statements: first rows with a window or time, then rows without a window or time."""
        first, second = steps
        rows = [] if after is not None and after[0] is None else self._rows(connection, first(after=after))
        return rows if len(rows) >= limit else [*rows, *self._rows(connection, second(after=after))][:limit]


def _log_at(uri: str) -> tuple[MeteredStore, TransactionLog]:
    store = MeteredStore(open_table_store(uri))
    return store, TransactionLog(store, cached=cached_pieces(CacheSettings.of(os.environ)))


def _next(rows: Sequence[Row], limit: int, place: Callable[[Row], _Position]) -> _Position | None:
    return place(rows[-1]) if len(rows) >= limit else None


def _utc(time: dt.datetime | None) -> dt.datetime | None:
    if time is None:
        return None
    return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time.astimezone(dt.UTC)


def _microseconds(time: dt.datetime | None) -> int | None:
    return None if time is None else (time - _EPOCH) // dt.timedelta(microseconds=1)
