"""The bounds of a raw log writer (docs/architecture/ingestion.md, "Raw log")."""

from __future__ import annotations

from dataclasses import dataclass, fields

from storage_core.errors import InvalidInput

MAX_RECORD_BYTES = 8 * 2**20
"""The most that one record may hold: its table's name, its key and its fields as text."""

MAX_ID_BYTES = 256
"""The most that an id may have that a producer gives a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLimits:
    """When a segment and a chunk end, and how much an optional store may lag behind.

    A segment ends with the chunk that would carry it beyond `segment_bytes`, and at the first append after
    `segment_ms`. A chunk holds at most `chunk_bytes` of records before compression. Up to `backlog_bytes` wait for an
    optional store; what comes on top is left out there. `close_wait_ms` is how long closing waits for that backlog.
    """

    segment_bytes: int = 50 * 10**6
    segment_ms: int = 5 * 60_000
    chunk_bytes: int = 8 * 2**20
    backlog_bytes: int = 64 * 2**20
    close_wait_ms: int = 10_000

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value < (1 if each.name in ("segment_bytes", "segment_ms", "chunk_bytes") else 0):
                raise InvalidInput(f"{each.name} must be positive, found {value}")
        if self.chunk_bytes > 2 * MAX_RECORD_BYTES:
            raise InvalidInput(f"chunk_bytes is at most {2 * MAX_RECORD_BYTES}, found {self.chunk_bytes}")
