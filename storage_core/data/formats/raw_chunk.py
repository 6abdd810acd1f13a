"""Chunks of a raw log, as records and as columns. The module also stores the ids that producers gave to records.

**Chunks.** A chunk is one group commit, stored as one Avro object container (docs/architecture/ingestion.md, "Raw
log"). The schema is `LogRecord`: `id`, `timestamp_ms`, `table`, `key`, `operation`, `fields` (JSON text, see
`formats.raw_fields`). The file's metadata contains these texts:

| Key | Value |
|---|---|
| `tidemark.format` | `1`, or `2` if records have a producer's id in the additional field `unique_id` |
| `tidemark.writer` | the writer's id, a UUID that is never reused |
| `tidemark.segment_ms` | the start time of the chunk's segment |
| `tidemark.number` | the chunk's number among the writer's chunks, from 1 |
| `tidemark.first`, `tidemark.last` | the first and the last sequence number of the records, without gaps |
| `tidemark.xxh3` | xxh3-64 over all other bytes of the file (`avro.with_checksum`) |

A record's id is `<writer>:<sequence number>`, which is never reused. The pair of writer and number is unique, so two
chunks never have equal bytes. The same chunk has the same bytes in every store.

**Columns.** `decode_columns` decodes a chunk without one object per record. If `decode_columns` cannot decode a chunk,
`decode_chunk` decodes the chunk and reports the fault.

**Record ids.** For some chunks, one object contains the ids that producers gave to the records. The object is an Arrow
IPC stream (LZ4), and its name depends on its content. The object has these columns:

| Column | Content |
|---|---|
| `chunk`, `table` | positions of the chunk and of the table in the lists `chunks` and `tables` of the metadata |
| `position` | the position of the record in its chunk, from 0 |
| `id` | the id |

The metadata `tidemark.ids` is JSON: `{"format":1,"chunks":[[writer, number, segment_ms],…],"tables":[name,…]}`. The
object can be created again from the chunks. The key of the object contains the xxh3-64 of the object.

The functions convert bytes to records or columns and back, without I/O.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from storage_core.base.errors import Corrupt, InvalidInput, Unsupported, raise_refused
from storage_core.data.formats.arrow_files import read_stream
from storage_core.data.formats.avro import (
    CHECKSUM_KEY,
    OPEN_CHECKSUM,
    Container,
    avro_field,
    inspect,
    or_null,
    read_columns,
    read_records,
    record_schema,
    with_checksum,
)
from storage_core.data.formats.keys import MAX_NUMBER, ChunkKey, IdsKey, raw_ids_key

if TYPE_CHECKING:
    from fastavro.types import Schema


# Chunks as records.

Operation = Literal["put", "patch", "delete", "reset"]

OPERATIONS: tuple[Operation, ...] = ("put", "patch", "delete", "reset")
MAX_CHUNK_BYTES = 64 * 2**20
MAX_EXPANDED_BYTES = 128 * 2**20
MAX_RECORDS = 1_000_000

_PLAIN, _WITH_IDS = "1", "2"
_FIELDS = (
    avro_field("id", "string"),
    avro_field("timestamp_ms", "long"),
    avro_field("table", "string"),
    avro_field("key", or_null("string")),
    avro_field("operation", {"type": "enum", "name": "Operation", "symbols": list(OPERATIONS)}),
    avro_field("fields", "string"),
)
_DECLARED: Mapping[str, Schema] = {
    _PLAIN: record_schema("LogRecord", _FIELDS, namespace="tidemark"),
    _WITH_IDS: record_schema("LogRecord", [*_FIELDS, avro_field("unique_id", or_null("string"))], namespace="tidemark"),
}
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_NOT_OURS = "The content is not what was written"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One operation on one row of one table.

    Attributes:
        timestamp_ms: The time at which the writer received the record, by the clock of the writer. It is only
            informative.
        table: The name of the table.
        operation: The operation.
        fields: The fields as JSON text.
        key: The producer's name for the row, if any.
        unique_id: The producer's id, if any. The table takes only one of the records with the same id.
    """

    timestamp_ms: int
    table: str
    operation: Operation
    fields: str
    key: str | None = None
    unique_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawChunk:
    """The records of one group commit, in order. `first` is the sequence number of the first record."""

    key: ChunkKey
    first: int
    records: tuple[LogRecord, ...]

    @property
    def last(self) -> int:
        """The sequence number of the last record."""
        return self.first + len(self.records) - 1

    @property
    def ids(self) -> list[str]:
        """The ids of the records, in order."""
        return [record_id(self.key.writer, self.first + index) for index in range(len(self.records))]

    @property
    def has_ids(self) -> bool:
        """True if a producer gave an id to at least one of the records."""
        return any(each.unique_id is not None for each in self.records)


@functools.cache
def _schema(version: str) -> Schema:
    import fastavro

    return fastavro.parse_schema(_DECLARED[version])


