"""Which live rows of which splits a statement is about: by a condition, or by keys. Places in files, as bitmaps.

What the log, indexes and row groups rule out is not read, and where the log's statistics show that every row of a split
meets a condition, nothing of it is. Memory: two bytes or less per row found, and what `parts.parts` holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage_core.dml.parts import SPLITS_AT_ONCE, Part, parts
from storage_core.formats.key_hash import Hashes, key_hashes, within
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.read.bitmap_pruning import Answer
from storage_core.read.column_names import in_columns
from storage_core.read.key_splits import bounds_of_keys
from storage_core.read.late_materialization import may_match
from storage_core.read.predicate import Compare, Filter, IsNull, Or, Predicate, negate
from storage_core.read.pruning import conditions, manifests_for, prune_of
from storage_core.read.row_filter import RowFilter
from storage_core.read.row_group_pruning import groups_left, groups_with
from storage_core.read.verified import Verified
from storage_core.rows.codes import Mask
from storage_core.rows.columns import stored_rows
from storage_core.rows.key_ranges import with_room
from storage_core.rows.keys import Positions, key_codes
from storage_core.settings.query import QueryLimits
from storage_core.split.group_bounds import admitting
from storage_core.split.opened import OpenSplit
from storage_core.split.vectors import visible

JUDGED_ROWS: Final = 2**18
"""So many rows at least are given to the process that judges a condition at a time, where there are so many."""

_MOST_CONDITIONS: Final = 32
"""More are not compared with rows before DuckDB is: each takes a comparison per row."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Splits that may hold a row that is looked for; of those in `whole` every row is one."""

    splits: Sequence[Add]
    whole: frozenset[str] = frozenset()


class Finder(Protocol):
    """Finds the rows that a statement is about, on any snapshot of a table."""

    def candidates(self, snapshot: Snapshot) -> Candidates:
        """Return the live splits that may hold one. One GET per manifest that may list such a split."""
        ...

    def rows(self, snapshot: Snapshot, splits: Sequence[Add], hidden: Mapping[str, BitMap]) -> dict[str, BitMap]:
        """Return the places of the live rows of these splits that are; `hidden` of each is gone.

        Requests and errors: those of `parts`.
        """
        ...


@dataclass(frozen=True, eq=False)
class ByCondition:
    """Rows that make a filter true, by DuckDB's rules."""

    store: ObjectStore
    wanted: Filter
    query: str
    """What errors call it."""
    limits: QueryLimits | None = None
    verified: Verified = field(default_factory=Verified)

    def candidates(self, snapshot: Snapshot) -> Candidates:
        """See `Finder`."""
        predicate = self._predicate(snapshot)
        files = snapshot.splits.table(manifests_for(snapshot, predicate))
        files = files.filter(prune_of(snapshot, files, predicate).keep)
        doubtful = prune_of(snapshot, files, _not_true(predicate)).keep
        counted = files.column("numRecords").is_valid()
        adds = snapshot.splits.records_at(files, np.arange(files.num_rows))
        certain = pc.and_(pc.invert(doubtful), counted).to_pylist()
        return Candidates(adds, frozenset(add.path for add, each in zip(adds, certain, strict=True) if each))

    def rows(self, snapshot: Snapshot, splits: Sequence[Add], hidden: Mapping[str, BitMap]) -> dict[str, BitMap]:
        """See `Finder`. A bitmap index that tells all that the filter asks is believed, and nothing else is read.

        Raises `InvalidInput` where the filter cannot be evaluated, `Unavailable` where it passes a limit.
        """
        bitmaps, paths = self.verified.bitmaps, [add.path for add in splits]
        judge = RowFilter(self.store, snapshot, self.wanted, limits=self.limits, parts=bitmaps, query=self.query)
        told = dict(zip(paths, all_of(judge.by_bitmaps, paths, SPLITS_AT_ONCE), strict=True))
        found = {path: _known(answer) - hidden[path] for path, answer in told.items() if _is_known(answer)}
        left = [add for add in splits if add.path not in found]
        for path, places in self._judged(judge, snapshot, left, hidden=hidden, told=told):
            found[path] = found.get(path, BitMap()) | places
        judge.require_sound()
        return found

    def _judged(
        self,
        judge: RowFilter,
        snapshot: Snapshot,
        splits: Sequence[Add],
        *,
        hidden: Mapping[str, BitMap],
        told: Mapping[str, Answer],
    ) -> Iterator[tuple[str, BitMap]]:
        predicate = self._predicate(snapshot)
        schema = pa.schema([each for each in snapshot.schema if each.name in judge.columns])
        is_compared = len(list(islice(conditions(predicate), _MOST_CONDITIONS + 1))) <= _MOST_CONDITIONS

        def groups(split: OpenSplit) -> Sequence[int]:
            is_ours = split.add.footerXxh3 is not None
            found = groups_left(split.footer, predicate, snapshot.schema) if is_ours else range(split.row_groups)
            rows = told[split.add.path].rows
            return found if rows is None else groups_with(rows, split.footer, found)

        batch = _Batch(judge)
        footers = self.verified.footers.of_a_read()
        read = parts(self.store, splits, schema, whole=snapshot.schema, groups=groups, footers=footers)
        with closing(read) as each_part:
            for part in each_part:
                mask = _live(part, hidden[part.split.path])
                if is_compared:
                    mask &= may_match(part.rows, predicate)
                batch.add(part, mask)
                if batch.rows >= JUDGED_ROWS:
                    yield from batch.judged()
        yield from batch.judged()

    def _predicate(self, snapshot: Snapshot) -> Predicate:
        return in_columns(self.wanted.predicate, snapshot.schema.names) or self.wanted.predicate


