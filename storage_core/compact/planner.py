"""Plans of compaction and expiry, as pure functions of a snapshot (docs/architecture/compaction.md).

The live splits are stored as columns, divided by scope and window. `policy` selects the splits to merge. Only the
selected splits are loaded as Python objects. `plan_expiry` lists windows older than the retention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.compact import policy
from storage_core.compact.invariants import Scope
from storage_core.compact.policy import Rules, Splits
from storage_core.compact.work import CompactionTask, Flags, Ints, Merges, active_skips, bounded
from storage_core.data.rows import keys
from storage_core.data.rows.codes import Codes, codes
from storage_core.data.rows.sort_order import nameless, recorded_order
from storage_core.data.settings.layout import CompactionSettings, Mode
from storage_core.data.settings.table import TableConfig
from storage_core.log import deletion_vector
from storage_core.log.actions import Add, Remove
from storage_core.log.conflicts import SameRetention
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import ManifestBounds, adds_of, rows_at
from storage_core.split.context import SplitContext, context_of
from storage_core.split.deletion_vectors import removal

_EXPIRY_COLUMNS = [
    *("path", "size", "modificationTime", "partitionValues", "numRecords", "deletionVector"),
    *("windowStart", "windowSeconds"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredWindow:
    """An expired window: its start in seconds, the number of its live splits, their visible rows and their bytes."""

    window_start: int
    splits: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """The splits to remove: every live split of every expired window, ordered by window and path."""

    retention_ms: int | None
    splits: tuple[Add, ...] = ()

    def __len__(self) -> int:
        """Return the number of splits to remove."""
        return len(self.splits)

    @property
    def windows(self) -> list[ExpiredWindow]:
        """The windows of the splits, ascending."""
        by_window = groupby(self.splits, key=lambda add: add.windowStart or 0)
        return [_window(start, list(adds)) for start, adds in by_window]

    def removes(self, now_ms: int) -> list[Remove]:
        """Return the actions of the commit. The actions remove rows, so they are marked as a change of data."""
        return [removal(add, now_ms) for add in self.splits]

    @property
    def requirement(self) -> SameRetention:
        """The condition of the commit: the retention has not changed.

        In addition, the splits must not have changed since the plan.
        """
        return SameRetention(self.retention_ms)


def plan_expiry(snapshot: Snapshot, *, retention_ms: int | None, now_ms: int) -> Expiry:
    """Return the windows that have expired at `now_ms`. Without a retention, no window has expired.

    The same input gives the same plan. Deletion vectors do not matter, because a split is removed as a whole. The
    function reads a manifest only if it contains windows that are old enough to expire.

    Args:
        retention_ms: the retention of the table (`config.retention_ms`), or another value to see its effect.
    """
    if retention_ms is None:
        return Expiry(retention_ms=None)
    cutoff = (now_ms - retention_ms) // 1000

    def old_enough(bounds: ManifestBounds) -> bool:
        return bounds.windows is None or bounds.windows[0] < cutoff

    files = snapshot.splits.table(old_enough)
    adds = adds_of(files.select(_EXPIRY_COLUMNS).filter(has_left(files, retention_ms=retention_ms, now_ms=now_ms)))
    ordered = sorted(adds, key=lambda add: (add.windowStart or 0, add.path))
    return Expiry(retention_ms=retention_ms, splits=tuple(ordered))


def has_left(files: pa.Table, *, retention_ms: int, now_ms: int) -> pa.ChunkedArray:
    """Return, for each row of a table of live splits, whether its window has expired. The result has no nulls."""
    # A comparison of whole seconds with `<=` is correct. At the window's end plus the retention, every row of the
    # window is older than the retention.
    cutoff = pa.scalar((now_ms - retention_ms) // 1000, pa.int64())
    latest_start = pc.subtract(cutoff, files.column("windowSeconds").cast(pa.int64()))
    left = pc.less_equal(files.column("windowStart").cast(pa.int64()), latest_start)
    return pc.fill_null(left, fill_value=False)


def _window(start: int, found: Sequence[Add]) -> ExpiredWindow:
    return ExpiredWindow(
        window_start=start,
        splits=len(found),
        rows=sum(add.visible_rows for add in found),
        bytes=sum(add.size for add in found),
    )


HIGH_DELETE_SHARE = 1 / 3
"""The maximum share of deleted rows in a split. A split with a larger share of deleted rows is rewritten.

