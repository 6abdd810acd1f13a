"""The records of the generation that is being filled, in memory and readable at once (design page 03)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from storage_core.rows import fold


@dataclass(slots=True)
class Memtable:
    """Durable records that are in no generation yet, in the order of their acknowledgement.

    `schema` is the record schema, `key` the primary key. Grows by whole WAL entries; the writer bounds it by flushing.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    _entries: list[int] = field(default_factory=list)
    _parts: list[pa.Table] = field(default_factory=list)
    _rows: int = 0
    _size_bytes: int = 0

    @property
    def entries(self) -> tuple[int, ...]:
        """The numbers of the WAL entries that hold these records, ascending."""
        return tuple(self._entries)

    @property
    def rows(self) -> int:
        """How many records there are; several may speak of one key."""
        return self._rows

    @property
    def size_bytes(self) -> int:
        """Bytes of the records in memory."""
        return self._size_bytes

    def add(self, entry: int, records: pa.Table) -> None:
        """Add the records of a WAL entry that is durable. Entries come in ascending order."""
        self._entries.append(entry)
        self._parts.append(records)
        self._rows += records.num_rows
        self._size_bytes += records.nbytes

    def records(self) -> pa.Table:
        """Return the records in order; nothing is copied."""
        return pa.concat_tables(self._parts) if self._parts else self.schema.empty_table()

    def folded(self) -> pa.Table:
        """Return one record per key, newest wins, sorted by key."""
        return fold.fold(self.records(), self.key)

    def clear(self) -> None:
        """Forget the records: a generation holds them now."""
        self._entries.clear()
        self._parts.clear()
        self._rows = self._size_bytes = 0
