"""Which rows of splits a filter can want, by the bitmap indexes of the table: asked where that can pay (decision 0118).

An index is asked about the splits that the log's statistics leave. What it leaves out could not be in an answer; what
it does not cover, and what a damaged segment would tell, is read as if there was no index.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from pyroaring import BitMap

from storage_core.errors import Corrupt, NotFound, Unsupported
from storage_core.index.bitmap import ColumnBitmaps
from storage_core.index.bitmap_moves import Moves
from storage_core.index.bitmap_parts import TAIL_BYTES, BitmapParts, Reading
from storage_core.index.coverage import Answering, AnsweringOf
from storage_core.index.damage import damaged
from storage_core.log.actions import Add, IndexSegment
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.bitmap_rows import Limits, Rows, useful
from storage_core.read.exact_match import is_exact
from storage_core.read.predicate import Predicate
from storage_core.settings.index import IndexDefinition
from storage_core.split import row_groups
from storage_core.split.pieces import REQUEST_COST_BYTES
from storage_core.split.read import is_small, share_of
from storage_core.split.vectors import deleted_rows

_logger = logging.getLogger(__name__)

PAYS: Final = 3
"""An index is asked about a split if that costs at most one part in so many of what reading the split costs."""

LOCAL_BYTES: Final = 2**20
"""Of a local split so much at least is to be read: DuckDB takes as long for it as a first question takes."""

MOST_VALUES, LOCAL_VALUES = 1_000, 64
"""Bitmaps that are united of one column of a split, and of a local one: who wants more values wants most rows."""

_UNCOVERED: Final = "no segment covers them"
_DEAR: Final = "asking costs too much of what it may spare"
_UNUSABLE: Final = "their segments are damaged or gone"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the indexes tell of a split: its live `rows` that may meet the filter; None where any of them may.

    With `is_exact` all of the rows do, but for those that a stored deletion vector hides.
    `told_by` is the place of the index that told of it first, or left none; `not_asked` says why others were not asked.
    """

    rows: BitMap | None = None
    is_exact: bool = False
    told_by: int | None = None
    not_asked: Mapping[int, str] = field(default_factory=dict)
    requests: int = 0
    bytes: int = 0


UNKNOWN: Final = Answer()
"""Of a split about which no index is asked."""


@dataclass(frozen=True, slots=True)
class _Index:
    definition: IndexDefinition
    columns: tuple[str, ...]
    answering_of: AnsweringOf


