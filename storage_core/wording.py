"""Numbers and lists as people read them: one row, two rows; the first entries, and how many more there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MOST_LISTED: Final = 20
"""How many names an error lists; the report has all."""


def first_of(items: Sequence[object], most: int) -> list[object]:
    """Return the first `most` items and, where there are others, a text that says how many."""
    more = [f"and {len(items) - most} more"] if len(items) > most else []
    return [*items[:most], *more]


def listed(names: Sequence[object]) -> str:
    """Return the first `MOST_LISTED` of these names as an error lists them, and how many more there are."""
    return ", ".join(map(str, first_of(names, MOST_LISTED)))


def counted(number: int, noun: str, several: str | None = None) -> str:
    """Return a number with its noun: `1 row`, `2,000 rows`; `several` is the plural where that is not by an `s`."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"
