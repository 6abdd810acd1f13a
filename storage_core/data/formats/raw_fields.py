"""The fields of raw log records as JSON text. The text preserves all types, and is made from values or from columns.

The raw log does not contain the schemas of tables, so the text of a value must contain its type
(docs/architecture/ingestion.md, "Records"). A value that JSON supports is written as JSON. Any other value is an object
with one member. The name of the member is a tag:

| Value | Written as | | Value | Written as |
|---|---|---|---|---|
| null, boolean, text | as it is | | time with a zone (UTC) | `{"$timestamp": "2024-01-01T00:00:00.000001+00:00"}` |
| integer of 64 bits | a JSON number with all digits | | time without a zone | `{"$local": "2024-01-01T00:00:00"}` |
| finite float | a JSON number with point or exponent | | date | `{"$date": "2024-01-01"}` |
| NaN, infinities | `{"$float": "nan"}`, `inf`, `-inf` | | bytes | `{"$bytes": "<base64>"}` |
| decimal | `{"$decimal": "1.50"}` | | map | `{"$map": [[key, value], …]}` |

A date or time in a tag has exactly this form. A fraction has six digits and is absent if it is zero. Nanoseconds of
Arrow are written with nine digits. `decode_fields` refuses a time with nanoseconds, because no column keeps
nanoseconds.

If a producer wrote a number with point or exponent in JSON, the number keeps its digits (`Digits`). The type of the
column determines whether the number is a float or a decimal. If a name in a producer's object starts with `$`, the text
contains one more `$` before this name.

Because the fields are text, every Avro reader can read a chunk. A union of Avro types would be recursive. With a
recursive type, a file could make an Avro decoder in C recurse to any depth.

`encode_fields` returns the text of one row. `encode_rows` creates the same texts column by column, without one object
per row. For types without a faster method, `encode_rows` calls `encode_value`.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted, repeated

# Texts of values.

_TAG = "$"
_LEAST, _GREATEST = -(2**63), 2**63 - 1
_PAIR = 2


@dataclass(frozen=True, slots=True)
class Digits:
    """A finite number with point or exponent, stored as its JSON text.

    A float would not keep all digits of the text.
    """

    text: str

    def as_float(self) -> float:
        """Return the nearest float."""
        return float(self.text)

    def as_decimal(self) -> Decimal:
        """Return this number exactly."""
        return Decimal(self.text)


def encode_fields(fields: Mapping[str, object]) -> str:
    """Return the fields as one line of JSON.

    Raises:
        InvalidInput: A value has no JSON form: another type, an integer beyond 64 bits, text that is not valid Unicode,
            or endless nesting. The error names the field.
    """
    written: dict[str, object] = {}
    for name, value in fields.items():
        if not isinstance(name, str):
            raise InvalidInput(f"the name of a field is {name!r}. It must be text")
        try:
            written[_escaped(name)] = _plain(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"field {name!r}: {error}", column=name) from error
    try:
        text = _text(written)
        text.encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise InvalidInput(f"the fields {list(fields)!r} hold text that is not valid Unicode") from error
    return text


def encode_value(value: object) -> str:
    """Return the text of one value inside its record. Raises `ValueError`, `TypeError`, `RecursionError`."""
    return _text(_plain(value))


def encode_name(name: str) -> str:
    """Return the name of a field in the form in which a record's text contains the name."""
    return _ENCODE(_escaped(name))


def decode_fields(text: str) -> dict[str, Any]:
    """Return the fields that `encode_fields` or a producer wrote, with their types. A float is returned as `Digits`.

    Raises:
        InvalidInput: The text has another form, a name is given twice in one object, a number is larger than every
            float, or a time is finer than a microsecond.
    """
    try:
        found = _DECODE(text)
    except (ValueError, TypeError, LookupError, OverflowError, InvalidOperation, RecursionError) as error:
        raise InvalidInput(
            f"the fields of the record are not valid JSON of a raw log: {_fault(error)}: {quoted(text)}"
        ) from error
    if not isinstance(found, dict):
        raise InvalidInput(f"the fields are not an object: {quoted(text)}")
    return found


def _fault(error: Exception) -> str:
    """Return what is wrong with an invalid text. The text of an error of Python's JSON parser is not used."""
    if isinstance(error, json.JSONDecodeError):
        return f"the text is not JSON at character {error.pos + 1}"
    return str(error)


