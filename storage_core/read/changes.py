"""Changes: the rows that the commits between two versions added and removed (docs/architecture/transaction-log.md,
"History").

Columns are the table's and those of Delta's change feed, with its names: `_change_type` (`delete` or `insert`; an
update is one of each), `_commit_version`, `_commit_timestamp`. Commit by commit, deletes before inserts: applied in
that order to the rows of the first version they give the rows of the last. Rows have no order within a commit.

Of a split that only got another deletion vector, just the rows between the two vectors changed. A rewrite of splits (a
merge, a restore) names far more rows than it changed. What a commit removes and adds again cancels out by whole rows,
each as often as it occurs, compared by value and in the total order's sense: one NaN, one zero. Rows that may be equal
lie in one window; a window that is still too large is taken in slices by row hash.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.engine.session import session
from storage_core.errors import InvalidInput, SnapshotExpired
from storage_core.log.actions import Action, Add, Remove
from storage_core.log.advance import read_version
from storage_core.log.deletion_vector import inline
from storage_core.log.snapshot import Snapshot, commit_timestamp
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.query_errors import query_errors
from storage_core.rows.change_columns import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from storage_core.rows.columns import without_metadata
from storage_core.rows.fingerprint import row_hashes
from storage_core.split.conform import conform_split
from storage_core.split.read import open_split
from storage_core.split.vectors import deleted_rows

DELETE = "delete"
INSERT = "insert"

BATCH_ROWS = 65_536
SLICE_BYTES = 256 * 2**20

_LABELS = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("ms", tz="UTC"), nullable=False),
)


@dataclass(frozen=True, slots=True)
class _Commit:
    """One version that may have changed rows: the splits that left the table, as they were, and those that joined."""

    version: int
    timestamp_ms: int
    removed: tuple[Add, ...]
    added: tuple[Add, ...]


def changes(
    store: ObjectStore, before: Snapshot, after: Snapshot, *, slice_bytes: int = SLICE_BYTES
) -> pa.RecordBatchReader:
    """Return what the commits after `before`, up to and with `after`, changed, in the columns of `after`.

    Nothing but the first version file is read before the first batch. Memory: one split, and about `slice_bytes` of
    uncompressed rows where a commit removed and added rows of one window. One GET per version, and for each that
    changed rows one per split that it names; splits of a window where it did both are read twice, and again for every
    further slice; one more per deletion vector that is stored. Versions that only compact, index or configure are
    skipped.

    Raises `InvalidInput` when `after` is older or a column is called like one of ours; `SnapshotExpired`, also while
    batches are read, when files of the range are collected: it names the version from which changes can be read.
    """
    clash = [each.name for each in _LABELS if each.name in after.schema.names]
    if clash:
        raise InvalidInput(f"the table has the column {clash[0]!r}, which changes need for themselves", column=clash[0])
    if after.version < before.version:
        raise InvalidInput(f"changes go forward: from {before.version} to {after.version} there are none; swap the two")
    if after.version > before.version:
        _actions(store, before.version + 1)
    schema = without_metadata(after.schema)
    for each in _LABELS:
        schema = schema.append(each)
    return pa.RecordBatchReader.from_batches(schema, _batches(store, before, after, slice_bytes))


def _batches(store: ObjectStore, before: Snapshot, after: Snapshot, slice_bytes: int) -> Iterator[pa.RecordBatch]:
    for commit in _commits(store, before, after.version):
        reader = _Reader(store, after.schema, commit.version)
        # All deletes of a commit come before its first insert, also across windows.
        for kind, pick in ((DELETE, 0), (INSERT, 1)):
            for group in _groups(commit):
                for rows in _difference(reader, group[pick], group[1 - pick], slice_bytes):
                    yield from _labelled(rows, kind, commit).to_batches(max_chunksize=BATCH_ROWS)


def _commits(store: ObjectStore, before: Snapshot, last: int) -> Iterator[_Commit]:
    since: dict[str, Add | None] = {}  # what versions of the range made of a path; else it is as it was before
    timestamp_ms = before.timestamp
    for version in range(before.version + 1, last + 1):
        actions = _actions(store, version)
        timestamp_ms = commit_timestamp(actions, timestamp_ms)
        removed: list[Add] = []
        added: list[Add] = []
        for action in actions:
            if not isinstance(action, Add | Remove):
                continue
            known = since[action.path] if action.path in since else before.splits.get(action.path)
            removed += [] if known is None else [known]
            added += [action] if isinstance(action, Add) else []
            since[action.path] = action if isinstance(action, Add) else None
        if any(action.dataChange for action in actions if isinstance(action, Add | Remove)):
            yield _without_what_stayed(store, _Commit(version, timestamp_ms, tuple(removed), tuple(added)))


def _without_what_stayed(store: ObjectStore, commit: _Commit) -> _Commit:
    """Leave of splits that the commit only gave another vector just the rows that one of the two vectors hides."""
    before = {add.path: add for add in commit.removed if add.numRecords is not None}
    after = {add.path: add for add in commit.added if add.path in before}
    removed = [add for add in commit.removed if add.path not in after]
    added = [add for add in commit.added if add.path not in after]
    for path, add in after.items():
        with _expiring(path, commit.version):
            then, now = deleted_rows(store, before[path]), deleted_rows(store, add)
        removed += _only(add, now - then)
        added += _only(add, then - now)
    return replace(commit, removed=tuple(removed), added=tuple(added))


@contextmanager
def _expiring(path: str, version: int) -> Iterator[None]:
    try:
        yield
    except SnapshotExpired as error:
        raise SnapshotExpired(
            f"{path}: collected, and version {version} changed its rows; read changes from version {version} or a "
            "later one",
            key=path,
            version=version,
        ) from error


def _only(add: Add, rows: BitMap) -> list[Add]:
    """The split as if these were its rows; nothing without rows."""
    hidden = BitMap(range(add.numRecords or 0)) - rows
    return [replace(add, deletionVector=inline(hidden))] if rows else []


def _actions(store: ObjectStore, version: int) -> list[Action]:
    actions = read_version(store, version)
    if actions is None:
        raise SnapshotExpired(
            f"{store.uri}: the commit of version {version} is no longer retained, so what it changed is not known; "
            f"read changes from version {version} or a later one",
            version=version,
        )
    return actions


def _groups(commit: _Commit) -> list[tuple[list[Add], list[Add]]]:
    """Removed and added splits that may hold equal rows: those of one window, when all windows are of one length."""
    lengths = {add.windowSeconds for add in (*commit.removed, *commit.added)}
    groups: defaultdict[object, tuple[list[Add], list[Add]]] = defaultdict(lambda: ([], []))
    for side, adds in enumerate((commit.removed, commit.added)):
        for add in adds:
            groups[add.windowStart if len(lengths) == 1 else None][side].append(add)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads splits in the table's columns; `version` is the commit they are read for."""

    store: ObjectStore
    schema: pa.Schema
    version: int

    def parts(self, adds: Iterable[Add]) -> Iterator[pa.Table]:
        """Yield the rows, one row group after the other."""
        for add in adds:
            with _expiring(add.path, self.version):
                split = open_split(self.store, add)
            yield from (conform_split(rows, self.schema) for rows in split.batches())

    def rows(self, adds: Iterable[Add], keep: Callable[[pa.Table], pa.Table]) -> pa.Table:
        """Return what `keep` leaves of the rows as one table."""
        return pa.concat_tables([self.schema.empty_table(), *map(keep, self.parts(adds))])


