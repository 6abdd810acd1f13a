"""Formats of times in landed text: which directives they may have, and that they give a whole moment.

DuckDB takes the parts of a date that a format lacks from 1900-01-01. Such a time is wrong, so the format is refused.
"""

from __future__ import annotations

import re

from storage_core.errors import InvalidInput

_DIRECTIVE = re.compile("%(-?.|$)", re.DOTALL)
_KNOWN = frozenset("aAbBcdfgGhHIjmMpSuUVwWxXyYzZ%") | frozenset("-" + each for each in "dHIjmMSy")
_YEAR, _MONTH, _WEEKDAY = {"Y", "y", "x", "c"}, {"m", "b", "B", "h"}, {"a", "A", "u", "w"}
_DAYS = (({"d"}, _MONTH), ({"j"},), ({"x", "c"},), ({"U", "W"}, _WEEKDAY))
"""What names a day of a year: one directive of each set of a line."""
_UNREADABLE = {
    "n": "reads nanoseconds, and a timestamp has microseconds. Write up to 6 digits after the second, read by %f",
    "Q": "reads milliseconds since 1970, which cannot land. Write times as text, such as 2026-01-01T10:00:00Z",
    "s": "reads seconds since 1970, which cannot land. Write times as text, such as 2026-01-01T10:00:00Z",
}


def check_time_format(text: str) -> None:
    """Raise `InvalidInput` if the strptime format has an unknown directive or does not give a year and a day."""
    given = _DIRECTIVE.findall(text)
    for each in given:
        if why := _fault(each):
            raise InvalidInput(f"time_format {text!r} is not usable: {why}")
    parts = {each.removeprefix("-") for each in given}
    is_iso = bool("G" in parts and "V" in parts and parts & _WEEKDAY)
    if not is_iso and not parts & _YEAR:
        raise InvalidInput(
            f"time_format {text!r} has no year, so each time would be in the year 1900. Land times with a year and add "
            "%Y"
        )
    if not is_iso and not any(all(parts & each for each in named) for named in _DAYS):
        raise InvalidInput(
            f"time_format {text!r} has no day, so each time would be on the first. Add the month and the day, such as "
            "%m and %d, or the day of the year, %j"
        )
    if "I" in parts and "p" not in parts:
        raise InvalidInput(f"time_format {text!r} has a 12-hour clock and no %p. Add %p, or use %H")
    if "y" in parts and parts & {"Y", "G", "x", "c"}:
        raise InvalidInput(f"time_format {text!r} has %y after another year. Leave one of them out")


def _fault(directive: str) -> str | None:
    if not directive:
        return "it ends with %. Write %% for a percent sign"
    if why := _UNREADABLE.get(directive):
        return f"%{directive} {why}"
    return None if directive in _KNOWN else f"%{directive} is not a directive. Use one of docs/declarations.md"
