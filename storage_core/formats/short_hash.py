"""Names for texts that are too long, or not ours to show."""

from __future__ import annotations

import xxhash


def short_hash(text: str) -> str:
    """Return a short text that stands for another one."""
    return xxhash.xxh3_128_hexdigest(text.encode())
