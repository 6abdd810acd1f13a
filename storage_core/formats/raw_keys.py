"""The closed grammar of object keys below the root of a raw log (docs/architecture/ingestion.md, "Raw log").

| Key | Holds |
|---|---|
| `live/<ms>.<writer>/<number>.avro` | one chunk: the segment is named by when it began and by its writer (a UUID) |
| `live/collected.json` | up to which chunk each writer was collected (`formats.raw_collected`) |
| `_gc/candidates.json` | the collector's plan (`formats.gc_plan`) |
| `quarantine/<segment>/<uuid>.json` | records that no table takes, as beside a table (`formats.keys`) |
| `_probe/<uuid>.json` | an attempt to find out what the store can do (`formats.keys`) |

Numbers have 20 digits, so that a listing shows a segment in order. They count the chunks of a *writer* from 1, over all
of its segments: what is missing then shows in a listing alone, at the end of a segment too. `parse(build(x))` gives x
back, and a key that parses is exactly the key that its builder makes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from storage_core.errors import InvalidInput
from storage_core.formats import keys
from storage_core.formats.keys import KeyKind, ParsedKey

LIVE_PREFIX = "live/"
COLLECTED_KEY = f"{LIVE_PREFIX}collected.json"
MAX_NUMBER = 2**63 - 1

_WRITER = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_CHUNK = re.compile(r"live/(0|[1-9][0-9]{0,18})\.([0-9a-f-]{36})/([0-9]{20})\.avro", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkKey:
    """The parts of a chunk's key: when its segment began, who wrote it, and its number among the writer's chunks."""

    segment_ms: int
    writer: str
    number: int


def chunk_key(chunk: ChunkKey) -> str:
    """Return the key of one chunk. Raises `InvalidInput` for a writer that is no UUID and for numbers out of range."""
    if not _WRITER.fullmatch(chunk.writer):
        raise InvalidInput(f"expected a writer id (a lower-case UUID), found {chunk.writer!r}", writer=chunk.writer)
    if not (0 <= chunk.segment_ms <= MAX_NUMBER and 1 <= chunk.number <= MAX_NUMBER):
        raise InvalidInput(f"a segment begins at 0 or later and chunks are numbered from 1, found {chunk}")
    return f"{LIVE_PREFIX}{chunk.segment_ms}.{chunk.writer}/{chunk.number:020d}.avro"


def parse(key: str) -> ChunkKey | ParsedKey | None:
    """Return the parts of a key of a raw log, and None for every other text: that is not ours, and stays untouched."""
    found = _CHUNK.fullmatch(key)
    if found is None:
        other = keys.parse(key)
        return other if other is not None and other.kind in (KeyKind.QUARANTINE, KeyKind.PROBE) else None
    chunk = ChunkKey(segment_ms=int(found[1]), writer=found[2], number=int(found[3]))
    try:
        return chunk if chunk_key(chunk) == key else None
    except InvalidInput:
        return None
