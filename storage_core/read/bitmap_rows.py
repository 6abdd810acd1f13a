"""Which rows may meet a predicate, by the bitmaps of columns: the rules of `read.pruning`, each value as its bounds.

So what a cast or a literal leaves in doubt is in, and a row that is left out could not be in an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage_core.index.bitmap import ColumnBitmaps, ColumnValues
from storage_core.index.bitmap_parts import GAP_BYTES
from storage_core.read.bounds import ColumnBounds
from storage_core.read.literals import points
from storage_core.read.predicate import And, Compare, Comparison, IsNull, Opaque, Or, Predicate
from storage_core.read.pruning import by_bounds, conditions
from storage_core.rows.codes import Mask

_FEW: Final = 2
"""Members of a list that are compared one by one."""

_OF_ROWS: Final = 4
_HEAD_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Bitmaps of a column that are worth asking for: so many at most, so many bytes, and a quarter of the rows."""

    bitmaps: int
    bytes: int

    def admit(self, values: ColumnValues, wanted: Mask, rows: int | None) -> bool:
        """Return whether to ask for the wanted bitmaps of a column of so many rows. A row takes two bytes at most."""
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
    """Finds rows by the bitmaps of `columns`; of a predicate over others it knows nothing.

    `count` tells how many rows there are, where nulls are wanted; without it they are unknown. So is what takes more
    bitmaps of a column than the `limits` admit.
    """

    columns: Mapping[str, ColumnBitmaps]
    count: Callable[[], int | None]
    limits: Limits | None = None

    def that_may_meet(self, predicate: Predicate) -> BitMap | None:
        """Return all rows that may make the predicate true, and perhaps others; None where all of them may.

        Exactly those that do where `exact_match.is_exact`. Raises `Corrupt` for a bitmap that is none.
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
        """The rows of the children, of all that are over one column together: so both ends of a range are one."""
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
        """The column that alone a predicate is over, and which values may meet it; the last stands for null."""
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
    """Return the rows that make a condition true that `exact_match.is_exact` over these columns.

    `count` tells how many there are. Raises `Corrupt` for a bitmap that is none.
    """
    found = Rows(columns, count).that_may_meet(condition)
    return BitMap(range(count())) if found is None else found


def useful(predicate: Predicate, columns: Collection[str]) -> frozenset[str]:
    """Return those of `columns` whose bitmaps can leave rows out: all that is known of an alternative must be."""
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
    """Which values may meet all of some predicates over their column, or one of them."""
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
    """What a list of literals asks for: all at once, as there may be thousands."""
    found = [each.value for each in children if isinstance(each, Compare) and each.comparison is comparison]
    if len(found) <= _FEW or len(found) < len(children):
        return None
    wanted = points(found, values.type, values.keys.type)
    if wanted is None:
        return None
    mask: Mask = pc.is_in(values.keys, value_set=wanted).to_numpy(zero_copy_only=False)
    return np.append(mask if comparison is Comparison.EQ else ~mask, [False])


def _meeting(values: ColumnValues, condition: Compare | IsNull) -> Mask:
    """Per value, and at the end for null, whether a row that has it may meet the condition."""
    keys = pa.concat_arrays([values.keys, pa.nulls(1, values.keys.type)])
    nulls = pa.array([0] * len(values.keys) + [1], pa.int64())
    bounds = ColumnBounds(values.type, lambda: keys, lambda: keys, nulls, pa.array(np.ones(len(keys), np.int64)))
    found = by_bounds(lambda _: bounds)(condition)
    return np.ones(len(keys), np.bool_) if found is None else found
