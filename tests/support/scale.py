"""How much a test tries: so many examples, seeds, kills or days by default, `TIDEMARK_SCALE` times as many when set."""

from __future__ import annotations

import os


def scaled(default: int) -> int:
    """Return `default` times the whole number in `TIDEMARK_SCALE`, which is 1 when it is not set."""
    return default * int(os.environ.get("TIDEMARK_SCALE", "1"))
