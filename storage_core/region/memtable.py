"""The records of the generation that is being filled, in memory and readable at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from storage_core.region.key_runs import KeyRuns
from storage_core.rows import fold
from storage_core.rows.earlier_records import conformed
from storage_core.rows.keys import Positions, key_codes


@dataclass(slots=True)
class Memtable:
    """Durable records that are in no generation yet, in the order of their acknowledgement.

    `schema` is the record schema, `key` the primary key. Grows by whole WAL entries; the writer bounds it by flushing,
    and begins another one then. One thread may add while another reads; only one may read at a time.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    _entries: list[int] = field(default_factory=list)
    _parts: list[pa.Table] = field(default_factory=list)
    _rows: int = 0
    _size_bytes: int = 0
    _runs: KeyRuns = field(default_factory=KeyRuns)
    _indexed: int = 0

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
        """Add the records of a WAL entry that is durable, of whichever schema. Entries come in ascending order."""
        records = conformed(records, self.schema)
        self._entries.append(entry)
        self._parts.append(records)
        self._rows += records.num_rows
        self._size_bytes += records.nbytes

    def become(self, schema: pa.Schema) -> None:
        """Hold the records under a later schema of the table from now on."""
        if self.schema.equals(schema, check_metadata=True):
            return
        self.schema = schema
        self._parts = [conformed(part, schema) for part in self._parts]
        self._runs, self._indexed = KeyRuns(), 0

    def parts(self) -> tuple[pa.Table, ...]:
        """Return the records of each entry, in order; nothing is copied."""
        return tuple(self._parts)

    def records(self) -> pa.Table:
        """Return the records in order; nothing is copied."""
        return pa.concat_tables([self.schema.empty_table(), *self._parts])

    def folded(self) -> pa.Table:
        """Return one record per key, newest wins, sorted by key."""
        return fold.fold(self.records(), self.key)

    def find(self, wanted: pa.Table) -> pa.Table:
        """Return every record of the wanted keys, a table of the key columns, in order.

        What was added since the last call is hashed and sorted once; then a binary search in about log2(entries) sorted
        runs finds the rows, and only those are touched.
        """
        for part in self._parts[self._indexed :]:
            self._runs.add(part, self.key)
            self._indexed += 1
        found = pa.concat_tables([self.schema.empty_table(), *self._rows_at(self._runs.find(wanted, self.key))])
        return matching(found, wanted, self.key)

    def get(self, wanted: pa.Table) -> pa.Table:
        """Return one record per wanted key of which there is any: what all of its records do in turn."""
        return fold.fold(self.find(wanted), self.key)

    def _rows_at(self, positions: Positions) -> Iterator[pa.Table]:
        ends = np.cumsum([part.num_rows for part in self._parts])
        parts = np.searchsorted(ends, positions, side="right")
        for number in np.unique(parts):
            part = self._parts[number]
            yield part.take(pa.array(positions[parts == number] - (ends[number] - part.num_rows)))


def matching(records: pa.Table, wanted: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the records whose key is one of the wanted ones, in order. One pass over the records."""
    held, requested = key_codes([records.select(key).combine_chunks(), wanted], key)
    return records.filter(pa.array(np.isin(held, requested)))
