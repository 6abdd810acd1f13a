"""Replacing the collector's own state by compare-and-swap (docs/architecture/collection.md)."""

from __future__ import annotations

from typing import assert_never

from storage_core.errors import CommitConflict, CommitUnknown
from storage_core.objectstore.contract import Committed, Conflict, ObjectStore, OutcomeUnknown, unchanged


def replace_state(store: ObjectStore, key: str, data: bytes, *, etag: str | None) -> str:
    """Replace the object that still has `etag` (None: that does not exist) and return its new ETag. One PUT.

    Raises `CommitConflict` when another collector was first, `CommitUnknown` when the store did not say.
    """
    result = store.put(key, data, unchanged(etag))
    match result:
        case Committed(new):
            return new
        case Conflict():
            raise CommitConflict(f"{key}: another collector is at work on {store.uri}; run again later", key=key)
        case OutcomeUnknown(reason):
            raise CommitUnknown(f"{key}: the store did not say ({reason}); run the collector again", key=key)
        case _:
            assert_never(result)