def record_id(writer: str, sequence: int) -> str:
    """Return the id of a writer's n-th record, with n from 1."""
    return f"{writer}:{sequence}"


def encode_chunk(chunk: RawChunk) -> bytes:
    """Return the bytes of the chunk.

    Equal chunks give equal bytes. Raises `InvalidInput` if the chunk exceeds the limits of readers.
    """
    import fastavro

    if not 1 <= len(chunk.records) <= MAX_RECORDS:
        raise InvalidInput(f"a chunk holds 1 to {MAX_RECORDS} records, found {len(chunk.records)}")
    target = io.BytesIO()
    version = _WITH_IDS if chunk.has_ids else _PLAIN
    fastavro.writer(
        target,
        _schema(version),
        (_avro(record, each) for record, each in zip(chunk.records, chunk.ids, strict=True)),
        codec="zstandard",
        sync_marker=hashlib.blake2b(f"{chunk.key.writer} {chunk.key.number}".encode(), digest_size=16).digest(),
        metadata={**_metadata(chunk, version), CHECKSUM_KEY: OPEN_CHECKSUM},
    )
    data = with_checksum(target.getvalue())
    if len(data) > MAX_CHUNK_BYTES:
        raise InvalidInput(f"a chunk holds at most {MAX_CHUNK_BYTES} bytes, found {len(data)}. Append fewer rows")
    return data


def decode_chunk(data: bytes, where: str) -> RawChunk:
    """Return the chunk in `data`. `where` is the key of the chunk, for error messages.

    The function checks the limits before it expands the data in memory. The limits are 64 MiB, 128 MiB after expansion,
    and a million records.

    Raises:
        Corrupt: The bytes differ from what was written, or exceed the bounds.
        Unsupported: A newer release wrote the format.
    """
    return decode_behind(read_head(data, where), data, where)


