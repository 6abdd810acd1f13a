"""Bytes of `_last_checkpoint`, where opening may start (docs/architecture/transaction-log.md, "Checkpoints"). Records
to bytes and back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from storage_core.formats.json_fields import number


class CheckpointKind(StrEnum):
    """In which form a version is checkpointed, as the hint spells it."""

    AVRO_STATE = "avro-state"
    JSON = "json"
    JSON_MULTIPART = "json-multipart"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHint:
    """What the hint says: a version that is checkpointed, and metrics of it. `created_at_ms` is the commit's time."""

    version: int
    kind: CheckpointKind = CheckpointKind.AVRO_STATE
    actions: int
    size_bytes: int
    files: int
    created_at_ms: int


def encode(hint: CheckpointHint, *, nonce: str) -> bytes:
    """Return the body of the hint; field names are the source's, the nonce keeps equal bodies apart."""
    body: dict[str, object] = {
        "version": hint.version,
        "size": hint.actions,
        "sizeInBytes": hint.size_bytes,
        "numFiles": hint.files,
        "createdTime": hint.created_at_ms,
        "format": hint.kind,
        "nonce": nonce,
    }
    if hint.kind is CheckpointKind.AVRO_STATE:
        body["stateDir"] = f"state-v{hint.version:020d}"
    return json.dumps(body, separators=(",", ":")).encode()


def decode(data: bytes) -> tuple[int, CheckpointKind] | None:
    """Return the version that the hint names and its form; None for anything else, as a hint is nothing to rely on."""
    try:
        body = json.loads(data)
        # Hints of before there were formats name a JSON checkpoint.
        kind = CheckpointKind(body.get("format") or CheckpointKind.JSON)
        return number(body.get("version")), kind
    except (ValueError, AttributeError, RecursionError):
        return None
