"""How much a test tries: so many examples, seeds, kills or days by default, `TIDEMARK_SCALE` times as many when set."""

from __future__ import annotations

import os


def scale() -> float:
    """Return the number in `TIDEMARK_SCALE`, which is 1 when it is not set: `make check` tries half as much."""
    return float(os.environ.get("TIDEMARK_SCALE", "1"))


SMALL = 30
"""Counts up to this are the shape of a test, such as days and kills. A scale below 1 leaves them as they are."""


def scaled(default: int) -> int:
    """Return `default` times `TIDEMARK_SCALE`, but not below the smaller of `default` and `SMALL`."""
    return max(min(default, SMALL), round(default * scale()))
