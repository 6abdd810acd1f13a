"""The collector's boundary, `_gc/boundary.json`: below it numbered names may be free again.

It moves forward, by compare-and-swap, before the first version file below it is deleted. Whoever creates a version
with a number below the boundary has come back from a long stall: the name was taken once, and its commit never counts.
"""

from __future__ import annotations

from storage_core.errors import NotFound
from storage_core.formats.gc_boundary import decode, encode
from storage_core.formats.keys import gc_boundary_key
from storage_core.gc.replace import replace_state
from storage_core.objectstore.contract import ObjectStore


def first_version(store: ObjectStore) -> int:
    """Return the first version that may exist, 0 before any collection. One GET.

    Raises `Corrupt` when the boundary cannot be parsed: unlike a hint, it is the only record of what was deleted.
    """
    return _read(store)[0]


def advance_boundary(store: ObjectStore, first: int, *, nonce: str) -> None:
    """Make sure that the boundary is at `first` or beyond; it never goes back. One GET, at most one PUT.

    Raises `CommitConflict` or `CommitUnknown` when it is not certain to be there: then nothing may be deleted.
    """
    current, etag = _read(store)
    if current >= first:
        return
    replace_state(store, gc_boundary_key(), encode(first, nonce=nonce), etag=etag)


def _read(store: ObjectStore) -> tuple[int, str | None]:
    """The boundary and the ETag to replace it by, which is None without one."""
    try:
        blob = store.get(gc_boundary_key())
    except NotFound:
        return 0, None
    return decode(blob.data), blob.etag
