"""What a field of stored JSON must be, where a value of another type would pass for it."""

from __future__ import annotations


def number(value: object) -> int:
    """Return a whole number from 0 to 2**63 - 1. Raises `ValueError` for anything else, also a float or a boolean."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no number from 0 to 2**63 - 1")
    return value


def text(value: object) -> str:
    """Return a text. Raises `TypeError` for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
