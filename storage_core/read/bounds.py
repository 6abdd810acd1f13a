"""Bounds of the values in splits, and comparison of conditions with these bounds.

- A `Source` returns the bounds of a column for a whole batch of splits (`ColumnBounds`). Bounds are inclusive keys of
  `data.rows.codes`, or null if unknown. The lower and the upper bounds are decoded at their first comparison.
- `interval` converts a literal of a condition to an interval of values. DuckDB may round the literal or the column when
  it casts both to a common type. The interval includes every value to which the literal may be rounded. A split is kept
  if any of these values could match.
- `may_hold` compares the bounds with a condition, for all splits of a batch in one comparison.
- `is_exact` and `meeting` evaluate conditions on rows without DuckDB. `is_exact` and `meeting` accept only literals
  that have the column's own type, so no value is cast or rounded. Therefore Arrow's comparisons have the same results
  as DuckDB's comparisons. Arrow and DuckDB compare numbers and times by value, and texts by their bytes. False is less
  than true, and a comparison with null is never true.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, reduce
from typing import Any, Final, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.data.rows.bound_text import next_after_prefix
from storage_core.data.rows.codes import Mask, bound_keys, float_keys, unless_false
from storage_core.data.rows.columns import stored_name
from storage_core.data.rows.keys import MapColumn, map_column
from storage_core.log.split_columns import ManifestBounds
from storage_core.read.predicate import (
    And,
    Beginning,
    Compare,
    Comparison,
    Day,
    Instant,
    IsNull,
    Literal,
    Opaque,
    Or,
    Predicate,
    Scalar,
)

Limit = int | Decimal | str

DIGITS = 80
"""The maximum number of digits of a number in a condition.

No column contains a number with more than `DIGITS` digits. The limit also prevents the conversion of a decimal with a
billion zeros to an integer.
"""

_FINER_THAN_MICROSECONDS = re.compile(r"[.,]\d{7}")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
MICROSECONDS_OF_A_DAY = 24 * 3600 * 10**6
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
# DuckDB's casts of decimals and huge integers to floats round more than once.
_SLACK_ULPS = 2


@dataclass(frozen=True, slots=True)
class Interval:
    """The smallest and the greatest possible value of a literal, as keys of `data.rows.codes`."""

    least: Limit
    greatest: Limit


def interval(value: Literal, column_type: pa.DataType) -> Interval | None:
    """Return the possible values of the literal in a column of this type.

    Return None if a comparison is not possible.
    """
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
    """Return the keys that are equal to one of the literals. Return None if a literal may have several values.

    If a literal equals no possible value of the column, the result has no key for the literal.
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
    """Return, for each bound, whether it is at most the limit. If `strictly` is True, an equal bound gives False.

    The result for an unknown bound is True.
    """
    compared = _on_grid(limit, bounds.type, up=strictly)
    if compared is None:
        return _everywhere(bounds, answer=Decimal(limit) > 0)
    return unless_false((pc.less if strictly else pc.less_equal)(bounds, compared))


def at_least(bounds: pa.Array, limit: Limit, *, strictly: bool = False) -> Mask:
    """Return, for each bound, whether it is at least the limit.

    With `strictly`, the bound must be greater than the limit.

    The result for an unknown bound is True.
    """
    compared = _on_grid(limit, bounds.type, up=not strictly)
    if compared is None:
        return _everywhere(bounds, answer=Decimal(limit) < 0)
    return unless_false((pc.greater if strictly else pc.greater_equal)(bounds, compared))


