"""The amount of work per test: the default number of examples, seeds, kills or days, times `TIDEMARK_SCALE`."""

from __future__ import annotations

import os


def scale() -> float:
    """Return the number in `TIDEMARK_SCALE`, by default 1. `make check` sets `TIDEMARK_SCALE` to one half."""
    return float(os.environ.get("TIDEMARK_SCALE", "1"))


SMALL = 30
"""A scale below 1 does not change counts of at most `SMALL`, such as the number of days in a test setup."""


def scaled(default: int) -> int:
    """Return `default` times `TIDEMARK_SCALE`, but at least the smaller of `default` and `SMALL`."""
    return max(min(default, SMALL), round(default * scale()))
