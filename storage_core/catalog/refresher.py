"""Refresh of one table in the catalog: apply the new versions of its log, or load the whole table.

If the log continues from the version in the catalog, only the new versions are read. Otherwise the whole table is
loaded. The ids in the log and the catalog distinguish these cases. If a log was reset to an older version and then
continued, its commit of the known version has another id. If a table was moved, the catalog has its id at another
location. A location may also contain another table than before.

Every function here works within the given transaction. A version is applied only if the catalog contains the version
directly before it. The first statement of each transaction checks the version in the catalog. Several processes may
refresh the same table. One process then applies a version, and the others see that it is applied.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import Connection

from storage_core.base.errors import CommitConflict, Corrupt, InvalidInput, NotFound
from storage_core.catalog.answers import Outcome, Refreshed
from storage_core.catalog.database import Database
from storage_core.catalog.schema import COMMITS, OF_A_TABLE, REGIONS, SEGMENTS, SPLITS, TABLES
from storage_core.catalog.table_entry import (
    Columns,
    TableEntry,
    another_table,
    canonical_json,
    catalog_id,
    every_known,
    pieces,
    split_rows,
)
from storage_core.log.actions import (
    Action,
    Add,
    IndexSegment,
    MergedGenerations,
    Metadata,
    Protocol,
    Remove,
    RemoveIndexSegment,
    to_json_object,
)
from storage_core.log.codec import commit_info
from storage_core.log.listing import first_version
from storage_core.log.log import TransactionLog
from storage_core.log.sharing import open_table_store
from storage_core.log.snapshot import Snapshot, commit_timestamp, require_readable
from storage_core.log.split_columns import table_of
from storage_core.log.versions import UNRECORDED, read_version, versions_after
from storage_core.maintain.forget_blockers import OPERATION as FORGET

# The changes of one version are the net effect of its actions.


@dataclass(slots=True)
class Changes:
    """The splits and segments that one version changed, by path.

    `added` and `segments` are live after the version. The version removed `closed` and `closed_segments`.
    """

    added: dict[str, Add] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    segments: dict[str, IndexSegment] = field(default_factory=dict)
    closed_segments: set[str] = field(default_factory=set)
    regions: dict[str, int] = field(default_factory=dict)
    metadata: Metadata | None = None
    protocol: Protocol | None = None

    @staticmethod
    def of(actions: Iterable[Action]) -> Changes:
        """Return the combined changes of the actions of a version. Raises `Unsupported`."""
        found = Changes()
        for action in actions:
            found._take(action)
        return found

    def settings(self, before: TableEntry) -> TableEntry:
        """Return the entry of the table with the settings of this version."""
        if self.protocol is not None:
            before = replace(before, protocol=canonical_json(to_json_object(self.protocol)[Protocol.NAME]))
        if self.metadata is None:
            return before
        configuration = canonical_json(dict(self.metadata.configuration))
        return replace(before, schema_string=self.metadata.schemaString, configuration=configuration)

    def _take(self, action: Action) -> None:
        match action:
            case Add():
                self.closed.add(action.path)
                self.added[action.path] = action
            case Remove():
                self.closed.add(action.path)
                self.added.pop(action.path, None)
            case IndexSegment():
                self.closed_segments.add(action.path)
                self.segments[action.path] = action
            case RemoveIndexSegment():
                self.closed_segments.add(action.path)
                self.segments.pop(action.path, None)
            case MergedGenerations():
                self.regions[action.region] = action.generation
            case Metadata():
                self.metadata = action
            case Protocol():
                require_readable(action)
                self.protocol = action
            case _:
                pass


# Bulk inserts: COPY in PostgreSQL, and one prepared statement in SQLite.


COPIED_ROWS: Final = 1_000
"""Minimum number of rows for COPY. Below this number, INSERT adds the rows together with the other statements."""
ANEW_ROWS: Final = 20_000
"""If at least this number of rows is added, indexes are dropped and created again.

