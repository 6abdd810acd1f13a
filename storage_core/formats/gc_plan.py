"""Bytes of `_gc/candidates.json`, the collector's plan (docs/architecture/collection.md). Records to bytes and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from storage_core.errors import Corrupt, Unsupported
from storage_core.formats.keys import gc_candidates_key

FORMAT_VERSION = 1


class Reason(StrEnum):
    """Why an object may go."""

    ORPHAN_SPLIT = "orphan_split"
    REMOVED_SPLIT = "removed_split"
    UNNAMED_VECTOR = "unnamed_vector"
    ORPHAN_SEGMENT = "orphan_segment"
    REMOVED_SEGMENT = "removed_segment"
    ORPHAN_TRANSLATION = "orphan_translation"
    REMOVED_TRANSLATION = "removed_translation"
    MERGED_GENERATION = "merged_generation"
    ORPHAN_GENERATION = "orphan_generation"
    WAL_ENTRY = "wal_entry"
    OLD_VERSION = "old_version"
    OLD_STATE = "old_state"
    OLD_MANIFEST = "old_manifest"
    OLD_REGION_MANIFEST = "old_region_manifest"
    LEFT_BY_PROBE = "left_by_probe"
    DISTRIBUTED_CHUNK = "distributed_chunk"
    OLD_RECORD_IDS = "old_record_ids"
    FORGOTTEN = "forgotten"
    OLD_PUBLISHED = "old_published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An object that may go: why, its size in bytes, when it was first seen unreachable (ms), since which version."""

    key: str
    reason: Reason
    size: int
    first_seen_ms: int
    since_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan as stored. `etag` is None for the empty plan of a table that was never collected."""

    candidates: Mapping[str, Candidate]
    counter: int
    etag: str | None


def encode(candidates: Iterable[Candidate], *, counter: int, nonce: str) -> bytes:
    """Return the bytes of a plan of these candidates, in the order of their keys. `nonce` is unique."""
    body = {
        "format": FORMAT_VERSION,
        "counter": counter,
        "nonce": nonce,
        "candidates": [_body(each) for each in sorted(candidates, key=lambda each: each.key)],
    }
    return json.dumps(body, separators=(",", ":")).encode()


def decode(data: bytes) -> Plan:
    """Return the plan in these bytes, without an ETag. Raises `Corrupt`, or `Unsupported` for a newer format."""
    key = gc_candidates_key()
    try:
        body = json.loads(data)
        version, counter = int(body["format"]), int(body["counter"])
        if version > FORMAT_VERSION:
            raise Unsupported(f"{key}: plan of format {version}, this release reads {FORMAT_VERSION}; upgrade")
        candidates = [_candidate(each) for each in body["candidates"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{key}: a damaged plan: {error!r}", key=key) from error
    return Plan(candidates={each.key: each for each in candidates}, counter=counter, etag=None)


def _body(candidate: Candidate) -> dict[str, object]:
    return {
        "key": candidate.key,
        "reason": candidate.reason.value,
        "size": candidate.size,
        "firstSeenMs": candidate.first_seen_ms,
        "sinceVersion": candidate.since_version,
    }


def _candidate(body: Mapping[str, Any]) -> Candidate:
    return Candidate(
        key=str(body["key"]),
        reason=Reason(body["reason"]),
        size=int(body["size"]),
        first_seen_ms=int(body["firstSeenMs"]),
        since_version=int(body["sinceVersion"]),
    )
