"""Pruning of rows by the bitmap indexes of columns.

`Rows` uses the bitmaps of columns to compute the rows that may meet a predicate. `Rows` applies the rules of
`read.pruning` to each distinct value. If the effect of a cast or a literal is not certain, the row is included.
Therefore an excluded row cannot be in the result.

`Bitmaps` applies the bitmap indexes of a table to its splits. `Bitmaps` uses an index only if the index is likely to
save more than it costs (decision 0021). `Bitmaps` handles only the splits that remain after pruning by the statistics
of the log. If no usable segment covers a split, the split is read in the same way as without an index.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import chain
from typing import Final, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage_core.base.errors import Corrupt, NotFound, Unsupported
from storage_core.base.text import counted
from storage_core.data.rows.codes import Mask
from storage_core.data.settings.index import IndexDefinition
from storage_core.index.bitmap import ColumnBitmaps, ColumnValues
from storage_core.index.damage import damaged
from storage_core.index.segment_reader import GAP_BYTES, TAIL_BYTES, BitmapParts, RowTranslator, SegmentReader
from storage_core.index.segments import AnsweringOf, CoveringSegments
from storage_core.log.actions import Add, IndexSegment
from storage_core.log.snapshot import Snapshot
from storage_core.read.bounds import ColumnBounds, is_exact, points
from storage_core.read.predicate import And, Compare, Comparison, IsNull, Opaque, Or, Predicate
from storage_core.read.pruning import Narrowed, PruneStep, by_bounds, conditions
from storage_core.split import metadata
from storage_core.split.deletion_vectors import deleted_rows
from storage_core.split.fetch import REQUEST_COST_BYTES
from storage_core.split.read import is_small, share_of
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import prefetch

_FEW: Final = 2
"""If a list of literals has at most this number of members, each member is compared separately."""

_OF_ROWS: Final = 4
_HEAD_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for reading bitmaps.

    There is a maximum number of bitmaps per column, and a maximum number of bytes. Also, bitmaps are not read if they
    select more than a quarter of the rows.
    """

    bitmaps: int
    bytes: int

    def admit(self, values: ColumnValues, wanted: Mask, rows: int | None) -> bool:
        """Return whether a read of the wanted bitmaps of a column is worthwhile. The split has `rows` rows.

        A row takes at most two bytes in a bitmap.
        """
        lengths, places = values.lengths[wanted], np.flatnonzero(wanted)
        if not len(places):
            return True
        found = np.maximum(lengths - _HEAD_BYTES, 0).sum() // 2
        if len(places) > self.bitmaps or (rows is not None and found * _OF_ROWS > rows):
            return False
        span = values.offsets[places[-1]] + lengths[-1] - values.offsets[places[0]]
        return bool(min(span, lengths.sum() + len(places) * GAP_BYTES) <= self.bytes)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that the bitmaps of `columns` select.

    `count` returns the number of all rows. Without this number, the rows with a null value cannot be determined. If
    `count` returns None, the rows with a null value are unknown. If a condition uses other columns, its result is
    unknown, so every row may meet it. The result of a condition is also unknown if it needs more bitmaps of a column
    than `limits` allows.
    """

    columns: Mapping[str, ColumnBitmaps]
    count: Callable[[], int | None]
    limits: Limits | None = None

    def that_may_meet(self, predicate: Predicate) -> BitMap | None:
        """Return the rows that may make the predicate true, and possibly other rows. None means all rows.

        The result is exact if `bounds.is_exact` is true for the predicate. Raises `Corrupt` for an invalid bitmap.
        """
        whole = self._mask(predicate)
        if whole is not None:
            return self._chosen(*whole)
        match predicate:
            case And(children):
                known = [each for each in self._each(children, np.logical_and) if each is not None]
                return reduce(BitMap.intersection, known) if known else None
            case Or(children):
                parts = self._each(children, np.logical_or)
                known = [each for each in parts if each is not None]
                return BitMap.union(BitMap(), *known) if len(known) == len(parts) else None
            case Compare() | IsNull() | Opaque():
                return None
            case _:
                assert_never(predicate)

    def _each(self, children: Sequence[Predicate], join: np.ufunc) -> list[BitMap | None]:
        """Return the rows of each child.

        Children over the same column are combined. For example, the two ends of a range become one condition.
        """
        masks, others = dict[str, Mask](), list[Predicate]()
        for child in children:
            found = self._mask(child)
            if found is None:
                others.append(child)
            else:
                column, mask = found
                masks[column] = join(masks[column], mask) if column in masks else mask
        return [*(self._chosen(*each) for each in masks.items()), *map(self.that_may_meet, others)]

    def _mask(self, predicate: Predicate) -> tuple[str, Mask] | None:
        """Return the single column of a predicate, and a mask of this column's values.

        The mask selects values that may meet the predicate.

        The last entry stands for null.
        """
        match predicate:
            case Compare(column) | IsNull(column):
                held = self.columns.get(column)
                return None if held is None else (column, _meeting(held.values, predicate))
            case And(children) | Or(children):
                columns = {each.column for each in conditions(predicate)}
                if len(columns) != 1 or not columns <= self.columns.keys() or _has_opaque(predicate):
                    return None
                [column] = columns
                return column, _joined(self.columns[column].values, children, is_all=isinstance(predicate, And))
            case Opaque(_):
                return None
            case _:
                assert_never(predicate)

    def _chosen(self, column: str, mask: Mask) -> BitMap | None:
        held, chosen, with_nulls = self.columns[column], mask[:-1], bool(mask[-1])
        wanted = held.places(chosen, with_nulls=with_nulls)
        if self.limits is not None and not self.limits.admit(held.values, wanted, self.count()):
            return None
        nulls = held.nulls(self.count) if with_nulls else BitMap()
        return None if nulls is None else held.rows(chosen) | nulls


def rows_that_meet(condition: Predicate, columns: Mapping[str, ColumnBitmaps], count: Callable[[], int]) -> BitMap:
    """Return the rows that make the condition true.

    For the condition and these columns, `bounds.is_exact` must be true.

    `count` returns the number of rows. Raises `Corrupt` for an invalid bitmap.
    """
    found = Rows(columns, count).that_may_meet(condition)
    return BitMap(range(count())) if found is None else found


def useful(predicate: Predicate, columns: Collection[str]) -> frozenset[str]:
    """Return the `columns` with bitmaps that can exclude rows.

    If the predicate is an `Or`, each of its branches needs a column with bitmaps that can exclude rows.
    """
    match predicate:
        case And(children):
            return frozenset[str]().union(*(useful(each, columns) for each in children))
        case Or(children):
            found = [useful(each, columns) for each in children]
            return frozenset[str]().union(*found) if all(found) else frozenset()
        case Compare(column) | IsNull(column):
            return frozenset({column}).intersection(columns)
        case Opaque(_):
            return frozenset()
        case _:
            assert_never(predicate)


def _has_opaque(predicate: Predicate) -> bool:
    if isinstance(predicate, And | Or):
        return any(map(_has_opaque, predicate.children))
    return isinstance(predicate, Opaque)


def _joined(values: ColumnValues, children: Sequence[Predicate], *, is_all: bool) -> Mask:
    """Return a mask of a column's values.

    With `is_all`, the mask selects values that may meet all predicates. Otherwise the mask selects values that may meet
    at least one predicate.
    """
    mask = _members(values, children, Comparison.NE if is_all else Comparison.EQ)
    if mask is not None:
        return mask
    join, mask = (np.logical_and if is_all else np.logical_or), np.full(len(values.keys) + 1, is_all)
    for child in children:
        if isinstance(child, And | Or):
            own = _joined(values, child.children, is_all=isinstance(child, And))
        elif isinstance(child, Opaque):
            continue
        else:
            own = _meeting(values, child)
        mask = join(mask, own)
    return mask


def _members(values: ColumnValues, children: Sequence[Predicate], comparison: Comparison) -> Mask | None:
    """Return a mask for a list of literals in one step, or None if one step is not possible.

    A list may have thousands of literals, so one step for the whole list is faster than one step per literal.
    """
    found = [each.value for each in children if isinstance(each, Compare) and each.comparison is comparison]
    if len(found) <= _FEW or len(found) < len(children):
        return None
    wanted = points(found, values.type, values.keys.type)
    if wanted is None:
        return None
    mask: Mask = pc.is_in(values.keys, value_set=wanted).to_numpy(zero_copy_only=False)
    return np.append(mask if comparison is Comparison.EQ else ~mask, [False])


def _meeting(values: ColumnValues, condition: Compare | IsNull) -> Mask:
    """Return, for each value of the column, whether a row with this value may meet the condition.

    Null is the last value.
    """
    keys = pa.concat_arrays([values.keys, pa.nulls(1, values.keys.type)])
    nulls = pa.array([0] * len(values.keys) + [1], pa.int64())
    bounds = ColumnBounds(values.type, lambda: keys, lambda: keys, nulls, pa.array(np.ones(len(keys), np.int64)))
    found = by_bounds(lambda _: bounds)(condition)
    return np.ones(len(keys), np.bool_) if found is None else found


_logger = logging.getLogger(__name__)

PAYS: Final = 3
"""The minimum ratio of a split's read cost to an index's cost. Below this ratio, the index is not used."""

LOCAL_BYTES: Final = 2**20
"""The minimum size in bytes of a local split for which an index is used.

