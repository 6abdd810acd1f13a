"""Cron lines in settings, judged completely: a line that is taken is one that a scheduler can follow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from storage_core.errors import InvalidInput

_FIELDS: Final[Mapping[str, range]] = {
    "minute": range(60),
    "hour": range(24),
    "day": range(1, 32),
    "month": range(1, 13),
    "weekday": range(8),
}
_PART = re.compile(r"(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?", re.ASCII)
_MONTH_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def parse_cron(given: object) -> str:
    """Return the line with single spaces between its five fields. Raises `InvalidInput`, also where no date matches."""
    parts = given.split() if isinstance(given, str) else []
    if len(parts) != len(_FIELDS):
        raise InvalidInput(f"{given!r} is not a cron line of five fields, such as '*/15 * * * *'")
    found = {name: _numbers(part, name) for name, part in zip(_FIELDS, parts, strict=True)}
    day = min(found["day"])
    if day > max(_MONTH_DAYS[month - 1] for month in found["month"]):
        raise InvalidInput(f"{given!r} is a cron line that never comes: none of its months has a day {day}")
    return " ".join(parts)


def _numbers(field: str, name: str) -> set[int]:
    """The numbers that a field of a line names."""
    return {number for part in field.split(",") for number in _numbers_of_part(part, name)}


def _numbers_of_part(part: str, name: str) -> range:
    allowed = _FIELDS[name]
    if found := _PART.fullmatch(part):
        first, last, step = (None if each is None else int(each) for each in found.groups())
        start = allowed[0] if first is None else first
        is_one = first is not None and last is None and step is None
        end = start if is_one else allowed[-1] if last is None else last
        if start in allowed and end in allowed and (is_one or start < end) and step != 0:
            return range(start, end + 1, step or 1)
    raise InvalidInput(
        f"{part!r} is not the {name} of a cron line; write *, a number from {allowed[0]} to {allowed[-1]} or a range "
        f"that ascends, such as {allowed[1]}-{allowed[4]}, and after / a step of at least 1"
    )
