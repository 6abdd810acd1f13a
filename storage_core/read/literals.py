"""Literals of a condition against bounds of a column: one comparison for a million splits.

A literal stands for an interval of values: where DuckDB may round the literal or the column on its way to a common
type, everything it may be rounded to belongs to the interval, so that a split is kept when any of it could match.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.read.predicate import Beginning, Day, Instant, Literal, Scalar
from storage_core.rows.bound_text import next_after_prefix
from storage_core.rows.codes import Mask
from storage_core.rows.sortable import float_keys, unless_false

Limit = int | Decimal | str

DIGITS = 80
"""No column holds this many digits, and a decimal of a billion zeros must not become an integer."""

_FINER_THAN_MICROSECONDS = re.compile(r"[.,]\d{7}")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
MICROSECONDS_OF_A_DAY = 24 * 3600 * 10**6
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
# DuckDB's casts of decimals and huge integers to floats round more than once.
_SLACK_ULPS = 2


@dataclass(frozen=True, slots=True)
class Interval:
    """The least and the greatest value that a literal may stand for, in the terms of `rows.sortable`."""

    least: Limit
    greatest: Limit


def interval(value: Literal, column_type: pa.DataType) -> Interval | None:
    """Return what the literal may stand for in a column of this type; None for one of another family."""
    kinds = pa.types
    if isinstance(value, Beginning):
        return _beginning(value.text) if kinds.is_string(column_type) else None
    if isinstance(value, Day):
        return _day(value.text) if kinds.is_date(column_type) or kinds.is_timestamp(column_type) else None
    if isinstance(value, Instant):
        if not (kinds.is_date(column_type) or kinds.is_timestamp(column_type)):
            return None
        return _instant(value.text, whole_days=kinds.is_date(column_type))
    if kinds.is_boolean(column_type):
        return _exactly(int(value)) if isinstance(value, bool) else None
    if kinds.is_integer(column_type) or kinds.is_decimal(column_type):
        return _on_exact_column(value)
    if kinds.is_floating(column_type):
        return _on_float_column(value, single=column_type == pa.float32())
    if kinds.is_string(column_type):
        return _exactly(value) if isinstance(value, str) and _is_encodable(value) else None
    if kinds.is_date(column_type) or kinds.is_timestamp(column_type):
        return _instant(value, whole_days=kinds.is_date(column_type))
    return None


def points(values: Iterable[Literal], column_type: pa.DataType, keys: pa.DataType) -> pa.Array | None:
    """Return the keys that equal one of the literals; None where one of them may stand for several values.

    A literal that no value of the column equals has none.
    """
    found: list[pa.Scalar] = []
    for value in values:
        wanted = interval(value, column_type)
        if wanted is None or wanted.least != wanted.greatest:
            return None
        low, high = (_on_grid(wanted.least, keys, up=up) for up in (False, True))
        if low is not None and low == high:
            found.append(low)
    return pa.array([each.as_py() for each in found], keys)


def at_most(bounds: pa.Array, limit: Limit, *, strictly: bool = False) -> Mask:
    """Tell per bound whether it is at most (or below) the limit; true where the bound is unknown."""
    compared = _on_grid(limit, bounds.type, up=strictly)
    if compared is None:
        return _everywhere(bounds, answer=Decimal(limit) > 0)
    return unless_false((pc.less if strictly else pc.less_equal)(bounds, compared))


def at_least(bounds: pa.Array, limit: Limit, *, strictly: bool = False) -> Mask:
    """Tell per bound whether it is at least (or above) the limit; true where the bound is unknown."""
    compared = _on_grid(limit, bounds.type, up=not strictly)
    if compared is None:
        return _everywhere(bounds, answer=Decimal(limit) < 0)
    return unless_false((pc.greater if strictly else pc.greater_equal)(bounds, compared))


def _on_grid(limit: Limit, type_: pa.DataType, *, up: bool) -> pa.Scalar | None:
    """The limit rounded to a value that the bounds' type can hold, None when it lies beyond all of them.

    `x ≤ limit` is `x ≤ ⌊limit⌋`, `x < limit` is `x < ⌈limit⌉`, and the other way round for lower limits.
    """
    if isinstance(limit, str):
        return pa.scalar(limit, pa.string())
    exact = Decimal(limit)
    if not exact.is_finite() or exact.adjusted() > DIGITS:
        return None
    if pa.types.is_decimal(type_):
        steps = _whole(exact.scaleb(type_.scale, context=_EXACT), up=up)
        if abs(steps) >= 10**type_.precision:
            return None
        return pa.scalar(Decimal(steps).scaleb(-type_.scale, context=_EXACT), type_)
    whole = _whole(exact, up=up)
    return pa.scalar(whole, pa.int64()) if -(2**63) <= whole < 2**63 else None


def _whole(value: Decimal, *, up: bool) -> int:
    if value.adjusted() < -1:  # nearer to zero than any step; spares integers of a billion digits
        return int(up and value > 0) - int(not up and value < 0)
    return math.ceil(value) if up else math.floor(value)


def _everywhere(bounds: pa.Array, *, answer: bool) -> Mask:
    mask: Mask = np.ones(len(bounds), dtype=bool) if answer else bounds.is_null().to_numpy(zero_copy_only=False)
    return mask


def _exactly(value: Limit) -> Interval:
    return Interval(value, value)


def _beginning(text: str) -> Interval | None:
    if not text or not _is_encodable(text):
        return None
    behind = next_after_prefix(text)
    return None if behind is None else Interval(text, behind)


def _is_encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _on_exact_column(value: Scalar) -> Interval | None:
    match value:
        case bool():
            return None
        case int() | Decimal():
            return _exactly(value) if not isinstance(value, Decimal) or value.is_finite() else None
        case float() if math.isnan(value):
            return _exactly(Decimal("Infinity"))  # NaN is above every number, and so is this
        case float():
            # DuckDB rounds the column to a double first, so that neighbours of the literal may equal it.
            low, high = _widened(np.float64(value))
            return Interval(Decimal(float(low)), Decimal(float(high)))
        case _:
            return None


def _on_float_column(value: Scalar, *, single: bool) -> Interval | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        double = np.float64(float(value))
    except (OverflowError, ValueError):  # beyond every double, or a signalling NaN
        return None
    candidates = [double] if isinstance(value, float) else list(_widened(double))
    if single:  # which of the two DuckDB compares with depends on how the literal is written
        with np.errstate(over="ignore"):
            narrow = np.float32(double)
        candidates += [narrow] if isinstance(value, float) else list(_widened(narrow))
    keys = float_keys(np.array([float(each) for each in candidates]))
    return Interval(int(keys.min()), int(keys.max()))


def _widened(value: np.floating[Any]) -> tuple[np.floating[Any], np.floating[Any]]:
    low = high = value
    with np.errstate(over="ignore"):
        for _ in range(_SLACK_ULPS):
            low, high = np.nextafter(low, value.dtype.type(-np.inf)), np.nextafter(high, value.dtype.type(np.inf))
    return low, high


def _instant(value: Scalar, *, whole_days: bool) -> Interval | None:
    """A literal as microseconds in UTC. Text that DuckDB would round on its way to the column is not understood."""
    if isinstance(value, str):
        if (whole_days and len(value) != len("2015-05-17")) or _FINER_THAN_MICROSECONDS.search(value):
            return None
        try:
            instant = dt.datetime.fromisoformat(value)
        except ValueError:
            return None
        # Text with an offset: as TIMESTAMP DuckDB drops the offset, as TIMESTAMPTZ it counts.
        readings = (instant, instant.replace(tzinfo=dt.UTC))
        return Interval(min(map(_microseconds, readings)), max(map(_microseconds, readings)))
    if isinstance(value, dt.datetime):
        return _exactly(_microseconds(value))
    if isinstance(value, dt.date):
        return _exactly(_microseconds(dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)))
    return None


def _day(text: str) -> Interval | None:
    first = _instant(text, whole_days=True)
    return None if first is None else Interval(first.least, int(first.least) + MICROSECONDS_OF_A_DAY - 1)


def _microseconds(instant: dt.datetime) -> int:
    return ((instant.replace(tzinfo=dt.UTC) if instant.tzinfo is None else instant) - _EPOCH) // _MICROSECOND