DuckDB reads this many bytes in the time that an index lookup takes.
"""

MOST_VALUES, LOCAL_VALUES = 1_000, 64
"""Maximum number of bitmaps of one column that a read combines.

The first number is for object stores, the second for local files. A condition on more than this number of values
usually selects most rows.
"""

_UNCOVERED: Final = "no segment covers these splits"
_DEAR: Final = "the index would cost more than it saves"
_UNUSABLE: Final = "the segments of these splits are damaged or missing"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of the indexes for one split.

    `rows` are the live rows that may meet the filter, or None if any row may meet it.

    If `is_exact` is True, all of these rows meet the filter. The only exception is rows that a stored deletion vector
    hides. `told_by` is the position of the first index that excluded rows. If no row remained after an index, `told_by`
    is the position of that index. `not_asked` contains the reason for each index that was not used.
    """

    rows: BitMap | None = None
    is_exact: bool = False
    told_by: int | None = None
    not_asked: Mapping[int, str] = field(default_factory=dict)
    requests: int = 0
    bytes: int = 0


UNKNOWN: Final = Answer()
"""The result for a split for which no index is used."""


@dataclass(frozen=True, slots=True)
class _Index:
    definition: IndexDefinition
    columns: tuple[str, ...]
    answering_of: AnsweringOf


