"""Which live rows of which splits a statement is about, and those that meet a condition. Places in files, as bitmaps.

What the log, indexes and row groups rule out is not read, and where the log's statistics show that every row of a split
meets a condition, nothing of it is. Memory: two bytes or less per row found, and what `parts.used` holds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage_core.dml.parts import SPLITS_AT_ONCE, Part, Used, used
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.read.bitmap_pruning import Answer
from storage_core.read.column_names import in_columns
from storage_core.read.exact_match import is_exact, meeting, only_values
from storage_core.read.late_materialization import may_match
from storage_core.read.predicate import Compare, Filter, IsNull, Or, Predicate, negate
from storage_core.read.pruning import conditions, manifests_for, prune_of
from storage_core.read.row_filter import RowFilter
from storage_core.read.row_group_pruning import groups_left, groups_with
from storage_core.read.verified import Verified
from storage_core.rows.keys import Positions
from storage_core.rows.positions import bitmap_of
from storage_core.settings.query import QueryLimits
from storage_core.split.opened import OpenSplit

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

        Requests and errors: those of `parts.used`.
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
        predicate = self.predicate(snapshot)
        files = snapshot.splits.table(manifests_for(snapshot, predicate))
        files = files.filter(prune_of(snapshot, files, predicate).keep)
        doubtful = prune_of(snapshot, files, _not_true(predicate)).keep
        counted = files.column("numRecords").is_valid()
        adds = snapshot.splits.records_at(files, np.arange(files.num_rows))
        certain = pc.and_(pc.invert(doubtful), counted).to_pylist()
        return Candidates(adds, frozenset(add.path for add, each in zip(adds, certain, strict=True) if each))

    def rows(self, snapshot: Snapshot, splits: Sequence[Add], hidden: Mapping[str, BitMap]) -> dict[str, BitMap]:
        """See `Finder`. A bitmap index that tells all that the filter asks is believed, and nothing else is read.

        Of rows that are read DuckDB is asked only where `exact_match` does not tell. Raises `InvalidInput` where the
        filter cannot be evaluated, `Unavailable` where it passes a limit.
        """
        is_exact = self._is_exact(snapshot)
        bitmaps, paths = self.verified.bitmaps, [add.path for add in splits]
        judge = RowFilter(
            self.store, snapshot, self.wanted, limits=self.limits, parts=bitmaps, query=self.query, is_run=not is_exact
        )
        told = dict(zip(paths, all_of(judge.by_bitmaps, paths, SPLITS_AT_ONCE), strict=True))
        found = {path: _known(answer) - hidden[path] for path, answer in told.items() if _is_known(answer)}
        read = _Read(self, judge, snapshot, [add for add in splits if add.path not in found], told, hidden)
        for path, places in read.met() if is_exact else read.judged():
            found[path] = found.get(path, BitMap()) | places
        if not is_exact:
            judge.require_sound()
        return found

    def predicate(self, snapshot: Snapshot) -> Predicate:
        """Return the filter over the columns of the table, as it names them."""
        return in_columns(self.wanted.predicate, snapshot.schema.names) or self.wanted.predicate

    def is_compared(self, snapshot: Snapshot) -> bool:
        """Whether rows are compared with the conditions of the filter here."""
        return len(list(islice(conditions(self.predicate(snapshot)), _MOST_CONDITIONS + 1))) <= _MOST_CONDITIONS

    def only_values(self, snapshot: Snapshot) -> Mapping[str, pa.Scalar]:
        """Return columns that have the same value in all rows that are found, and that value."""
        return only_values(self.predicate(snapshot), _types(snapshot)) if self._is_exact(snapshot) else {}

    def _is_exact(self, snapshot: Snapshot) -> bool:
        """Whether that tells which rows make the filter true."""
        return self.is_compared(snapshot) and is_exact(self.predicate(snapshot), _types(snapshot))


@dataclass(frozen=True, slots=True)
class _Read:
    """A read of splits by a condition, of which indexes gave these `answers`."""

    finder: ByCondition
    judge: RowFilter
    snapshot: Snapshot
    splits: Sequence[Add]
    answers: Mapping[str, Answer]
    hidden: Mapping[str, BitMap]

    def met(self) -> Generator[tuple[str, BitMap]]:
        """Yield splits and places of live rows in them that make a condition true that is exact."""
        predicate = self.finder.predicate(self.snapshot)

        def places(part: Part) -> tuple[str, BitMap]:
            own = pc.indices_nonzero(meeting(part.rows, predicate)).to_numpy()
            return part.split.path, bitmap_of(own + part.first) - self.hidden[part.split.path]

        return self._used(places)

    def judged(self) -> Iterator[tuple[str, BitMap]]:
        """Yield splits and places of live rows in them of which DuckDB says that they meet the condition."""
        predicate, is_compared = self.finder.predicate(self.snapshot), self.finder.is_compared(self.snapshot)

        def possible(part: Part) -> _Doubtful:
            rows = part.rows
            mask = part.live(self.hidden[part.split.path])
            if is_compared:
                mask &= may_match(rows, predicate)
            return _Doubtful(part.split.path, part.first + np.flatnonzero(mask), rows.filter(pa.array(mask)))

        batch = _Batch(self.judge)
        with closing(self._used(possible)) as read:
            for each in read:
                batch.add(each)
                if batch.rows >= JUDGED_ROWS:
                    yield from batch.judged()
        yield from batch.judged()

    def _used(self, use: Callable[[Part], Used]) -> Generator[Used]:
        schema = pa.schema([each for each in self.snapshot.schema if each.name in self.judge.columns])
        predicate, footers = self.finder.predicate(self.snapshot), self.finder.verified.footers.of_a_read()

        def groups(split: OpenSplit) -> Sequence[int]:
            is_ours = split.add.footerXxh3 is not None
            found = groups_left(split.footer, predicate, self.snapshot.schema) if is_ours else range(split.row_groups)
            rows = self.answers[split.add.path].rows
            return found if rows is None else groups_with(rows, split.footer, found)

        store, whole = self.finder.store, self.snapshot.schema
        return used(use, store, self.splits, schema, whole=whole, groups=groups, footers=footers)


@dataclass(frozen=True, slots=True)
class _Doubtful:
    """Rows of a split that may meet a condition, and their places in its file."""

    path: str
    places: Positions
    rows: pa.Table


@dataclass(slots=True)
class _Batch:
    """Rows that wait to be judged together."""

    judge: RowFilter
    rows: int = 0
    _waiting: list[_Doubtful] = field(default_factory=list)

    def add(self, rows: _Doubtful) -> None:
        if len(rows.places):
            self._waiting.append(rows)
            self.rows += len(rows.places)

    def judged(self) -> Iterator[tuple[str, BitMap]]:
        """Yield the splits of these rows and the places of those that meet the filter; none waits then."""
        waiting, count = self._waiting, self.rows
        self._waiting, self.rows = [], 0
        if not waiting:
            return
        mask = self.judge.mask(pa.concat_tables([each.rows for each in waiting]), count)
        first = 0
        for each in waiting:
            yield each.path, bitmap_of(each.places[mask[first : first + len(each.places)]])
            first += len(each.places)


def _types(snapshot: Snapshot) -> Mapping[str, pa.DataType]:
    return {each.name: each.type for each in snapshot.schema}


def _is_known(answer: Answer) -> bool:
    return answer.rows is not None and (answer.is_exact or not answer.rows)


def _known(answer: Answer) -> BitMap:
    return BitMap() if answer.rows is None else answer.rows


def _not_true(predicate: Predicate) -> Predicate:
    """What a row meets that may not make the predicate true: it makes it false, or a column has no value."""
    columns = {each.column for each in conditions(predicate) if isinstance(each, Compare)}
    return Or((negate(predicate), *(IsNull(column) for column in sorted(columns))))
