"""Asking several regions at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

PARALLEL = 8
"""Regions that a reader asks at once."""

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def side_by_side(work: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
    """Return what `work` gives for each item, in order; up to `PARALLEL` at once. A single one runs right here."""
    if len(items) <= 1:
        return [work(each) for each in items]
    with ThreadPoolExecutor(min(PARALLEL, len(items)), thread_name_prefix="tidemark-regions") as pool:
        return list(pool.map(work, items))
