"""The live splits of a snapshot as the columns that the policy decides on, in groups of one scope and one window.

Nothing here makes a record per split: a window may hold a million of them. What is compared is
integers, texts only where they are the last resort, and columns that planning does not need are not touched.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.compaction.expiry import has_left
from storage_core.compaction.merges import Flags, Ints
from storage_core.compaction.policy import Splits
from storage_core.compaction.scope import Scope
from storage_core.log import deletion_vector
from storage_core.log.files.columns import rows_at
from storage_core.log.snapshot import Snapshot
from storage_core.rows import keys
from storage_core.rows.codes import Codes, codes
from storage_core.rows.sort_order import nameless
from storage_core.settings.compaction import CompactionSettings
from storage_core.settings.table import TableConfig

HIGH_DELETE_SHARE = 1 / 3
"""Readers read at most half as much again as they need, and a rewrite copies at most two rows per deleted one."""

_SCOPE_TEXTS = ("sourceId", "partitionId", "docMappingRef", "sortSchema")
_METRICS = ("size", "numRecords", "numMergeOps", "addedAtVersion", "addedAtTimestamp", "windowStart", "windowSeconds")
_COLUMNS = ["path", "deletionVector", *_SCOPE_TEXTS, *_METRICS]
_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """`place` says where in the live splits (`LiveFiles.table`) each split of `splits` is.

    `scope` (a place in `scopes`) and `windows` (their starts in seconds) have one element per group.
    """

    place: Ints
    splits: Splits
    scope: Ints
    scopes: tuple[Scope, ...]
    windows: Ints

    def window(self, group: int) -> int | None:
        """Return the start of the window of a group; None for splits without a window."""
        start = int(self.windows[group])
        return None if start == _NEVER else start


def group(
    snapshot: Snapshot, *, windows: Collection[int | None] | None, skipped: Collection[str], now_ms: int
) -> Grouped:
    """Return the live splits that may be compacted at all, grouped, ordered by window (null last), scope and age.

    Left out are splits without a recorded sort schema, those of windows before the start of compaction (CS-3), and
    those of windows that are not among `windows` (None: of every window) or have left the table by its retention: what
    goes next is not worth rewriting. Scopes come in the order of their parts, and equal ages in the order of paths, so
    it does not matter how the snapshot was loaded. No request but for unread manifests.
    """
    files = snapshot.splits.table().select(_COLUMNS)
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
    """Number the scopes of the splits in the order of their parts, and return the scope of each number."""
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
    """By window, scope and age, and where these are equal by path; and which rows in that order begin a group."""
    start = codes(files.column("windowStart"))
    packed = keys.pack([start, scope, codes(files.column("addedAtVersion"))], len(files))
    order = keys.sorted_order(packed)
    _break_ties(order, keys.rises(packed, order), files)
    edges = keys.rises(keys.pack([start, scope], len(files)), order)
    edges[:1] = True
    return order, edges


def _break_ties(order: Ints, new: Flags, files: pa.Table) -> None:
    """Sort in place by path what is not `new`, that is, equal to the row before; only such paths are looked at."""
    tied = ~new
    tied[:1] = False
    tied[:-1] |= tied[1:]
    if np.any(tied):
        equal = order[tied]
        number = Codes(np.cumsum(new)[tied].astype(np.uint64), len(order))
        path = codes(rows_at(files.select(["path"]), equal).column("path"))
        order[tied] = equal[keys.sorted_order(keys.pack([number, path], len(equal)))]


def _splits(files: pa.Table, order: Ints, number: Ints, skipped: Collection[str]) -> Splits:
    """The files in that order, with the number of their groups; a column after the other, for the sake of memory."""
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
    """Deleted rows per split. Only splits with a vector are looked at one by one."""
    found = np.zeros(len(files), np.int64)
    vectors = files.column("deletionVector")
    if vectors.null_count < len(vectors):
        known = vectors.is_valid()
        having = files.select(["deletionVector", "path"]).filter(known)
        texts = zip(*(column.to_pylist() for column in having.columns), strict=True)
        found[known.to_numpy()] = [deletion_vector.from_json(text, path).cardinality for text, path in texts]
    return found


def _window_ends(groups: pa.Table) -> Ints:
    """When the window of each group ends, in ms; `_NEVER` for splits without a window."""
    end = pc.add(groups.column("windowStart"), groups.column("windowSeconds"))
    ends: Ints = pc.fill_null(pc.multiply(end, 1000), _NEVER).to_numpy()
    return ends


def _cooled(splits: Splits, ends: Ints, settings: CompactionSettings, now_ms: int) -> Splits:
    """A window is cold some time after its end; splits without a window, once they wait for nothing any more."""
    first = np.flatnonzero(np.diff(splits.group, prepend=-1))
    newest = np.maximum.reduceat(splits.added_ms, first) if len(first) else first
    quiet = newest <= now_ms - settings.mature_after_ms
    cold: Flags = np.where(ends == _NEVER, quiet, ends <= now_ms - settings.cold_after_ms)
    return replace(splits, cold=cold)


def _ints(files: pa.Table, name: str) -> Ints:
    values: Ints = pc.fill_null(files.column(name).cast(pa.int64()), 0).to_numpy()
    return values