def _on_grid(limit: Limit, type_: pa.DataType, *, up: bool) -> pa.Scalar | None:
    """Return the limit, rounded to a value that the type of the bounds contains.

    Return None if the limit is outside the range of the type. `x ≤ limit` is `x ≤ ⌊limit⌋`, and `x < limit` is
    `x < ⌈limit⌉`. For lower limits the rounding is reversed.
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
    if value.adjusted() < -1:  # the value is almost zero, so the function does not compute integers of a billion digits
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
            return _exactly(Decimal("Infinity"))  # like infinity, NaN is above every finite number
        case float():
            # DuckDB first rounds the column to a double, so values near the literal may become equal to it.
            low, high = _widened(np.float64(value))
            return Interval(Decimal(float(low)), Decimal(float(high)))
        case _:
            return None


def _on_float_column(value: Scalar, *, single: bool) -> Interval | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        double = np.float64(float(value))
    except (OverflowError, ValueError):  # the literal is outside the range of doubles, or is a signalling NaN
        return None
    candidates = [double] if isinstance(value, float) else list(_widened(double))
    if single:  # DuckDB compares with the double or with the float value, depending on the form of the literal
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
    """Return a literal as microseconds in UTC. Return None for a text that DuckDB would round during its cast."""
    if isinstance(value, str):
        if (whole_days and len(value) != len("2015-05-17")) or _FINER_THAN_MICROSECONDS.search(value):
            return None
        try:
            instant = dt.datetime.fromisoformat(value)
        except ValueError:
            return None
        # DuckDB ignores the offset of a text that it reads as TIMESTAMP. DuckDB applies the offset if it reads the text
        # as TIMESTAMPTZ.
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


_MICROSECONDS = 1_000_000
# A time outside this range (126,000 years) does not fit into a column. The time in microseconds would overflow.
_FURTHEST_SECOND = 4 * 10**12


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """The bounds of one column for each split. `low` and `high` are computed at their first use.

    `nulls` contains the number of nulls and `rows` the number of rows of each split. `nulls` and `rows` are null if the
    numbers are unknown.
    """

    type: pa.DataType
    low: Callable[[], pa.Array]
    high: Callable[[], pa.Array]
    nulls: pa.Array
    rows: pa.Array


Source = Callable[[str], ColumnBounds | None]


def statistics_of(files: pa.RecordBatch, schema: pa.Schema) -> Source:
    """Return the bounds from the statistics of the splits: smallest and greatest values, null counts and row counts."""
    lows, highs, nulls = (cache(_Maps(files, name)) for name in ("minValues", "maxValues", "nullCounts"))

    @cache
    def bounds(column: str) -> ColumnBounds | None:
        type_ = _type_of(column, schema)
        if type_ is None:
            return None
        stored = stored_name(schema.field(column))
        return ColumnBounds(
            type_,
            cache(lambda: bound_keys(lows().lookup(stored), type_)),
            cache(lambda: bound_keys(highs().lookup(stored), type_)),
            nulls().lookup(stored),
            files.column("numRecords"),
        )

    return bounds


def expressions_of(files: pa.RecordBatch, schema: pa.Schema) -> Callable[[str], pa.Array | None]:
    """Return a function that takes the name of a text column. The function returns a regular expression per split.

    The expression matches all values of the column in the split. The expression is null if it is unknown.
    """
    expressions = cache(_Maps(files, "columnRegexes"))

    @cache
    def of(column: str) -> pa.Array | None:
        type_ = _type_of(column, schema)
        if type_ is None or not pa.types.is_string(type_):
            return None
        return expressions().lookup(stored_name(schema.field(column)))

    return of


def partitions_of(files: pa.RecordBatch, schema: pa.Schema) -> Source:
    """Return bounds from partition values.

    Every row of a split has the same value. An empty text may also mean null.
    """
    values = cache(_Maps(files, "partitionValues"))

    @cache
    def bounds(column: str) -> ColumnBounds | None:
        type_ = _type_of(column, schema)
        if type_ is None:
            return None
        texts = values().lookup(column)
        known = pc.coalesce(pc.greater(pc.binary_length(texts), 0), pa.scalar(value=False))
        exact = cache(lambda: bound_keys(pc.if_else(known, texts, None), type_))
        return ColumnBounds(type_, exact, exact, pc.if_else(known, 0, None), files.column("numRecords"))

    return bounds


def windows_of(files: pa.RecordBatch, schema: pa.Schema, time_column: str | None) -> Source:
    """Return bounds of the time column from the windows of the splits: [start, start + duration).

    A split without a window has no bounds.
    """
    return _windows(files.column("windowStart"), files.column("windowSeconds"), schema, time_column)


def manifest_source(manifest: ManifestBounds, schema: pa.Schema, time_column: str | None) -> Source:
    """Return the bounds of a manifest. The manifest is treated as one split with the rows of all its splits."""
    first, last = manifest.windows if manifest.windows and not manifest.has_null_window else (None, None)
    duration = None if first is None or last is None else manifest.window_seconds
    span = None if duration is None or first is None or last is None else last - first + duration
    start, seconds = (pa.array([None if span is None else each], pa.int64()) for each in (first, span))
    windows = _windows(start, seconds, schema, time_column)

    def bounds(column: str) -> ColumnBounds | None:
        type_ = _type_of(column, schema)
        if type_ is None or column not in manifest.partitions:
            return windows(column)
        low, high = manifest.partitions[column]
        if low != high and not manifest.in_order_of_type:
            return None  # another writer may sort in another order, for example 10 before 9, or UTF-16 before UTF-8
        keys = [bound_keys(pa.array([text], pa.string()), type_) for text in (low, high)]
        # Tidemark writes bounds of a column to a manifest only if every split has a value. Programs other than Tidemark
        # ignore null values when they write bounds.
        nulls = pa.array([0 if manifest.in_order_of_type else None], pa.int64())
        return ColumnBounds(type_, lambda: keys[0], lambda: keys[1], nulls, pa.nulls(1, pa.int64()))

    return bounds


@dataclass(frozen=True)
class _Maps:
    """One map column of the batch, prepared for lookups at its first use."""

    files: pa.RecordBatch
    name: str

    def __call__(self) -> MapColumn:
        return map_column(self.files.column(self.name))


def _windows(start: pa.Array, seconds: pa.Array, schema: pa.Schema, time_column: str | None) -> Source:
    def bounds(column: str) -> ColumnBounds | None:
        type_ = _type_of(column, schema)
        if column != time_column or type_ is None or not (pa.types.is_timestamp(type_) or pa.types.is_date(type_)):
            return None
        unknown = pa.nulls(len(start), pa.int64())
        return ColumnBounds(type_, lambda: keys()[0], lambda: keys()[1], unknown, unknown)

    @cache
    def keys() -> tuple[pa.Array, pa.Array]:
        first, length = (each.fill_null(_FURTHEST_SECOND).to_numpy() for each in (start, seconds))
        # `abs` does not work here, because `abs` of the smallest int64 returns the same negative number.
        held = (first > -_FURTHEST_SECOND) & (first < _FURTHEST_SECOND) & (length > 0) & (length < _FURTHEST_SECOND)
        unknown = ~held
        low = np.where(unknown, 0, first) * _MICROSECONDS
        high = low + np.where(unknown, 1, length) * _MICROSECONDS - 1
        return pa.array(low, mask=unknown), pa.array(high, mask=unknown)

    return bounds


def _type_of(column: str, schema: pa.Schema) -> pa.DataType | None:
    index = schema.get_field_index(column)
    return None if index < 0 else schema.field(index).type


def may_hold(bounds: ColumnBounds, condition: Compare | IsNull) -> Mask:
    """Return a mask of those parts of a table that may contain a matching row.

    The mask is False only for a part with bounds that exclude all its rows.
    """
    if isinstance(condition, IsNull):
        return _nullness_may_match(bounds, negated=condition.negated)
    # A comparison with null is never true, regardless of the other value.
    some = _nullness_may_match(bounds, negated=True)
    wanted = interval(condition.value, bounds.type)
    return some if wanted is None else some & _compare_may_match(bounds, condition.comparison, wanted)


def _nullness_may_match(bounds: ColumnBounds, *, negated: bool) -> Mask:
    """Return, for each part, whether a row may be null. If `negated`, return whether a row may be non-null."""
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
    """Return for each part True if every value is certainly equal to the literal."""
    low, high = bounds.low(), bounds.high()
    if wanted.least != wanted.greatest:
        return np.zeros(len(low), dtype=bool)
    known: Mask = pc.and_(low.is_valid(), high.is_valid()).to_numpy(zero_copy_only=False)
    return known & at_least(low, wanted.least) & at_most(high, wanted.least)


_COMPARED: Final[Mapping[Comparison, Callable[[pa.ChunkedArray, pa.Scalar], pa.ChunkedArray]]] = {
    Comparison.EQ: pc.equal,
    Comparison.NE: pc.not_equal,
    Comparison.LT: pc.less,
    Comparison.LE: pc.less_equal,
    Comparison.GT: pc.greater,
    Comparison.GE: pc.greater_equal,
}


def is_exact(predicate: Predicate, columns: Mapping[str, pa.DataType]) -> bool:
    """Return True if a predicate uses only these columns and each literal has its column's own type."""
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


