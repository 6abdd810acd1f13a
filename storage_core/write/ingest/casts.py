"""Fast conversion of text with Arrow.

A value is converted here only if the exact conversion certainly has the same result.

`convert` checks and converts every text with DuckDB. Most landed values have a plain form: digits, a plain decimal
number, or a time such as `2026-01-01T10:00:00Z`. Arrow converts these forms to the same values in a fraction of the
time. `cast_text` converts one column and marks the rows that Arrow cannot convert with certainty. The caller converts
only these rows with DuckDB. So only `convert` handles unusual forms and produces rejection reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]

_DIGITS: Final = {8: 2, 16: 4, 32: 9, 64: 18}
"""The number of decimal digits that always fit in an integer with this number of bits."""

_PLAIN_NUMBER: Final = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?$"
_FIRST_DAY: Final = -719_162
"""The days from 1970-01-01 back to 0001-01-01, the first day that a table can have."""

_SECOND_BYTES: Final = len("2026-01-01T10:00:00")
_LONGEST_TIME: Final = _SECOND_BYTES + len(".123456")


@dataclass(frozen=True, slots=True)
class Cast:
    """A converted column, and the rows that Arrow could not convert with certainty.

    The values of these rows are null.
    """

    values: pa.Array
    undecided: Mask


def cast_text(texts: pa.Array, field: pa.Field) -> Cast | None:
    """Return a column of text as the type of the field. A null stays null.

    Returns None for types that this function cannot convert: embeddings, maps and other nested types.

    Args:
        texts: strings, without the words for null.
    """
    cast = _cast_of(field.type)
    if cast is None:
        return None
    found = cast(texts, field.type)
    if field.nullable or not found.values.null_count:
        return found
    return Cast(found.values, found.undecided | np.asarray(found.values.is_null()))


def _cast_of(type_: pa.DataType) -> Callable[[pa.Array, pa.DataType], Cast] | None:
    types = pa.types
    if types.is_string(type_):
        return lambda texts, _: Cast(texts, np.zeros(len(texts), np.bool_))
    for is_kind, cast in (
        (types.is_integer, _integers),
        (types.is_floating, _floats),
        (types.is_boolean, _booleans),
        (lambda each: types.is_decimal128(each) and 0 <= each.scale < each.precision, _decimals),
        (types.is_date32, _dates),
        (types.is_timestamp, _times),
    ):
        if is_kind(type_):
            return cast
    return None


def _integers(texts: pa.Array, type_: pa.DataType) -> Cast:
    return _cast_matching(texts, type_, rf"^-?[0-9]{{1,{_DIGITS[type_.bit_width]}}}$")


def _decimals(texts: pa.Array, type_: pa.DataType) -> Cast:
    fraction = rf"(\.[0-9]{{1,{type_.scale}}})?" if type_.scale else ""
    return _cast_matching(texts, type_, rf"^-?[0-9]{{1,{type_.precision - type_.scale}}}{fraction}$")


def _floats(texts: pa.Array, type_: pa.DataType) -> Cast:
    found = _cast_matching(texts, type_, _PLAIN_NUMBER)
    infinite = np.asarray(pc.fill_null(pc.is_inf(found.values), fill_value=False))  # a number that is too large
    return _mark_undecided(found, infinite) if infinite.any() else found


def _booleans(texts: pa.Array, type_: pa.DataType) -> Cast:
    del type_
    values = pc.equal(texts, "true")
    undecided = np.asarray(pc.fill_null(pc.invert(pc.or_(values, pc.equal(texts, "false"))), fill_value=False))
    return _mark_undecided(Cast(values, undecided), undecided)


def _dates(texts: pa.Array, type_: pa.DataType) -> Cast:
    found = _cast_matching(texts, type_, "^[0-9]{4}-[0-9]{2}-[0-9]{2}$")
    return _mark_undecided(found, _is_below(found.values.cast(pa.int32()), _FIRST_DAY))


def _times(texts: pa.Array, type_: pa.DataType) -> Cast:
    """Convert times of the forms `2026-01-01T10:00:00Z` and `2026-01-01 10:00:00.123456`. UTC is the default zone."""
    lengths = pc.binary_length(texts)
    in_utc = np.asarray(pc.fill_null(pc.ends_with(texts, "Z"), fill_value=False))
    size = np.asarray(pc.fill_null(lengths, 0)) - in_utc
    fits = (size == _SECOND_BYTES) | ((size > _SECOND_BYTES + 1) & (size <= _LONGEST_TIME))
    if type_.tz is None:
        fits &= ~in_utc
    is_null = np.asarray(texts.is_null())
    parts = [
        _cast_or_null(_null_unless(texts, fits & (in_utc == is_utc)), pa.timestamp("us", "UTC" if is_utc else None))
        for is_utc in (True, False)
        if (fits & (in_utc == is_utc)).any()
    ]
    naive = [each.cast(pa.timestamp("us")) for each in parts]
    values = pc.coalesce(*naive) if naive else pa.nulls(len(texts), pa.timestamp("us"))
    undecided = np.asarray(values.is_null()) & ~is_null
    undecided |= _is_below(values.cast(pa.int64()), _FIRST_DAY * 86_400_000_000)
    return _mark_undecided(Cast(values.cast(type_), undecided), undecided)


def _cast_matching(texts: pa.Array, type_: pa.DataType, form: str) -> Cast:
    matched = pc.match_substring_regex(texts, form)
    undecided = np.asarray(pc.fill_null(pc.invert(matched), fill_value=False))
    if undecided.any():
        texts = _null_unless(texts, ~undecided)
    values = _cast_or_null(texts, type_)
    return Cast(values, undecided | (np.asarray(values.is_null()) & np.asarray(texts.is_valid())))


def _cast_or_null(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return the converted texts, or nulls if one of them cannot be converted."""
    try:
        return texts.cast(type_)
    except pa.ArrowInvalid:
        return pa.nulls(len(texts), type_)


def _null_unless(texts: pa.Array, chosen: Mask) -> pa.Array:
    """Return the texts, with null where `chosen` is False."""
    return texts if chosen.all() else pc.if_else(pa.array(chosen), texts, pa.scalar(None, texts.type))


def _mark_undecided(cast: Cast, undecided: Mask) -> Cast:
    if not undecided.any():
        return cast
    values = pc.if_else(pa.array(~undecided), cast.values, pa.scalar(None, cast.values.type))
    return Cast(values, cast.undecided | undecided)


def _is_below(numbers: pa.Array, least: int) -> Mask:
    return np.asarray(pc.fill_null(pc.less(numbers, least), fill_value=False))