def _text(value: object) -> str:
    try:
        return _ENCODE(value)
    except TypeError:  # the value contains `Digits`, which the encoder in C cannot write
        pass
    match value:
        case Digits(text):
            return text
        case dict():
            return f"{{{','.join(f'{_ENCODE(name)}:{_text(each)}' for name, each in value.items())}}}"
        case list():
            return f"[{','.join(map(_text, value))}]"
        case _:
            return _ENCODE(value)


def _plain(value: object) -> object:
    match value:
        case None | bool() | str() | Digits():
            return value
        case int() | np.integer():
            return _long(int(value))
        case float() | np.floating():
            return float(value) if math.isfinite(value) else {"$float": str(float(value))}
        case np.bool_():
            return bool(value)
        case Decimal():
            return {"$decimal": _finite(value)}
        case np.datetime64() | dt.date():
            return _time(value)
        case bytes():
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        case Mapping():
            return _object(value)
        case list() | tuple() | np.ndarray():
            return _array(list(value))
        case _:
            raise TypeError(f"a raw log cannot store a value of the type {type(value).__name__}. Convert it first")


def _time(value: np.datetime64 | dt.date) -> object:
    match value:
        case np.datetime64() | dt.datetime() if value != value:  # noqa: PLR0124  # the NaT of NumPy and pandas
            return None
        case np.datetime64() if value != value.astype("datetime64[us]"):
            raise ValueError(f"{value} has digits below the microsecond. Round it")
        case np.datetime64():
            return _time(value.astype("datetime64[us]").item())
        case dt.datetime() if getattr(value, "nanosecond", 0):  # a timestamp of pandas
            raise ValueError(f"{value} has digits below the microsecond. Round it")
        case dt.datetime() if value.tzinfo is None:
            return {"$local": value.isoformat()}
        case dt.datetime():
            return {"$timestamp": value.astimezone(dt.UTC).isoformat()}
        case dt.date():
            return {"$date": value.isoformat()}
        case _:  # NumPy returns this value for years that Python cannot represent
            raise ValueError("a time is not between the years 1 and 9999")


def _long(value: int) -> int:
    if not _LEAST <= value <= _GREATEST:
        raise ValueError(f"{value} has more than 64 bits. Give the number as a Decimal")
    return value


def _finite(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"{value} is not a decimal number")
    return str(value)


def _object(value: Mapping[Any, object]) -> object:
    if all(isinstance(name, str) for name in value):
        return {_escaped(name): _plain(each) for name, each in value.items()}
    return {"$map": [[_plain(name), _plain(each)] for name, each in value.items()]}


def _array(values: Sequence[object]) -> object:
    # Arrow returns a map as a list of pairs, and accepts only tuples as pairs.
    if values and all(isinstance(each, tuple) and len(each) == _PAIR for each in values):
        return {"$map": [[_plain(part) for part in each] for each in values if isinstance(each, tuple)]}
    return [_plain(each) for each in values]


def _escaped(name: str) -> str:
    return _TAG + name if name.startswith(_TAG) else name


def _restored(pairs: list[tuple[str, Any]]) -> Any:
    """Return the value of a JSON object. The decoder calls this function for each object, inner objects first."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"the field {quoted(repeated(name for name, _ in pairs)[0])} is given twice")
    if not any(name.startswith(_TAG) for name in found):
        return found
    if len(found) == 1:
        ((name, value),) = found.items()
        if not name.startswith(_TAG + _TAG):
            return _TAGS[name](value)
    return {_unescaped(name): value for name, value in found.items()}


def _digits(text: str) -> Digits:
    found = Digits(text)
    if not math.isfinite(found.as_float()):
        raise ValueError(f"{quoted(text)} is too large for a float")
    found.as_decimal()  # raises an error if the exponent is not valid for a decimal
    return found


def _unescaped(name: str) -> str:
    if name.startswith(_TAG) and not name.startswith(_TAG + _TAG):
        raise ValueError(f"{name!r} is not a tag that this release knows")
    return name.removeprefix(_TAG)


def _instant(text: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} is not an instant, because the text has no time zone")
    instant = found.astimezone(dt.UTC)
    _require_form(text, instant.isoformat())
    return instant


def _local(text: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    if found.tzinfo is not None:
        raise ValueError(f"{text!r} has a zone")
    _require_form(text, found.isoformat())
    return found


def _date(text: str) -> dt.date:
    found = dt.date.fromisoformat(text)
    _require_form(text, found.isoformat())
    return found


def _require_form(text: str, form: str) -> None:
    """Raise `ValueError` unless both texts are equal.

    The comparison is needed because `fromisoformat` drops nanoseconds and accepts forms that other readers refuse.
    """
    if text != form:
        raise ValueError(
            f"{text!r} is not a valid time. Write the time as {form!r}, with at most 6 digits of a second. "
            "Write a time with a zone in UTC"
        )


def _unfinite(text: str) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(f"{text!r} is not nan, inf or -inf. Write any other float as a JSON number")
    return float(text)


def _pairs(found: list[list[Any]]) -> list[tuple[Any, Any]]:
    return [(name, value) for name, value in found]


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_TAGS: Mapping[str, Callable[[Any], Any]] = {
    "$float": _unfinite,
    "$decimal": Decimal,
    "$timestamp": _instant,
    "$local": _local,
    "$date": _date,
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$map": _pairs,
}
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode
_DECODE = json.JSONDecoder(object_pairs_hook=_restored, parse_float=_digits, parse_constant=_refused).decode


# Texts of columns.

ROWS_AT_ONCE = 65_536
"""The number of rows that are converted in one step. During this step, the texts of these rows are in memory twice."""

NOT_IN_PYTHON = (ValueError, ArithmeticError, LookupError, pa.ArrowException)
"""Arrow's errors for values that Python cannot represent: a date that is too late, invalid text, an unknown zone."""

