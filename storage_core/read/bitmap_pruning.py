"""Which rows of splits a filter can want, by the bitmap indexes of the table: asked where that can pay (decision 0118).

An index is asked about the splits that the log's statistics leave. What it leaves out could not be in an answer; what
it does not cover, and what a damaged segment would tell, is read as if there was no index.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from pyroaring import BitMap

from storage_core.errors import Corrupt, NotFound, Unsupported
from storage_core.index.bitmap import ColumnBitmaps
from storage_core.index.bitmap_parts import TAIL_BYTES, BitmapParts, Reading, SegmentOf
from storage_core.index.native_errors import REBUILD
from storage_core.log.actions import Add, IndexSegment
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import prefetch
from storage_core.read.bitmap_rows import Limits, Rows, is_exact, useful
from storage_core.read.narrowed import Narrowed
from storage_core.read.predicate import Predicate
from storage_core.read.pruning import PruneStep
from storage_core.settings.index import IndexDefinition
from storage_core.split import row_groups
from storage_core.split.read import is_small
from storage_core.split.vectors import deleted_rows
from storage_core.wording import counted

_logger = logging.getLogger(__name__)

REQUEST_BYTES: Final = 2**20
"""Fetching so much takes about as long as a request."""

PAYS: Final = 3
"""An index is asked about a split if that costs at most one part in so many of what reading the split costs."""

LOCAL_BYTES: Final = 2**20
"""Of a local split so much at least is to be read: DuckDB takes as long for it as a first question takes."""

MOST_VALUES, LOCAL_VALUES = 1_000, 64
"""Bitmaps that are united of one column of a split, and of a local one: who wants more values wants most rows."""

HELD_BYTES: Final = 64 * 2**20
"""Of the rows that are remembered of all splits; of those beyond it nothing is."""

_AT_ONCE: Final = 16
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
    segment_of: SegmentOf


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
        self._parts = parts
        self._is_kept = is_kept
        self._is_bounded = is_bounded
        self._share = min(1.0, len(columns) / max(1, len(snapshot.schema.names)))
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
                found.append(_Index(definition, own, self._parts.covering(self._snapshot, definition)))
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
        segment = index.segment_of(split.add)
        refused = _UNCOVERED if segment is None else self._refused(split, segment, index)
        if segment is None or refused is not None:
            return refused
        reading = self._parts.reading(self._store, segment, index.definition, is_kept=self._is_kept)
        question.readings.append(reading)
        try:
            found = reading.columns(index.columns, most_bytes=split.most_bytes if self._is_bounded else None)
            if found is None:
                return _DEAR
            rows = self._rows(split, {**question.columns, **found}, segment)
        except (Corrupt, NotFound, Unsupported) as error:
            _logger.warning("segment %s is not usable, reading %s without it: %s", segment.path, split.add.path, error)
            return _UNUSABLE
        question.columns.update(found)
        question.rows = rows
        question.told_by = number if question.told_by is None else question.told_by
        return None

    def _rows(self, split: _Split, columns: Mapping[str, ColumnBitmaps], segment: IndexSegment) -> BitMap | None:
        if self._predicate is None:
            return None
        for name, held in columns.items():
            wanted = self._snapshot.schema.field(name).type
            if held.values.type != wanted:
                what = f"{segment.path}: its values of {name!r} are {held.values.type}, expected {wanted}"
                raise Corrupt(what, advice=REBUILD, key=segment.path)
        add = split.add
        limits = Limits(split.most_values, split.most_bytes) if self._is_bounded else None
        found = Rows(columns, lambda: add.numRecords, limits).that_may_meet(self._predicate)
        if not found:
            return found
        if add.numRecords is not None and found.max() >= add.numRecords:
            what = f"{segment.path}: it names row {found.max()} of {add.path}, which has {add.numRecords} rows"
            raise Corrupt(what, advice=REBUILD, key=segment.path)
        vector = add.deleted_rows
        # A vector that is stored takes a request, which is made for the rows that are left.
        return found - deleted_rows(self._store, add) if vector is not None and vector.path is None else found

    def _refused(self, split: _Split, segment: IndexSegment, index: _Index) -> str | None:
        """Why the index is not asked about a split; None where it is."""
        if self._parts.holds(segment, index.columns):
            return None
        if split.is_local:
            return _DEAR if split.bytes < LOCAL_BYTES else None
        return _DEAR if PAYS * (REQUEST_BYTES + min(segment.size, TAIL_BYTES)) > split.cost else None


@dataclass(slots=True)
class _Question:
    """What was read of the indexes of a split so far, and what they told."""

    split: _Split
    columns: dict[str, ColumnBitmaps] = field(default_factory=dict)
    rows: BitMap | None = None
    told_by: int | None = None
    not_asked: dict[int, str] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)

    def answer(self, *, is_exact: bool) -> Answer:
        is_known = self.rows is not None and not self.not_asked and self.split.add.numRecords is not None
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
        return self.add.size if is_small(self.add) and not self.is_local else self.add.size * self.share

    @property
    def cost(self) -> float:
        """What fetching it costs, with its requests in bytes: of the footer, and of each row group."""
        groups = math.ceil((self.add.numRecords or 1) / row_groups.ROWS_PER_GROUP)
        return REQUEST_BYTES * (1 if is_small(self.add) else 1 + groups) + self.bytes

    @property
    def most_bytes(self) -> int:
        """Of values and bitmaps beside the first request."""
        return int((self.bytes if self.is_local else self.cost) / PAYS)

    @property
    def most_values(self) -> int:
        return LOCAL_VALUES if self.is_local else MOST_VALUES


def narrowed_by(bitmaps: Bitmaps, splits: Sequence[Add]) -> Narrowed:
    """Return which of the splits, and which rows of them, may be wanted. Requests: those of `Bitmaps.of_split`."""
    if not bitmaps.indexes or not splits:
        return Narrowed(tuple(splits))
    left, rows, told_by, held = list[Add](), dict[str, BitMap](), dict[str, int](), 0
    steps = [_Step() for _ in bitmaps.indexes]
    requests = size = 0
    with closing(prefetch(bitmaps.of_split, splits, 1 if bitmaps.is_local(splits[0]) else _AT_ONCE)) as answers:
        for add, found in zip(splits, answers, strict=True):
            requests, size = requests + found.requests, size + found.bytes
            for number, reason in found.not_asked.items():
                steps[number].not_asked[reason] += 1
            if found.rows is not None and not found.rows and found.told_by is not None:
                steps[found.told_by].splits += 1
                steps[found.told_by].bytes += add.size
                continue
            left.append(add)
            held += 0 if found.rows is None else _bytes_of(found.rows, add)
            if found.rows is not None and found.told_by is not None and held <= HELD_BYTES:
                rows[add.path], told_by[add.path] = found.rows, found.told_by
    done = [step.done(index) for step, index in zip(steps, bitmaps.indexes, strict=True)]
    return Narrowed(tuple(left), rows, told_by, tuple(done), requests, size)


@dataclass(slots=True)
class _Step:
    splits: int = 0
    bytes: int = 0
    not_asked: Counter[str] = field(default_factory=Counter)

    def done(self, index: _Index) -> PruneStep:
        notes = [f"not asked about {counted(number, 'split')}: {why}" for why, number in self.not_asked.items()]
        return PruneStep(f"bitmap index {index.definition.name}", self.splits, self.bytes, note="; ".join(notes))


def _bytes_of(rows: BitMap, add: Add) -> int:
    """About what rows take: two bytes each, or a bit for every row of the split."""
    return min(2 * len(rows), (add.numRecords or 2**32) // 8)
