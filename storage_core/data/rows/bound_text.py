"""The text form of a bound, as the log stores it, and the conversion back.

The converted values have the same order as the values of the column. Numbers are compared as numbers, and texts as
texts.

| Type | Text | | Type | Text |
|---|---|---|---|---|
| boolean | `true`, `false` | | date | `2015-05-17` |
| integers | decimal digits | | timestamp | `2015-05-17T10:05:03.000000Z`, no `Z` without a zone |
| floats | the shortest text of this float, or `NaN`, `Infinity` | | string | at most 32 code points (`upper`) |
| decimal | plain digits with the scale of the type | | binary, lists, structs, maps | none |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import NoReturn

import pyarrow as pa

from storage_core.base.errors import Corrupt

_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_NARROW_DIGITS = 38
_WIDE_DECIMAL = pa.decimal256(76, 38)
_WIDE_LIMIT = Decimal(10**38)
_WIDE_STEP = Decimal(1).scaleb(-38)
_EXACT = Context(prec=100)
_DATE_LENGTH = len("2015-05-17")
_SPECIAL_FLOATS: Mapping[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


Value = bool | int | float | Decimal | str | date | datetime


def has_bounds(type_: pa.DataType) -> bool:
    """Return whether values of the type have bounds in text."""
    kinds = pa.types
    texts = kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_)
    times = kinds.is_date(type_) or kinds.is_timestamp(type_)
    numbers = kinds.is_boolean(type_) or kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_)
    return bool(texts or times or numbers)


def lower(bound: pa.Scalar, truncate_at: int) -> str | None:
    """Return the text of a lower bound. A long string is cut. Return None if the value has no text form."""
    text = text_of_bound(bound)
    return text[:truncate_at] if text is not None and _is_text(bound.type) else text


def upper(bound: pa.Scalar, truncate_at: int) -> str | None:
    """Return the text of an upper bound, or None. A long string is replaced by a shorter text that sorts after it."""
    text = text_of_bound(bound)
    if text is None or len(text) <= truncate_at or not _is_text(bound.type):
        return text
    return next_after_prefix(text[:truncate_at])


def next_after_prefix(prefix: str) -> str | None:
    """Return the smallest text that is greater than every text with the prefix.

    The result has at most as many characters as `prefix`.

    Return None if there is no such text. The order by code points equals the order by UTF-8 bytes. Surrogates are not
    valid characters, so the function uses the next code point that is not a surrogate.
    """
    kept = prefix.rstrip(chr(_LAST_CODE_POINT))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def text_of_bound(bound: pa.Scalar) -> str | None:
    """Return the full text of a value. Return None if the value has no text form."""
    if not bound.is_valid:
        return None
    kinds, type_ = pa.types, bound.type
    if kinds.is_date(type_) or kinds.is_timestamp(type_):
        return _calendar_text(bound)
    try:
        value = bound.as_py()
    except UnicodeDecodeError:  # Splits written before the UTF-8 check may contain invalid text, which has no bound.
        return None
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
    return repr(value + 0.0)  # the negative zero and 0.0 are the same value


def _calendar_text(bound: pa.Scalar) -> str | None:
    try:
        if pa.types.is_date(bound.type):
            return str(bound.as_py().isoformat())
        instant = bound.cast(pa.timestamp("us", tz=bound.type.tz)).as_py()
        if bound.type.tz is None:
            return str(instant.isoformat(timespec="microseconds"))
        return str(instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")) + "Z"
    except (ValueError, OverflowError, pa.ArrowInvalid):
        return None  # The bound is outside the years 1 to 9999, or finer than microseconds. No split is pruned.


def bound_of_text(text: str, type_: pa.DataType) -> Value:
    """Return the bound as a Python value that compares like the column: bool, int, float, Decimal, str, date, datetime.

    A timestamp with a zone becomes an aware datetime in UTC, and a timestamp without a zone becomes a naive datetime.
    NaN is returned as NaN. In the total order, NaN is the greatest value, but in Python every comparison with NaN is
    False. Therefore prune only if a comparison is True. Raises `Corrupt` for text that this type never produces.
    """
    try:
        return _decode(text, type_)
    except (ValueError, InvalidOperation) as error:
        raise Corrupt(f"the statistic {text!r} is not a value of type {type_}: {error}", text=text) from error


def decode_column(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return many bounds of one column as values that can be compared exactly. Null means that a bound is unknown.

    A bound is unknown if its text is null or is not a value of the type. For a type without bounds, every bound is
    unknown. Unlike `bound_of_text`, this function raises no error for an invalid text. A split without a bound can
    still be read. Integers become int64, and floats become float64. Decimals become a type that is wide enough for
    every text. Timestamps become microseconds with the column's zone.
    """
    if pa.types.is_timestamp(type_):
        texts = _as_instants(texts, type_)
    for wanted in _decoded_types(type_):
        try:
            return texts.cast(wanted)
        except pa.ArrowInvalid:  # a text is not valid for the type, and the error does not name the text
            continue
    if not has_bounds(type_):
        return pa.nulls(len(texts), type_)
    return pa.array([_decode_or_none(text, type_) for text in texts.to_pylist()], _decoded_types(type_)[-1])


def _as_instants(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return the texts.

    A text that is only a date gets the time midnight. A text without a time was written when the column still had the
    type date.
    """
    import pyarrow.compute as pc  # imported here because opening a table does not need `pyarrow.compute`

    is_date = pc.equal(pc.utf8_length(texts), _DATE_LENGTH)
    if not pc.any(is_date).as_py():
        return texts
    midnight = "T00:00:00.000000" + ("Z" if type_.tz else "")
    return pc.if_else(is_date, pc.binary_join_element_wise(texts, midnight, ""), texts)


def _decoded_types(type_: pa.DataType) -> tuple[pa.DataType, ...]:
    """Return the types to which a column's texts can be converted, with the fastest type first.

    The last type can represent every value of the column.
    """
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
        value = bound_of_text(text, type_)
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
            return _refuse("a time zone if the column has one, and no zone otherwise")
        return instant
    if kinds.is_dictionary(type_):
        return _decode(text, type_.value_type)
    return text


def _refuse(expected: str) -> NoReturn:
    raise ValueError(f"expected {expected}")
