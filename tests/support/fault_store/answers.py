"""Replies that differ from the stored data, as if a cable, cache or gateway had changed content or listings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import assert_never

from storage_core.store.contract import ObjectInfo
from tests.support.damage import flip_bit, truncate
from tests.support.fault_store.faults import GetFault, ListFault


def changed_content(fault: GetFault, data: bytes, random: Random, swapped: Callable[[], bytes]) -> bytes:
    """Return the damaged content that a faulty get returns instead of the stored content `data`.

    If `data` is too short for a change, return `data`.

    `swapped` returns the bytes of a different object than the requested object. For a refused request, the content does
    not change.
    """
    match fault:
        case GetFault.TORN:
            return truncate(data, random) if len(data) > 1 else b""
        case GetFault.EMPTY:
            return b""
        case GetFault.FLIPPED:
            return flip_bit(data, random) if data else data
        case GetFault.SWAPPED:
            return swapped()
        case GetFault.REFUSED | GetFault.TIMED_OUT:
            return data
        case unreachable:
            assert_never(unreachable)


def changed_listing(
    fault: ListFault, found: Sequence[ObjectInfo], random: Random, page_keys: int
) -> Sequence[ObjectInfo]:
    """Return a faulty copy of the correct listing `found`. One page of the listing has `page_keys` keys."""
    pages = [list(found[start : start + page_keys]) for start in range(0, len(found), page_keys)]
    match fault:
        case ListFault.REORDERED:
            return random.sample(found, len(found))
        case ListFault.DOUBLED:
            repeated = random.randrange(len(pages)) if pages else 0
            pages.insert(repeated, pages[repeated] if pages else [])
        case ListFault.CUT:
            pages = pages[: random.randrange(1, len(pages))] if len(pages) > 1 else pages
        case ListFault.START_INCLUDED | ListFault.REFUSED | ListFault.TIMED_OUT:
            pass
        case unreachable:
            assert_never(unreachable)
    return [info for page in pages for info in page]
