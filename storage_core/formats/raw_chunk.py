"""Bytes of a chunk of the raw log: one group commit as one Avro object container (docs/architecture/ingestion.md, "Raw
log").

Pure: records to bytes, no I/O. The schema is `LogRecord`: `id`, `timestamp_ms`, `table`, `key`, `operation`, `fields`
(JSON text, `formats.raw_fields`). The file's metadata holds, as text:

| Key | Value |
|---|---|
| `tidemark.format` | `1`; `2` where records have ids of their producer, in one more field, `unique_id` |
| `tidemark.writer` | the writer's id, a UUID that nobody else ever has |
| `tidemark.segment_ms` | when the segment began that the chunk was written for |
| `tidemark.number` | the chunk's number among the writer's chunks, from 1 |
| `tidemark.first`, `tidemark.last` | the sequence numbers of its records, without gaps |
| `tidemark.xxh3` | xxh3-64 over all other bytes of the file (`avro_container.with_checksum`) |

A record's id is `<writer>:<sequence number>`, unique for ever. (writer, number) is unique, so no two chunks have equal
bytes; one chunk has the same bytes in every store.
"""

from __future__ import annotations

import functools
import hashlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from storage_core.errors import Corrupt, InvalidInput, Unsupported
from storage_core.formats.avro_container import (
    CHECKSUM_KEY,
    OPEN_CHECKSUM,
    Container,
    inspect,
    read_records,
    with_checksum,
)
from storage_core.formats.avro_declared import field, or_null, record_schema
from storage_core.formats.raw_keys import ChunkKey
from storage_core.system_errors import raise_refused

if TYPE_CHECKING:
    from fastavro.types import Schema

Operation = Literal["put", "patch", "delete", "reset"]

OPERATIONS: tuple[Operation, ...] = ("put", "patch", "delete", "reset")
MAX_CHUNK_BYTES = 64 * 2**20
MAX_EXPANDED_BYTES = 128 * 2**20
MAX_RECORDS = 1_000_000

_PLAIN, _WITH_IDS = "1", "2"
_FIELDS = (
    field("id", "string"),
    field("timestamp_ms", "long"),
    field("table", "string"),
    field("key", or_null("string")),
    field("operation", {"type": "enum", "name": "Operation", "symbols": list(OPERATIONS)}),
    field("fields", "string"),
)
_DECLARED: Mapping[str, Schema] = {
    _PLAIN: record_schema("LogRecord", _FIELDS, namespace="tidemark"),
    _WITH_IDS: record_schema("LogRecord", [*_FIELDS, field("unique_id", or_null("string"))], namespace="tidemark"),
}
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_NOT_OURS = "it is not what was written"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One operation on one row of one table. `fields` is JSON text, `key` what the producer calls the row, if at all.

    `timestamp_ms` is when the writer took it, by its own clock: it informs, and decides nothing. Of the records of a
    table with one `unique_id`, which its producer gave it, the table takes one.
    """

    timestamp_ms: int
    table: str
    operation: Operation
    fields: str
    key: str | None = None
    unique_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawChunk:
    """The records of one group commit in order; `first` is the sequence number of the first one."""

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
        """Whether a producer gave one of them an id."""
        return any(each.unique_id is not None for each in self.records)


@functools.cache
def _schema(version: str) -> Schema:
    import fastavro

    return fastavro.parse_schema(_DECLARED[version])


def record_id(writer: str, sequence: int) -> str:
    """Return the id of a writer's n-th record, n from 1."""
    return f"{writer}:{sequence}"


def encode(chunk: RawChunk) -> bytes:
    """Return the bytes of the chunk; equal chunks give equal bytes. Raises `InvalidInput` beyond readers' bounds."""
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
        raise InvalidInput(f"a chunk holds at most {MAX_CHUNK_BYTES} bytes, found {len(data)}; append fewer rows")
    return data


def decode(data: bytes, where: str) -> RawChunk:
    """Return the chunk in `data`; `where` is its key, for the error.

    Raises `Corrupt` when anything is not what was written or beyond bounds: 64 MiB, 128 MiB expanded, a million
    records; `Unsupported` for the format of a newer release. Nothing is expanded in memory before the bounds hold.
    """
    return decode_behind(read_head(data, where), data, where)


def decode_behind(head: ChunkHead, data: bytes, where: str) -> RawChunk:
    """Return what `decode` does where the head is read already."""
    records = read_records(data, where, head.container)
    for sequence, record in enumerate(records, head.first):
        if record["id"] != record_id(head.key.writer, sequence):
            raise Corrupt(f"{where}: expected record {sequence}, found {record['id']!r}; {_NOT_OURS}", key=where)
    return RawChunk(key=head.key, first=head.first, records=tuple(map(_record, records)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHead:
    """What a chunk says of itself: its name, the sequence numbers of its records, and the container they are in."""

    key: ChunkKey
    first: int
    last: int
    container: Container


def read_head(data: bytes, where: str) -> ChunkHead:
    """Return the head of the chunk in `data`, whose checksum is compared. Raises as `decode` does."""
    if len(data) > MAX_CHUNK_BYTES:
        raise Corrupt(f"{where}: expected at most {MAX_CHUNK_BYTES} bytes, found {len(data)}", key=where)
    found = inspect(data, where)
    if found.expanded_bytes > MAX_EXPANDED_BYTES or found.records > MAX_RECORDS:
        raise Corrupt(
            f"{where}: {found.records} records of {found.expanded_bytes} bytes; chunks of ours hold at most "
            f"{MAX_RECORDS} and {MAX_EXPANDED_BYTES}",
            key=where,
        )
    key, first, last = _identity(_header(data, where), where)
    if last - first + 1 != found.records:
        raise Corrupt(f"{where}: expected records {first} to {last}, found {found.records}; {_NOT_OURS}", key=where)
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
        "unique_id": record.unique_id,  # which a schema without this field leaves out
    }


def _record(found: Mapping[str, Any]) -> LogRecord:
    return LogRecord(**{name: value for name, value in found.items() if name != "id"})


def _header(data: bytes, where: str) -> Mapping[str, str]:
    """Return the metadata of a container that is whole; its schema must be ours, so that no file chooses another."""
    import fastavro
    from fastavro.schema import to_parsing_canonical_form

    try:
        reader = fastavro.reader(io.BytesIO(data))
        schema = to_parsing_canonical_form(reader.writer_schema)
    except Exception as error:  # fastavro raises the plain errors of whatever it does with a damaged or hostile header
        raise_refused(where, error)
        raise Corrupt(f"{where}: damaged Avro header: {type(error).__name__}: {error}", key=where) from error
    metadata = cast("Mapping[str, str]", reader.metadata)
    found = metadata.get("tidemark.format")
    if CHECKSUM_KEY not in metadata or found is None:
        raise Corrupt(f"{where}: an Avro file without the checksum of a chunk; {_NOT_OURS}", key=where)
    if found not in _DECLARED:
        raise Unsupported(f"{where}: a chunk of format {found!r}, this release reads {_WITH_IDS}; upgrade", key=where)
    if schema != to_parsing_canonical_form(_schema(found)):
        raise Corrupt(f"{where}: the records have another schema than `LogRecord`; {_NOT_OURS}", key=where)
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
        raise ValueError(f"{text!r} is no number")
    return int(text)
