"""How many generated cases a test tries: so many by default, `TIDEMARK_SCALE` times as many when that is set."""

from __future__ import annotations

import os


def scaled(default: int) -> int:
    """Return `default` times the whole number in `TIDEMARK_SCALE`, which is 1 when it is not set."""
    return default * int(os.environ.get("TIDEMARK_SCALE", "1"))
