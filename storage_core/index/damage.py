"""Segments that are not what was written, as errors that say what to do about it."""

from __future__ import annotations

from typing import Final

from storage_core.errors import Corrupt

REBUILD: Final = "drop the index segment and catch up again"


def damaged(where: str, what: str) -> Corrupt:
    """Return the error of an object of an index in which `what` was found."""
    return Corrupt(f"{where}: {what}", advice=REBUILD, key=where)
