"""Which rows may meet a predicate, by the bitmaps of columns: the rules of `read.pruning`, each value as its bounds.

So what a cast or a literal leaves in doubt is in, and a row that is left out could not be in an answer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage_core.index.bitmap import ColumnBitmaps
from storage_core.read.bounds import ColumnBounds
from storage_core.read.literals import points
from storage_core.read.predicate import And, Compare, Comparison, IsNull, Opaque, Or, Predicate
from storage_core.read.pruning import by_bounds
from storage_core.rows.codes import Mask

_FEW: Final = 2
"""Members of a list that are compared one by one."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Finds rows by the bitmaps of `columns`; of a predicate over others it knows nothing.

    `count` tells how many rows there are, where nulls are wanted; without it they are unknown. What takes more than
    `most_values` bitmaps of a column, or `most_bytes` of them, is unknown as well. None is no bound.
    """

    columns: Mapping[str, ColumnBitmaps]
    count: Callable[[], int | None]
    most_values: int | None = None
    most_bytes: int | None = None

    def that_may_meet(self, predicate: Predicate) -> BitMap | None:
        """Return all rows that may make the predicate true, and perhaps others; None where all of them may.

        Exactly those that do where `is_exact`. Raises `Corrupt` for a bitmap that is none.
        """
        match predicate:
            case And(children):
                found = self._members(children, Comparison.NE)
                parts = [self.that_may_meet(each) for each in children] if found is None else [self._chosen(*found)]
                known = [each for each in parts if each is not None]
                return reduce(BitMap.intersection, known) if known else None
            case Or(children):
                found = self._members(children, Comparison.EQ)
                parts = [self.that_may_meet(each) for each in children] if found is None else [self._chosen(*found)]
                known = [each for each in parts if each is not None]
                return BitMap.union(BitMap(), *known) if len(known) == len(parts) else None
            case Compare(column) | IsNull(column):
                held = self.columns.get(column)
                return None if held is None else self._chosen(held, _meeting(held, predicate))
            case Opaque(_):
                return None
            case _:
                assert_never(predicate)

    def _members(self, children: Sequence[Predicate], comparison: Comparison) -> tuple[ColumnBitmaps, Mask] | None:
        """What a list of values of one column asks for: all at once, as there may be thousands."""
        if len(children) <= _FEW or not isinstance(children[0], Compare):
            return None
        column, held = children[0].column, self.columns.get(children[0].column)
        values = [
            each.value
            for each in children
            if isinstance(each, Compare) and each.column == column and each.comparison is comparison
        ]
        wanted = (
            points(values, held.values.type, held.values.keys.type)
            if held is not None and len(values) == len(children)
            else None
        )
        if held is None or wanted is None:
            return None
        found: Mask = pc.is_in(held.values.keys, value_set=wanted).to_numpy(zero_copy_only=False)
        return held, np.append(found if comparison is Comparison.EQ else ~found, [False])

    def _chosen(self, held: ColumnBitmaps, mask: Mask) -> BitMap | None:
        """The rows of some values; the last of the mask stands for null."""
        chosen, with_nulls = mask[:-1], bool(mask[-1])
        asked = held.places(chosen, with_nulls=with_nulls)
        if self.most_values is not None and asked.sum() > self.most_values:
            return None
        if self.most_bytes is not None and held.values.lengths[asked].sum() > self.most_bytes:
            return None
        nulls = held.nulls(self.count) if with_nulls else BitMap()
        return None if nulls is None else held.rows(chosen) | nulls


def rows_that_meet(condition: Predicate, columns: Mapping[str, ColumnBitmaps], count: Callable[[], int]) -> BitMap:
    """Return the rows that make a condition true that `is_exact` over these columns. `count` tells how many there are.

    Raises `Corrupt` for a bitmap that is none.
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


def is_exact(predicate: Predicate, columns: Mapping[str, pa.DataType]) -> bool:
    """Return whether the bitmaps of these columns tell all that the predicate asks: no literal leaves a doubt."""
    match predicate:
        case And(children) | Or(children):
            return all(is_exact(each, columns) for each in children)
        case IsNull(column):
            return column in columns
        case Compare(column, _, value):
            return column in columns and _is_of(value, columns[column])
        case Opaque(_):
            return False
        case _:
            assert_never(predicate)


def _is_of(value: object, type_: pa.DataType) -> bool:
    """Whether a literal is a value of the column's own type, so that nothing is cast and nothing rounded."""
    kinds = pa.types
    match value:
        case bool():
            return bool(kinds.is_boolean(type_))
        case int():
            return bool(kinds.is_integer(type_)) and -(2**63) <= value < 2**63
        case str():
            return bool(kinds.is_string(type_)) and value.isprintable()
        case dt.datetime():
            return bool(kinds.is_timestamp(type_)) and (value.tzinfo is None) == (type_.tz is None)
        case dt.date():
            return bool(kinds.is_date(type_))
        case _:
            return False


def _meeting(held: ColumnBitmaps, condition: Compare | IsNull) -> Mask:
    """Per value, and at the end for null, whether a row that has it may meet the condition."""
    values = held.values
    keys = pa.concat_arrays([values.keys, pa.nulls(1, values.keys.type)])
    nulls = pa.array([0] * len(values.keys) + [1], pa.int64())
    bounds = ColumnBounds(values.type, lambda: keys, lambda: keys, nulls, pa.array(np.ones(len(keys), np.int64)))
    found = by_bounds(lambda _: bounds)(condition)
    return np.ones(len(keys), np.bool_) if found is None else found
