"""Read tasks of a scan, and a reader that follows a table from version to version (decision 0034).

`plan_read_tasks` divides a scan into read tasks. Each read task is a `ReadTask`. Each task can run in another process
or on another machine. The tasks are planned once, on one snapshot. Every row of the scan belongs to exactly one task. A
task contains either a group of splits of bounded size, or unmerged rows. Newer records hide some rows of splits. The
planner finds these hidden rows and passes them as inline deletion vectors. Therefore a task reads only its own splits.

`Follower` reads the log of a table step by step:

    follower = Follower(log, schema)
    end = follower.advance(start, Limit("rows", 1_000_000))
    work = follower.work(start, end)

A `Position` is plain data that marks the progress of a reader. The read tasks between two positions are always the
same. If a version only added splits, these splits are read one by one. If a version removed or changed rows, the reader
reads the version as a whole. The reader must compare its removed rows with its added rows (`read.changes`). Versions
that change no row are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput, SnapshotExpired
from storage_core.data.rows.schema import CHANGE_TYPE, from_schema_string
from storage_core.log.actions import Add, Metadata, Protocol, Remove, read_action, read_actions, write_actions
from storage_core.log.deletion_vector import inline
from storage_core.log.listing import first_version
from storage_core.log.live_splits import Added, LiveFiles
from storage_core.log.log import TransactionLog
from storage_core.log.sharing import open_table_store
from storage_core.log.snapshot import Snapshot
from storage_core.log.versions import read_version
from storage_core.read.changes import DELETE, changes
from storage_core.read.duckdb_view import Source
from storage_core.read.fetching import FetchPlan, fetched
from storage_core.read.predicate import Filter
from storage_core.read.scan import Scan
from storage_core.read.table_read import UnmergedOverlay, overlay_of
from storage_core.read.verified_files import query_errors
from storage_core.split.deletion_vectors import PARALLEL_READS
from storage_core.split.read import share_of
from storage_core.store.meter import all_of

MOST_BYTES = 128 * 2**20
"""The approximate maximum size in bytes of the splits in one task. A single split may exceed this size."""
LEAST_BYTES = 4 * 2**20
"""The minimum number of bytes of a group. Splits that have fewer bytes in total than this number are not divided into
groups.
"""
_MANY = 64
_NEWER_BYTES = 16 * 2**20
_A_PORTION = "a portion"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """A read task: some splits of a table at a version, or some unmerged rows.

    A read task is plain data, which can be sent to any process.
    """

    uri: str
    version: int
    metadata: str
    splits: str = "[]"
    newer: bytes | None = None

    @property
    def snapshot(self) -> Snapshot:
        """A snapshot with only the splits of the task and the metadata for reading rows."""
        found = read_actions(json.loads(self.splits), Add, _A_PORTION)
        return Snapshot(
            version=self.version,
            timestamp=0,
            protocol=Protocol(),
            metadata=read_action(json.loads(self.metadata), Metadata, _A_PORTION),
            splits=LiveFiles(added={each.path: Added(each, self.version, 0) for each in found}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The columns and the filter of a task: see the fields of `Scan`."""

    columns: tuple[str, ...] | None = None
    filter: Filter | None = None


def plan_read_tasks(scan: Scan) -> list[ReadTask]:
    """Return the read tasks of a scan in the order of windows, or an empty list if no row can match.

    Cost:
        The requests of `table_read.plan` and `overlay_of`. If newer records hide rows of a split, also the requests
        that find the keys of these records in the split.
    """
    store, snapshot, read = scan.store, scan.snapshot, scan.planned()
    over = overlay_of(read.view)
    with query_errors("scan", read.splits):
        splits = list(read.splits) if over is None else _without_superseded(read.splits, over)
    of_table = ReadTask(
        uri=store.uri, version=snapshot.version, metadata=json.dumps(write_actions([snapshot.metadata])[0])
    )
    share = 1.0 if scan.columns_read is None else share_of(scan.columns_read, snapshot.schema)
    found = [of_splits(of_table, each) for each in groups(splits, share)]
    return found if over is None else [*found, *(replace(of_table, newer=each) for each in _serialized(over.rows))]