_ESCAPED = r'["\\\x00-\x1f]'
_YEARS = (dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1))  # noqa: DTZ001  # for columns with and without a zone
_SPACE = len("2024-01-01")
_SECONDS = len("2024-01-01T00:00:00")


def encode_rows(rows: pa.Table) -> list[str] | None:
    """Return the result of `encode_fields` for each row of `rows.to_pylist()`.

    The result is None if `encode_fields` would refuse a row, if the table has no columns, or if two columns have the
    same name.
    """
    names = rows.column_names
    if not names or len({*names}) < len(names):
        return None
    texts: list[str] = []
    try:
        for batch in rows.to_batches(max_chunksize=ROWS_AT_ONCE):
            texts += _rows(batch).to_pylist()
    except (TypeError, RecursionError, *NOT_IN_PYTHON):
        return None
    return texts


def _rows(batch: pa.RecordBatch) -> pa.StringArray:
    parts: list[pa.Array | str] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        parts += [f"{',' if parts else '{'}{encode_name(name)}:", pc.fill_null(_values(column), "null")]
    return pc.binary_join_element_wise(*parts, "}", "")


def _values(column: pa.Array) -> pa.StringArray:
    """Return the values as JSON. Null stays null."""
    kinds, type_ = pa.types, column.type
    # A raw log does not accept all unsigned integers of 64 bits.
    if kinds.is_boolean(type_) or (kinds.is_integer(type_) and type_ != pa.uint64()):
        return column.cast(pa.string())
    if kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_):
        text = column.cast(pa.string())
        return _one_by_one(text) if _any(pc.match_substring_regex(text, _ESCAPED)) else _around('"', text, '"')
    if type_ in (pa.float32(), pa.float64()) and not _any(pc.invert(pc.is_finite(column))):
        return pa.array([None if each is None else repr(each) for each in column.to_pylist()], pa.string())
    if kinds.is_date32(type_) and _among_years(column):
        return _around('{"$date":"', column.cast(pa.string()), '"}')
    if kinds.is_timestamp(type_) and type_.unit != "ns" and _among_years(column):
        column.drop_null()[:1].to_pylist()  # raises an error for a time zone that Python does not know
        return _instants(column)
    return _one_by_one(column)


def _one_by_one(column: pa.Array) -> pa.StringArray:
    return pa.array([None if each is None else encode_value(each) for each in column.to_pylist()], pa.string())


def _instants(column: pa.Array) -> pa.StringArray:
    """Return the times in the form of `isoformat`, which omits a fraction of zero."""
    local = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
    text = pc.utf8_replace_slice(local.cast(pa.string()), _SPACE, _SPACE + 1, "T")
    whole = pc.equal(local, pc.floor_temporal(local, unit="second"))
    text = pc.if_else(whole, pc.utf8_slice_codeunits(text, 0, _SECONDS), text)
    return (
        _around('{"$local":"', text, '"}') if column.type.tz is None else _around('{"$timestamp":"', text, '+00:00"}')
    )


def _among_years(column: pa.Array) -> bool:
    """Return whether Python can represent all these times in every zone."""
    first, last = (pa.scalar(each).cast(column.type) for each in _YEARS)
    return not _any(pc.or_(pc.less(column, first), pc.greater(column, last)))


def _around(before: str, text: pa.StringArray, after: str) -> pa.StringArray:
    return pc.binary_join_element_wise(before, text, after, "")


def _any(found: pa.BooleanArray) -> bool:
    return bool(pc.any(found).as_py())