Up to this share, a query reads at most 1.5 times the rows that it needs. If a larger share is deleted, a rewrite copies
at most two rows per deleted row.
"""

_SCOPE_TEXTS = ("sourceId", "partitionId", "docMappingRef", "sortSchema")
_METRICS = ("size", "numRecords", "numMergeOps", "addedAtVersion", "addedAtTimestamp", "windowStart", "windowSeconds")
_GROUP_COLUMNS = ["path", "deletionVector", *_SCOPE_TEXTS, *_METRICS]
_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """The splits that may be compacted, in groups of one scope and window.

    `place` is the position of each split of `splits` in the live splits (`LiveFiles.table`). `scope` and `windows` have
    one element per group: a position in `scopes`, and the start of the window in seconds.
    """

    place: Ints
    splits: Splits
    scope: Ints
    scopes: tuple[Scope, ...]
    windows: Ints

    def window(self, group: int) -> int | None:
        """Return the start of the window of a group, or None if its splits have no window."""
        start = int(self.windows[group])
        return None if start == _NEVER else start


def group(
    snapshot: Snapshot, *, windows: Collection[int | None] | None, skipped: Collection[str], now_ms: int
) -> Grouped:
    """Return the live splits that may be compacted, in groups, ordered by window (null last), scope and age.

    These splits are omitted:

    - splits without a recorded sort schema
    - splits of windows that are before the table's start of compaction (CS-3)
    - splits of windows that are not in `windows`. None means every window.
    - splits of expired windows, which will be removed soon

    Scopes are ordered by their parts, and splits of the same age by path. The result therefore does not depend on how
    the snapshot was loaded. The only requests are for manifests that were not read yet.
    """
    files = snapshot.splits.table().select(_GROUP_COLUMNS)
    wanted = _candidates(files, snapshot.config, windows, now_ms)
    place = np.flatnonzero(wanted.to_numpy())
    if len(place) < len(files):
        files = files.filter(wanted)
    scope, scopes = _scopes(files, snapshot.table_id)
    order, edges = _order(files, scope)
    first = order[edges]
    of_groups = files.select(["windowStart", "windowSeconds"]).take(pa.array(first))
    splits = _splits(files, order, np.cumsum(edges) - 1, skipped)
    return Grouped(
        place=place[order],
        splits=_cooled(splits, _window_ends(of_groups), snapshot.config.compaction, now_ms),
        scope=scope.values[first].astype(np.int64),
        scopes=tuple(scopes),
        windows=pc.fill_null(of_groups.column("windowStart"), _NEVER).to_numpy(),
    )


def _candidates(
    files: pa.Table, config: TableConfig, windows: Collection[int | None] | None, now_ms: int
) -> pa.ChunkedArray:
    start = files.column("windowStart")
    keep = files.column("sortSchema").is_valid()
    if config.compaction.start is not None:
        keep = pc.and_(keep, pc.fill_null(pc.greater_equal(start, config.compaction.start), fill_value=True))
    if config.retention_ms is not None:
        keep = pc.and_(keep, pc.invert(has_left(files, retention_ms=config.retention_ms, now_ms=now_ms)))
    if windows is not None:
        keep = pc.and_(keep, pc.is_in(start, value_set=pa.array(list(windows), pa.int64())))
    return keep


def _scopes(files: pa.Table, table_id: str) -> tuple[Codes, list[Scope]]:
    """Return the number of each split's scope, and the list of the scopes in the order of the numbers."""
    texts = [pc.fill_null(files.column(name), "") for name in _SCOPE_TEXTS]
    columns = [*texts[:-1], _without_names(texts[-1]), files.column("windowSeconds")]
    packed = keys.pack([codes(column) for column in columns], len(files))
    whole = packed[0] if len(packed) == 1 else keys.dense_ranks(packed)
    _, one, number = np.unique(whole, return_index=True, return_inverse=True)
    parts = rows_at(pa.table(columns, names=[*_SCOPE_TEXTS, "windowSeconds"]), one)
    scopes = [Scope(table_id, *values) for values in zip(*(part.to_pylist() for part in parts.columns), strict=True)]
    return Codes(number.astype(np.uint64), len(scopes)), scopes


