"""The conversion of small objects between records and bytes. Each object is one JSON document.

| Object | Functions | See |
|---|---|---|
| `_gc/candidates.json`, the collector's plan | `encode_gc_plan` | docs/architecture/collection.md |
| `_last_checkpoint`, where opening may start | `encode_hint` | docs/architecture/transaction-log.md, "Checkpoints" |
| `_locks/<resource>.json`, a lease | `encode_lease` | docs/architecture/ingestion.md, "Leases" |
| `_tags.json`, the tags of a table | `encode_tags` | |
| `_mem_wal/_regions.json`, the registry of a table's regions | `encode_region_registry` | |
| `live/collected.json`, the last collected chunk of each writer | `encode_collected` | |

Each `encode_` function has a matching `decode_` function. The registry of regions contains the xxh3-64 of all its other
fields under `xxh3`. The chunks up to the last collected chunk may be missing in a listing, because they were collected.
A missing chunk that was collected is not a gap in the raw log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from storage_core.data.formats import keys
from storage_core.data.formats.json_document import JsonRecord, number
from storage_core.data.formats.keys import (
    COLLECTED_KEY,
    MAX_NUMBER,
    gc_candidates_key,
    lock_key,
    tags_key,
    validate_tag_name,
)
from storage_core.data.formats.kinds import KeyKind, Reason, document_of
from storage_core.data.settings.layout import Region

# The collector's plan.


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An object that may be deleted.

    Attributes:
        key: The key of the object.
        reason: The reason why the object may be deleted.
        size: The size of the object in bytes.
        first_seen_ms: The time in ms at which the object was first found to be unreachable.
        since_version: The version at which the object was first found to be unreachable.
    """

    key: str
    reason: Reason
    size: int
    first_seen_ms: int
    since_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The stored plan. `etag` is None for the empty plan of a table that was never collected."""

    candidates: Mapping[str, Candidate]
    counter: int
    etag: str | None


_PLAN = document_of(KeyKind.GC_CANDIDATES)
_CANDIDATE = JsonRecord(Candidate, read={"reason": Reason})


def encode_gc_plan(candidates: Iterable[Candidate], *, counter: int, nonce: str) -> bytes:
    """Return the bytes of a plan with these candidates, ordered by key. `nonce` must be unique."""
    found = [_CANDIDATE.write(each) for each in sorted(candidates, key=lambda each: each.key)]
    return _PLAN.encode({"counter": counter, "nonce": nonce, "candidates": found})


def decode_gc_plan(data: bytes) -> Plan:
    """Decode the plan. The returned plan has no ETag. Raises `Corrupt`, or `Unsupported` for a newer format."""

    def read(body: Mapping[str, Any]) -> Plan:
        candidates = map(_CANDIDATE.read, body["candidates"])
        return Plan(candidates={each.key: each for each in candidates}, counter=number(body["counter"]), etag=None)

    return _PLAN.decode(data, gc_candidates_key(), read)


# The checkpoint hint.


class CheckpointKind(StrEnum):
    """The form of a checkpoint. The checkpoint hint stores the form of the checkpoint as one of these texts."""

    AVRO_STATE = "avro-state"
    JSON = "json"
    JSON_MULTIPART = "json-multipart"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHint:
    """The content of the hint: a version with a checkpoint, and metrics of the checkpoint.

    `created_at_ms` is the time of the commit.
    """

    version: int
    kind: CheckpointKind = CheckpointKind.AVRO_STATE
    actions: int
    size_bytes: int
    files: int
    created_at_ms: int


def encode_hint(hint: CheckpointHint, *, nonce: str) -> bytes:
    """Return the body of the hint. Field names are those of the protocol. The nonce makes every body different."""
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


def decode_hint(data: bytes) -> tuple[int, CheckpointKind] | None:
    """Return the version in the hint and the form of the checkpoint.

    For invalid bytes, return None instead of an error, because no reader relies on a hint.
    """
    try:
        body = json.loads(data)
        # A hint without a format is older than the first numbered format, and it refers to a JSON checkpoint.
        kind = CheckpointKind(body.get("format") or CheckpointKind.JSON)
        return number(body.get("version")), kind
    except (ValueError, AttributeError, RecursionError):
        return None


# Leases.

RELEASED_MS = 0
"""The expiry of a released lease.