@dataclass(slots=True)
class _Batch:
    """Rows that wait to be judged together."""

    judge: RowFilter
    rows: int = 0
    _parts: list[tuple[str, Positions, pa.Table]] = field(default_factory=list)

    def add(self, part: Part, mask: Mask) -> None:
        if mask.any():
            places = part.first + np.flatnonzero(mask)
            rows = part.rows if mask.all() else part.rows.filter(pa.array(mask))
            self._parts.append((part.split.path, places, rows))
            self.rows += len(places)

    def judged(self) -> Iterator[tuple[str, BitMap]]:
        """Yield the splits of these rows and the places of those that meet the filter; none waits then."""
        waiting, count = self._parts, self.rows
        self._parts, self.rows = [], 0
        if not waiting:
            return
        mask = self.judge.mask(pa.concat_tables([rows for _, _, rows in waiting]), count)
        first = 0
        for path, places, _ in waiting:
            yield path, BitMap(places[mask[first : first + len(places)]].astype(np.uint32))
            first += len(places)


def _is_known(answer: Answer) -> bool:
    return answer.rows is not None and (answer.is_exact or not answer.rows)


def _known(answer: Answer) -> BitMap:
    return BitMap() if answer.rows is None else answer.rows


def _not_true(predicate: Predicate) -> Predicate:
    """What a row meets that may not make the predicate true: it makes it false, or a column has no value."""
    columns = {each.column for each in conditions(predicate) if isinstance(each, Compare)}
    return Or((negate(predicate), *(IsNull(column) for column in sorted(columns))))


def _live(part: Part, hidden: BitMap) -> Mask:
    mask = visible(hidden, part.first, part.rows.num_rows)
    return np.ones(part.rows.num_rows, np.bool_) if mask is None else mask


@dataclass(frozen=True, eq=False)
class ByKeys:
    """Rows that have one of these `keys`, of which each occurs once: columns of the table, without nulls."""

    store: ObjectStore
    keys: pa.Table
    verified: Verified = field(default_factory=Verified)

    def candidates(self, snapshot: Snapshot) -> Candidates:
        """See `Finder`: by the bounds of the key columns."""
        files = snapshot.splits.table()
        ranges = bounds_of_keys(files, self._fields(snapshot))
        places = np.flatnonzero(with_room(ranges, self.keys))
        return Candidates(snapshot.splits.records_at(files, places))

    def rows(self, snapshot: Snapshot, splits: Sequence[Add], hidden: Mapping[str, BitMap]) -> dict[str, BitMap]:
        """See `Finder`."""
        found: dict[str, BitMap] = {}
        footers = self.verified.footers.of_a_read()
        fields, stored = self._fields(snapshot), stored_rows(self.keys, snapshot.schema)

        def groups(split: OpenSplit) -> Sequence[int]:
            return admitting(split.bounds, split.row_groups, stored)

        read = parts(self.store, splits, fields, whole=snapshot.schema, groups=groups, footers=footers)
        with closing(read) as each_part:
            for part in each_part:
                places = part.first + self._places(part.rows, _live(part, hidden[part.split.path]))
                if len(places):
                    path = part.split.path
                    found[path] = found.get(path, BitMap()) | BitMap(places.astype(np.uint32))
        return found

    def _fields(self, snapshot: Snapshot) -> pa.Schema:
        return pa.schema([snapshot.schema.field(name) for name in self.keys.column_names])

    def _places(self, held: pa.Table, mask: Mask) -> Positions:
        """Which of these rows of a split, of those of a mask, have one of the keys."""
        names = self.keys.column_names
        for name in names:
            mask &= held.column(name).is_valid().to_numpy(zero_copy_only=False)
        places = np.flatnonzero(mask)
        rows = held.take(pa.array(places))
        hashes = key_hashes(rows, names)
        alike = within(np.unique(hashes), self._by_hash.hashes)
        if not len(alike):
            return alike
        keys = self.keys.take(pa.array(self._by_hash.order[alike]))
        wanted, own = key_codes([keys, rows], names)
        return places[np.isin(own, wanted)]

    @cached_property
    def _by_hash(self) -> _ByHash:
        hashes = key_hashes(self.keys, self.keys.column_names)
        order = np.argsort(hashes)
        return _ByHash(hashes[order], order)


@dataclass(frozen=True, slots=True)
class _ByHash:
    """Hashes of keys, ascending, and where each key is."""

    hashes: Hashes
    order: Positions