class Bitmaps:
    """The bitmap indexes that can leave rows out of a read of `columns` with a filter. Safe for threads."""

    def __init__(
        self,
        store: ObjectStore,
        snapshot: Snapshot,
        predicate: Predicate | None,
        *,
        columns: Collection[str],
        parts: BitmapParts,
        is_kept: bool = True,
        is_bounded: bool = True,
    ) -> None:
        """Make no request. What will be read is kept in `parts` unless told not to.

        Conditions that many values meet are left aside, unless it is not bounded.
        """
        self._store = store
        self._snapshot = snapshot
        self._predicate = predicate
        self._parts = parts if is_kept else parts.for_planning()
        self._is_bounded = is_bounded
        self._share = share_of(columns, snapshot.schema)
        self.indexes = [] if predicate is None or not snapshot.segments else [*self._useful(predicate)]

    def _useful(self, predicate: Predicate) -> Sequence[_Index]:
        """The first index of each column that the predicate asks about, each with the columns that it is asked."""
        defined = [each for each in self._snapshot.config.indexes if each.kind == "bitmap"]
        wanted = {*useful(predicate, {column for each in defined for column in each.columns})}
        found = list[_Index]()
        for definition in defined:
            own = tuple(column for column in definition.columns if column in wanted)
            wanted.difference_update(own)
            if own:
                found.append(_Index(definition, own, self._parts.answering(self._snapshot, definition)))
        return found

    @cached_property
    def is_exact(self) -> bool:
        """Whether the indexes tell all that the filter asks, of splits that they cover."""
        if self._predicate is None or not self.indexes or self._is_bounded:
            return False
        columns = {name: self._snapshot.schema.field(name).type for each in self.indexes for name in each.columns}
        return is_exact(self._predicate, columns)

    def is_local(self, add: Add) -> bool:
        """Whether a split is a local file: nobody waits for its index."""
        return self._store.local_path(add.path) is not None

    def of_split(self, add: Add) -> Answer:
        """Return what the indexes tell of a split. Requests: those of `bitmap_parts.Reading`, of each that is asked."""
        question = _Question(_Split(self._store, add, self._share))
        for number in range(len(self.indexes)):
            why = self._refusal(question, number)
            if why is not None:
                question.not_asked[number] = why
            elif question.rows is not None and not question.rows:
                question.told_by = number
                break
        return question.answer(is_exact=self.is_exact)

    def _refusal(self, question: _Question, number: int) -> str | None:
        """Ask one index, and return None; or why it was not asked."""
        index, split = self.indexes[number], question.split
        answering = index.answering_of(split.add)
        if answering is None:
            return _UNCOVERED
        if self._is_dear(split, answering, index):
            return _DEAR
        try:
            is_answered = self._has_answer(question, answering, index)
        except (Corrupt, NotFound, Unsupported) as error:
            paths = ", ".join(each.path for each in answering.segments)
            _logger.warning("segment %s is not usable, reading %s without it: %s", paths, split.add.path, error)
            return _UNUSABLE
        if not is_answered:
            return _DEAR
        question.told_by = number if question.told_by is None else question.told_by
        return None

    def _has_answer(self, question: _Question, answering: Answering, index: _Index) -> bool:
        """Have an index tell of a split; return False where its values alone cost too much."""
        split, found = question.split, dict[str, Mapping[str, ColumnBitmaps]]()
        most = split.most_bytes // len(answering.segments) if self._is_bounded else None
        limits = None if most is None else Limits(split.most_values, most)
        readings = {each.path: self._parts.reading(self._store, each, index.definition) for each in answering.segments}
        question.readings += readings.values()
        for segment in answering.segments:
            columns = readings[segment.path].columns(index.columns, most_bytes=most)
            if columns is None:
                return False
            found[segment.path] = columns
        if answering.is_direct:
            [segment], [columns] = answering.segments, found.values()
            rows = self._rows({**question.columns, **columns}, segment, split.add.numRecords, limits)
            question.columns.update(columns)
        else:
            rows = self._moved(
                question,
                answering,
                readings,
                {each.path: self._rows(found[each.path], each, each.numRecords, limits) for each in answering.segments},
            )
        if rows is not None:
            rows = self._live(split.add, rows)
            question.rows = rows if question.rows is None else rows & question.rows
        return True

    def _moved(
        self,
        question: _Question,
        answering: Answering,
        readings: Mapping[str, Reading],
        matching: Mapping[str, BitMap | None],
    ) -> BitMap | None:
        """The rows of a split that may match, of which the segments number others; None where all may."""
        question.is_joint = False
        if all(each is None for each in matching.values()):
            return None
        moves = self._parts.moves(self._store, question.split.add, answering)
        question.readings.append(moves)
        left = moves.left(matching, lambda held: readings[held.segment.path].part_rows(held.member))
        question.is_joint = left.is_told and len(self.indexes) == 1
        return left.rows

    def _rows(
        self, columns: Mapping[str, ColumnBitmaps], segment: IndexSegment, count: int | None, limits: Limits | None
    ) -> BitMap | None:
        """The rows of a segment, which has so many, that may meet the predicate by these columns; None for all."""
        if self._predicate is None:
            return None
        schema = self._snapshot.schema
        columns = {name: held.widened(schema.field(name).type) for name, held in columns.items()}
        found = Rows(columns, lambda: count, limits).that_may_meet(self._predicate)
        if found and count is not None and found.max() >= count:
            what = f"it names row {found.max()} of {segment.covers[0]}, which has {count} rows"
            raise damaged(segment.path, what)
        return found

    def _live(self, add: Add, rows: BitMap) -> BitMap:
        """Without those that a vector in the log hides: one that is stored takes a request, made for what is left."""
        vector = add.deleted_rows
        is_at_hand = rows and vector is not None and vector.path is None
        return rows - deleted_rows(self._store, add) if is_at_hand else rows

    def _is_dear(self, split: _Split, answering: Answering, index: _Index) -> bool:
        """Whether asking costs too much of what it may spare."""
        if self._parts.holds(answering, index.columns):
            return False
        if split.is_local:
            return split.bytes < LOCAL_BYTES
        sizes = [min(each.size, TAIL_BYTES) for each in answering.segments]
        sizes += [each.size for each in answering.translations]
        return PAYS * (REQUEST_COST_BYTES * len(sizes) + sum(sizes)) > split.cost


@dataclass(slots=True)
class _Question:
    """What was read of the indexes of a split so far, and what they told: `is_joint` where of all columns together."""

    split: _Split
    columns: dict[str, ColumnBitmaps] = field(default_factory=dict)
    rows: BitMap | None = None
    told_by: int | None = None
    not_asked: dict[int, str] = field(default_factory=dict)
    readings: list[Reading | Moves] = field(default_factory=list)
    is_joint: bool = True

    def answer(self, *, is_exact: bool) -> Answer:
        is_known = (
            self.rows is not None and self.is_joint and not self.not_asked and self.split.add.numRecords is not None
        )
        return Answer(
            rows=self.rows,
            is_exact=is_exact and is_known,
            told_by=self.told_by,
            not_asked=self.not_asked,
            requests=sum(each.requests for each in self.readings),
            bytes=sum(each.read_bytes for each in self.readings),
        )


@dataclass(frozen=True)
class _Split:
    """A split, of which a `share` of the columns is to be read, and what may be asked of an index about it."""

    store: ObjectStore
    add: Add
    share: float

    @cached_property
    def is_local(self) -> bool:
        return self.store.local_path(self.add.path) is not None

    @property
    def bytes(self) -> float:
        return self.add.size if is_small(self.add, self.share) and not self.is_local else self.add.size * self.share

    @property
    def cost(self) -> float:
        """What fetching it costs, with its requests in bytes: of the footer, and of each row group."""
        groups = row_groups.groups_about(self.add.numRecords or 1, self.add.size)
        return REQUEST_COST_BYTES * (1 if is_small(self.add, self.share) else 1 + groups) + self.bytes

    @property
    def most_bytes(self) -> int:
        """Of values and bitmaps beside the first request."""
        return int((self.bytes if self.is_local else self.cost) / PAYS)

    @property
    def most_values(self) -> int:
        return LOCAL_VALUES if self.is_local else MOST_VALUES