def _without_names(column: pa.ChunkedArray) -> pa.ChunkedArray:
    def mended(chunk: pa.DictionaryArray) -> pa.Array:
        return pa.array([nameless(text) for text in chunk.dictionary.to_pylist()], pa.string()).take(chunk.indices)

    return pa.chunked_array([mended(chunk) for chunk in column.dictionary_encode().chunks], pa.string())


def _order(files: pa.Table, scope: Codes) -> tuple[Ints, Flags]:
    """Return the order of the splits by window, scope, age and path. Also return which splits begin a group."""
    start = codes(files.column("windowStart"))
    packed = keys.pack([start, scope, codes(files.column("addedAtVersion"))], len(files))
    order = keys.sorted_order(packed)
    _break_ties(order, keys.rises(packed, order), files)
    edges = keys.rises(keys.pack([start, scope], len(files)), order)
    edges[:1] = True
    return order, edges


def _break_ties(order: Ints, new: Flags, files: pa.Table) -> None:
    """Sort equal rows by path, in place.

    `new` marks rows that differ from the row before. The function reads only the paths of rows that are equal to a
    neighboring row.
    """
    tied = ~new
    tied[:1] = False
    tied[:-1] |= tied[1:]
    if np.any(tied):
        equal = order[tied]
        number = Codes(np.cumsum(new)[tied].astype(np.uint64), len(order))
        path = codes(rows_at(files.select(["path"]), equal).column("path"))
        order[tied] = equal[keys.sorted_order(keys.pack([number, path], len(equal)))]


def _splits(files: pa.Table, order: Ints, number: Ints, skipped: Collection[str]) -> Splits:
    """Return the files in this order with their group numbers.

    Columns are built one after the other, to save memory.
    """
    records, deleted = _ints(files, "numRecords")[order], _deleted(files)[order]
    size, visible = _ints(files, "size")[order], np.maximum(0, records - deleted)
    out = np.zeros(len(files), np.bool_)
    if skipped:
        out |= pc.is_in(files.column("path"), value_set=pa.array(sorted(skipped), pa.string())).to_numpy()[order]
    return Splits(
        group=number,
        merges=_ints(files, "numMergeOps")[order],
        bytes=np.where(deleted > 0, size * (visible / np.maximum(1, records)), size).astype(np.int64),
        rows=visible,
        added_ms=_ints(files, "addedAtTimestamp")[order],
        high_delete_ratio=deleted > HIGH_DELETE_SHARE * np.where(records > 0, records, deleted),
        skipped=out,
        cold=np.zeros(0, np.bool_),
    )


def _deleted(files: pa.Table) -> Ints:
    """Return the number of deleted rows per split. Only splits with a deletion vector are read one by one."""
    found = np.zeros(len(files), np.int64)
    vectors = files.column("deletionVector")
    if vectors.null_count < len(vectors):
        known = vectors.is_valid()
        having = files.select(["deletionVector", "path"]).filter(known)
        texts = zip(*(column.to_pylist() for column in having.columns), strict=True)
        found[known.to_numpy()] = [deletion_vector.from_json(text, path).cardinality for text, path in texts]
    return found


def _window_ends(groups: pa.Table) -> Ints:
    """Return the end of the window of each group, in ms, or `_NEVER` for splits without a window."""
    end = pc.add(groups.column("windowStart"), groups.column("windowSeconds"))
    ends: Ints = pc.fill_null(pc.multiply(end, 1000), _NEVER).to_numpy()
    return ends


def _cooled(splits: Splits, ends: Ints, settings: CompactionSettings, now_ms: int) -> Splits:
    """Mark cold windows. A window becomes cold some time after its end.

    A group without a window becomes cold when its newest split is old enough.
    """
    first = np.flatnonzero(np.diff(splits.group, prepend=-1))
    newest = np.maximum.reduceat(splits.added_ms, first) if len(first) else first
    quiet = newest <= now_ms - settings.mature_after_ms
    cold: Flags = np.where(ends == _NEVER, quiet, ends <= now_ms - settings.cold_after_ms)
    return replace(splits, cold=cold)


def _ints(files: pa.Table, name: str) -> Ints:
    values: Ints = pc.fill_null(files.column(name).cast(pa.int64()), 0).to_numpy()
    return values


