"""`_last_checkpoint`: where opening may start (design page 02, "Checkpoints"; lessons 05, 09, 46).

A hint and nothing more: missing, empty, torn, stale or ahead, the answer is the same, only slower. It is replaced by
compare-and-swap and never goes backwards, and every body holds a nonce, so no two bodies have one ETag.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

from storage_core.errors import NotFound
from storage_core.formats.keys import last_checkpoint_key
from storage_core.log.checkpointed import Checkpointed, CheckpointKind
from storage_core.objectstore.contract import Committed, ObjectStore, unchanged
from storage_core.objectstore.reading import exists

_ATTEMPTS = 5

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHint:
    """What the hint says: a version that is checkpointed, and figures of it. `created_at_ms` is the commit's time."""

    version: int
    kind: CheckpointKind = CheckpointKind.AVRO_STATE
    actions: int
    size_bytes: int
    files: int
    created_at_ms: int

    def to_json(self, nonce: str) -> bytes:
        """Return the body of the hint; field names are the source's, the nonce keeps equal bodies apart."""
        body: dict[str, object] = {
            "version": self.version,
            "size": self.actions,
            "sizeInBytes": self.size_bytes,
            "numFiles": self.files,
            "createdTime": self.created_at_ms,
            "format": self.kind,
            "nonce": nonce,
        }
        if self.kind is CheckpointKind.AVRO_STATE:
            body["stateDir"] = f"state-v{self.version:020d}"
        return json.dumps(body, separators=(",", ":")).encode()


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
        if isinstance(store.put(last_checkpoint_key(), hint.to_json(nonce()), unchanged(etag)), Committed):
            _logger.info("checkpoint hint of %s points at version %d", store.uri, hint.version)
            return True
    _logger.warning("checkpoint hint of %s not moved to version %d: %d races lost", store.uri, hint.version, _ATTEMPTS)
    return False


def _checkpointed(data: bytes) -> Checkpointed | None:
    try:
        body = json.loads(data)
        # Hints of before there were formats name a JSON checkpoint.
        kind = CheckpointKind(body.get("format") or CheckpointKind.JSON)
        version = body.get("version")
    except (ValueError, AttributeError, RecursionError):
        return None
    usable = isinstance(version, int) and not isinstance(version, bool) and 0 <= version < 2**63
    return Checkpointed(version, kind) if usable else None
