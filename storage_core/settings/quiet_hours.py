"""Hours of the day, UTC, in which upkeep rests: `08:00-18:00`, or `22:00-06:00` over midnight."""

from __future__ import annotations

import re
from dataclasses import dataclass

from storage_core.errors import InvalidInput

_TIME = r"([01]\d|2[0-3]):([0-5]\d)"
_HOURS = re.compile(rf"{_TIME}\s*-\s*(?:{_TIME}|(24):(00))")
_MINUTE_MS = 60_000
_DAY_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From `start` (inclusive) to `end` (exclusive), in minutes of the day; past midnight where `end` is not later."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """Return the hours that the text names. Raises `InvalidInput`."""
        found = _HOURS.fullmatch(text.strip())
        if found is None:
            raise InvalidInput(f"{text!r} are no hours; write them as 08:00-18:00 (UTC), or 22:00-06:00 past midnight")
        first, second, *last = (int(each) for each in found.groups() if each is not None)
        start, end = first * 60 + second, last[0] * 60 + last[1]
        if start == end % _DAY_MINUTES:
            raise InvalidInput(f"{text!r} are no hours of a day: they end where they begin; leave some for upkeep")
        return cls(start, end)

    def hold(self, at_ms: int) -> bool:
        """Return whether this time is in them."""
        minute = at_ms // _MINUTE_MS % _DAY_MINUTES
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end

    def __str__(self) -> str:
        """Return what `parse` reads back."""
        return "-".join(f"{each // 60:02}:{each % 60:02}" for each in (self.start, self.end))
