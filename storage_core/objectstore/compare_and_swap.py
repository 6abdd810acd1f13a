"""Replacing one small object by compare-and-swap, also when the store loses the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from storage_core.clock import Clock
from storage_core.errors import CommitUnknown, NotWritten
from storage_core.ids import Ids, random_pause_ms
from storage_core.objectstore.contract import Committed, ObjectStore, OutcomeUnknown, PutResult
from storage_core.objectstore.create import require_durable

ATTEMPTS = 10
_FIRST_PAUSE_MS = 40
_LONGEST_PAUSE_MS = 10_240

_T = TypeVar("_T")


def compare_and_swap(
    read: Callable[[], _T],
    change: Callable[[_T], _T],
    put: Callable[[_T], PutResult],
    *,
    store: ObjectStore,
    key: str,
    clock: Clock,
    ids: Ids,
) -> _T | None:
    """Return what stands there once `change` made it so, or None when all attempts lost against others.

    Each attempt reads, changes and puts what came out; `put` must fail unless all is as it was read, and write other
    bytes each time. Where `change` returns what it was given nothing is written: there is nothing to do, or our own put
    landed and its reply was lost. That is made durable first. One read and one put when nobody interferes; the attempts
    wait for longer and longer, at random. Raises `CommitUnknown` naming `key` when the store did not say, `NotWritten`,
    and whatever `read` and `change` raise.
    """
    last: PutResult | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            clock.sleep_ms(random_pause_ms(ids, attempt, first_ms=_FIRST_PAUSE_MS, longest_ms=_LONGEST_PAUSE_MS))
        current = read()
        wanted = change(current)
        if wanted is current:
            require_durable(store, key, advice="look, and try again")
            return current
        try:
            last = put(wanted)
        except NotWritten as error:
            if not isinstance(last, OutcomeUnknown):
                raise
            last = OutcomeUnknown(f"{last.reason}; then {error}")
        if isinstance(last, Committed):
            return wanted
    if isinstance(last, OutcomeUnknown):
        raise CommitUnknown(f"{key}: the store did not say ({last.reason}); look, and try again", key=key)
    return None
