"""Rows of an append table that are equal to given ones in every column: as many of them as are given.

Which of several equal rows goes makes no difference. Rows are taken for equal by 128 bits of hashes of all their
columns (`rows.fingerprint`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.dml.parts import Part, used
from storage_core.log.actions import Action, Add
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.prefetch import all_of
from storage_core.read.key_splits import bounds_of_keys
from storage_core.read.verified import Verified
from storage_core.rows.codes import Unsigned
from storage_core.rows.columns import stored_rows
from storage_core.rows.fingerprint import row_hashes
from storage_core.rows.key_ranges import with_room
from storage_core.rows.keys import Positions
from storage_core.rows.positions import bitmap_of
from storage_core.split.group_bounds import admitting
from storage_core.split.hidden import hiding
from storage_core.split.opened import OpenSplit
from storage_core.split.vectors import PARALLEL_READS, deleted_rows_of_each


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """What hides rows: the actions to commit, and how many rows they hide."""

    actions: Sequence[Action] = ()
    rows: int = 0


def hide_equal_rows(log: TransactionLog, head: Snapshot, rows: pa.Table) -> HiddenRows:
    """Return what hides one live row for each of these, which have the columns of the table. Nothing is committed.

    A row that is not there, or fewer times than it is given, does not count. The actions hold on this head and on no
    other. Memory: the rows, and what `dml.parts.used` holds. Requests: those of `used` over the splits whose bounds
    leave room for a row, one GET per stored vector of these, and one PUT per vector that is stored.
    """
    if not rows.num_rows:
        return HiddenRows()
    narrow = rows.select(_bounded(head, rows))
    splits = _candidates(head, narrow)
    hidden = dict(zip([add.path for add in splits], deleted_rows_of_each(log.store, splits), strict=True))
    wanted = _Wanted(rows)
    found: dict[str, BitMap] = {}
    for part in _parts(log, head, splits, narrow):
        places = np.flatnonzero(part.live(hidden[part.split.path]))
        taken = wanted.take(part.rows.select(rows.column_names), places)
        if len(taken):
            found[part.split.path] = found.get(part.split.path, BitMap()) | bitmap_of(part.first + taken)

    def entry(add: Add) -> Action:
        deleted, now_ms = hidden[add.path] | found[add.path], log.clock.now_ms()
        return hiding(log.store, add, deleted, rows=add.numRecords or 0, ids=log.ids, now_ms=now_ms)

    actions = all_of(entry, [add for add in splits if add.path in found], PARALLEL_READS)
    return HiddenRows(actions, sum(map(len, found.values())))


class _Wanted:
    """Rows that are looked for, and how many of each are not found yet."""

    def __init__(self, rows: pa.Table) -> None:
        hashes = np.stack(_hashes(rows), axis=1)
        distinct, self._left = np.unique(hashes, axis=0, return_counts=True)
        self._first, self._second = distinct[:, 0].copy(), distinct[:, 1].copy()

    def take(self, rows: pa.Table, places: Positions) -> Positions:
        """Return which of these places have a row that is wanted still, and want it no longer."""
        first, second = (hashes[places] for hashes in _hashes(rows))
        number = np.minimum(np.searchsorted(self._first, first), len(self._first) - 1)
        alike = (self._first[number] == first) & (self._second[number] == second)
        number, places = number[alike], places[alike]
        order = np.argsort(number, kind="stable")
        ordered = number[order]
        again = np.arange(len(order)) - np.searchsorted(ordered, ordered)  # how many equal ones were before it
        kept = order[again < self._left[ordered]]
        np.subtract.at(self._left, number[kept], 1)
        taken: Positions = places[kept]
        return taken


def _candidates(head: Snapshot, narrow: pa.Table) -> Sequence[Add]:
    """The live splits whose bounds leave room for one of the rows."""
    files = head.splits.table()
    if not narrow.num_columns:
        return head.splits.records_at(files, np.arange(files.num_rows))
    fields = pa.schema([head.schema.field(name) for name in narrow.column_names])
    return head.splits.records_at(files, np.flatnonzero(with_room(bounds_of_keys(files, fields), narrow)))


def _bounded(head: Snapshot, rows: pa.Table) -> list[str]:
    """The columns by which splits are ruled out: the time, else one or two that every row has a value of."""
    kinds, time = pa.types, head.config.time_column
    plain: list[str] = [
        str(each.name)
        for each in head.schema
        if not rows.column(each.name).null_count
        and (kinds.is_integer(each.type) or kinds.is_string(each.type) or kinds.is_timestamp(each.type))
    ]
    return [time] if time is not None and time in plain else plain[:2]


def _parts(log: TransactionLog, head: Snapshot, splits: Sequence[Add], narrow: pa.Table) -> Iterator[Part]:
    """The row groups of the splits that may hold one of the rows, all rows of each at their places."""
    stored = stored_rows(narrow, head.schema)

    def groups(split: OpenSplit) -> Sequence[int]:
        return admitting(split.bounds, split.row_groups, stored)

    footers = Verified().footers.of_a_read()
    read = used(lambda part: part, log.store, splits, head.schema, whole=head.schema, groups=groups, footers=footers)
    with closing(read):
        yield from read


def _hashes(rows: pa.Table) -> tuple[Unsigned, Unsigned]:
    """Two hashes of each row: for the second the columns have other names, which are the seeds."""
    renamed = rows.rename_columns([f"{name} again" for name in rows.column_names])
    return row_hashes(rows), row_hashes(renamed)
