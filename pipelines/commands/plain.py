"""Values of rows as JSON has them: the one mapping behind every `--json` line (`docs/spec.md`, "Command line")."""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Mapping
from decimal import Decimal


def plain(value: object) -> object:
    """Return the value as JSON data that loses nothing.

    Moments are ISO text in UTC with `Z` (without it when the column has no zone), decimals text with all their digits,
    except those without decimal places, which are integers; binary is base64; the floats that JSON lacks are "NaN",
    "Infinity" and "-Infinity"; an interval is [months, days, nanoseconds].
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _unfinite(value)
        case Decimal():
            return int(value) if value == value.to_integral_value() and _places(value) <= 0 else format(value, "f")
        case dt.datetime():
            instant = value if value.tzinfo is None else value.astimezone(dt.UTC)
            return instant.isoformat().replace("+00:00", "Z")
        case dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return str(value)


def _unfinite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _places(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0
