"""The ids that producers gave the records of some chunks: an Arrow IPC stream, LZ4, named by its content.

| Column | Holds |
|---|---|
| `chunk`, `table` | places in the lists of the metadata |
| `position` | the place of the record in its chunk, from 0 |
| `id` | the id |

The metadata `tidemark.ids` is JSON: `{"format":1,"chunks":[[writer, number, segment_ms],…],"tables":[name,…]}`. The
object follows from chunks, so it can be made again from them; its key has its xxh3-64.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from storage_core.errors import Corrupt, Unsupported
from storage_core.formats.arrow_stream import read_stream
from storage_core.formats.raw_keys import ChunkKey, IdsKey, ids_key

FORMAT_VERSION = 1
ID_COLUMNS = pa.schema(
    [
        pa.field("chunk", pa.int32(), nullable=False),
        pa.field("table", pa.int32(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
    ]
)
_METADATA = b"tidemark.ids"
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordIds:
    """The ids of the records of some chunks, with the columns `ID_COLUMNS`."""

    chunks: tuple[ChunkKey, ...]
    tables: tuple[str, ...]
    entries: pa.Table


def encode(found: RecordIds) -> tuple[str, bytes]:
    """Return the key and the bytes of the object. There is at least one chunk."""
    chunks = [[each.writer, each.number, each.segment_ms] for each in found.chunks]
    body = {"format": FORMAT_VERSION, "chunks": chunks, "tables": list(found.tables)}
    schema = ID_COLUMNS.with_metadata({_METADATA: json.dumps(body, separators=(",", ":")).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_OPTIONS) as writer:
        writer.write_table(found.entries.cast(ID_COLUMNS).replace_schema_metadata(schema.metadata))
    data: bytes = sink.getvalue().to_pybytes()
    moments = [each.segment_ms for each in found.chunks]
    key = IdsKey(first_ms=min(moments), last_ms=max(moments), checksum=xxhash.xxh3_64_hexdigest(data))
    return ids_key(key), data


def decode(data: bytes, key: IdsKey) -> RecordIds:
    """Return what is in the bytes. Raises `Corrupt` when they are not those of the key; `Unsupported`."""
    where = ids_key(key)
    if (checksum := xxhash.xxh3_64_hexdigest(data)) != key.checksum:
        raise Corrupt(f"{where}: damaged: its xxh3 is {checksum}", key=where)
    table, metadata = read_stream(data, "an object of record ids", where)
    try:
        body = json.loads(metadata[_METADATA])
        if int(body["format"]) > FORMAT_VERSION:
            raise Unsupported(f"{where}: format {body['format']}, this release reads {FORMAT_VERSION}; upgrade")
        chunks = tuple(ChunkKey(writer=each[0], number=each[1], segment_ms=each[2]) for each in body["chunks"])
        found = RecordIds(chunks=chunks, tables=tuple(body["tables"]), entries=table.replace_schema_metadata())
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Corrupt(f"{where}: damaged metadata: {error!r}", key=where) from error
    if not found.entries.schema.equals(ID_COLUMNS) or not _within(found.entries, "chunk", found.chunks):
        raise Corrupt(f"{where}: it is not what was written: {found.entries.schema}", key=where)
    if not _within(found.entries, "table", found.tables):
        raise Corrupt(f"{where}: it names tables that it does not list", key=where)
    return found


def _within(entries: pa.Table, name: str, listed: Sequence[object]) -> bool:
    places = entries.column(name).to_numpy()
    return not len(places) or (places.min() >= 0 and places.max() < len(listed))
