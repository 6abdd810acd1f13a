"""A cache of logs in a SQL database: what is in which table, over all tables at once (decision 0154).

Everything in it is derived, says which version it shows, and can be made again. Nothing is ever decided by it: a table
that is opened through it reads its own log.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from sqlalchemy import Connection

from storage_core.arguments import checked
from storage_core.cache.pieces import cached_pieces
from storage_core.catalog import queries
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
from storage_core.catalog.checking import Checked, check
from storage_core.catalog.database import Database
from storage_core.catalog.known import Known, another_table, every_known, known_by
from storage_core.catalog.plans import plan_of
from storage_core.catalog.pruned import pruned
from storage_core.catalog.queries import Statement
from storage_core.catalog.refresher import Refresher
from storage_core.errors import InvalidInput, NotFound, SnapshotExpired
from storage_core.log.log import TransactionLog
from storage_core.log.replay import open_head
from storage_core.log.sharing import open_table_store
from storage_core.objectstore.meter import MeteredStore
from storage_core.objectstore.resolve import name_of, scheme_of
from storage_core.rows.sort_order import nameless
from storage_core.settings.cache import CacheSettings
from storage_core.table import Table

if TYPE_CHECKING:
    from storage_core.read.predicate import Filter

MOST_ROWS: Final = 500
Row = dict[str, Any]
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_Position = TypeVar("_Position")
ChangePlace = tuple[int, int, str | None]


class _Step(Protocol):
    """A statement but for where its page begins."""

    def __call__(self, *, after: Place | None) -> Statement:
        """Return the statement."""
        ...


class Catalog:
    """One catalogue. Any number of processes may refresh and ask it; see `open_catalog`."""

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
        """Bring a table to the head of its log, or in where it is new; see `Refresher.refresh`. Idempotent.

        A `name` is that of a table that comes in; without one it is called like the last part of its URI.
        """
        return self._refresher(uri, name).refresh()

    @checked
    def rebuild(self, uri: str, *, name: str | None = None) -> Refreshed:
        """Make a table again from its log, whatever is here of it or at its place; see `Refresher.rebuild`."""
        return self._refresher(uri, name).rebuild()

    @checked
    def check(self, table: str) -> Checked:
        """Compare a table, by name, place or id, with the log's snapshot of the version shown. Changes nothing."""
        with self.database.read() as connection:
            known = self._known(connection, table)
            return check(connection, known, _log_at(known.uri)[1])

    def tables(self) -> list[Known]:
        """Return what is known of every table, by name."""
        with self.database.read() as connection:
            return every_known(connection)

    def __getitem__(self, table: str) -> Table:
        """Open a table, by name, place or id, at the head of its log.

        What is read is the log's; that a version is known here saves the LIST beyond the hint. Raises `NotFound`, and
        `InvalidInput` where another table is at its place.
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
        """Return live splits that share scope and window with another, by window (null last) and path.

        Those of the table's own sort schema, or of another. `limit` bounds how many are looked at: a page may have
        none, and another after it. One statement, and a second at the end.
        """
        with self._asking(table, limit) as (connection, known):
            order = known.sort_schema if sort_schema is None else nameless(sort_schema)
            steps = [
                partial(queries.candidates, known.table_id, order, limit=limit, windowed=windowed)
                for windowed in (True, False)
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
        filter: Filter | str | None = None,  # noqa: A002  # as of scan
        after: Place | None = None,
        limit: int = MOST_ROWS,
    ) -> Page[FoundSplit, Place]:
        """Return live splits that may hold rows of a range of times, its end excluded, and of the filter.

        Exactly those that a scan of the shown version would not prune. Times without a zone are UTC. `limit` bounds how
        many are looked at: a page may have none, and another after it.
        """
        times = (_utc(since), _utc(until))
        range_us = (_microseconds(times[0]), _microseconds(times[1]))
        with self._asking(table, limit) as (connection, known):
            longest = connection.execute(queries.longest(known.table_id)).scalar_one() if since is not None else 0
            steps = [
                partial(queries.in_time, known.table_id, range_us, longest, limit=limit, timed=timed)
                for timed in (True, False)
            ]
            rows = self._in_two(connection, steps, after, limit=limit)
        found = tuple(pruned(rows, known, times, filter))
        return Page(found, _next(rows, limit, lambda row: (row["min_time_us"], row["split_id"])), known.head_version)

    def expired_windows(
        self, table: str | None = None, *, now_ms: int | None = None, limit: int = MOST_ROWS
    ) -> list[ExpiredWindow]:
        """Return the oldest windows that have left their table by its retention, of one table or of all.

        At most `limit` of each. No split's metadata is read.
        """
        now = self.database.clock.now_ms() if now_ms is None else now_ms
        found = []
        with self.database.read() as connection:
            wanted = every_known(connection) if table is None else [self._known(connection, table)]
            for known in wanted:
                retention_ms = known.config.retention_ms
                if retention_ms is not None:
                    statement = queries.expired(known.table_id, (now - retention_ms) // 1000, limit)
                    rows = self._rows(connection, statement)
                    found += [record(ExpiredWindow, row, table=known.name) for row in rows]
        return found

    def changes_since(
        self, table: str, version: int, *, after: ChangePlace | None = None, limit: int = MOST_ROWS
    ) -> Page[SplitChange, ChangePlace]:
        """Return which splits joined and left after a version, by version, what left first, and path.

        Raises `SnapshotExpired` for a version from before the catalogue knew the table, `NotFound` for one after the
        shown one.
        """
        begin: ChangePlace = (version, queries.ADDED, None) if after is None else after
        with self._asking(table, limit) as (connection, known):
            if version < known.first_version:
                raise SnapshotExpired(
                    f"{known.uri}: the catalogue knows what changed since version {known.first_version}, not since "
                    f"{version}; take all live splits, and what changed after version {known.head_version}",
                    first_version=known.first_version,
                )
            if version > known.head_version:
                raise NotFound(
                    f"{known.uri}: the catalogue knows versions up to {known.head_version}, not {version}; refresh it",
                    version=version,
                )
            rows = self._rows(connection, queries.changed(known.table_id, begin, limit))
        found = tuple(
            record(SplitChange, row, change="added" if row["kind"] == queries.ADDED else "removed") for row in rows
        )
        place = _next(rows, limit, lambda row: (row["version"], row["kind"], row["split_id"]))
        return Page(found, place, known.head_version)

    @checked
    def sql(self, statement: str) -> tuple[list[str], list[tuple[object, ...]]]:
        """Return the names and rows of one statement of the database's own, which can change nothing.

        All rows are held. Raises `InvalidInput` with what the database says of it, and in PostgreSQL for a role that
        can get rights over the server.
        """
        return self.database.ask(statement)

    @contextmanager
    def explaining(self) -> Iterator[list[str]]:
        """Give a list that gets the database's plan of each statement that a question asks in the block."""
        self._plans = []
        try:
            yield self._plans
        finally:
            self._plans = None

    def _refresher(self, uri: str, name: str | None) -> Refresher:
        return Refresher(self.database, _log_at(uri)[1], name or name_of(uri))

    def _known(self, connection: Connection, table: str) -> Known:
        is_path = "/" in table and scheme_of(table) is None
        return known_by(connection, open_table_store(table).uri if is_path else table, self.database.place)

    @contextmanager
    def _asking(self, table: str, limit: int) -> Iterator[tuple[Connection, Known]]:
        """One state of the database, and what it says of the table."""
        if limit < 1:
            raise InvalidInput(f"a page has at least 1 row, found limit={limit}", limit=limit)
        with self.database.read() as connection:
            yield connection, self._known(connection, table)

    def _rows(self, connection: Connection, statement: Statement) -> list[Row]:
        if self._plans is not None:
            self._plans.append(plan_of(connection, statement))
        found = connection.execute(statement)
        names = tuple(found.keys())
        return [dict(zip(names, row, strict=True)) for row in found.all()]

    def _in_two(self, connection: Connection, steps: Sequence[_Step], after: Place | None, *, limit: int) -> list[Row]:
        """The rows of two statements, one behind the other: those with a window or time, then those without."""
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
