"""The collector's boundary, `_gc/boundary.json`: below it numbered names may be free again.

It moves forward, by compare-and-swap, before the first version file below it is deleted. A writer that creates a
version with a number below the boundary has come back from a long stall: the name was taken once, and its commit never
counts.
"""

from __future__ import annotations

from storage_core.formats.gc_boundary import encode
from storage_core.formats.keys import gc_boundary_key
from storage_core.gc.replace import replace_state
from storage_core.log.boundary import read_boundary
from storage_core.objectstore.contract import ObjectStore


def advance_boundary(store: ObjectStore, first: int, *, nonce: str) -> None:
    """Make sure that the boundary is at `first` or beyond; it never goes back. One GET, at most one PUT.

    Raises `CommitConflict` or `CommitUnknown` when it is not certain to be there: then nothing may be deleted.
    """
    current, etag = read_boundary(store)
    if current >= first:
        return
    replace_state(store, gc_boundary_key(), encode(first, nonce=nonce), etag=etag)
