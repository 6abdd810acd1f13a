"""The fields of a raw log record as JSON text that loses no type (docs/architecture/ingestion.md, "Records").

The raw log does not know the tables' schemas, so a value has to say by itself what it is. What JSON has is written as
JSON; everything else is an object with one member, a tag:

| Value | Written as | | Value | Written as |
|---|---|---|---|---|
| null, boolean, text | as it is | | moment (UTC) | `{"$timestamp": "2024-01-01T00:00:00.000001+00:00"}` |
| integer of 64 bits | as it is, all digits | | moment without a zone | `{"$local": "2024-01-01T00:00:00"}` |
| finite float | as it is, with point or exponent | | date | `{"$date": "2024-01-01"}` |
| NaN, infinities | `{"$float": "nan"}`, `inf`, `-inf` | | bytes | `{"$bytes": "<base64>"}` |
| decimal | `{"$decimal": "1.50"}` | | map | `{"$map": [[key, value], …]}` |

A date or a moment in a tag has exactly that form, a fraction six digits, none when it is zero: what Arrow has of
nanoseconds is written with nine and refused by `decode_fields`, for no column keeps it.

A number with point or exponent that a producer wrote in JSON keeps its digits (`Digits`): whether they are a float or a
decimal, the column says. An object's own name that starts with `$` gets one `$` more. Text keeps a chunk readable for
every Avro reader; a union of Avro types would have to be recursive, and how deep a decoder in C recurses would be the
file's choice.
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

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.repeated import repeated

_TAG = "$"
_LEAST, _GREATEST = -(2**63), 2**63 - 1
_PAIR = 2


@dataclass(frozen=True, slots=True)
class Digits:
    """A finite number with point or exponent as it is written in JSON: its text, which a float would not keep."""

    text: str

    def as_float(self) -> float:
        """Return the nearest float."""
        return float(self.text)

    def as_decimal(self) -> Decimal:
        """Return exactly this number."""
        return Decimal(self.text)


def encode_fields(fields: Mapping[str, object]) -> str:
    """Return the fields as one line of JSON.

    Raises `InvalidInput` naming the field whose value has no form here: another type, an integer beyond 64 bits, text
    that is not Unicode, nesting without end.
    """
    written: dict[str, object] = {}
    for name, value in fields.items():
        if not isinstance(name, str):
            raise InvalidInput(f"the name of a field is text, found {name!r}")
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
    """Return one value as it stands in the text of its record. Raises `ValueError`, `TypeError`, `RecursionError`."""
    return _text(_plain(value))


def encode_name(name: str) -> str:
    """Return the name of a field as it stands in the text of its record."""
    return _ENCODE(_escaped(name))


def decode_fields(text: str) -> dict[str, Any]:
    """Return the fields that `encode_fields` or a producer wrote, each of the type it has, and `Digits` for floats.

    Raises `InvalidInput` for other text, for a name given twice in one object, for a number beyond every float, and for
    a moment that is finer than a microsecond.
    """
    try:
        found = _DECODE(text)
    except (ValueError, TypeError, LookupError, OverflowError, InvalidOperation, RecursionError) as error:
        raise InvalidInput(f"the fields are not what a raw log holds: {error}: {quoted(text)}") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"the fields are no object: {quoted(text)}")
    return found


def _text(value: object) -> str:
    try:
        return _ENCODE(value)
    except TypeError:  # there are `Digits` somewhere, which the encoder in C has no way to write
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
            raise TypeError(f"a raw log has no form for {type(value).__name__}")


def _time(value: np.datetime64 | dt.date) -> object:
    match value:
        case np.datetime64() | dt.datetime() if value != value:  # noqa: PLR0124  # the NaT of NumPy and pandas
            return None
        case np.datetime64() if value != value.astype("datetime64[us]"):
            raise ValueError(f"{value} has digits below the microsecond. Round it")
        case np.datetime64():
            return _time(value.astype("datetime64[us]").item())
        case dt.datetime() if getattr(value, "nanosecond", 0):  # of pandas
            raise ValueError(f"{value} has digits below the microsecond. Round it")
        case dt.datetime() if value.tzinfo is None:
            return {"$local": value.isoformat()}
        case dt.datetime():
            return {"$timestamp": value.astimezone(dt.UTC).isoformat()}
        case dt.date():
            return {"$date": value.isoformat()}
        case _:  # what NumPy gives for years that Python does not have
            raise ValueError("a time is not between the years 1 and 9999")


def _long(value: int) -> int:
    if not _LEAST <= value <= _GREATEST:
        raise ValueError(f"{value} has more than 64 bits; give it as a Decimal")
    return value


def _finite(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"{value} is no decimal number")
    return str(value)


def _object(value: Mapping[Any, object]) -> object:
    if all(isinstance(name, str) for name in value):
        return {_escaped(name): _plain(each) for name, each in value.items()}
    return {"$map": [[_plain(name), _plain(each)] for name, each in value.items()]}


def _array(values: Sequence[object]) -> object:
    # Arrow hands out a map as a list of pairs, and takes nothing but tuples for them.
    if values and all(isinstance(each, tuple) and len(each) == _PAIR for each in values):
        return {"$map": [[_plain(part) for part in each] for each in values if isinstance(each, tuple)]}
    return [_plain(each) for each in values]


def _escaped(name: str) -> str:
    return _TAG + name if name.startswith(_TAG) else name


def _restored(pairs: list[tuple[str, Any]]) -> Any:
    """Called for every object, from the inside out."""
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
        raise ValueError(f"{quoted(text)} is beyond every float")
    found.as_decimal()  # raises for an exponent that no decimal has
    return found


def _unescaped(name: str) -> str:
    if name.startswith(_TAG) and not name.startswith(_TAG + _TAG):
        raise ValueError(f"{name!r} is no tag that this release knows")
    return name.removeprefix(_TAG)


def _instant(text: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} names no instant")
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
    """`fromisoformat` cuts what is finer than a microsecond, and takes forms that other readers do not."""
    if text != form:
        raise ValueError(f"{text!r} is not of the form of {form!r}: to the microsecond, a moment with a zone in UTC")


def _unfinite(text: str) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(f"{text!r} is a float that JSON has")
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
