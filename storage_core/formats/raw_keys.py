"""The closed grammar of object keys below the root of a raw log (docs/architecture/ingestion.md, "Raw log").

| Key | Holds |
|---|---|
| `live/<ms>.<writer>/<number>.avro` | one chunk: the segment is named by when it began and by its writer (a UUID) |
| `live/collected.json` | up to which chunk each writer was collected (`formats.raw_collected`) |
| `ids/<first ms>-<last ms>.<xxh3>.arrow` | ids of records of segments that began then (`formats.raw_ids`) |
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
IDS_PREFIX = "ids/"
MAX_NUMBER = 2**63 - 1

_OTHERS = frozenset({KeyKind.QUARANTINE, KeyKind.PROBE, KeyKind.GC_CANDIDATES})
_WRITER = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_IDS = re.compile(r"ids/(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})\.([0-9a-f]{16})\.arrow", re.ASCII)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsKey:
    """The parts of the key of record ids: when the first and last segment began, and the checksum of the object."""

    first_ms: int
    last_ms: int
    checksum: str


def ids_key(ids: IdsKey) -> str:
    """Return the key of record ids. Raises `InvalidInput` for parts out of range."""
    key = f"{IDS_PREFIX}{ids.first_ms}-{ids.last_ms}.{ids.checksum}.arrow"
    if not _IDS.fullmatch(key) or not 0 <= ids.first_ms <= ids.last_ms <= MAX_NUMBER:
        raise InvalidInput(f"record ids are named by two moments and a checksum, found {ids}")
    return key


def parse(key: str) -> ChunkKey | IdsKey | ParsedKey | None:
    """Return the parts of a key of a raw log, and None for every other text: that is not ours, and stays untouched."""
    if key.startswith(IDS_PREFIX):
        return _parse_ids(key)
    found = _CHUNK.fullmatch(key)
    if found is None:
        other = keys.parse(key)
        return other if other is not None and other.kind in _OTHERS else None
    chunk = ChunkKey(segment_ms=int(found[1]), writer=found[2], number=int(found[3]))
    try:
        return chunk if chunk_key(chunk) == key else None
    except InvalidInput:
        return None


def _parse_ids(key: str) -> IdsKey | None:
    found = _IDS.fullmatch(key)
    parsed = IdsKey(first_ms=int(found[1]), last_ms=int(found[2]), checksum=found[3]) if found else None
    return parsed if parsed is not None and parsed.first_ms <= parsed.last_ms <= MAX_NUMBER else None