def _difference(reader: _Reader, mine: Sequence[Add], theirs: Sequence[Add], slice_bytes: int) -> Iterator[pa.Table]:
    """The rows of `mine` that `theirs` lack, a row as often as it occurs more often."""
    if not mine or not theirs:
        yield from reader.parts(mine)
        return
    slices = max(1, math.ceil(sum(map(_bytes, (*mine, *theirs))) / slice_bytes))
    for number in range(slices):
        keep = _slice(number, slices)
        yield _except_all(reader.rows(mine, keep), reader.rows(theirs, keep))


def _slice(number: int, slices: int) -> Callable[[pa.Table], pa.Table]:
    def keep(rows: pa.Table) -> pa.Table:
        return rows if slices == 1 else rows.filter(pa.array(row_hashes(rows) % np.uint64(slices) == number))

    return keep


def _except_all(mine: pa.Table, theirs: pa.Table) -> pa.Table:
    if not mine.num_rows or not theirs.num_rows:
        return mine
    connection = session()
    connection.from_arrow(mine).create_view("mine")
    connection.from_arrow(theirs).create_view("theirs")
    with query_errors("changes"):
        rows = connection.sql("FROM mine EXCEPT ALL FROM theirs").to_arrow_table()
    return rows.cast(mine.schema)


def _bytes(add: Add) -> int:
    # Splits of others may not say how large they are; Parquet is seldom smaller than a quarter of its rows.
    whole = add.size * 4 if add.uncompressedSizeBytes is None else add.uncompressedSizeBytes
    return math.ceil(whole * add.visible_rows / add.numRecords) if add.numRecords else whole


def _labelled(rows: pa.Table, kind: str, commit: _Commit) -> pa.Table:
    values = (kind, commit.version, commit.timestamp_ms)
    for each, value in zip(_LABELS, values, strict=True):
        rows = rows.append_column(each, pa.repeat(pa.scalar(value, each.type), rows.num_rows))
    return rows
