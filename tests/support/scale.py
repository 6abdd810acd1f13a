"""The amount of work per test: the default number of examples, seeds, kills or days, times `TIDEMARK_SCALE`."""

from __future__ import annotations

import os


def scale() -> float:
    """Return the number in `TIDEMARK_SCALE`, by default 1. `make check` sets one half."""
    return float(os.environ.get("TIDEMARK_SCALE", "1"))


SMALL = 30
"""A scale below 1 does not reduce counts up to this value. Examples are the number of days or kills in a test setup."""


def scaled(default: int) -> int:
    """Return `default` times `TIDEMARK_SCALE`, but at least the smaller of `default` and `SMALL`."""
    return max(min(default, SMALL), round(default * scale()))
