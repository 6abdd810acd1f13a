"""How a region writer gathers, bounds and flushes what it is given (docs/architecture/ingestion.md; decision 0044)."""

from __future__ import annotations

from dataclasses import dataclass, fields

from storage_core.arguments import checked_fields
from storage_core.errors import InvalidInput

MB = 2**20
SEGMENT_ROWS = 10_000
"""Indexing fewer rows takes a reader about as long as a segment of them, and a flush would wait for it."""


@checked_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """The settings of one writer. Bytes are those of records in memory, durations are milliseconds.

    - `durable`: whether calls that do not say return only when their rows are durable.
    - `entry_bytes`, `linger_ms`: what nobody waits for is written when there are so many bytes of it, or after so long.
      A WAL entry takes several calls up to `entry_bytes`; a larger call is an entry of its own.
    - `flush_rows`, `flush_bytes`, `flush_entries`, `flush_age_ms`: a memtable with so many records, bytes or WAL
      entries, or whose oldest record is so old, is flushed before the next entry; one that is too old also without a
      call. None: no age is too old. A `latest` read fetches the entries of the log one by one.
    - `segment_rows`: a generation of so many records gets a segment of each index of the table, fewer are indexed by
      who searches them.
    - `wait_rows`, `wait_bytes`: while so much is given but not durable, further calls wait, for `wait_ms` at most.
    - `refuse_rows`, `refuse_bytes`: so much given and waiting is never exceeded: the next call raises `Overloaded`.

    One call is always taken by a writer that holds nothing else, however large it is. So a writer holds at most
    `refuse_bytes`, `flush_bytes` and one entry in memory, and while it flushes the key index of the memtable; of a
    table with indexes also a folded copy of the memtable, and what the indexes make of its rows.
    """

    durable: bool = True
    entry_bytes: int = 10 * MB
    linger_ms: int = 100
    flush_rows: int = 100_000
    flush_bytes: int = 256 * MB
    flush_entries: int = 512
    flush_age_ms: int | None = None
    segment_rows: int = SEGMENT_ROWS
    wait_rows: int = 200_000
    wait_bytes: int = 64 * MB
    wait_ms: int = 30_000
    refuse_rows: int = 1_000_000
    refuse_bytes: int = 256 * MB

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and value < 0:
                raise InvalidInput(f"writer option {each.name} is {value}; it must not be negative")
        if self.refuse_rows < self.wait_rows or self.refuse_bytes < self.wait_bytes:
            raise InvalidInput("writer options: the bound that refuses is below the bound that waits; raise the former")
