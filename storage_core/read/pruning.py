"""Which splits can hold a row that a filter wants: by window, then by minimum, maximum and null count (design page 07).

Pruning is sound: a split is left out only when no row of it can make the filter true. Whatever is unknown (a missing
statistic, an `Opaque` condition, a literal of another family than the column) keeps the split.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, assert_never

import numpy as np
import pyarrow as pa

from storage_core.log.actions import Add
from storage_core.read.predicate import And, Compare, Comparison, IsNull, Opaque, Or, Predicate, Scalar
from storage_core.rows import statistics

Key = tuple[int, Any]

_FINER_THAN_MICROSECONDS = re.compile(r"\.\d{7}")


@dataclass(frozen=True, slots=True)
class PruneStep:
    """What one step left out: its name, and the splits and bytes it removed."""

    name: str
    splits: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """The splits that are left, and what each step removed, in the order the steps ran."""

    splits: tuple[Add, ...]
    steps: tuple[PruneStep, ...]


def prune(splits: Iterable[Add], predicate: Predicate | None, *, schema: pa.Schema, time_column: str | None) -> Pruned:
    """Return the splits that may hold a matching row, in the given order. No request is made."""
    left = tuple(splits)
    if predicate is None:
        return Pruned(left, ())
    steps: list[PruneStep] = []
    checks: list[tuple[str, Callable[[Add], bool]]] = [
        ("window", lambda add: _may_match(predicate, _window_bounds(add, schema, time_column))),
        ("min/max", lambda add: _may_match(predicate, _column_bounds(add, schema))),
    ]
    for name, keeps in checks:
        kept = tuple(add for add in left if keeps(add))
        steps.append(PruneStep(name, len(left) - len(kept), sum(a.size for a in left) - sum(a.size for a in kept)))
        left = kept
    return Pruned(left, tuple(steps))


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Inclusive bounds of a column's values in one split, and how many of its rows are null; None is unknown."""

    type: pa.DataType
    low: object | None
    high: object | None
    nulls: int | None
    rows: int | None


def _window_bounds(add: Add, schema: pa.Schema, time_column: str | None) -> Callable[[str], _Bounds | None]:
    """Bounds from the split's window alone: [start, start + duration) of the time column."""

    def bounds(column: str) -> _Bounds | None:
        if column != time_column or add.windowStart is None or add.windowSeconds is None:
            return None
        field_type = schema.field(column).type
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC if getattr(field_type, "tz", None) else None)
        start = epoch + dt.timedelta(seconds=add.windowStart)
        end = start + dt.timedelta(seconds=add.windowSeconds) - dt.timedelta(microseconds=1)
        return _Bounds(field_type, start, end, None, None)

    return bounds


def _column_bounds(add: Add, schema: pa.Schema) -> Callable[[str], _Bounds | None]:
    """Bounds from the statistics of the split's action."""

    def bounds(column: str) -> _Bounds | None:
        index = schema.get_field_index(column)
        if index < 0:
            return None
        field_type = schema.field(index).type
        low, high = ((values or {}).get(column) for values in (add.minValues, add.maxValues))
        return _Bounds(
            field_type,
            None if low is None else statistics.decode(low, field_type),
            None if high is None else statistics.decode(high, field_type),
            (add.nullCounts or {}).get(column),
            add.numRecords,
        )

    return bounds


def _may_match(predicate: Predicate, bounds_of: Callable[[str], _Bounds | None]) -> bool:
    """Return False only when no row within the bounds can make the predicate true."""
    match predicate:
        case And(children):
            return all(_may_match(child, bounds_of) for child in children)
        case Or(children):
            return any(_may_match(child, bounds_of) for child in children)
        case IsNull(column, negated):
            bounds = bounds_of(column)
            if bounds is None or bounds.nulls is None:
                return True
            return bounds.nulls != bounds.rows if negated else bounds.nulls > 0
        case Compare(column, comparison, value):
            bounds = bounds_of(column)
            return bounds is None or _compare_may_match(bounds, comparison, value)
        case Opaque(_):
            return True
        case _:
            assert_never(predicate)


def _compare_may_match(bounds: _Bounds, comparison: Comparison, value: Scalar) -> bool:
    if bounds.nulls is not None and bounds.nulls == bounds.rows:
        return False  # every value is null, and a comparison with null is never true
    wanted = _keys(value, bounds.type)
    if wanted is None:
        return True
    least, greatest = wanted
    low = None if bounds.low is None else _keys(bounds.low, bounds.type)
    high = None if bounds.high is None else _keys(bounds.high, bounds.type)
    match comparison:
        case Comparison.EQ:
            return (low is None or low[0] <= greatest) and (high is None or high[1] >= least)
        case Comparison.LT:
            return low is None or low[0] < greatest
        case Comparison.LE:
            return low is None or low[0] <= greatest
        case Comparison.GT:
            return high is None or high[1] > least
        case Comparison.GE:
            return high is None or high[1] >= least
        case Comparison.NE:
            exact = low is not None and high is not None and low == high == wanted and least == greatest
            return not exact
        case _:
            assert_never(comparison)


def _keys(value: object, column_type: pa.DataType) -> tuple[Key, Key] | None:
    """Return the least and greatest comparable key that `value` can stand for in a column of this type.

    The two differ where DuckDB may compare in a narrower or wider float than the literal: both roundings are
    considered, so a split is kept when either could match. None when the literal is of another family.
    """
    if pa.types.is_boolean(column_type):
        return _exactly(int(value)) if isinstance(value, bool) else None
    if pa.types.is_integer(column_type) or pa.types.is_decimal(column_type):
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            return None
        if isinstance(value, float):
            return _around(value) if math.isfinite(value) else _float_keys(value)
        return _exactly(Decimal(value))
    if pa.types.is_floating(column_type):
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            return None
        return _float_keys(float(value))
    if pa.types.is_string(column_type):
        return _exactly(value) if isinstance(value, str) else None
    if pa.types.is_date(column_type) or pa.types.is_timestamp(column_type):
        return _moment(value, whole_days=pa.types.is_date(column_type))
    return None


def _exactly(value: object) -> tuple[Key, Key]:
    return (0, value), (0, value)


def _around(value: float) -> tuple[Key, Key]:
    """An exact column against a double: DuckDB rounds the column to a double first, so neighbours may be equal."""
    low, high = np.nextafter(value, -np.inf), np.nextafter(value, np.inf)
    return (0, Decimal(float(low))), (0, Decimal(float(high)))


def _float_keys(value: float) -> tuple[Key, Key]:
    if math.isnan(value):
        return (1, 0.0), (1, 0.0)  # NaN sorts above every number
    with np.errstate(over="ignore"):
        narrow = float(np.float32(value))
    return (0, min(value, narrow)), (0, max(value, narrow))


def _moment(value: object, *, whole_days: bool) -> tuple[Key, Key] | None:
    """A literal as a UTC instant. Text that DuckDB would round on its way to the column's type is not understood."""
    if isinstance(value, str):
        if (whole_days and len(value) != len("2015-05-17")) or _FINER_THAN_MICROSECONDS.search(value):
            return None
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, dt.datetime):
        return _exactly(value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC))
    if isinstance(value, dt.date):
        return _exactly(dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC))
    return None
