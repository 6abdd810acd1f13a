"""Reading the collector's boundary, `_gc/boundary.json`: below it version numbers may be free again."""

from __future__ import annotations

from storage_core.errors import NotFound
from storage_core.formats.gc_boundary import decode
from storage_core.formats.keys import gc_boundary_key
from storage_core.objectstore.contract import ObjectStore


def first_version(store: ObjectStore) -> int:
    """Return the first version that may exist, 0 before any collection. One GET.

    Raises `Corrupt` when the boundary cannot be parsed: unlike a hint, it is the only record of what was deleted.
    """
    return read_boundary(store)[0]


def read_boundary(store: ObjectStore) -> tuple[int, str | None]:
    """Return the boundary and the ETag to replace it by, which is None without one. One GET; errors as above."""
    try:
        blob = store.get(gc_boundary_key())
    except NotFound:
        return 0, None
    return decode(blob.data), blob.etag
