"""What a key says: its kind and its parts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class KeyKind(StrEnum):
    """Every kind of object that a table consists of."""

    VERSION = "version"
    LAST_CHECKPOINT = "last_checkpoint"
    MANIFEST = "manifest"
    PROGRESS = "progress"
    STATE = "state"
    JSON_CHECKPOINT = "json_checkpoint"
    JSON_CHECKPOINT_PART = "json_checkpoint_part"
    SPLIT = "split"
    VECTOR = "vector"
    SEGMENT = "segment"
    TRANSLATION = "translation"
    REGION_REGISTRY = "region_registry"
    REGION_MANIFEST = "region_manifest"
    REGION_HINT = "region_hint"
    WAL_ENTRY = "wal_entry"
    GENERATION_FILE = "generation_file"
    GC_CANDIDATES = "gc_candidates"
    GC_BOUNDARY = "gc_boundary"
    TAGS = "tags"
    SOURCE = "source"
    PROBE = "probe"
    LOCK = "lock"
    QUARANTINE = "quarantine"
    DELTA_COMMIT = "delta_commit"
    DELTA_CHECKPOINT = "delta_checkpoint"
    DELTA_HINT = "delta_hint"
    ICEBERG_METADATA = "iceberg_metadata"
    ICEBERG_LIST = "iceberg_list"
    ICEBERG_MANIFEST = "iceberg_manifest"
    ICEBERG_HINT = "iceberg_hint"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedKey:
    """A key of a known kind and the parts it was built from; parts that the kind does not have are None.

    `window` is None for the bucket of null timestamps and for tables without windows; `windowed` tells the two apart.
    `id` is a split, vector, segment, translation, quarantine, manifest (list), progress or JSON checkpoint id; `entry`
    a WAL entry, or a part of the last. `source` of a lock or quarantine entry is the encoded segment.
    """

    kind: KeyKind
    key: str
    version: int | None = None
    id: str | None = None
    window: int | None = None
    windowed: bool | None = None
    index: str | None = None
    region: str | None = None
    entry: int | None = None
    directory: str | None = None
    generation: int | None = None
    name: str | None = None
    source: str | None = None


def exact(key: str, expected: str, parsed: ParsedKey) -> ParsedKey | None:
    """Return what was parsed when the builder, given these parts, makes exactly this key; else None."""
    return parsed if key == expected else None
