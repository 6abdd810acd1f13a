"""`_last_checkpoint`: where opening may start (lessons 05, 09, 46).

A hint and nothing more: missing, empty, torn, stale or ahead, the answer is the same, only slower. It is replaced by
compare-and-swap and never goes backwards, and every body holds a nonce, so no two bodies have one ETag.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from storage_core.errors import NotFound
from storage_core.formats.hint import CheckpointHint, decode, encode
from storage_core.formats.keys import last_checkpoint_key
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.objectstore.contract import Committed, ObjectStore, unchanged
from storage_core.objectstore.reading import exists

_ATTEMPTS = 5

_logger = logging.getLogger(__name__)


def read_hint(store: ObjectStore) -> Checkpointed | None:
    """Return the checkpoint that the hint names, or None when there is no usable hint. One GET."""
    try:
        return _checkpointed(store.get(last_checkpoint_key()).data)
    except NotFound:
        return None


def advance_hint(store: ObjectStore, hint: CheckpointHint, nonce: Callable[[], str]) -> bool:
    """Point the hint at a newer state; True when this call moved it. One GET and one PUT when nobody interferes.

    A hint that is as new already stays, unless it names a state that does not exist. Losing every race is no error:
    the winner's hint is good, and without any hint opening is slower, not wrong.
    """
    for _ in range(_ATTEMPTS):
        try:
            blob = store.get(last_checkpoint_key())
        except NotFound:
            etag = None
        else:
            current = _checkpointed(blob.data)
            if current is not None and current.version >= hint.version and exists(store, current.key):
                return False
            etag = blob.etag
        if isinstance(store.put(last_checkpoint_key(), encode(hint, nonce=nonce()), unchanged(etag)), Committed):
            _logger.info("checkpoint hint of %s points at version %d", store.uri, hint.version)
            return True
    _logger.warning("checkpoint hint of %s not moved to version %d: %d races lost", store.uri, hint.version, _ATTEMPTS)
    return False


def _checkpointed(data: bytes) -> Checkpointed | None:
    found = decode(data)
    return None if found is None else Checkpointed(*found)
