"""Sizes in settings: `256MiB`, `50GB` and the like, or a number of bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from storage_core.errors import InvalidInput

_SIZE = re.compile(r"(\d{1,15})\s*(B|[KMGT]i?B)?")
_UNITS: Final[Mapping[str, int]] = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_DECIMAL: Final[Mapping[str, int]] = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3}


def parse_size(given: str | int) -> int:
    """Return the bytes of a number of them, or of text such as `64MiB`. Raises `InvalidInput`."""
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    found = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is None:
        raise InvalidInput(
            f"{given!r} is not a size; write a number of bytes, or one with a unit: one of KB, MB, GB and TB, such as "
            "50GB, or one of KiB, MiB, GiB and TiB, such as 256MiB"
        )
    return int(found[1]) * {**_UNITS, **_DECIMAL}.get(found[2] or "", 1)


def size_text(size_bytes: int) -> str:
    """Return the shortest text that `parse_size` reads back."""
    unit = next((name for name, size in _UNITS.items() if size_bytes and size_bytes % size == 0), None)
    return str(size_bytes) if unit is None else f"{size_bytes // _UNITS[unit]}{unit}"
