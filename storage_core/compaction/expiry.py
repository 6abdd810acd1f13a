"""Retention: the windows that have left a table, a pure function of a snapshot (decision 0074).

A window leaves as a whole, once it ended as long ago as the table's retention says: then its youngest row is older.
Rows without a time, and splits without a window, never leave by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.log.actions import Add, Remove
from storage_core.log.conflicts.requirements import SameRetention
from storage_core.log.files.columns import ManifestBounds, adds_of
from storage_core.log.snapshot import Snapshot
from storage_core.split.hidden import removal

_COLUMNS = [
    *("path", "size", "modificationTime", "partitionValues", "numRecords", "deletionVector"),
    *("windowStart", "windowSeconds"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredWindow:
    """A window that has left, by its start in seconds: its live splits, their visible rows, and their bytes."""

    window_start: int
    splits: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """What leaves: every live split of every window that has left, ordered by window and path."""

    retention_ms: int | None
    splits: tuple[Add, ...] = ()

    @property
    def windows(self) -> list[ExpiredWindow]:
        """The windows of the splits, ascending."""
        by_window = groupby(self.splits, key=lambda add: add.windowStart or 0)
        return [_window(start, list(adds)) for start, adds in by_window]

    def removes(self, now_ms: int) -> list[Remove]:
        """Return the actions of the one commit. Rows go with it, so it is a change of data."""
        return [removal(add, now_ms) for add in self.splits]

    @property
    def requirement(self) -> SameRetention:
        """What the head of the commit has to fulfil besides holding the splits as they were planned."""
        return SameRetention(self.retention_ms)


def plan(snapshot: Snapshot, *, retention_ms: int | None, now_ms: int) -> Expiry:
    """Return what has left by `now_ms` with a retention of so many ms; nothing without one. Equal input, equal plan.

    `retention_ms` is that of the table (`config.retention_ms`), or another one to look what it would do. Deletion
    vectors change nothing: a split leaves whole. Reads only the manifests that hold windows old enough.
    """
    if retention_ms is None:
        return Expiry(retention_ms=None)
    cutoff = (now_ms - retention_ms) // 1000

    def old_enough(bounds: ManifestBounds) -> bool:
        return bounds.windows is None or bounds.windows[0] < cutoff

    files = snapshot.splits.table(old_enough)
    adds = adds_of(files.select(_COLUMNS).filter(has_left(files, retention_ms=retention_ms, now_ms=now_ms)))
    ordered = sorted(adds, key=lambda add: (add.windowStart or 0, add.path))
    return Expiry(retention_ms=retention_ms, splits=tuple(ordered))


def has_left(files: pa.Table, *, retention_ms: int, now_ms: int) -> pa.ChunkedArray:
    """Return per row of a table of live splits whether its window has left; no nulls."""
    # Whole seconds, and `<=`: at the very end of a window plus the retention its youngest row is older than that.
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
