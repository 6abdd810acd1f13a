"""Up to which chunk of each writer a raw log was collected, as its stores say (docs/architecture/collection.md).

It is written to every store that answers before a chunk is deleted in any, and never goes back. So one store that has
it suffices, and what one of them says is at most too little: then collected chunks look missing, and nothing is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.raw_collected import Collected, decode
from storage_core.formats.raw_keys import COLLECTED_KEY
from storage_core.objectstore.contract import ObjectStore

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredCollected:
    """What one store says by writer, and the ETag of the object; None where there is none."""

    writers: Mapping[str, Collected]
    etag: str | None


def read_collected(store: ObjectStore) -> StoredCollected:
    """Return what the store says. One GET. A damaged object says nothing. Raises `Unsupported` for a newer format."""
    try:
        blob = store.get(COLLECTED_KEY)
    except NotFound:
        return StoredCollected({}, None)
    try:
        return StoredCollected(decode(blob.data), blob.etag)
    except Corrupt as error:
        _logger.warning("%s: %s; what other stores say counts", store.uri, error.found)
        return StoredCollected({}, blob.etag)


def furthest(*several: Mapping[str, Collected]) -> dict[str, Collected]:
    """Return of each writer the entry that goes furthest."""
    found: dict[str, Collected] = {}
    for writers in several:
        for writer, each in writers.items():
            if writer not in found or each.number > found[writer].number:
                found[writer] = each
    return found