def meeting(rows: pa.Table, predicate: Predicate) -> pa.ChunkedArray:
    """Return, for each row, whether it makes the predicate true, or null if this is unknown.

    `is_exact` must accept the predicate.
    """
    match predicate:
        case And(children) | Or(children):
            is_all = isinstance(predicate, And)
            found = [meeting(rows, each) for each in children] or [pa.repeat(pa.scalar(is_all), rows.num_rows)]
            return reduce(pc.and_kleene if is_all else pc.or_kleene, found)
        case IsNull(column, negated):
            values = rows.column(column)
            return values.is_valid() if negated else values.is_null()
        case Compare(column, comparison, value):
            values = rows.column(column)
            return _COMPARED[comparison](values, _scalar(value, values.type))
        case Opaque(sql):
            raise ValueError(f"the condition {sql} cannot be evaluated for rows")
        case _:
            assert_never(predicate)


def only_values(predicate: Predicate, columns: Mapping[str, pa.DataType]) -> dict[str, pa.Scalar]:
    """Return a value for each column that has only one possible value.

    The given predicate is exact, and allows only this value in the column.
    """
    match predicate:
        case And(children):
            return {name: value for each in children for name, value in only_values(each, columns).items()}
        case Compare(column, Comparison.EQ, value):
            found = _scalar(value, columns[column])
            return {column: found} if found.type == columns[column] else {}
        case _:
            return {}


def _is_of(value: object, type_: pa.DataType) -> bool:
    """Return whether a literal has the column's own type, so that no value is cast or rounded."""
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


def _scalar(value: Literal, type_: pa.DataType) -> pa.Scalar:
    """Return the literal in the column's type.

    A number outside the range of this type keeps its own type. Arrow then converts the column to the type of the
    number.
    """
    try:
        return pa.scalar(value, type_)
    except (pa.ArrowInvalid, OverflowError):
        return pa.scalar(value)
