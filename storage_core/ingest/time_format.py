"""Formats of times in landed text: which directives they may have, and that they give the moment that was written.

DuckDB takes the parts of a date that a format lacks from 1900-01-01, and ignores some directives beside others. Such a
time is wrong, so the format is refused.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import Final

from storage_core.engine.session import session
from storage_core.errors import InvalidInput

_DIRECTIVE = re.compile("%(-?.|$)", re.DOTALL)
_KNOWN = frozenset("aAbBcdfgGhHIjmMpSuUVwWxXyYzZ%") | frozenset("-" + each for each in "dHIjmMSy")
_YEAR, _MONTH, _WEEKDAY = {"Y", "y", "x", "c"}, {"m", "b", "B", "h"}, {"a", "A", "u", "w"}
_DAYS = (({"d"}, _MONTH), ({"j"},), ({"x", "c"},), ({"U", "W"}, _WEEKDAY))
"""What names a day of a year: one directive of each set of a line."""
_PROBES: Final = tuple(
    datetime.fromisoformat(f"{day}T13:45:06.789012")
    for day in (
        *("2026-11-27", "2026-11-22", "2026-11-23", "2026-01-11", "2026-01-01", "2026-01-04", "2024-02-29"),
        *("2024-12-30", "2024-12-31", "2021-01-03", "2023-01-01", "2018-01-01", "1970-01-01", "2025-12-29"),
    )
)
"""Moments on every weekday, around the first and last week of years of all kinds, and with short numbers."""
_UNREADABLE = {
    "n": "reads nanoseconds, and a timestamp has microseconds. Write up to 6 digits after the second, read by %f",
    "Q": "reads milliseconds since 1970, which cannot land. Write times as text, such as 2026-01-01T10:00:00Z",
    "s": "reads seconds since 1970, which cannot land. Write times as text, such as 2026-01-01T10:00:00Z",
}


def check_time_format(text: str) -> None:
    """Raise `InvalidInput` if the strptime format has an unknown directive or does not give the day that was written.

    DuckDB writes some days in the format and reads them again: which directives count depends on the others, and on
    their order.
    """
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
    if wrong := _misread(text):
        written, found = wrong
        raise InvalidInput(
            f"time_format {text!r} does not give the day that was written. DuckDB reads {written!r} as {found}. Name "
            "the day by %Y-%m-%d, %Y-%j or %G-%V-%u alone"
        )


@lru_cache(maxsize=64)
def _misread(text: str) -> tuple[str, str] | None:
    """Return a day as the format has it, and what is read from that, where this is another day or none."""
    # A zone names no day, and a timestamp without one has none to write: a letter stands for it.
    probed = _DIRECTIVE.sub(lambda each: "Z" if each[1] in {"z", "Z"} else each[0], text)
    read = (
        "SELECT text, coalesce(CAST(CAST(found AS DATE) AS VARCHAR), 'no time') FROM ("
        "SELECT probe, strftime(probe, $format) AS text, try_strptime(strftime(probe, $format), $format) AS found "
        "FROM (SELECT unnest(CAST($probes AS TIMESTAMP[])) AS probe)) "
        "WHERE CAST(found AS DATE) IS DISTINCT FROM CAST(probe AS DATE) LIMIT 1"
    )
    with session(threads=1) as connection:
        import duckdb  # as `session` does: most declarations have no format

        try:
            return connection.execute(read, {"format": probed, "probes": list(_PROBES)}).fetchone()
        except duckdb.Error as error:
            problem = str(error).splitlines()[0]
            raise InvalidInput(f"time_format {text!r} is not usable: {problem}") from error


def _fault(directive: str) -> str | None:
    if not directive:
        return "it ends with %. Write %% for a percent sign"
    if why := _UNREADABLE.get(directive):
        return f"%{directive} {why}"
    return None if directive in _KNOWN else f"%{directive} is not a directive. Use one of docs/declarations.md"
