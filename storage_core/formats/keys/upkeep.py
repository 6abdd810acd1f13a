"""Keys of what keeps a table: the collector's, tags, probes, leases and quarantine, each in a folder of its own."""

from __future__ import annotations

from storage_core.formats.key_segments import require_encoded, short_segment
from storage_core.formats.keys.parsed import KeyKind, ParsedKey, exact
from storage_core.formats.keys.parts import uuid

LOCKS_PREFIX = "_locks/"
QUARANTINE_PREFIX = "quarantine/"


def gc_candidates_key() -> str:
    """Return the key of the collector's plan."""
    return "_gc/candidates.json"


def gc_boundary_key() -> str:
    """Return the key of the collector's boundary."""
    return "_gc/boundary.json"


def tags_key() -> str:
    """Return the key of the table's tags, all in one object."""
    return "_tags.json"


def source_key() -> str:
    """Return the key of the object that says of which table a shallow clone is one."""
    return "_source.json"


def probe_key(probe_id: str) -> str:
    """Return the key of the object on which a store's capabilities are tried."""
    return f"_probe/{uuid(probe_id)}.json"


def lock_key(resource: str) -> str:
    """Return the key of the lease of a resource; any text names a resource."""
    return f"_locks/{short_segment(resource)}.json"


def quarantine_key(source: str, entry_id: str) -> str:
    """Return the key of a quarantine entry; `source` is any text, such as the landed file's path."""
    return f"quarantine/{short_segment(source)}/{uuid(entry_id)}.json"


def parse_gc(key: str, parts: list[str]) -> ParsedKey | None:
    """Return the parsed key, None for no key of this folder; see `grammar.parse`. `parts` are those behind it."""
    match parts:
        case ["candidates.json"]:
            return ParsedKey(kind=KeyKind.GC_CANDIDATES, key=key)
        case ["boundary.json"]:
            return ParsedKey(kind=KeyKind.GC_BOUNDARY, key=key)
        case _:
            return None


def parse_tags(key: str, parts: list[str]) -> ParsedKey | None:
    """Return the parsed key, None for no key of this folder; see `grammar.parse`. `parts` are those behind it."""
    return None if parts else ParsedKey(kind=KeyKind.TAGS, key=key)


def parse_source(key: str, parts: list[str]) -> ParsedKey | None:
    """Return the parsed key, None for no key of this folder; see `grammar.parse`. `parts` are those behind it."""
    return None if parts else ParsedKey(kind=KeyKind.SOURCE, key=key)


def parse_probe(key: str, parts: list[str]) -> ParsedKey | None:
    """Return the parsed key, None for no key of this folder; see `grammar.parse`. `parts` are those behind it."""
    match parts:
        case [name]:
            probe_id = name.removesuffix(".json")
            return exact(key, probe_key(probe_id), ParsedKey(kind=KeyKind.PROBE, key=key, id=probe_id))
        case _:
            return None


def parse_lock(key: str, parts: list[str]) -> ParsedKey | None:
    """Return the parsed key, None for no key of this folder; see `grammar.parse`. `parts` are those behind it."""
    match parts:
        case [name] if name.endswith(".json"):
            source = require_encoded(name.removesuffix(".json"))
            return ParsedKey(kind=KeyKind.LOCK, key=key, source=source)
        case _:
            return None


def parse_quarantine(key: str, parts: list[str]) -> ParsedKey | None:
    """Return the parsed key, None for no key of this folder; see `grammar.parse`. `parts` are those behind it."""
    match parts:
        case [segment, name]:
            entry_id = name.removesuffix(".json")
            parsed = ParsedKey(kind=KeyKind.QUARANTINE, key=key, source=require_encoded(segment), id=entry_id)
            return exact(key, f"quarantine/{segment}/{uuid(entry_id)}.json", parsed)
        case _:
            return None