def decode_behind(head: ChunkHead, data: bytes, where: str) -> RawChunk:
    """Return the same chunk as `decode_chunk`. Use this function if the head of the chunk was already read."""
    records = read_records(data, where, head.container)
    for sequence, record in enumerate(records, head.first):
        if record["id"] != record_id(head.key.writer, sequence):
            raise Corrupt(f"{where}: expected record {sequence}, found {record['id']!r}. {_NOT_OURS}", key=where)
    return RawChunk(key=head.key, first=head.first, records=tuple(map(_record, records)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHead:
    """The identity of a chunk: its key, the sequence numbers of its records, and the container of the records."""

    key: ChunkKey
    first: int
    last: int
    container: Container


def read_head(data: bytes, where: str) -> ChunkHead:
    """Return the head of the chunk in `data`, after the checksum of the chunk was verified.

    Raises the errors of `decode_chunk`.
    """
    if len(data) > MAX_CHUNK_BYTES:
        raise Corrupt(f"{where}: expected at most {MAX_CHUNK_BYTES} bytes, found {len(data)}", key=where)
    found = inspect(data, where)
    if found.expanded_bytes > MAX_EXPANDED_BYTES or found.records > MAX_RECORDS:
        raise Corrupt(
            f"{where}: {found.records} records of {found.expanded_bytes} bytes. A chunk holds at most "
            f"{MAX_RECORDS} and {MAX_EXPANDED_BYTES}",
            key=where,
        )
    key, first, last = _identity(_header(data, where), where)
    if last - first + 1 != found.records:
        raise Corrupt(f"{where}: expected records {first} to {last}, found {found.records}. {_NOT_OURS}", key=where)
    return ChunkHead(key=key, first=first, last=last, container=found)


def _metadata(chunk: RawChunk, version: str) -> dict[str, str]:
    return {
        "tidemark.format": version,
        "tidemark.writer": chunk.key.writer,
        "tidemark.segment_ms": str(chunk.key.segment_ms),
        "tidemark.number": str(chunk.key.number),
        "tidemark.first": str(chunk.first),
        "tidemark.last": str(chunk.last),
    }


def _avro(record: LogRecord, identity: str) -> dict[str, Any]:
    return {
        "id": identity,
        "timestamp_ms": record.timestamp_ms,
        "table": record.table,
        "key": record.key,
        "operation": record.operation,
        "fields": record.fields,
        "unique_id": record.unique_id,  # a schema without this field omits the value
    }


def _record(found: Mapping[str, Any]) -> LogRecord:
    return LogRecord(**{name: value for name, value in found.items() if name != "id"})


def _header(data: bytes, where: str) -> Mapping[str, str]:
    """Return the metadata of a complete container.

    The schema of the file must be Tidemark's schema, so a file cannot choose another schema.
    """
    import fastavro
    from fastavro.schema import to_parsing_canonical_form

    try:
        reader = fastavro.reader(io.BytesIO(data))
        schema = to_parsing_canonical_form(reader.writer_schema)
    except Exception as error:  # fastavro raises many kinds of plain errors for a damaged or hostile header
        raise_refused(where, error)
        raise Corrupt(f"{where}: damaged Avro header: {type(error).__name__}: {error}", key=where) from error
    metadata = cast("Mapping[str, str]", reader.metadata)
    found = metadata.get("tidemark.format")
    if CHECKSUM_KEY not in metadata or found is None:
        raise Corrupt(f"{where}: an Avro file without the checksum of a chunk. {_NOT_OURS}", key=where)
    if found not in _DECLARED:
        raise Unsupported(
            f"{where}: a chunk of format {found!r}, this release reads {_WITH_IDS}. Upgrade Tidemark", key=where
        )
    if schema != to_parsing_canonical_form(_schema(found)):
        raise Corrupt(f"{where}: the records have another schema than `LogRecord`. {_NOT_OURS}", key=where)
    return metadata


def _identity(metadata: Mapping[str, str], where: str) -> tuple[ChunkKey, int, int]:
    try:
        numbers = {name: _number(metadata[f"tidemark.{name}"]) for name in ("segment_ms", "number", "first", "last")}
        key = ChunkKey(segment_ms=numbers["segment_ms"], writer=metadata["tidemark.writer"], number=numbers["number"])
    except (KeyError, ValueError) as error:
        raise Corrupt(f"{where}: the chunk's metadata is incomplete: {error}", key=where) from error
    return key, numbers["first"], numbers["last"]


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a number")
    return int(text)


# Chunks as columns.

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
"""The columns of records as text. `raw_log.read` uses `formats.raw_fields` to convert `fields` to rows."""

_UNIQUE = "unique_id"
_COLUMNS = RECORD_COLUMNS.append(pa.field(_UNIQUE, pa.string()))

FEW = 5_000
"""If there are fewer records than this, reading them one by one is faster.

The setup of the column reader takes longer than reading a few records one by one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawColumns:
    """The records of one group commit, in order, with the columns `RECORD_COLUMNS`.

    `first` is the sequence number of the first record. `unique_ids` contains the producers' ids, with null for records
    without an id. `unique_ids` is None if no record has an id.
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
    """Return the chunk in `data` as columns.

    `where` is the key of the chunk, for error messages. Raises the errors of `decode_chunk`.
    """
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
    """Return the columns of a chunk with a valid header. Return None if the records do not match the header."""
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


# Record ids.

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


def encode_ids(found: RecordIds) -> tuple[str, bytes]:
    """Return the key and the bytes of the object. There must be at least one chunk."""
    chunks = [[each.writer, each.number, each.segment_ms] for each in found.chunks]
    body = {"format": FORMAT_VERSION, "chunks": chunks, "tables": list(found.tables)}
    schema = ID_COLUMNS.with_metadata({_METADATA: json.dumps(body, separators=(",", ":")).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_OPTIONS) as writer:
        writer.write_table(found.entries.cast(ID_COLUMNS).replace_schema_metadata(schema.metadata))
    data: bytes = sink.getvalue().to_pybytes()
    moments = [each.segment_ms for each in found.chunks]
    key = IdsKey(first_ms=min(moments), last_ms=max(moments), checksum=xxhash.xxh3_64_hexdigest(data))
    return raw_ids_key(key), data


def decode_ids(data: bytes, key: IdsKey) -> RecordIds:
    """Return the record ids in the bytes.

    Raises:
        Corrupt: The bytes do not match the key.
        Unsupported: A newer release wrote the format.
    """
    where = raw_ids_key(key)
    if (checksum := xxhash.xxh3_64_hexdigest(data)) != key.checksum:
        raise Corrupt(f"{where}: damaged: its xxh3 is {checksum}", key=where)
    table, metadata = read_stream(data, "an object of record ids", where)
    try:
        body = json.loads(metadata[_METADATA])
        if int(body["format"]) > FORMAT_VERSION:
            raise Unsupported(
                f"{where}: format {body['format']}, this release reads {FORMAT_VERSION}. Upgrade Tidemark"
            )
        chunks = tuple(ChunkKey(writer=each[0], number=each[1], segment_ms=each[2]) for each in body["chunks"])
        found = RecordIds(chunks=chunks, tables=tuple(body["tables"]), entries=table.replace_schema_metadata())
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Corrupt(f"{where}: damaged metadata: {error!r}", key=where) from error
    if not found.entries.schema.equals(ID_COLUMNS) or not _within(found.entries, "chunk", found.chunks):
        raise Corrupt(f"{where}: the content is not what was written: {found.entries.schema}", key=where)
    if not _within(found.entries, "table", found.tables):
        raise Corrupt(f"{where}: it names tables that it does not list", key=where)
    return found


def _within(entries: pa.Table, name: str, listed: Sequence[object]) -> bool:
    places = entries.column(name).to_numpy()
    return not len(places) or (places.min() >= 0 and places.max() < len(listed))
