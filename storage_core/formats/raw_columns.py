"""A chunk of the raw log as columns, decoded without an object per record (docs/architecture/ingestion.md, "Raw log").

Pure: bytes to columns, no I/O of the table. `formats.raw_chunk` says what a chunk is, and what is wrong with one that
is none: a chunk that does not decode here is left to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import Corrupt
from storage_core.formats.avro_container import read_columns
from storage_core.formats.raw_chunk import ChunkHead, RawChunk, decode_behind, read_head
from storage_core.formats.raw_keys import MAX_NUMBER, ChunkKey

RECORD_COLUMNS = pa.schema(
    [
        pa.field("record_id", pa.string(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("fields", pa.string(), nullable=False),
    ]
)
"""The columns of records as text. `raw_log.read` makes rows of `fields`, which `formats.raw_fields` reads."""

_UNIQUE = "unique_id"
_COLUMNS = RECORD_COLUMNS.append(pa.field(_UNIQUE, pa.string()))

FEW = 5_000
"""Of fewer records, setting up the column reader takes longer than reading them one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawColumns:
    """The records of one group commit in order, with the columns `RECORD_COLUMNS`; `first` is the first's number.

    `unique_ids` are those that producers gave, null for records without; None when no record has one.
    """

    key: ChunkKey
    first: int
    records: pa.Table
    unique_ids: pa.ChunkedArray | None = None

    @property
    def last(self) -> int:
        """The sequence number of the last record."""
        return self.first + int(self.records.num_rows) - 1


def decode_columns(data: bytes, where: str) -> RawColumns:
    """Return the chunk in `data` as columns; `where` is its key, for the error. Raises what `raw_chunk.decode` does."""
    head = read_head(data, where)
    found = _columns(data, head, where) if head.container.records >= FEW and head.last <= MAX_NUMBER else None
    if found is None:
        return columns_of(decode_behind(head, data, where))
    unique_ids = found.column(_UNIQUE) if _UNIQUE in found.column_names else None
    return RawColumns(key=head.key, first=head.first, records=found.select(RECORD_COLUMNS.names), unique_ids=unique_ids)


def columns_of(chunk: RawChunk) -> RawColumns:
    """Return the chunk as columns."""
    columns = [
        chunk.ids,
        [each.timestamp_ms for each in chunk.records],
        [each.table for each in chunk.records],
        [each.key for each in chunk.records],
        [each.operation for each in chunk.records],
        [each.fields for each in chunk.records],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, RECORD_COLUMNS, strict=True)]
    given = [each.unique_id for each in chunk.records]
    return RawColumns(
        key=chunk.key,
        first=chunk.first,
        records=pa.Table.from_arrays(arrays, schema=RECORD_COLUMNS),
        unique_ids=pa.chunked_array([pa.array(given, pa.string())]) if chunk.has_ids else None,
    )


def _columns(data: bytes, head: ChunkHead, where: str) -> pa.Table | None:
    """The columns of a chunk whose header is sound; None when the records are not what the header says."""
    try:
        found = read_columns(data, where, head.container)
    except Corrupt:
        return None
    numbers = pa.array(np.arange(head.first, head.last + 1)).cast(pa.string())
    expected = pc.binary_join_element_wise(f"{head.key.writer}:", numbers, "")
    named = found.rename_columns(_COLUMNS.names[: found.num_columns])
    if not named.column("record_id").combine_chunks().cast(pa.string()).equals(expected):
        return None
    return named.cast(pa.schema([_COLUMNS.field(name) for name in named.column_names]))
