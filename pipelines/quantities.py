"""Durations and sizes in the words of people."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def duration(milliseconds: int) -> str:
    """Return a duration in its greatest whole unit, such as `3h`."""
    for unit, name in _UNITS:
        if milliseconds >= unit:
            return f"{milliseconds // unit:,}{name}"
    return "0s"


def age(now_ms: int, moment_ms: int | None) -> str:
    """Return how long ago a moment was; nothing where there is none."""
    return "" if moment_ms is None else duration(max(0, now_ms - moment_ms))


def size(count: int) -> str:
    """Return bytes in a unit that leaves at most four digits, such as `12.3 MiB`."""
    number, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{count} B" if unit == "B" else f"{number:,.1f} {unit}"
