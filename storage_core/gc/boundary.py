"""The collector's boundary, `_gc/boundary.json`: below it numbered names may be free again (design page 06).

It moves forward, by compare-and-swap, before the first version file below it is deleted. Whoever creates a version
with a number below the boundary has come back from a long stall: the name was taken once, and its commit never counts.
"""

from __future__ import annotations

import json

from storage_core.errors import SEE_CORRUPT, Corrupt, NotFound
from storage_core.formats.keys import gc_boundary_key
from storage_core.gc.replace import replace_state
from storage_core.objectstore.contract import ObjectStore


def read_boundary(store: ObjectStore) -> tuple[int, str | None]:
    """Return the first version that may exist, 0 before any collection, and the boundary's ETag. One GET.

    Raises `Corrupt` when it cannot be parsed: unlike a hint, it is the only record of what was deleted.
    """
    try:
        blob = store.get(gc_boundary_key())
    except NotFound:
        return 0, None
    try:
        return int(json.loads(blob.data)["firstVersion"]), blob.etag
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"{gc_boundary_key()}: not a boundary: {error}; {SEE_CORRUPT}", key=gc_boundary_key()) from error


def advance_boundary(store: ObjectStore, first_version: int, *, nonce: str) -> None:
    """Make sure that the boundary is at `first_version` or beyond; it never goes back. One GET, at most one PUT.

    Raises `CommitConflict` or `CommitUnknown` when it is not certain to be there: then nothing may be deleted.
    """
    current, etag = read_boundary(store)
    if current >= first_version:
        return
    body = json.dumps({"firstVersion": first_version, "nonce": nonce}, separators=(",", ":")).encode()
    replace_state(store, gc_boundary_key(), body, etag=etag)
