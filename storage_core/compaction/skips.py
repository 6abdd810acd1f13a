"""A merge that fails by its inputs: they are left out for a day (`mergeskip`, "Policy").

So one damaged split does not stop its window for ever, nor the other windows at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from storage_core.compaction.work import SKIP_OPERATION
from storage_core.errors import Corrupt, InvalidInput, NotFound, Unsupported
from storage_core.foreign_text import fitted
from storage_core.log.actions import Add, MergeSkip
from storage_core.log.snapshot import Snapshot

LASTING = (Corrupt, InvalidInput, NotFound, Unsupported)
"""Errors that the same inputs meet again. Whatever else fails may succeed the next time, and nothing is skipped."""

SKIP_MS = 24 * 3_600_000

_MOST_REASON = 500


def skips_of(snapshot: Snapshot, adds: Iterable[Add], reason: str, now_ms: int) -> list[MergeSkip]:
    """Return the actions that leave out those of a task's inputs that the reason names, or all where it names none.

    Each counts how often its split was skipped before. A split that leaves the table takes its skip along.
    """
    inputs = [add.path for add in adds]
    named = [path for path in inputs if path in reason]
    return [
        MergeSkip(
            path=path,
            skipTimestamp=now_ms,
            reason=fitted(reason, _MOST_REASON),
            operation=SKIP_OPERATION,
            retryAfter=now_ms + SKIP_MS,
            skipCount=1 + (snapshot.mergeskips[path].skipCount if path in snapshot.mergeskips else 0),
        )
        for path in named or inputs
    ]


def active_skips(skips: Iterable[MergeSkip], now_ms: int) -> frozenset[str]:
    """Return the paths that a compaction leaves out at `now_ms`."""
    return frozenset(
        skip.path
        for skip in skips
        if skip.operation == SKIP_OPERATION and (skip.retryAfter is None or skip.retryAfter > now_ms)
    )