def of_splits(of_table: ReadTask, splits: Sequence[Add]) -> ReadTask:
    """Return a task with these splits, for the same table and version as `of_table`."""
    return replace(of_table, splits=json.dumps(write_actions(splits)))


def groups(splits: Sequence[Add], share: float = 1.0) -> list[list[Add]]:
    """Return the splits in groups, in the order of windows.

    `share` is the share of the splits' bytes that a task reads.

    A group has about 1/64 of all bytes, but at least `LEAST_BYTES` and at most `MOST_BYTES`. Therefore several cores
    have work, and the work of each task is large compared with its start cost.
    """
    most = min(MOST_BYTES, max(LEAST_BYTES, sum(each.size for each in splits) * share / _MANY))
    found: list[list[Add]] = []
    size = 0.0
    for each in in_order(splits):
        size += each.size * share
        if not found or size > most:
            found.append([])
            size = each.size * share
        found[-1].append(each)
    return found


def in_order(splits: Iterable[Add]) -> list[Add]:
    """Return the splits sorted by window, which is the order in which tasks read them."""
    return sorted(splits, key=lambda add: (add.windowStart is not None, add.windowStart or 0, add.path))


def rows_of(portion: ReadTask, wanted: Wanted, *, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of a task in batches of at most `batch_rows` rows, in bounded memory.

    Without a filter, the rows are decoded directly from the files. A direct read costs half as much as a read through
    DuckDB. The reader verifies each part of a file before it uses the part. Without a filter, requests and errors are
    those of `fetching.fetched`. With a filter, requests and errors are those of `Scan.to_reader`.
    """
    store, snapshot = open_table_store(portion.uri), portion.snapshot
    scan = Scan(store, snapshot, wanted.columns, wanted.filter)
    if portion.newer is not None:
        rows = pa.ipc.open_stream(portion.newer).read_all()
        source = Source(pa.Table.from_arrays(rows.columns, schema=snapshot.schema))
        yield from scan.read_from((), source, batch_rows=batch_rows)
    elif wanted.filter is not None:
        yield from scan.to_reader(batch_rows)
    else:
        fetch = FetchPlan(snapshot.schema, snapshot.schema.names if wanted.columns is None else wanted.columns)
        splits = tuple(snapshot.splits.values())
        with query_errors("scan", splits):
            near = any(store.local_path(each.path) is not None for each in splits[:1])
            # A task runs on one core. A read of a local file does not wait, so concurrent reads would not help.
            for table in fetched(store, splits, fetch, footers=scan.verified.footers, one_by_one=near):
                yield from table.to_batches(max_chunksize=batch_rows)


def _without_superseded(splits: Sequence[Add], over: UnmergedOverlay) -> list[Add]:
    """Return the splits that have a visible row. Each split has a deletion vector of its hidden rows."""
    touched = [each for each in splits if each.path in over.touched]
    hidden = dict(zip((each.path for each in touched), all_of(over.deleted, touched, PARALLEL_READS), strict=True))
    current = (
        replace(each, deletionVector=inline(hidden[each.path])) if hidden.get(each.path) else each for each in splits
    )
    return [each for each in current if each.numRecords is None or each.visible_rows]


def _serialized(rows: pa.Table) -> Iterator[bytes]:
    """Yield the rows as Arrow streams of bounded size."""
    if not rows.num_rows:
        return
    step = max(1, rows.num_rows * _NEWER_BYTES // max(rows.nbytes, _NEWER_BYTES))
    for first in range(0, rows.num_rows, step):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows.slice(first, step))
        yield sink.getvalue().to_pybytes()


Unit: TypeAlias = Literal["rows", "bytes", "files"]
_KEPT: Final = 64
_A_CHANGE: Final = "a change"


@dataclass(frozen=True, slots=True)
class Position:
    """A position of a reader in a table.

    If `is_base` is True, the reader has read `part` splits of the table at `version`. Otherwise the reader has read all
    versions before `version`, and the first `part` splits that `version` added.
    """

    version: int
    part: int = 0
    is_base: bool = False


BEGINNING: Final = Position(-1)
"""The position of a reader that has read nothing and has not chosen a version yet."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The maximum amount of data that one step reads.

    A step may exceed the limit for a single split, or for a version that is read as a whole.
    """

    unit: Unit
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A task that reads the changes of one version.

    The columns are those of `metadata`. A `Change` is plain data, which can be sent to any process.
    """

    uri: str
    version: int
    metadata: str


@dataclass(frozen=True, slots=True)
class _Step:
    """The splits of a version. The reader reads the splits one by one, or as one part if `is_whole` is True."""

    splits: tuple[Add, ...]
    is_whole: bool = False

    @property
    def sizes(self) -> list[Mapping[Unit, int]]:
        """The number of rows, bytes and files in each part of the step."""
        found: list[Mapping[Unit, int]] = [
            {"rows": each.visible_rows, "bytes": each.size, "files": 1} for each in self.splits
        ]
        return [{unit: sum(each[unit] for each in found) for unit in found[0]}] if self.is_whole and found else found


@dataclass(slots=True)
class _Budget:
    """The amount of data that a step may still read.

    The first part always fits. Otherwise a part that is larger than the limit could never be read.
    """

    limit: Limit | None
    taken: int = 0
    is_untouched: bool = True

    def fitting(self, sizes: Sequence[Mapping[Unit, int]]) -> int:
        """Take as many parts as the budget allows, and return their number."""
        if self.limit is None:
            return len(sizes)
        for number, size in enumerate(sizes):
            if self.taken + size[self.limit.unit] > self.limit.most and not self.is_untouched:
                return number
            self.taken, self.is_untouched = self.taken + size[self.limit.unit], False
        return len(sizes)


class Follower:
    """A reader that follows the log of one table step by step. `columns` are the columns of the returned rows.

    The follower first reads the table at the version `first`, then the later versions. With `as_changes`, the follower
    reads only the versions after `first`. With `as_changes`, the follower reads each version with changed rows as one
    part. A follower is not safe for several threads.
    """

    def __init__(self, log: TransactionLog, columns: pa.Schema, *, first: int, as_changes: bool = False) -> None:
        self._log = log
        self._first = first
        self._columns = columns
        self._as_changes = as_changes
        self._steps: dict[tuple[int, bool], _Step] = {}
        self._newest: Snapshot | None = None

    def advance(self, start: Position, limit: Limit | None = None, *, last: int | None = None) -> Position:
        """Return the end of the next step from `start`.

        The step respects the limit and ends at the latest after version `last`.

        If `start` is the beginning, the returned position is within the rows of the first version. This position alone
        determines the work since the beginning, even for a reader that started later.

        Raises:
            SnapshotExpired: A version is no longer retained.
            InvalidInput: The columns of the table have changed.

        Cost:
            One GET per version that was not read before. If there is no newer version, also one GET of the collector's
            boundary.
        """
        budget = _Budget(limit)
        if start == BEGINNING:
            first = Position(self._first, is_base=True)
            if self._as_changes:
                return Position(self._first + 1)
            return replace(first, part=budget.fitting(self._base(first.version).sizes))
        at = start
        while at.is_base or last is None or at.version <= last:
            step = self._step(at)
            if step is None:
                return at
            left = step.sizes[at.part :]
            fitting = budget.fitting(left)
            if fitting < len(left):
                return replace(at, part=at.part + fitting)
            at = Position(at.version + 1)
        return at

    def work(self, start: Position, end: Position) -> list[ReadTask | Change]:
        """Return the read tasks between two positions. Makes the requests of `advance` and raises its errors."""
        found: list[ReadTask | Change] = []
        at = start
        if start == BEGINNING:
            at = replace(end, part=0) if end.is_base else end
        while at != end:
            step = self._step(at)
            if step is None:
                raise SnapshotExpired(
                    f"{self._log.store.uri}: version {at.version} was read before, but does not exist now. The table "
                    "was replaced. Start with a new checkpoint",
                    version=at.version,
                )
            is_last = (at.version, at.is_base) == (end.version, end.is_base)
            metadata = json.dumps(write_actions([self._current().metadata])[0])
            if step.is_whole:
                found += [Change(uri=self._log.store.uri, version=at.version, metadata=metadata)] if step.splits else []
            else:
                splits = step.splits[at.part : end.part if is_last else None]
                of_table = ReadTask(uri=self._log.store.uri, version=at.version, metadata=metadata)
                found += [of_splits(of_table, each) for each in groups(splits)]
            at = end if is_last else Position(at.version + 1)
        return found

    def _step(self, at: Position) -> _Step | None:
        key = (at.version, at.is_base)
        if key not in self._steps:
            found = self._base(at.version) if at.is_base else self._version(at.version)
            if found is None:
                return None
            while len(self._steps) >= _KEPT:
                del self._steps[next(iter(self._steps))]
            self._steps[key] = found
        return self._steps[key]

    def _base(self, version: int) -> _Step:
        snapshot = self._log.snapshot(version=version)
        return _Step(tuple(in_order(snapshot.splits.values())))

    def _version(self, version: int) -> _Step | None:
        actions = read_version(self._log.store, version)
        if actions is None:
            if version < first_version(self._log.store):
                raise SnapshotExpired(
                    f"{self._log.store.uri}: version {version} is no longer retained and was not read yet, so its "
                    "changes are unknown. Start with a new checkpoint",
                    version=version,
                )
            return None
        if any(isinstance(each, Metadata) for each in actions):
            self._newest = None
            self._current()
        moved = [each for each in actions if isinstance(each, Add | Remove)]
        adds = tuple(each for each in moved if isinstance(each, Add))
        if not any(each.dataChange for each in moved):
            return _Step(())
        only_adds = len(adds) == len(moved) and all(each.deletionVector is None for each in adds)
        if only_adds and not self._as_changes:
            return _Step(tuple(in_order(adds)))
        return _Step(adds or (_nothing_added(moved),), is_whole=True)

    def _current(self) -> Snapshot:
        """Return the newest version. The settings of this version apply when rows are read."""
        if self._newest is None:
            self._newest = self._log.snapshot()
            if not self._newest.schema.equals(self._columns, check_metadata=True):
                raise InvalidInput(
                    f"{self._log.store.uri}: the columns of the table changed. Start the query again. The query "
                    "continues from the last batch",
                    version=self._newest.version,
                )
        return self._newest


def changed_rows(change: Change, *, with_labels: bool) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a version in the same way as `changes`. Without labels, yield only the added rows.

    Raises:
        InvalidInput: The version removed rows, and a result without labels cannot show removals. Also raises the errors
            of `changes`.
    """
    log = TransactionLog(open_table_store(change.uri))
    metadata = read_action(json.loads(change.metadata), Metadata, _A_CHANGE)
    before = log.snapshot(version=change.version - 1)
    after = replace(log.snapshot(version=change.version), metadata=metadata)
    names = from_schema_string(metadata.schemaString).names
    for batch in changes(log.store, before, after):
        if with_labels:
            yield batch
            continue
        if pc.any(pc.equal(batch.column(CHANGE_TYPE), DELETE)).as_py():
            raise InvalidInput(
                f"{change.uri}: version {change.version} changed or removed rows, which a stream of rows cannot show. "
                "Follow the changes with option('changes', True) and a new checkpoint",
                version=change.version,
            )
        yield batch.select(names)


def _nothing_added(moved: Sequence[Add | Remove]) -> Add:
    """Return a placeholder of size zero for a version that only removed splits.

    Because of the placeholder, a step has one part even if its version added no splits.
    """
    return Add(path=moved[0].path, size=0, modificationTime=0)
