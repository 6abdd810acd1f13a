"""Column statistics that never lie: every value lies between the bounds, in the total order of `rows.codes`.

The bounds are text, because the log stores them as text; `decode` is the way back, so that numbers compare as numbers
and numeric-looking strings as strings (lessons 62, 64 and 66). `decode_column` is the same way for
the bounds of many splits at once.

| Type | Text | | Type | Text |
|---|---|---|---|---|
| boolean | `true`, `false` | | date | `2015-05-17` |
| integers | decimal digits | | timestamp | `2015-05-17T10:05:03.000000Z`, no `Z` without a zone |
| floats | shortest that reads back; `NaN`, `Infinity` | | string | cut at 32 code points, a cut maximum rounded up |
| decimal | plain digits with its scale | | binary, lists, structs, maps | none |

More than 300 lines: writing and reading of one text per type stay side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import Corrupt
from storage_core.rows.codes import Mask

TRUNCATE_AT = 32

_FEW = 8

_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_NARROW_DIGITS = 38
_WIDE_DECIMAL = pa.decimal256(76, 38)
_WIDE_LIMIT = Decimal(10**38)
_WIDE_STEP = Decimal(1).scaleb(-38)
_EXACT = Context(prec=100)
_SPECIAL_FLOATS: Mapping[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


Value = bool | int | float | Decimal | str | date | datetime


@dataclass(frozen=True, slots=True)
class Statistics:
    """Bounds in text form per column, and the number of nulls of every column.

    A column without a bound on one side has no entry there: no values, a type without bounds, a maximum that cannot
    be rounded up, or an instant that the calendar of the text cannot write (years 1 to 9999). No entry never prunes.
    """

    min_values: dict[str, str] = field(default_factory=dict)
    max_values: dict[str, str] = field(default_factory=dict)
    null_counts: dict[str, int] = field(default_factory=dict)


class Running:
    """The statistics of rows that pass in pieces: those that `compute` finds in all of them together."""

    __slots__ = ("_extremes", "_nulls")

    def __init__(self) -> None:
        self._extremes: dict[str, list[pa.Array]] = {}
        self._nulls: dict[str, int] = {}

    def add(self, table: pa.Table) -> None:
        """Count the next rows; every piece must have the same columns."""
        for name, column in zip(table.column_names, table.columns, strict=True):
            values, nulls = values_and_nulls(column)
            self._nulls[name] = self._nulls.get(name, 0) + nulls
            if _has_bounds(values.type):
                low, high = _extremes(values)
                self._extremes.setdefault(name, []).append(pa.array([low, high], low.type))

    def result(self, truncate_at: int = TRUNCATE_AT) -> Statistics:
        """Return the statistics of all rows so far; strings are cut after `truncate_at` code points."""
        statistics = Statistics(null_counts=dict(self._nulls))
        for name, pieces in self._extremes.items():
            low, high = _extremes(pa.chunked_array(pieces))
            for bounds, text in (
                (statistics.min_values, _lower(low, truncate_at)),
                (statistics.max_values, _upper(high, truncate_at)),
            ):
                if text is not None:
                    bounds[name] = text
        return statistics


def compute(table: pa.Table, truncate_at: int = TRUNCATE_AT) -> Statistics:
    """Return the statistics of every column; strings are cut after `truncate_at` code points."""
    running = Running()
    running.add(table)
    return running.result(truncate_at)


def decode(text: str, type_: pa.DataType) -> Value:
    """Return the bound as a Python value that compares like the column: bool, int, float, Decimal, str, date, datetime.

    Timestamps with a zone are aware (UTC), others naive. NaN is returned as such: it is the greatest value of the total
    order, but Python finds it neither smaller nor greater than anything, so prune only on a comparison that holds.
    Raises `Corrupt` for text that this type never produces.
    """
    try:
        return _decode(text, type_)
    except (ValueError, InvalidOperation) as error:
        raise Corrupt(f"the statistic {text!r} is not a value of type {type_}: {error}", text=text) from error


def decode_column(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return many bounds of one column as values that compare exactly; null where there is none to go by.

    That is where the text is null or is not a value of the type, and everywhere for a type without bounds: unlike
    `decode` this refuses nothing, for a bound is derived, and a split without one is read. Integers come back as int64,
    floats as float64, decimals wide enough for every text, timestamps in microseconds with the column's zone.
    """
    for wanted in _decoded_types(type_):
        try:
            return texts.cast(wanted)
        except pa.ArrowInvalid:  # some text does not fit, and the cast does not say which
            continue
    if not _has_bounds(type_):
        return pa.nulls(len(texts), type_)
    return pa.array([_decode_or_none(text, type_) for text in texts.to_pylist()], _decoded_types(type_)[-1])


def _decoded_types(type_: pa.DataType) -> tuple[pa.DataType, ...]:
    """The types to read the texts of a column as, the fastest first; the last holds every value of the column."""
    kinds = pa.types
    if kinds.is_integer(type_):
        return (pa.int64(),)
    if kinds.is_floating(type_):
        return (pa.float64(),)
    if kinds.is_decimal(type_):
        return (pa.decimal128(_NARROW_DIGITS, min(max(type_.scale, 0), _NARROW_DIGITS)), _WIDE_DECIMAL)
    if kinds.is_date(type_):
        return (pa.date32(),)
    if kinds.is_timestamp(type_):
        return (pa.timestamp("us", tz=type_.tz),)
    return (type_,) if kinds.is_boolean(type_) or kinds.is_string(type_) else ()


