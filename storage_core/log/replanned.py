"""A commit that is planned again on the newer version when others were first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from storage_core.errors import CommitConflict
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot

ATTEMPTS = 10

_Done = TypeVar("_Done")


def replanned(log: TransactionLog, head: Snapshot, attempt: Callable[[Snapshot], _Done]) -> _Done:
    """Return what an attempt on `head` returns, or on a newer version where one before it was a conflict.

    Requests: those of each attempt, and of `log.refresh` before all but the first. Raises the `CommitConflict` of the
    tenth, and what an attempt raises.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return attempt(head)
        except CommitConflict:
            head = log.refresh(head)
    return attempt(head)
