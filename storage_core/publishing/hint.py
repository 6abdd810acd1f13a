"""Hints: small objects that say where the newest of something numbered is, or near it."""

from __future__ import annotations

from collections.abc import Callable

from storage_core.errors import NotFound
from storage_core.objectstore.contract import ObjectStore, unchanged
from storage_core.objectstore.create import put_or_unknown


def advance_hint(
    store: ObjectStore, key: str, number: int, data: bytes, *, decode: Callable[[bytes], int | None]
) -> None:
    """Point the hint at the number unless it names a later one. A GET and a PUT.

    Losing a race is no error: the winner's is as good.
    """
    try:
        blob = store.get(key)
    except NotFound:
        etag = None
    else:
        known = decode(blob.data)
        if known is not None and known >= number:
            return
        etag = blob.etag
    put_or_unknown(store, key, data, unchanged(etag))