If fewer than `ANEW_ROWS` rows are added, the database adds each row to the existing indexes.
"""


def insert(connection: Connection, table: sa.Table, rows: pa.Table) -> None:
    """Insert rows with the column names of the table. Uses COPY for at least `COPIED_ROWS` rows."""
    if not len(rows):
        return
    names = ", ".join(f'"{name}"' for name in rows.column_names)
    if connection.dialect.name == "postgresql" and len(rows) >= COPIED_ROWS:
        _copy(connection, f'COPY "{table.name}" ({names}) FROM STDIN (FORMAT csv)', rows)  # the names are constants
        return
    mark = "%s" if connection.dialect.name == "postgresql" else "?"
    marks = ", ".join([mark] * rows.num_columns)
    statement = f'INSERT INTO "{table.name}" ({names}) VALUES ({marks})'  # noqa: S608  # the names are our own
    columns = [column.to_pylist() for column in rows.columns]
    connection.exec_driver_sql(statement, list(zip(*columns, strict=True)))


@contextmanager
def bulk(connection: Connection, splits: int) -> Iterator[None]:
    """Make the inserts in a block fast. `splits` is the number of inserted splits.

    If most splits are new, the indexes are dropped before the block and created again after it. In PostgreSQL, the
    indexes are dropped only if the catalog contained no splits before the block. One sort is faster than an index
    change for each row. In SQLite, readers still see the previous state. In PostgreSQL, readers would have to wait.
    PostgreSQL therefore drops the indexes only while the table of splits is empty. PostgreSQL analyzes the table after
    the block, because its planner would otherwise assume an empty table.
    """
    dropped = SPLITS.indexes if splits >= ANEW_ROWS and _is_new(connection, splits) else set()
    for index in dropped:
        index.drop(connection)
    yield
    for index in dropped:
        index.create(connection)
    if connection.dialect.name == "postgresql" and splits >= COPIED_ROWS:
        connection.exec_driver_sql(f"ANALYZE {SPLITS.name}")


def _is_new(connection: Connection, splits: int) -> bool:
    """Return True if the number of new splits is at least half of the number of splits in the catalog.

    In PostgreSQL, return True only if the catalog contains no splits yet.
    """
    if connection.dialect.name == "postgresql":
        return connection.execute(sa.select(SPLITS.c.split_id).limit(1)).first() is None
    others = connection.execute(sa.select(sa.func.sum(TABLES.c.live_splits))).scalar() or 0
    return splits >= int(others) // 2


def _copy(connection: Connection, statement: str, rows: pa.Table) -> None:
    from pyarrow import csv

    data = io.BytesIO()
    csv.write_csv(rows, data, csv.WriteOptions(include_header=False))  # texts are quoted, and a null is an empty field
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(data.getbuffer())


PIECE_ROWS: Final = 10_000
"""The number of splits that are converted to rows in one step. These splits need about 10 MB of memory."""
_NAMES: Final = 500
"""Maximum number of names in one SQL statement."""

Row = Mapping[str, Any]
_NOTHING: Final[Row] = MappingProxyType({})
_WITHOUT_VALUES: Final[Row] = MappingProxyType(
    dict.fromkeys(("min_values", "max_values", "regexes", "partition_values", "min_time_us", "max_time_us"))
)
"""Columns that become null when their split is removed. The values of these columns may belong to forgotten rows."""
_NO_TOTALS: Final = {"splits": 0, "rows": 0, "bytes": 0, "longest_time_us": 0}


def load(
    connection: Connection,
    snapshot: Snapshot,
    files: Iterable[pa.Table],
    *,
    about: TableEntry,
    actions: Sequence[Action],
) -> None:
    """Load the snapshot as the content of the table. `files` are the live splits of the snapshot.

    Before the load, the function removes all entries of this table and all entries of any other table with the same
    URI. `actions` are the actions of the snapshot's version, if this version is retained.
    """
    with bulk(connection, len(snapshot.splits)):
        remove_table(connection, about.table_id, about.uri)
        totals = _load_splits(connection, snapshot, files, about)
    _insert(connection, SEGMENTS, [_segment(about, each) for each in snapshot.segments.values()])
    _insert(connection, REGIONS, [_region(about, *each) for each in snapshot.merged_generations.items()])
    _insert(connection, COMMITS, [_commit(about, actions)] if actions else [])
    _add_totals(connection, about.table_id, totals, {})


def _load_splits(
    connection: Connection, snapshot: Snapshot, files: Iterable[pa.Table], about: TableEntry
) -> dict[str, int]:
    columns = Columns.of(snapshot.metadata, snapshot.config)
    empty = dict.fromkeys(("longest_time_us", "live_splits", "live_rows", "live_bytes"), 0)
    connection.execute(TABLES.insert(), {**about.row(), **about.settings(), **empty})
    totals = dict(_NO_TOTALS)
    for table in files:
        for piece in pieces(table, PIECE_ROWS):
            rows = split_rows(piece, columns, about.table_id)
            insert(connection, SPLITS, rows)
            totals = _sum(totals, _totals_of(rows))
    return totals


def remove_table(connection: Connection, table_id: str, uri: str) -> None:
    """Remove a table from the catalog. Also remove every other table that has the same URI.

    If the catalog has no other tables, all rows are deleted without a condition.
    """
    known = {row.table_id: row.uri for row in connection.execute(sa.select(TABLES.c.table_id, TABLES.c.uri))}
    gone = [each for each, place in known.items() if each == table_id or place == uri]
    for table in OF_A_TABLE if gone else ():
        everything = table.delete()
        connection.execute(everything if len(gone) == len(known) else everything.where(table.c.table_id.in_(gone)))


def apply(connection: Connection, before: TableEntry, version: int, actions: Sequence[Action]) -> TableEntry | None:
    """Apply one version to the table in the catalog, and return the new entry of the table.

    If the catalog does not have the version directly before `version`, the function returns None and changes nothing.

    Raises:
        Corrupt: The version is not later than the one before it.
        Unsupported: This release cannot read the version.
    """
    timestamp, info = commit_timestamp(actions, before.head_timestamp_ms), commit_info(actions)
    if info is not None and timestamp <= before.head_timestamp_ms:
        raise Corrupt(
            f"version {version} of {before.uri}: expected a commit after {before.head_timestamp_ms} ms, found one of "
            f"{timestamp} ms"
        )
    changes = Changes.of(actions)
    commit_id = info.commitId if info else ""
    after = replace(
        changes.settings(before), head_version=version, head_commit_id=commit_id, head_timestamp_ms=timestamp
    )
    if not _step(connection, before, after):
        return None
    gone = _close(connection, SPLITS.c.split_id, after, changes.closed, more=_WITHOUT_VALUES)
    if info is not None and info.operation == FORGET:  # earlier releases kept the bounds of removed splits
        left = (SPLITS.c.table_id == after.table_id, SPLITS.c.removed_version.is_not(None))
        connection.execute(SPLITS.update().where(*left).values(**_WITHOUT_VALUES))
    added = [*changes.added.values()]
    files = table_of(added, [(version, timestamp)] * len(added))
    rows = split_rows(files, Columns.of(after.metadata, after.config), after.table_id)
    insert(connection, SPLITS, rows)
    _close(connection, SEGMENTS.c.segment_id, after, changes.closed_segments)
    _insert(connection, SEGMENTS, [_segment(after, each) for each in changes.segments.values()])
    _replace_regions(connection, after, changes.regions)
    connection.execute(COMMITS.insert(), _commit(after, actions))
    _add_totals(connection, after.table_id, _totals_of(rows), _totals_gone(connection, after) if gone else _NO_TOTALS)
    return after


def _step(connection: Connection, before: TableEntry, after: TableEntry) -> bool:
    """Set the head of the table in the catalog to the new version. Return False if another process changed the head."""
    moved = TABLES.update().where(
        TABLES.c.table_id == before.table_id,
        TABLES.c.head_version == before.head_version,
        TABLES.c.head_commit_id == before.head_commit_id,
        TABLES.c.uri == before.uri,
    )
    changed = after.row() if after.same_settings(before) else {**after.row(), **after.settings()}
    return before.head_version + 1 == after.head_version and connection.execute(moved.values(**changed)).rowcount == 1


def _close(
    connection: Connection, name: sa.Column[str], after: TableEntry, closed: Collection[str], *, more: Row = _NOTHING
) -> int:
    """Mark the live rows with the names `closed` as removed, and set the columns in `more` to their given values.

    Return the number of these rows.
    """
    table, ended = name.table, 0
    for several in _batches(sorted(closed)):
        live = (table.c.table_id == after.table_id, name.in_(several), table.c.removed_version.is_(None))
        ending = sa.update(table).where(*live).values(removed_version=after.head_version, **more)
        ended += connection.execute(ending).rowcount
    return ended


def _replace_regions(connection: Connection, after: TableEntry, regions: Mapping[str, int]) -> None:
    for several in _batches(sorted(regions)):
        there = (REGIONS.c.table_id == after.table_id, REGIONS.c.region.in_(several))
        connection.execute(REGIONS.delete().where(*there))
    _insert(connection, REGIONS, [_region(after, *each) for each in regions.items()])


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), _NAMES):
        yield names[start : start + _NAMES]


def _insert(connection: Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    if rows:
        connection.execute(table.insert(), [dict(row) for row in rows])


def _totals_of(rows: pa.Table) -> dict[str, int]:
    spans = pc.subtract(rows.column("max_time_us"), rows.column("min_time_us"))
    return {
        "splits": len(rows),
        "rows": (pc.sum(rows.column("rows")).as_py() or 0) - (pc.sum(rows.column("deleted_rows")).as_py() or 0),
        "bytes": pc.sum(rows.column("bytes")).as_py() or 0,
        "longest_time_us": pc.max(spans).as_py() or 0,
    }


def _totals_gone(connection: Connection, after: TableEntry) -> dict[str, int]:
    """Return the sums over the splits that this version removed."""
    sums = (
        sa.func.count(),
        sa.func.sum(SPLITS.c.rows),
        sa.func.sum(SPLITS.c.deleted_rows),
        sa.func.sum(SPLITS.c.bytes),
    )
    gone = (SPLITS.c.table_id == after.table_id, SPLITS.c.removed_version == after.head_version)
    splits, rows, deleted, size = (int(each or 0) for each in connection.execute(sa.select(*sums).where(*gone)).one())
    return {"splits": splits, "rows": rows - deleted, "bytes": size, "longest_time_us": 0}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    added = {name: one[name] + other[name] for name in ("splits", "rows", "bytes")}
    return {**added, "longest_time_us": max(one["longest_time_us"], other["longest_time_us"])}


def _add_totals(connection: Connection, table_id: str, added: Mapping[str, int], gone: Mapping[str, int]) -> None:
    changes: dict[str, Any] = {
        f"live_{name}": TABLES.c[f"live_{name}"] + (added[name] - gone.get(name, 0))
        for name in ("splits", "rows", "bytes")
    }
    longest = added["longest_time_us"]
    if longest:
        now = TABLES.c.longest_time_us
        changes["longest_time_us"] = sa.case((now < longest, longest), else_=now)
    connection.execute(TABLES.update().where(TABLES.c.table_id == table_id).values(**changes))


def _segment(at: TableEntry, segment: IndexSegment) -> Row:
    return {
        "table_id": at.table_id,
        "segment_id": segment.path,
        "added_version": at.head_version,
        "index_name": segment.index,
        "kind": segment.kind,
        "bytes": segment.size,
        "rows": segment.numRecords,
        "covers": json.dumps(segment.covers),
    }


def _region(at: TableEntry, region: str, generation: int) -> Row:
    return {
        "table_id": at.table_id,
        "region": region,
        "merged_generation": generation,
        "merged_version": at.head_version,
    }


def _commit(at: TableEntry, actions: Sequence[Action]) -> Row:
    info, changes = commit_info(actions), Changes.of(actions)
    return {
        "table_id": at.table_id,
        "version": at.head_version,
        "commit_id": at.head_commit_id,
        "operation": info.operation if info else UNRECORDED,
        "committed_at_ms": at.head_timestamp_ms,
        "job_run_id": info.jobRunId if info else None,
        "splits_added": len(changes.added),
        "splits_removed": len(changes.closed - changes.added.keys()),
        "metrics": json.dumps(info.metrics if info else {}),
    }


MOST_TURNS: Final = 10
NEW: Final = "the catalog did not have the table"
REQUESTED: Final = "a rebuild was requested"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refresher:
    """Applies the new versions of `log` to one table of the catalog."""

    database: Database
    log: TransactionLog
    name: str

    def refresh(self) -> Refreshed:
        """Apply new versions, or load the table if the log does not continue from the version in the catalog.

        If several processes refresh the table concurrently, each version is applied by one of them.

        Raises:
            InvalidInput: The catalog contains another table at this location, or this table also exists at another
                location.
            CommitConflict: Another process changed the catalog first in every attempt.

        Cost:
            Without a load: one GET of the known version, and one GET per new version. Also the GETs that find no
            further version, and one GET of the collector's boundary.
        """
        found = self._known()
        loaded, applied = "", 0
        for _ in range(MOST_TURNS):
            reason = NEW if found is None else self._doubt(found)
            if found is not None and not reason:
                head, count = self._follow(found)
                applied += count
                if head is not None and first_version(self.log.store) <= head.head_version + 1:
                    return _refreshed(head, loaded, applied)
                reason = "" if head is None else f"the versions after {head.head_version} were collected"
                found = head or found
            loaded = (self._load(found, reason) if reason else "") or loaded
            found = self._known()
        raise CommitConflict(
            f"{self._uri}: other processes changed the catalog {MOST_TURNS} times meanwhile. Try again"
        )

    def rebuild(self) -> Refreshed:
        """Create the entries of the table again from its log.

        They replace all entries of the table and of its URI. Then refresh the table.

        The catalog has changes since the same version as before, or since the oldest retained version. Readers see the
        previous state until the new state is complete.
        """
        snapshot = self.log.snapshot()
        known = self._known(TABLES.c.table_id == catalog_id(snapshot))
        self._load_from(snapshot, None if known is None else known.first_version)
        _logger.info("rebuilt %s in the catalog %s", self._uri, self.database.place)
        done = self.refresh()
        now = self._known()
        if now is None:
            raise CommitConflict(f"{self._uri}: another process removed the table from the catalog. Refresh it again")
        return _refreshed(now, done.reason or REQUESTED, done.versions)

    @property
    def _uri(self) -> str:
        return self.log.store.uri

    def _known(self, condition: sa.ColumnElement[bool] | None = None) -> TableEntry | None:
        with self.database.read() as connection:
            wanted = TABLES.c.uri == self._uri if condition is None else condition
            return next(iter(every_known(connection, wanted)), None)

    def _doubt(self, known: TableEntry) -> str:
        """Return the reason to doubt that the log continues from the known version.

        The text is empty if the log continues from this version.
        """
        actions = read_version(self.log.store, known.head_version) if known.is_ours else None
        if actions is not None:
            return (
                ""
                if _is_commit(known, actions)
                else f"version {known.head_version} of the table is a different commit now"
            )
        head = self.log.snapshot()
        same = (catalog_id(head), head.version, head.timestamp)
        if same == (known.table_id, known.head_version, known.head_timestamp_ms):
            return ""
        if head.version < known.head_version:
            return f"the log ends before version {known.head_version}, which the catalog has"
        return f"the file of version {known.head_version} is not there any more"

    def _follow(self, found: TableEntry) -> tuple[TableEntry | None, int]:
        """Apply the new versions. Return the entry after these versions, and the number of versions.

        The entry is None if the log does not continue from the known version.
        """
        head, applied = found, 0
        for version, actions in versions_after(self.log.store, found.head_version):
            if version > head.head_version:
                after = self.database.write(partial(apply, before=head, version=version, actions=actions))
                if after is not None:
                    head, applied = after, applied + 1
                    continue
                newer = self._known()
                if newer is None or newer.head_version < version:
                    return None, applied
                head = newer
            if version == head.head_version and not _is_commit(head, actions):
                return None, applied
        return head, applied

    def _load(self, found: TableEntry | None, reason: str) -> str:
        """Load the table into the catalog, and return `reason`.

        Return an empty text if the catalog has changed since `found` was read.
        """
        snapshot = self.log.snapshot()
        if found is not None and not found.is_of(snapshot):
            raise another_table(found, snapshot.table_id, self.database.place)
        elsewhere = self._known(TABLES.c.table_id == catalog_id(snapshot))
        if elsewhere is not None and elsewhere.uri != self._uri:
            _require_moved(elsewhere, self._uri)
            reason = f"the table was at {elsewhere.uri}"
        _logger.info("loading %s into the catalog %s: %s", self._uri, self.database.place, reason)
        since = None if elsewhere is None else elsewhere.first_version
        try:
            return reason if self._load_from(snapshot, since, found, elsewhere) else ""
        except CommitConflict:  # another process has loaded the table
            return ""

    def _load_from(self, head: Snapshot, since: int | None, *expected: TableEntry | None) -> bool:
        base = head if since is None else self._oldest(since, head)
        actions = read_version(self.log.store, base.version) or ()
        info = commit_info(actions)
        about = TableEntry.of(base, name=self.name, uri=self._uri, commit_id=info.commitId if info else "")

        def work(connection: Connection, files: Iterable[pa.Table]) -> bool:
            if expected and not _are_there(connection, expected, about):
                return False
            load(connection, base, files, about=about, actions=actions)
            self._replay(connection, about, head.version)
            return True

        try:
            return self.database.write(lambda connection: work(connection, base.splits.read_uncached()))
        except (Corrupt, NotFound) as error:
            _logger.warning("%s: a manifest is not usable, reading what replaces it: %s", self._uri, error)
            return self.database.write(lambda connection: work(connection, base.splits.tables()))

    def _oldest(self, since: int, head: Snapshot) -> Snapshot:
        """Return the snapshot of a version, or of the oldest retained version after it.

        Older tagged versions are ignored.
        """
        wanted = max(since, first_version(self.log.store))
        try:
            return self.log.snapshot(version=min(wanted, head.version))
        except NotFound:  # the version was just collected
            return head

    def _replay(self, connection: Connection, base: TableEntry, until: int) -> None:
        at = base
        for version, actions in versions_after(self.log.store, base.head_version):
            if version > until:
                return
            after = apply(connection, at, version, actions)
            if after is None:
                raise CommitConflict(
                    f"{self._uri}: version {version} does not follow the newest version in the catalog. Try again"
                )
            at = after


def _is_commit(known: TableEntry, actions: Sequence[Action]) -> bool:
    info = commit_info(actions)
    found = None if info is None else (info.commitId, info.timestamp)
    return found == (known.head_commit_id, known.head_timestamp_ms)


def _are_there(connection: Connection, expected: Iterable[TableEntry | None], about: TableEntry) -> bool:
    """Return whether the catalog has exactly the expected entries for the table and its location."""
    there = sa.or_(TABLES.c.table_id == about.table_id, TABLES.c.uri == about.uri)
    return {each.table_id: each for each in every_known(connection, there)} == {
        each.table_id: each for each in expected if each is not None
    }


def _require_moved(known: TableEntry, uri: str) -> None:
    """Raise `InvalidInput` if the table still exists at its known location.

    If it exists, the table at the known location or the table at the given location is a copy.
    """
    try:
        found = catalog_id(TransactionLog(open_table_store(known.uri)).snapshot())
    except NotFound:
        return
    if found == known.table_id:
        raise InvalidInput(
            f"{uri}: the catalog already has the table {known.table_id} at {known.uri}, and the table still "
            "exists there. One of the two tables is a copy of all files. Make copies with `tidemark clone`. To "
            f"record the table at {uri} instead, run: tidemark catalog rebuild {uri} --url …",
            uri=uri,
        )


def _refreshed(head: TableEntry, reason: str, versions: int) -> Refreshed:
    outcome: Outcome = "loaded" if reason else "refreshed" if versions else "current"
    return Refreshed(
        name=head.name,
        uri=head.uri,
        table_id=head.table_id,
        outcome=outcome,
        version=head.head_version,
        versions=versions,
        reason=reason,
    )