This time is in the past for every clock, even if the clock of the process that released the lease is wrong.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The holder of a resource, with its fencing token and the expiry of its lease.

    All times are in ms and come from the holder's clock.

    `nonce` is `<uuid of the acquisition>.<number of the write>`, so no two bodies are equal (lesson 09). The nonce also
    distinguishes two acquisitions with the same token. Two acquisitions can have the same token if the object was lost.
    """

    resource: str
    holder: str
    fencing_token: int
    acquired_at_ms: int
    expires_at_ms: int
    nonce: str

    @property
    def acquisition(self) -> str:
        """The id of the lease acquisition during which this body was written."""
        return self.nonce.partition(".")[0]

    def is_live(self, now_ms: int) -> bool:
        """Return whether the holder still has the resource at `now_ms`.

        At the exact time of expiry, the holder no longer has the resource.
        """
        return now_ms < self.expires_at_ms


_LEASE = document_of(KeyKind.LOCK)
_RECORD = JsonRecord(
    LeaseRecord,
    keys={"fencing_token": "fencing_token", "acquired_at_ms": "acquired_at", "expires_at_ms": "expires_at"},
)


def encode_lease(record: LeaseRecord) -> bytes:
    """Return the bytes of the record, which `decode_lease` reads."""
    return _LEASE.encode(_RECORD.write(record))


def decode_lease(data: bytes, key: str) -> LeaseRecord:
    """Return the lease stored at `key`.

    Raises:
        Corrupt: The bytes are not a lease, or are the lease of another resource.
        Unsupported: A newer release wrote the format.
    """

    def read(body: Mapping[str, Any]) -> LeaseRecord:
        record = _RECORD.read(body)
        if lock_key(record.resource) != key:
            raise ValueError(f"it is the lease of {record.resource!r}")
        return record

    return _LEASE.decode(data, key, read)


# Tags.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A name for a version. Times are in ms. Without `expires_at_ms` the tag is valid until it is removed.

    `id` distinguishes two tags that were set with the same name and version.
    """

    name: str
    version: int
    created_at_ms: int
    expires_at_ms: int | None
    id: str

    def is_live(self, now_ms: int) -> bool:
        """Return whether the tag still protects its version at `now_ms`.

        At the exact time of expiry, the tag no longer protects its version.
        """
        return self.expires_at_ms is None or now_ms < self.expires_at_ms


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of a table by name, read from one object. Expired tags are included.

    `etag` is None if the object does not exist.
    """

    by_name: Mapping[str, Tag] = field(default_factory=dict)
    counter: int = 0
    etag: str | None = None

    def live(self, now_ms: int) -> list[Tag]:
        """Return the tags that have not expired, by name."""
        return [tag for _, tag in sorted(self.by_name.items()) if tag.is_live(now_ms)]


_TAGS = document_of(KeyKind.TAGS)
_TAG = JsonRecord(Tag, read={"name": validate_tag_name})


def encode_tags(wanted: Tags, *, nonce: str) -> bytes:
    """Return the bytes of the next object.

    The counter of this object is one higher than the counter of `tags`. `nonce` must be unique.
    """
    found = {name: _TAG.write(tag) for name, tag in sorted(wanted.by_name.items())}
    for each in found.values():
        del each["name"]  # the key of the tag already contains the name
    return _TAGS.encode({"counter": wanted.counter + 1, "nonce": nonce, "tags": found})


def decode_tags(data: bytes, *, etag: str | None = None) -> Tags:
    """Return the tags in these bytes. Raises `Corrupt`, or `Unsupported` for a newer format."""

    def read(body: Mapping[str, Any]) -> Tags:
        found = {name: _TAG.read({**each, "name": name}) for name, each in body["tags"].items()}
        return Tags(found, number(body["counter"]), etag)

    return _TAGS.decode(data, tags_key(), read)


# The registry of regions.


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The regions by id, and the successor of each closed spec.

    Two fields are not stored. `etag` is the ETag of the object, or None if there is no object. `is_rebuilt` is True if
    the registry was rebuilt from the regions, because its object is missing or damaged.
    """

    regions: Mapping[str, Region] = field(default_factory=dict)
    closed: Mapping[int, int] = field(default_factory=dict)
    counter: int = 0
    etag: str | None = None
    is_rebuilt: bool = False

    def of_spec(self, spec_id: int) -> list[Region]:
        """Return the regions of a spec, ordered by id."""
        return [self.regions[each] for each in sorted(self.regions) if self.regions[each].spec_id == spec_id]


_REGISTRY = document_of(KeyKind.REGION_REGISTRY)


def encode_region_registry(wanted: Registry, *, nonce: str) -> bytes:
    """Return the bytes of the next object.

    The counter of this object is one higher than the counter of the registry. `nonce` must be unique.
    """
    regions = [
        {"id": each.id, "spec": each.spec_id, "values": None if each.values is None else list(each.values)}
        for _, each in sorted(wanted.regions.items())
    ]
    closed = {str(spec): successor for spec, successor in sorted(wanted.closed.items())}
    return _REGISTRY.encode({"counter": wanted.counter + 1, "nonce": nonce, "regions": regions, "closed": closed})


def decode_region_registry(data: bytes, *, etag: str | None = None) -> Registry:
    """Return the registry in these bytes. Raises `Corrupt`, or `Unsupported` for a newer format."""

    def read(body: Mapping[str, Any]) -> Registry:
        regions = {each.id: each for each in map(_region, body["regions"])}
        closed = {int(spec): int(successor) for spec, successor in body["closed"].items()}
        return Registry(regions=regions, closed=closed, counter=int(body["counter"]), etag=etag)

    return _REGISTRY.decode(data, keys.region_registry_key(), read)


def _region(body: Mapping[str, Any]) -> Region:
    values = body["values"]
    return Region(id=str(body["id"]), spec_id=int(body["spec"]), values=None if values is None else tuple(values))


# Collected chunks of a raw log.


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The last chunk of one writer that may be collected.

    The entry also contains the sequence number of the last record of the chunk. `at_ms` is the time of the entry
    itself.
    """

    number: int
    sequence: int
    at_ms: int


def _in_range(value: object) -> int:
    if not 0 <= number(value) <= MAX_NUMBER:
        raise ValueError(f"{value!r} is out of range")
    return number(value)


_COLLECTED = document_of(KeyKind.RAW_COLLECTED)
_WRITER = JsonRecord(Collected, keys={"at_ms": "at_ms"}, read={"number": _in_range, "sequence": _in_range})


def encode_collected(writers: Mapping[str, Collected], *, nonce: str) -> bytes:
    """Encode the last collected chunk of each writer as JSON, in the order of writers. `nonce` must be unique."""
    found = {writer: _WRITER.write(writers[writer]) for writer in sorted(writers)}
    return _COLLECTED.encode({"nonce": nonce, "writers": found})


def decode_collected(data: bytes) -> dict[str, Collected]:
    """Return the collected chunks by writer. Raises `Corrupt`, or `Unsupported` for a newer format."""

    def read(body: Mapping[str, Any]) -> dict[str, Collected]:
        return {writer: _WRITER.read(each) for writer, each in body["writers"].items()}

    return _COLLECTED.decode(data, COLLECTED_KEY, read)
