"""Telling what another collector removed from what is lost (decision 0091).

A collector that overlaps with another one, or was paused and lost its lease, may read a name and then not find the
object: it was faster. That is no damage. What is needed is missing each time somebody looks; what was only needed by a
view that is over is not looked for again. So a second look tells the two apart, and nobody deletes after either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from storage_core.errors import CommitConflict, Corrupt, NotFound, SnapshotExpired
from storage_core.objectstore.contract import ObjectStore

MISSING = (NotFound, Corrupt, SnapshotExpired)
"""What a look may raise when something is not there."""

LOOKS = 5
"""Looks at a table that others keep changing, before it is left to them."""

_T = TypeVar("_T")


def undisturbed(store: ObjectStore, look: Callable[[], _T]) -> _T:
    """Return what `look` reads, which must change nothing that a second call does not find done.

    Raises the error of `MISSING` that two looks in a row meet; `CommitConflict` when a later look does not meet any, or
    none of `LOOKS` the one before it met: another collector changes what they read. Only an error costs a second look.
    """
    try:
        return look()
    except MISSING as error:
        first = last = error
    for _ in range(1, LOOKS):
        try:
            look()
        except MISSING as error:
            if str(error) == str(last):
                raise
            last = error
        else:
            break
    raise CommitConflict(
        f"{first.found}; a later look did not meet that: another collection of {store.uri} removed it meanwhile; "
        "run it again",
        **first.context,
    ) from first