PART_INPUTS = 5_000
"""Number of splits of a plan that exist as Python objects at the same time.

These objects take 17 MB with bounds of one column, and 45 MB with bounds of ten columns.
"""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The merges that the policy selected, as columns. The `rows` of the merges are row numbers in `found`."""

    files: pa.Table
    found: Grouped
    merges: Merges
    contexts: Sequence[SplitContext | None]
    target_bytes: int

    def __len__(self) -> int:
        """Return the number of merges."""
        return len(self.merges)

    def first(self, most_inputs: int) -> Chosen:
        """Return the merges of one run (`work.bounded`)."""
        is_all = len(self.merges.rows) <= most_inputs
        return self if is_all else replace(self, merges=bounded(self.merges, most_inputs))

    def parts(self) -> Iterator[list[CompactionTask]]:
        """Yield the tasks in parts. Each part reads at most `PART_INPUTS` splits, unless a single merge reads more.

        Only one part at a time becomes records. All merges of a window are in one part, unless the window alone
        exceeds the limit.
        """
        read, first = np.cumsum(self.merges.count), 0
        window = self.found.windows[self.merges.group]
        while first < len(self):
            done = int(read[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(read, done + PART_INPUTS, side="right")))
            if last < len(self):
                begun = int(np.searchsorted(window, window[last]))
                last = begun if begun > first else last
            yield replace(self, merges=self.merges.take(np.arange(first, last))).tasks()
            first = last

    def tasks(self) -> list[CompactionTask]:
        """Return the merges as tasks. Only the splits of these merges are loaded as Python objects."""
        inputs = iter(adds_of(rows_at(self.files, self.found.place[self.merges.rows])))
        return [
            CompactionTask(
                self.found.window(merge.group), tuple(islice(inputs, len(merge.rows))), context, merge.merges
            )
            for merge in self.merges.records()
            if (context := self.contexts[self.found.scope[merge.group]]) is not None
        ]


def choose(
    snapshot: Snapshot,
    *,
    windows: Collection[int | None] | None = None,
    now_ms: int | None = None,
    mode: Mode = Mode.FINALIZE,
    retry_skipped: bool = False,
) -> Chosen:
    """Return all pending merges, ordered by window. The null window is last. The same snapshot gives the same merges.

    A split is omitted if an active mergeskip record tells this operation to skip the split for now. Splits with an
    outdated sort schema are omitted as well. If there are very many merges, one run does the merges of `Chosen.first`,
    and later runs do the other merges.

    Deletion vectors are applied. Rows that are deleted later never come back (lesson 26), because `carry_over` hides
    these rows in the outputs. A commit without `carry_over` fails if rows were deleted.

    Args:
        windows: the starts of the windows. None means all windows. The start None is the window of rows with a null
            timestamp, or of all rows in a table without windows.
        now_ms: the time for which active mergeskips are determined. The default is the time of the snapshot's commit.
        retry_skipped: whether to ignore mergeskips.
    """
    at_ms = snapshot.timestamp if now_ms is None else now_ms
    skipped = frozenset[str]() if retry_skipped else active_skips(snapshot.mergeskips.values(), at_ms)
    found = group(snapshot, windows=windows, skipped=skipped, now_ms=at_ms)
    config = snapshot.config
    rules = Rules(settings=config.compaction, target_bytes=config.target_split_bytes, now_ms=at_ms, mode=mode)
    contexts = contexts_of(snapshot, found.scopes)
    fits = np.array([context is not None for context in contexts], np.bool_)
    merges = policy.choose(found.splits, rules)
    return Chosen(
        files=snapshot.splits.table(),
        found=found,
        merges=merges.take(fits[found.scope[merges.group]]),
        contexts=contexts,
        target_bytes=config.target_split_bytes,
    )


def contexts_of(snapshot: Snapshot, scopes: Sequence[Scope]) -> list[SplitContext | None]:
    """Return, for each scope, the `SplitContext` of the splits in this scope, or None.

    Splits keep their original sort schema and window. A table can have thousands of scopes but few sort schemas, so
    each sort schema is parsed once.
    """
    current = context_of(snapshot)
    texts = {scope.sort_schema for scope in scopes}
    orders = {text: recorded_order(text, snapshot.config, snapshot.schema) for text in texts}
    return [
        None
        if (order := orders[scope.sort_schema]) is None
        else replace(
            current,
            order=order,
            window_seconds=scope.window_seconds,
            source_id=scope.source_id,
            partition_id=scope.partition_id,
            schema_ref=scope.schema_ref or None,
        )
        for scope in scopes
    ]