def _decode_or_none(text: str | None, type_: pa.DataType) -> Value | None:
    if text is None:
        return None
    try:
        value = decode(text, type_)
    except Corrupt:
        return None
    if isinstance(value, Decimal):
        fits = (
            value.is_finite() and value.copy_abs() < _WIDE_LIMIT and value == value.quantize(_WIDE_STEP, context=_EXACT)
        )
        return value if fits else None
    beyond = isinstance(value, int) and not -(2**63) <= value < 2**63
    return None if beyond else value


def _decode(text: str, type_: pa.DataType) -> Value:
    kinds = pa.types
    if kinds.is_boolean(type_):
        return text == "true" if text in ("true", "false") else _refuse("true or false")
    if kinds.is_integer(type_):
        return int(text)
    if kinds.is_floating(type_):
        return _SPECIAL_FLOATS[text] if text in _SPECIAL_FLOATS else float(text)
    if kinds.is_decimal(type_):
        return Decimal(text)
    if kinds.is_date(type_):
        return date.fromisoformat(text)
    if kinds.is_timestamp(type_):
        instant = datetime.fromisoformat(text)
        if (instant.tzinfo is None) != (type_.tz is None):
            return _refuse("a zone exactly when the column has one")
        return instant
    if kinds.is_dictionary(type_):
        return _decode(text, type_.value_type)
    return text


def _refuse(expected: str) -> NoReturn:
    raise ValueError(f"expected {expected}")


def values_and_nulls(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
    """The values that occur (of a dictionary column: once each), and how many rows are null."""
    if not pa.types.is_dictionary(column.type):
        return column, column.null_count
    used: list[pa.Array] = []
    nulls = 0
    for chunk in column.chunks:
        nulls += chunk.null_count
        if chunk.dictionary.null_count:
            nulls += chunk.dictionary_decode().null_count - chunk.null_count
        used.append(_used(chunk))
    return pa.chunked_array(used, column.type.value_type), nulls


def used_values(column: pa.DictionaryArray) -> Mask:
    """Return which places of the dictionary rows have; of null rows none. Several times as fast as a hash of them."""
    indices = (column.indices.drop_null() if column.indices.null_count else column.indices).to_numpy()
    changes = indices[1:] != indices[:-1]
    if np.count_nonzero(changes) < len(indices) // _FEW:  # as in a column of the sort order
        indices = np.append(indices[:1], indices[1:][np.flatnonzero(changes)])
    used = np.zeros(len(column.dictionary), np.bool_)
    used[indices.astype(np.int64)] = True
    return used


def _used(column: pa.DictionaryArray) -> pa.Array:
    """The values of the dictionary that rows have, each once, and null where a row is."""
    if column.indices.null_count or len(column.dictionary) > len(column):
        return column.dictionary.take(pc.unique(column.indices))
    used = used_values(column)
    return column.dictionary if used.all() else column.dictionary.filter(pa.array(used))


def _has_bounds(type_: pa.DataType) -> bool:
    kinds = pa.types
    texts = kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_)
    times = kinds.is_date(type_) or kinds.is_timestamp(type_)
    numbers = kinds.is_boolean(type_) or kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_)
    return bool(texts or times or numbers)


def _extremes(values: pa.ChunkedArray) -> tuple[pa.Scalar, pa.Scalar]:
    if not pa.types.is_floating(values.type):
        bounds = pc.min_max(values.cast(pa.string()) if pa.types.is_string_view(values.type) else values)
        return bounds["min"], bounds["max"]
    if not values.null_count:  # numpy is many times as fast; its extremes are NaN where any value is
        chunks = [chunk.to_numpy() for chunk in values.chunks if len(chunk)]
        ends = [end for chunk in chunks for end in (chunk.min(), chunk.max())]
        if ends and not np.isnan(ends).any():
            return pa.scalar(min(ends), values.type), pa.scalar(max(ends), values.type)
    unordered = pc.is_nan(values)
    bounds = pc.min_max(values.filter(pc.invert(unordered)))
    if not pc.any(unordered).as_py():
        return bounds["min"], bounds["max"]
    nan = pa.scalar(math.nan, values.type)
    return (bounds["min"] if bounds["min"].is_valid else nan), nan


def _lower(bound: pa.Scalar, truncate_at: int) -> str | None:
    text = _text(bound)
    return text[:truncate_at] if text is not None and _is_text(bound.type) else text


def _upper(bound: pa.Scalar, truncate_at: int) -> str | None:
    text = _text(bound)
    if text is None or len(text) <= truncate_at or not _is_text(bound.type):
        return text
    return _next_after_prefix(text[:truncate_at])


def _next_after_prefix(prefix: str) -> str | None:
    """The least text of at most this length above every text with the prefix; None when there is none.

    Order by code point is order by UTF-8 bytes. Surrogates are no characters, so the step before them skips them.
    """
    kept = prefix.rstrip(chr(_LAST_CODE_POINT))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _text(bound: pa.Scalar) -> str | None:
    if not bound.is_valid:
        return None
    kinds, type_ = pa.types, bound.type
    if kinds.is_date(type_) or kinds.is_timestamp(type_):
        return _calendar_text(bound)
    value = bound.as_py()
    if kinds.is_boolean(type_):
        return "true" if value else "false"
    if kinds.is_floating(type_):
        return _float_text(float(value))
    return format(value, "f") if kinds.is_decimal(type_) else str(value)


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value + 0.0)  # -0.0 and 0.0 are one value


def _calendar_text(bound: pa.Scalar) -> str | None:
    try:
        if pa.types.is_date(bound.type):
            return str(bound.as_py().isoformat())
        instant = bound.cast(pa.timestamp("us", tz=bound.type.tz)).as_py()
        if bound.type.tz is None:
            return str(instant.isoformat(timespec="microseconds"))
        return str(instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")) + "Z"
    except (ValueError, OverflowError, pa.ArrowInvalid):
        return None  # outside years 1 to 9999, or finer than the text: without a bound nothing is pruned