class Bitmaps:
    """The bitmap indexes that can exclude rows from a read of `columns` with a filter. Safe for threads."""

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
        """Prepare the indexes. Makes no request.

        Args:
            store: The store of the table.
            snapshot: The snapshot to read.
            predicate: The filter, or None.
            columns: The columns that are read.
            parts: The cache of index parts.
            is_kept: Keep the parts that are read in the cache.
            is_bounded: Ignore conditions that many values meet.
        """
        self._store = store
        self._snapshot = snapshot
        self._predicate = predicate
        self._parts = parts if is_kept else parts.for_planning()
        self._is_bounded = is_bounded
        self._share = share_of(columns, snapshot.schema)
        self.indexes = [] if predicate is None or not snapshot.segments else [*self._useful(predicate)]

    def _useful(self, predicate: Predicate) -> Sequence[_Index]:
        """Return, for each column in the predicate, the first index that contains the column.

        Each index comes with the columns for which it is used.
        """
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
        """Whether the indexes alone determine the matching rows of each split that the indexes cover."""
        if self._predicate is None or not self.indexes or self._is_bounded:
            return False
        columns = {name: self._snapshot.schema.field(name).type for each in self.indexes for name in each.columns}
        return is_exact(self._predicate, columns)

    def is_local(self, add: Add) -> bool:
        """Return whether a split is a local file. For a local file, a read does not wait for the index."""
        return self._store.local_path(add.path) is not None

    def of_split(self, add: Add) -> Answer:
        """Return the rows of a split that the indexes select.

        Requests: those of `segment_reader.SegmentReader`, for each index that is used.
        """
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
        """Use one index and return None. If the index cannot be used, return the reason."""
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

    def _has_answer(self, question: _Question, answering: CoveringSegments, index: _Index) -> bool:
        """Use an index for a split. Return False if reading only the values of the index costs too much."""
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
        answering: CoveringSegments,
        readings: Mapping[str, SegmentReader],
        matching: Mapping[str, BitMap | None],
    ) -> BitMap | None:
        """Return the rows of a split that may match, or None for all rows.

        The segments use row numbers of other splits.
        """
        question.is_joint = False
        if all(each is None for each in matching.values()):
            return None
        moves = self._parts.moves(self._store, question.split.add, answering)
        question.readings.append(moves)
        left = moves.surviving_rows(matching, lambda held: readings[held.segment.path].part_rows(held.member))
        question.is_joint = left.is_told and len(self.indexes) == 1
        return left.rows

    def _rows(
        self, columns: Mapping[str, ColumnBitmaps], segment: IndexSegment, count: int | None, limits: Limits | None
    ) -> BitMap | None:
        """Return the rows of a segment that may meet the predicate, or None for all rows. Only these columns are used.

        `count` is the number of rows of the segment.
        """
        if self._predicate is None:
            return None
        schema = self._snapshot.schema
        columns = {name: held.widened(schema.field(name).type) for name, held in columns.items()}
        found = Rows(columns, lambda: count, limits).that_may_meet(self._predicate)
        if found and count is not None and found.max() >= count:
            what = f"the segment contains row {found.max()} of {segment.covers[0]}, which has only {count} rows"
            raise damaged(segment.path, what)
        return found

    def _live(self, add: Add, rows: BitMap) -> BitMap:
        """Return the rows that an inline deletion vector does not hide.

        A stored deletion vector takes a request. The read makes this request later, for the remaining splits.
        """
        vector = add.deleted_rows
        is_at_hand = rows and vector is not None and vector.path is None
        return rows - deleted_rows(self._store, add) if is_at_hand else rows

    def _is_dear(self, split: _Split, answering: CoveringSegments, index: _Index) -> bool:
        """Return whether the cost of the index is too high compared with the possible saving."""
        if self._parts.holds(answering, index.columns):
            return False
        if split.is_local:
            return split.bytes < LOCAL_BYTES
        sizes = [min(each.size, TAIL_BYTES) for each in answering.segments]
        sizes += [each.size for each in answering.translations]
        return PAYS * (REQUEST_COST_BYTES * len(sizes) + sum(sizes)) > split.cost


