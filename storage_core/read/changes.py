"""The rows that the commits between two versions added and removed (docs/architecture/transaction-log.md, "History").

The columns are all columns of the table and these three columns of Delta's change feed:

- `_change_type`: `delete` or `insert`. An update is one `delete` and one `insert`.
- `_commit_version`
- `_commit_timestamp`

The changes are ordered by commit. Deletes come before inserts. A reader that applies the changes in this order to the
first version gets the rows of the last version. The deletes of one commit are in no particular order, and neither are
the inserts.

If a commit only replaced the deletion vector of a split, the changed rows are in the old or the new deletion vector,
but not in both. A merge or a restore rewrites splits that also contain many unchanged rows. Therefore, if a commit
removes and adds the same row, the delete and the insert cancel each other out. If a row occurs several times, each
removed copy cancels out one added copy. Whole rows are compared by value in the total order. In this order, all NaN are
equal, and both zeros are equal.

Equal rows always lie in the same window, so windows are compared one by one. If a window is too large for memory, it is
divided into slices by the hashes of its rows.
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

from storage_core.base.errors import InvalidInput, SnapshotExpired
from storage_core.data.rows.columns import without_metadata
from storage_core.data.rows.schema import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from storage_core.data.rows.statistics import row_hashes
from storage_core.engine.session import session
from storage_core.log.actions import Action, Add, Remove
from storage_core.log.deletion_vector import inline
from storage_core.log.snapshot import Snapshot, commit_timestamp
from storage_core.log.versions import read_version
from storage_core.read.verified_files import query_errors
from storage_core.split.deletion_vectors import deleted_rows
from storage_core.split.read import conform_split, open_split
from storage_core.store.contract import ObjectStore

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
    """One version that may have changed rows.

    The commit contains the removed splits in their earlier state, and the added splits.
    """

    version: int
    timestamp_ms: int
    removed: tuple[Add, ...]
    added: tuple[Add, ...]


def changes(
    store: ObjectStore, before: Snapshot, after: Snapshot, *, slice_bytes: int = SLICE_BYTES
) -> pa.RecordBatchReader:
    """Return the changes of the commits after `before`, up to and including `after`. The columns are those of `after`.

    The function skips versions that only compact, index or change settings. Before the first batch, the function reads
    only the first version file.

    Raises:
        InvalidInput: `after` is older than `before`, or a column of the table has a name of the three change columns.
        SnapshotExpired: Files of the range were collected. The error names the version from which changes can be read.
            Reading the batches can also raise this error.

    Cost:
        Memory is one split. If a commit removed and added rows of one window, memory also holds about `slice_bytes` of
        uncompressed rows. Makes one GET per version. For each version that changed rows, makes one GET per split that
        the version names, and one GET per stored deletion vector. If the version removed and added rows of a window,
        the splits of this window are read twice, and once more for every further slice.
    """
    clash = [each.name for each in _LABELS if each.name in after.schema.names]
    if clash:
        raise InvalidInput(
            f"the column {clash[0]!r} has the name of a column that change reads add. Rename the column",
            column=clash[0],
        )
    if after.version < before.version:
        raise InvalidInput(
            f"version {after.version} is older than version {before.version}, and changes go forward. Swap the two"
        )
    if after.version > before.version:
        _actions(store, before.version + 1)
    schema = without_metadata(after.schema)
    for each in _LABELS:
        schema = schema.append(each)
    return pa.RecordBatchReader.from_batches(schema, _batches(store, before, after, slice_bytes))


def _batches(store: ObjectStore, before: Snapshot, after: Snapshot, slice_bytes: int) -> Iterator[pa.RecordBatch]:
    for commit in _commits(store, before, after.version):
        reader = _Reader(store, after.schema, commit.version)
        # All deletes of a commit come before its first insert, even across windows.
        for kind, pick in ((DELETE, 0), (INSERT, 1)):
            for group in _groups(commit):
                for rows in _difference(reader, group[pick], group[1 - pick], slice_bytes):
                    yield from _labelled(rows, kind, commit).to_batches(max_chunksize=BATCH_ROWS)


def _commits(store: ObjectStore, before: Snapshot, last: int) -> Iterator[_Commit]:
    since: dict[str, Add | None] = {}  # the latest state of each path within the range
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
    """Return the commit. Return the commit without the unchanged rows of splits that only got another deletion vector.

    If a split only got a new deletion vector, the result contains only the rows whose deletion differs between the old
    and the new vector.
    """
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
            f"{path}: the file was collected, and version {version} changed its rows. Read changes from version "
            f"{version} or a later one",
            key=path,
            version=version,
        ) from error


def _only(add: Add, rows: BitMap) -> list[Add]:
    """Return the split with only these rows visible, or an empty list if there are no rows."""
    hidden = BitMap(range(add.numRecords or 0)) - rows
    return [replace(add, deletionVector=inline(hidden))] if rows else []


def _actions(store: ObjectStore, version: int) -> list[Action]:
    actions = read_version(store, version)
    if actions is None:
        raise SnapshotExpired(
            f"{store.uri}: the commit of version {version} is no longer retained, so its changes are unknown. Read "
            f"changes from version {version} or a later one",
            version=version,
        )
    return actions


def _groups(commit: _Commit) -> list[tuple[list[Add], list[Add]]]:
    """Return the removed and added splits in groups that may contain equal rows.

    If all windows have the same length, each window is a group. Otherwise there is one group with all splits.
    """
    lengths = {add.windowSeconds for add in (*commit.removed, *commit.added)}
    groups: defaultdict[object, tuple[list[Add], list[Add]]] = defaultdict(lambda: ([], []))
    for side, adds in enumerate((commit.removed, commit.added)):
        for add in adds:
            groups[add.windowStart if len(lengths) == 1 else None][side].append(add)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader of splits with the table's columns. `version` is the commit for which the splits are read."""

    store: ObjectStore
    schema: pa.Schema
    version: int

    def parts(self, adds: Iterable[Add]) -> Iterator[pa.Table]:
        """Yield the rows, one row group at a time."""
        for add in adds:
            with _expiring(add.path, self.version):
                split = open_split(self.store, add)
            yield from (conform_split(rows, self.schema) for rows in split.batches())

    def rows(self, adds: Iterable[Add], keep: Callable[[pa.Table], pa.Table]) -> pa.Table:
        """Apply `keep` to the rows, and return the result as one table."""
        return pa.concat_tables([self.schema.empty_table(), *map(keep, self.parts(adds))])


def _difference(reader: _Reader, mine: Sequence[Add], theirs: Sequence[Add], slice_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows that `mine` contains and `theirs` does not.

    If `mine` contains a row more often than `theirs`, the row is returned as many times as the difference.
    """
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
    # Other writers may omit the uncompressed size. A Parquet file is rarely smaller than a quarter of the uncompressed
    # size of its rows.
    whole = add.size * 4 if add.uncompressedSizeBytes is None else add.uncompressedSizeBytes
    return math.ceil(whole * add.visible_rows / add.numRecords) if add.numRecords else whole


def _labelled(rows: pa.Table, kind: str, commit: _Commit) -> pa.Table:
    values = (kind, commit.version, commit.timestamp_ms)
    for each, value in zip(_LABELS, values, strict=True):
        rows = rows.append_column(each, pa.repeat(pa.scalar(value, each.type), rows.num_rows))
    return rows
