"""Whether bounds of a column leave room for a value that a condition wants."""

from __future__ import annotations

from typing import assert_never

import numpy as np
import pyarrow.compute as pc

from storage_core.read.bounds import ColumnBounds
from storage_core.read.literals import Interval, at_least, at_most, interval
from storage_core.read.predicate import Compare, Comparison, IsNull
from storage_core.rows.codes import Mask
from storage_core.rows.sortable import unless_false


def may_hold(bounds: ColumnBounds, condition: Compare | IsNull) -> Mask:
    """Return per part of a table, of which these are the bounds, False only where no row makes the condition true."""
    if isinstance(condition, IsNull):
        return _nullness_may_match(bounds, negated=condition.negated)
    # A comparison with null is never true, whatever it compares with.
    some = _nullness_may_match(bounds, negated=True)
    wanted = interval(condition.value, bounds.type)
    return some if wanted is None else some & _compare_may_match(bounds, condition.comparison, wanted)


def _nullness_may_match(bounds: ColumnBounds, *, negated: bool) -> Mask:
    """Whether some row may be null, or with `negated` may not be."""
    some = pc.not_equal(bounds.nulls, bounds.rows) if negated else pc.greater(bounds.nulls, 0)
    return unless_false(some)


def _compare_may_match(bounds: ColumnBounds, comparison: Comparison, wanted: Interval) -> Mask:
    match comparison:
        case Comparison.EQ:
            return at_most(bounds.low(), wanted.greatest) & at_least(bounds.high(), wanted.least)
        case Comparison.LT:
            return at_most(bounds.low(), wanted.greatest, strictly=True)
        case Comparison.LE:
            return at_most(bounds.low(), wanted.greatest)
        case Comparison.GT:
            return at_least(bounds.high(), wanted.least, strictly=True)
        case Comparison.GE:
            return at_least(bounds.high(), wanted.least)
        case Comparison.NE:
            return ~_is_everywhere(bounds, wanted)
        case _:
            assert_never(comparison)


def _is_everywhere(bounds: ColumnBounds, wanted: Interval) -> Mask:
    """Whether every value of the split is certainly the literal's."""
    low, high = bounds.low(), bounds.high()
    if wanted.least != wanted.greatest:
        return np.zeros(len(low), dtype=bool)
    known: Mask = pc.and_(low.is_valid(), high.is_valid()).to_numpy(zero_copy_only=False)
    return known & at_least(low, wanted.least) & at_most(high, wanted.least)