@dataclass(slots=True)
class _Question:
    """The intermediate state of index lookups for one split: the parts that were read, and the current result.

    `is_joint` is True if the result is for all columns together.
    """

    split: _Split
    columns: dict[str, ColumnBitmaps] = field(default_factory=dict)
    rows: BitMap | None = None
    told_by: int | None = None
    not_asked: dict[int, str] = field(default_factory=dict)
    readings: list[SegmentReader | RowTranslator] = field(default_factory=list)
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
    """A split, and the limits for using an index on the split. `share` is the needed share of the split's bytes."""

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
        """The cost of fetching the split in bytes.

        It includes the cost of the requests for the footer and for each row group.
        """
        groups = metadata.groups_about(self.add.numRecords or 1, self.add.size)
        return REQUEST_COST_BYTES * (1 if is_small(self.add, self.share) else 1 + groups) + self.bytes

    @property
    def most_bytes(self) -> int:
        """Maximum number of bytes of values and bitmaps to read in addition to the first request."""
        return int((self.bytes if self.is_local else self.cost) / PAYS)

    @property
    def most_values(self) -> int:
        return LOCAL_VALUES if self.is_local else MOST_VALUES


HELD_BYTES: Final = 64 * 2**20
"""The maximum memory for the selected rows of all splits, in bytes.

If the memory is full, the selected rows of further splits are not kept.
"""

_AT_ONCE: Final = 16


def narrowed_by(bitmaps: Bitmaps, splits: Sequence[Add]) -> Narrowed:
    """Return the splits that may contain wanted rows, and the rows that may be wanted.

    Makes the requests of `Bitmaps.of_split`.
    """
    if not bitmaps.indexes or not splits:
        return Narrowed(tuple(splits))
    gone, rows, told_by, held = set[str](), dict[str, BitMap](), dict[str, int](), 0
    steps = [_IndexStep() for _ in bitmaps.indexes]
    requests = size = 0
    groups = _together(bitmaps, splits)
    at_once = 1 if bitmaps.is_local(splits[0]) else _AT_ONCE
    with closing(prefetch(lambda group: [*map(bitmaps.of_split, group)], groups, at_once)) as answers:
        for add, found in zip(chain(*groups), chain.from_iterable(answers), strict=True):
            requests, size = requests + found.requests, size + found.bytes
            for number, reason in found.not_asked.items():
                steps[number].not_asked[reason] += 1
            if found.rows is not None and not found.rows and found.told_by is not None:
                steps[found.told_by].splits += 1
                steps[found.told_by].bytes += add.size
                gone.add(add.path)
                continue
            held += 0 if found.rows is None else _bytes_of(found.rows, add)
            if found.rows is not None and found.told_by is not None and held <= HELD_BYTES:
                rows[add.path], told_by[add.path] = found.rows, found.told_by
    done = [step.done(index.definition.name) for step, index in zip(steps, bitmaps.indexes, strict=True)]
    left = tuple(add for add in splits if add.path not in gone)
    return Narrowed(left, rows, told_by, tuple(done), requests, size)


def _together(bitmaps: Bitmaps, splits: Sequence[Add]) -> Sequence[Sequence[Add]]:
    """Return the splits in groups.

    Splits of the same merged segment are in one group, so the segment is read only once.
    """
    groups: dict[str, list[Add]] = defaultdict(list)
    for add in splits:
        answering = (index.answering_of(add) for index in bitmaps.indexes)
        segments = (segment for each in answering if each is not None for segment in each.segments)
        groups[next((each.path for each in segments if len(each.covers) > 1), add.path)].append(add)
    return [*groups.values()]


@dataclass(slots=True)
class _IndexStep:
    splits: int = 0
    bytes: int = 0
    not_asked: Counter[str] = field(default_factory=Counter)

    def done(self, name: str) -> PruneStep:
        notes = [f"not used for {counted(number, 'split')}: {why}" for why, number in self.not_asked.items()]
        return PruneStep(f"bitmap index {name}", self.splits, self.bytes, note="; ".join(notes))


def _bytes_of(rows: BitMap, add: Add) -> int:
    """Return the approximate size of the rows: two bytes per row, but at most one bit per row of the split."""
    return min(2 * len(rows), (add.numRecords or 2**32) // 8)
