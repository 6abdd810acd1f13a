"""The live splits of a snapshot as the columns that the policy decides on, in groups of one scope and one window.

Nothing here makes a record per split: a window may hold a million of them (design page 04).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.compaction.expiry import has_left
from storage_core.compaction.policy import Flags, Ints, Splits
from storage_core.compaction.scope import Scope, nameless
from storage_core.log import deletion_vector
from storage_core.log.snapshot import Snapshot

WORN_SHARE = 1 / 3
"""Readers read at most half as much again as they need, and a rewrite copies at most two rows per deleted one."""

_SCOPE_TEXTS = ("sourceId", "partitionId", "docMappingRef", "sortSchema")
_FIGURES = ("size", "numRecords", "numMergeOps", "addedAtVersion", "addedAtTimestamp", "windowStart", "windowSeconds")
_COLUMNS = ["path", "deletionVector", *_SCOPE_TEXTS, *_FIGURES]
_NO_WINDOW = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """`place` says where in the live splits (`LiveFiles.table`) each split of `splits` is.

    `rows` counts the visible rows of each. `scope` (a place in `scopes`) and `windows` have one element per group.
    """

    place: Ints
    splits: Splits
    rows: Ints
    scope: Ints
    scopes: tuple[Scope, ...]
    windows: tuple[int | None, ...]


def group(
    snapshot: Snapshot, *, windows: Collection[int | None] | None, skipped: Collection[str], now_ms: int
) -> Grouped:
    """Return the live splits that may be compacted at all, grouped, ordered by window (null last), scope and age.

    Left out are splits without a recorded sort schema, those of windows before the start of compaction (CS-3), and
    those of windows that are not among `windows` (None: of every window) or have left the table by its retention: what
    goes next is not worth rewriting. No request but for unread manifests.
    """
    files = _candidates(snapshot, windows, now_ms)
    codes, scopes = _scopes(files, snapshot.table_id)
    order = _order(files, codes)
    files, codes = files.take(order), codes[order]
    starts = _ints(files, "windowStart", _NO_WINDOW)
    edge = np.any([np.diff(each, prepend=-1) != 0 for each in (starts, codes)], axis=0) if len(codes) else codes > 0
    edge[:1] = True
    first = np.flatnonzero(edge)
    number = np.cumsum(edge) - 1
    splits, rows = _splits(files, number, skipped)
    return Grouped(
        place=_ints(files, "place", 0),
        splits=_cooled(splits, _window_ends(files, first), snapshot, now_ms),
        rows=rows,
        scope=codes[first],
        scopes=tuple(scopes),
        windows=tuple(files.column("windowStart").take(first).to_pylist()),
    )


def _candidates(snapshot: Snapshot, windows: Collection[int | None] | None, now_ms: int) -> pa.Table:
    files = snapshot.splits.table().select(_COLUMNS)
    files = files.append_column("place", pa.array(np.arange(len(files))))
    keep = files.column("sortSchema").is_valid()
    start = files.column("windowStart")
    if snapshot.config.compaction.start is not None:
        keep = pc.and_(keep, pc.fill_null(pc.greater_equal(start, snapshot.config.compaction.start), fill_value=True))
    retention_ms = snapshot.config.retention_ms
    if retention_ms is not None:
        keep = pc.and_(keep, pc.invert(has_left(files, retention_ms=retention_ms, now_ms=now_ms)))
    if windows is not None:
        keep = pc.and_(keep, pc.is_in(start, value_set=pa.array(list(windows), pa.int64())))
    return (files if pc.all(keep).as_py() else files.filter(keep)).combine_chunks()


def _scopes(files: pa.Table, table_id: str) -> tuple[Ints, list[Scope]]:
    """Number the scopes of the splits, and return the scope of each number."""
    columns = [_numbered(pc.fill_null(files.column(name), "")) for name in _SCOPE_TEXTS[:-1]]
    columns.append(_numbered(_without_names(files.column("sortSchema"))))
    columns.append(_numbered(files.column("windowSeconds")))
    codes: Ints = reduce(lambda high, low: high * max(1, len(low[1])) + low[0], columns, np.zeros(len(files), np.int64))
    found, codes = np.unique(codes, return_inverse=True)
    scopes = []
    for code in found.tolist():
        values: list[object] = []
        for _, known in reversed(columns):
            code, place = divmod(code, max(1, len(known)))  # noqa: PLW2901  # the digits of a number, last one first
            values.insert(0, known[place])
        scopes.append(Scope(table_id, *values))  # type: ignore[arg-type]  # four texts and whole seconds
    return codes.astype(np.int64), scopes


def _numbered(column: pa.ChunkedArray) -> tuple[Ints, list[object]]:
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()


def _without_names(column: pa.ChunkedArray) -> pa.ChunkedArray:
    encoded = column.combine_chunks().dictionary_encode()
    texts = pa.array([nameless(text) for text in encoded.dictionary.to_pylist()], pa.string())
    return pa.chunked_array([texts.take(encoded.indices)])


def _order(files: pa.Table, codes: Ints) -> Ints:
    """Inside a group in the order of commits, which rows with equal keys keep; paths make it total."""
    keys = files.select(["windowStart", "addedAtVersion", "path"]).append_column("scope", pa.array(codes))
    names = ("windowStart", "scope", "addedAtVersion", "path")
    order: Ints = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in names]).to_numpy()
    return order


def _splits(files: pa.Table, number: Ints, skipped: Collection[str]) -> tuple[Splits, Ints]:
    records, gone = _ints(files, "numRecords", 0), _gone(files)
    visible = np.maximum(0, records - gone)
    size = _ints(files, "size", 0)
    out = pc.is_in(files.column("path"), value_set=pa.array(sorted(skipped), pa.string()))
    splits = Splits(
        group=number,
        merges=_ints(files, "numMergeOps", 0),
        bytes=np.where(records > 0, size * (visible / np.maximum(1, records)), size).astype(np.int64),
        added_ms=_ints(files, "addedAtTimestamp", 0),
        worn=gone > WORN_SHARE * np.where(records > 0, records, gone),
        skipped=out.to_numpy().astype(np.bool_),
        cold=np.zeros(0, np.bool_),
    )
    return splits, visible


def _gone(files: pa.Table) -> Ints:
    """Deleted rows per split. Only splits with a vector are looked at one by one."""
    found = np.zeros(len(files), np.int64)
    vectors = files.column("deletionVector")
    for row in np.flatnonzero(vectors.is_valid().to_numpy()).tolist():
        where = files.column("path")[row].as_py()
        found[row] = deletion_vector.from_json(vectors[row].as_py(), where).cardinality
    return found


def _window_ends(files: pa.Table, first: Ints) -> Ints:
    """When the window of each group ends, in ms; the greatest number for splits without a window."""
    start, seconds = (_ints(files, name, _NO_WINDOW)[first] for name in ("windowStart", "windowSeconds"))
    known = (start != _NO_WINDOW) & (seconds != _NO_WINDOW)
    return np.where(known, (np.where(known, start, 0) + np.where(known, seconds, 0)) * 1000, _NO_WINDOW)


def _cooled(splits: Splits, ends: Ints, snapshot: Snapshot, now_ms: int) -> Splits:
    """A window is cold some time after its end; splits without a window, once they wait for nothing any more."""
    settings = snapshot.config.compaction
    first = np.flatnonzero(np.diff(splits.group, prepend=-1))
    newest = np.maximum.reduceat(splits.added_ms, first) if len(first) else first
    quiet = newest <= now_ms - settings.mature_after_ms
    cold: Flags = np.where(ends == _NO_WINDOW, quiet, ends <= now_ms - settings.cold_after_ms)
    return replace(splits, cold=cold)


def _ints(files: pa.Table, name: str, null: int) -> Ints:
    values: Ints = pc.fill_null(files.column(name).cast(pa.int64()), null).to_numpy()
    return values
