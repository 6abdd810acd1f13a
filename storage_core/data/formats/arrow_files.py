"""Objects that are Arrow IPC streams: WAL entries, data files of generations, quarantine entries.

**Reading.** The bytes may come from an untrusted writer. For any bytes, `read_stream` returns a table or raises
`Corrupt`.

**WAL entries.** A WAL entry is one Arrow IPC stream (LZ4) and a trailer:

| Bytes | Content |
|---|---|
| 0 … n | Arrow IPC stream of the records; any Arrow stream reader opens it and stops before the trailer |
| n … n+8 | n, unsigned 64-bit little-endian |
| n+8 … n+16 | xxh3-64 of bytes 0 … n, unsigned 64-bit little-endian |
| n+16 … n+24 | `TMWAL` and the format version: `54 4d 57 41 4c 00 00 01` |

The schema metadata contains `writer_epoch`, `generation`, `writer_id` and `seq` as text. In all releases except early
0.1, the metadata also contains `number` and a random `nonce`. The triple (writer_id, seq, nonce) is unique, so the
bytes of two entries always differ. Two entries also have different bytes if two processes that are copies of each other
write the same rows. The number is the position of the entry in its log. With the number of each entry, readers can
detect that two entries were stored in each other's place. Without the number, both entries would seem valid, and the
older record would win. An entry without rows is a fence sentinel. The only purpose of a fence sentinel is to occupy its
position in the log.

**Data files of generations.** The records of a generation may be in a data file instead of WAL entries. The data file
is an Arrow IPC stream with LZ4 (docs/architecture/ingestion.md, "Memtable and generations"). The manifest of the
generation contains the stream's xxh3-64. The data file is unused until another object refers to that manifest.

**Quarantine entries.** A quarantine entry is a JSON object with sorted keys. The id of a quarantine entry is computed
from the bytes of the entry (docs/spec.md, section 14). The entry contains invalid lines of a landed file (format 1),
quarantined rows (format 2), or lines or rows of many files (format 3). The rows are stored as an Arrow IPC stream, so a
reader gets exactly the values that were written. A receipt (format 4) lists the lines and rows that left the
quarantine.

The functions convert records to bytes and back, without I/O.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa
import xxhash

from storage_core.base.errors import Corrupt, InvalidInput, Unsupported, raise_refused
from storage_core.base.text import shortened

# Reading.

# For a stream that Tidemark wrote, Arrow raises only `pa.ArrowException`, the first class in `_REFUSALS`. For certain
# invalid bytes, Arrow raises errors of the other classes in `_REFUSALS`.
_REFUSALS = (
    *(pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, TypeError, KeyError, RecursionError),
    struct.error,
)
DEEPEST = 64
"""The maximum nesting depth of a column's type. Spark and Parquet readers support types far above this depth."""
_MOST_EXPANSION = 255
"""The maximum number of bytes to which one byte of LZ4 data can expand.

Tidemark uses LZ4. With Zstd, one byte can expand to 30,000 bytes.
"""

# Field numbers in the flatbuffers of Arrow's Message.fbs, and the size of its `Buffer`.
_HEADER, _DICTIONARY_DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3
_BUFFER_BYTES = 16


def read_stream(
    data: bytes | memoryview, what: str, where: str, *, checked: bool = True
) -> tuple[pa.Table, Mapping[bytes, bytes]]:
    """Return the rows of the stream and the metadata of its schema. Every value of the rows can be read.

    The function refuses wrong lengths, and lengths to which LZ4 data of the given size cannot expand. The function
    checks a length before it allocates the memory.

    Args:
        data: The stream.
        what: The kind of object, for errors.
        where: The key, for errors.
        checked: True to also refuse offsets outside their values, and text that is not UTF-8.

    Raises:
        Corrupt: The bytes are not such a stream.
        Unavailable: Memory is lacking.

    Cost: the memory of the rows, which is at most 255 times the size of the stream.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            require_shallow(reader.schema)
            _require_credible(data)
            records = reader.read_all()
        if checked:
            records.validate(full=True)
    except _REFUSALS as error:
        raise_refused(where, error)  # the stated sizes were already compared with the real sizes
        raise Corrupt(f"{where}: {what} is not an Arrow stream: {shortened(str(error))}", key=where) from error
    return records, records.schema.metadata or {}


def require_readable(records: pa.Table) -> None:
    """Raise `InvalidInput` for rows that can be written, but that `read_stream` would then refuse."""
    try:
        require_shallow(records.schema)
        records.validate(full=True)
    except (ValueError, pa.ArrowException) as error:
        raise InvalidInput(
            f"the rows cannot be read back once they are written: {shortened(str(error))}. None of the rows was written"
        ) from error


def require_shallow(schema: pa.Schema) -> None:
    """Raise `ValueError` for a column with too many nested types."""
    level, kinds = 0, [field.type for field in schema]
    while kinds:
        level += 1
        if level > DEEPEST:
            raise ValueError(f"a column nests deeper than {DEEPEST} types")
        kinds = [kind.field(number).type for kind in kinds for number in range(kind.num_fields)]


def _require_credible(data: bytes | memoryview) -> None:
    """Raise `ValueError` if a compressed buffer states an impossible expanded size.

    The stated size is in the first 8 bytes of the buffer. The function compares this size with the largest size to
    which the buffer can expand.
    """
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(data)):
        if message.type not in ("record batch", "dictionary"):
            continue
        for length, claimed in claims_of(message):
            if claimed > _MOST_EXPANSION * length:
                raise ValueError(f"a buffer of {length} bytes claims to expand to {claimed} bytes")


def claims_of(message: pa.ipc.Message) -> Iterator[tuple[int, int]]:
    """Yield the length and the stated expanded size of each compressed buffer of a batch or dictionary.

    Raises `struct.error` for a buffer outside of the message.
    """
    body = memoryview(message.body)
    for start, length in _compressed(memoryview(message.metadata), message.type == "dictionary"):
        yield length, int(struct.unpack_from("<q", body, start)[0])


def _compressed(metadata: memoryview, is_dictionary: bool) -> Iterator[tuple[int, int]]:  # noqa: FBT001 -- as read
    """Yield the buffers of a compressed batch in its body.

    Yield nothing if the batch is not compressed. Arrow verified the metadata.
    """
    batch = _table(metadata, _follow(metadata, 0), _HEADER)
    if is_dictionary and batch is not None:
        batch = _table(metadata, batch, _DICTIONARY_DATA)
    if batch is None or _field(metadata, batch, _COMPRESSION) is None:
        return
    buffers = _table(metadata, batch, _BUFFERS)
    if buffers is None:
        return
    (count,) = struct.unpack_from("<I", metadata, buffers)
    for number in range(count):
        start, length = struct.unpack_from("<qq", metadata, buffers + 4 + number * _BUFFER_BYTES)
        if length:
            yield start, length


def _follow(metadata: memoryview, at: int) -> int:
    return at + int(struct.unpack_from("<I", metadata, at)[0])


def _table(metadata: memoryview, table: int, number: int) -> int | None:
    """Return the position of the table or vector to which a table's field refers."""
    at = _field(metadata, table, number)
    return None if at is None else _follow(metadata, at)


def _field(metadata: memoryview, table: int, number: int) -> int | None:
    """Return the position of a field of a flatbuffer table. Return None if the field is absent."""
    slots = table - struct.unpack_from("<i", metadata, table)[0]
    size, place = struct.unpack_from("<H", metadata, slots)[0], 4 + 2 * number
    offset = struct.unpack_from("<H", metadata, slots + place)[0] if place < size else 0
    return table + offset if offset else None


# WAL entries.

_TRAILER = struct.Struct("<QQ8s")
_MAGIC = b"TMWAL\x00\x00"
_FORMAT_VERSION = 1
# No threads are used. For columns of some kilobytes, starting threads takes longer than compressing.
_WAL_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalEntry:
    """One WAL entry, with its writer and epoch, the generation of the next flush, and its records in order.

    `records` has the columns of `rows.fold.record_schema`. `number` is the position in the log for which the entry was
    written. `nonce` is random text. `number` and `nonce` are None if the release that wrote the entry did not store
    them.
    """

    writer_epoch: int
    generation: int
    writer_id: str
    seq: int
    records: pa.Table
    number: int | None = None
    nonce: str | None = None

    @property
    def is_sentinel(self) -> bool:
        """True if this entry has no rows and is only a fence sentinel."""
        return bool(self.records.num_rows == 0)


def encode_wal_entry(entry: WalEntry) -> bytes:
    """Return the bytes of the entry."""
    metadata = {
        "writer_epoch": str(entry.writer_epoch),
        "generation": str(entry.generation),
        "writer_id": entry.writer_id,
        "seq": str(entry.seq),
    }
    if entry.number is not None:
        metadata["number"] = str(entry.number)
    if entry.nonce is not None:
        metadata["nonce"] = entry.nonce
    sink = pa.BufferOutputStream()
    records = entry.records.replace_schema_metadata(metadata)
    with pa.ipc.new_stream(sink, records.schema, options=_WAL_OPTIONS) as writer:
        writer.write_table(records)
    body: bytes = sink.getvalue().to_pybytes()
    magic = _MAGIC + bytes([_FORMAT_VERSION])
    return body + _TRAILER.pack(len(body), xxhash.xxh3_64_intdigest(body), magic)


def decode_wal_entry(data: bytes, where: str, *, checked: bool = True) -> WalEntry:
    """Return the entry in `data`. If the bytes are not valid, the function returns no row.

    Args:
        data: The bytes.
        where: The key, for errors.
        checked: True to validate the values. Otherwise the returned values may be invalid.

    Raises:
        Corrupt: Length, checksum, stream or metadata differ from what was written.
        Unsupported: A newer release wrote the format.
    """
    body = _verified_body(data, where)
    records, metadata = read_stream(body, "the WAL entry", where, checked=checked)
    try:
        return WalEntry(
            writer_epoch=int(metadata[b"writer_epoch"]),
            generation=int(metadata[b"generation"]),
            writer_id=metadata[b"writer_id"].decode(),
            seq=int(metadata[b"seq"]),
            records=records.replace_schema_metadata(None),
            number=int(metadata[b"number"]) if b"number" in metadata else None,
            nonce=metadata[b"nonce"].decode() if b"nonce" in metadata else None,
        )
    except (KeyError, ValueError) as error:
        raise Corrupt(f"{where}: the WAL entry's metadata is incomplete: {error}", key=where) from error


def _verified_body(data: bytes, where: str) -> bytes:
    if len(data) < _TRAILER.size:
        raise Corrupt(f"{where}: torn WAL entry: {len(data)} bytes, shorter than its trailer", key=where)
    body = data[: -_TRAILER.size]
    length, digest, magic = _TRAILER.unpack_from(data, len(body))
    if magic[:-1] != _MAGIC:
        raise Corrupt(f"{where}: torn WAL entry: {len(data)} bytes that do not end in a WAL trailer", key=where)
    if magic[-1] != _FORMAT_VERSION:
        raise Unsupported(
            f"{where}: WAL entry of format {magic[-1]}, this release reads {_FORMAT_VERSION}. Upgrade Tidemark",
            key=where,
        )
    if length != len(body):
        raise Corrupt(f"{where}: torn WAL entry: expected {length} bytes of records, found {len(body)}", key=where)
    found = xxhash.xxh3_64_intdigest(body)
    if found != digest:
        raise Corrupt(f"{where}: damaged WAL entry: expected xxh3 {digest:016x}, found {found:016x}", key=where)
    return body


# Data files of generations.

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def encode_data_file(records: pa.Table) -> bytes:
    """Return the bytes of the file. The records have the columns of `rows.fold.record_schema`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema, options=_OPTIONS) as writer:
        writer.write_table(records)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def checksum(data: bytes) -> str:
    """Return the xxh3-64 of the file as hexadecimal text."""
    return xxhash.xxh3_64_hexdigest(data)


def decode_data_file(data: bytes, expected: str, where: str) -> pa.Table:
    """Return the records in order.

    `expected` is the checksum. `where` is the key for error messages. Raises `Corrupt`.
    """
    found = checksum(data)
    if found != expected:
        raise Corrupt(f"{where}: damaged records of a generation: expected xxh3 {expected}, found {found}", key=where)
    return read_stream(data, "the data file of a generation", where)[0]


# Quarantine entries.

LINES_FORMAT = 1
ROWS_FORMAT = 2
SHARED_FORMAT = 3
RECEIPT_FORMAT = 4
_NAMESPACE = uuid.UUID("6f4dd3c6-3a0a-5d0e-9a43-7a1a5f0b6a53")


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedLines:
    """The invalid lines of one landed file.

    `source` is the file and `size` is its size in bytes. Each line has `line`, `reason`, `text` and `encoding`.

    Attributes:
        content: The hash of the bytes of the file. For a file that is rejected as a whole, `etag:` and the hash of its
            ETag. None in format 1.
        landed_ms: The time when the file landed, in milliseconds since the epoch, if known.
        header: The header of a CSV file. The text of a line has its fields in this order.
    """

    source: str
    size: int
    rejected: tuple[Mapping[str, Any], ...]
    content: str | None = None
    landed_ms: int | None = None
    header: str | None = None

    @property
    def reasons(self) -> Mapping[str, int]:
        """The number of rejected lines for each reason."""
        return Counter(str(each["reason"]) for each in self.rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRows:
    """Rows that arrived complete but are not in the table. All rows have the same `reason`.

    Attributes:
        source: The entry point, such as `append`, or the path of the landed file.
        size: The size of the landed file in bytes, if any.
        reason: The reason why the rows are not in the table.
        by: The name of the writer of the rows.
        arrived_ms: The arrival time of the newest row, in milliseconds since the epoch.
        rows: The rows. Rows of a region writer are records, with `_op` and `_fields` first.
        content: The hash of the bytes of the landed file. None in format 2.
        lines: The number of the line of each row in the landed file. None in format 2.
    """

    source: str
    size: int | None = None
    reason: str
    by: str
    arrived_ms: int
    rows: pa.Table
    content: str | None = None
    lines: tuple[int, ...] | None = None

    @property
    def reasons(self) -> Mapping[str, int]:
        """A mapping from the reason to the number of rows."""
        return {self.reason: self.rows.num_rows}


Entry = RejectedLines | QuarantinedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneLines:
    """The lines or rows of one file that left the quarantine.

    The fields of the file have the same meaning as in the quarantine entries. The line numbers are sorted.
    """

    source: str
    size: int | None
    content: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The lines and rows that left the quarantine in one commit. The commit refers to this receipt.

    `number` is the number of this commit. Only commits with a receipt are counted, from 1.
    """

    number: int
    done: tuple[DoneLines, ...]


def encode_quarantine(entry: Entry) -> bytes:
    """Return the bytes of an entry of one file or of one call (format 1 or 2)."""
    if isinstance(entry, RejectedLines):
        body: dict[str, Any] = {
            "formatVersion": LINES_FORMAT,
            "source": entry.source,
            "size": entry.size,
            "rejected": [dict(each) for each in entry.rejected],
        }
    else:
        body = {
            "formatVersion": ROWS_FORMAT,
            "source": entry.source,
            "size": entry.size,
            "reason": entry.reason,
            "by": entry.by,
            "arrivedAt": entry.arrived_ms,
            "count": entry.rows.num_rows,
            "rows": base64.b64encode(_stream_of(entry.rows)).decode("ascii"),
        }
    return _as_json(body)


def encode_shared(entries: Sequence[Entry]) -> bytes:
    """Return the bytes of one object with the entries of several files (format 3). All rows have the same schema."""
    rows = [each.rows for each in entries if isinstance(each, QuarantinedRows)]
    body: dict[str, Any] = {"formatVersion": SHARED_FORMAT, "entries": [*map(_shared, entries)]}
    if rows:
        body["rows"] = base64.b64encode(_stream_of(pa.concat_tables(rows))).decode("ascii")
    return _as_json(body)


def _shared(entry: Entry) -> dict[str, Any]:
    about: dict[str, Any] = {"source": entry.source, "size": entry.size, "content": entry.content}
    if isinstance(entry, RejectedLines):
        about |= {"rejected": [dict(each) for each in entry.rejected], "landedAt": entry.landed_ms}
        return about | ({} if entry.header is None else {"header": entry.header})
    about |= {"reason": entry.reason, "by": entry.by, "arrivedAt": entry.arrived_ms}
    return about | {"lines": _ranges(entry.lines or ())}


def encode_receipt(receipt: Receipt) -> bytes:
    """Return the bytes of the receipt."""
    done = [
        {"source": each.source, "size": each.size, "content": each.content, "lines": _ranges(each.lines)}
        for each in receipt.done
    ]
    return _as_json({"formatVersion": RECEIPT_FORMAT, "number": receipt.number, "done": done})


def _as_json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, sort_keys=True).encode()


def _ranges(lines: Sequence[int]) -> list[list[int]]:
    """Return each sequence of consecutive numbers as a pair of its first and last number.

    The pairs are in ascending order.
    """
    found: list[list[int]] = []
    for line in lines:
        if found and line == found[-1][1] + 1:
            found[-1][1] = line
        else:
            found.append([line, line])
    return found


_MOST_LINES = 2**24
"""The maximum number of line numbers in one object.

Without this limit, damaged bytes could describe so many line numbers that the numbers would fill the memory.
"""


def _lines_of(ranges: Any) -> tuple[int, ...]:
    found = [range(int(first), int(last) + 1) for first, last in ranges]
    if sum(map(len, found)) > _MOST_LINES:
        raise ValueError(f"more than {_MOST_LINES} lines")
    return tuple(chain.from_iterable(found))


def decode_quarantine(data: bytes, key: str, entry_id: str | None) -> tuple[Entry, ...]:
    """Return the entries in `data`.

    `key` is for error messages, and `entry_id` is the id in the key. A receipt contains no entries.

    Raises:
        Corrupt: The bytes differ from what was written.
        Unsupported: A newer release wrote the format.
    """
    found = _decoded(data, key, entry_id)
    return () if isinstance(found, Receipt) else found


def decode_receipt(data: bytes, key: str, entry_id: str | None) -> Receipt:
    """Return the receipt in `data`.

    Raises the errors of `decode_quarantine`. Also raises `Corrupt` if `data` is an entry and not a receipt.
    """
    found = _decoded(data, key, entry_id)
    if not isinstance(found, Receipt):
        raise Corrupt(f"{key}: the object is not a quarantine receipt. Restore the object from a copy", key=key)
    return found


def _decoded(data: bytes, key: str, entry_id: str | None) -> tuple[Entry, ...] | Receipt:
    try:
        body = json.loads(data)
        version = body["formatVersion"]
        if version > RECEIPT_FORMAT:
            raise Unsupported(f"{key}: a quarantine entry of format {version}. Upgrade Tidemark", key=key)
        if version not in (LINES_FORMAT, ROWS_FORMAT, SHARED_FORMAT, RECEIPT_FORMAT):
            raise Corrupt(
                f"{key}: a quarantine entry of format {version!r}, which no release of Tidemark writes", key=key
            )
        if entry_id != id_of(data):
            raise Corrupt(f"{key}: the content of the quarantine entry is not what was written", key=key)
        if version == RECEIPT_FORMAT:
            return _receipt(body)
        if version == SHARED_FORMAT:
            return _shared_entries(body, key)
        return (_rows_entry(body, key) if version == ROWS_FORMAT else _lines_entry(body),)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise Corrupt(f"{key}: not a quarantine entry: {error!r}", key=key) from error


def _receipt(body: Mapping[str, Any]) -> Receipt:
    done = tuple(
        DoneLines(
            source=str(each["source"]),
            size=None if each["size"] is None else int(each["size"]),
            content=str(each["content"]),
            lines=_lines_of(each["lines"]),
        )
        for each in body["done"]
    )
    return Receipt(number=int(body["number"]), done=done)


def _shared_entries(body: Mapping[str, Any], key: str) -> tuple[Entry, ...]:
    rows, found = None, list[Entry]()
    if "rows" in body:
        rows, _ = read_stream(base64.b64decode(body["rows"], validate=True), "the quarantine entry", key)
    start = 0
    for each in body["entries"]:
        content = str(each["content"])
        if "rejected" in each:
            landed = each["landedAt"]
            found.append(
                replace(
                    _lines_entry(each),
                    content=content,
                    landed_ms=None if landed is None else int(landed),
                    header=None if "header" not in each else str(each["header"]),
                )
            )
            continue
        lines = _lines_of(each["lines"])
        if rows is None or start + len(lines) > rows.num_rows:
            raise ValueError("rows are missing")
        about = {**each, "rows": rows.slice(start, len(lines))}
        found.append(replace(_entry_of_rows(about), content=content, lines=lines))
        start += len(lines)
    if rows is not None and start != rows.num_rows:
        raise ValueError(f"expected {start} rows, found {rows.num_rows}")
    return tuple(found)


def id_of(data: bytes) -> str:
    """Return the id of the entry with these bytes. Equal entries have the same id, so they are one object."""
    return str(uuid.uuid5(_NAMESPACE, hashlib.sha256(data).hexdigest()))


def _lines_entry(body: Mapping[str, Any]) -> RejectedLines:
    rejected: Sequence[Mapping[str, Any]] = body["rejected"]
    if not isinstance(rejected, list) or not all({"line", "reason"} <= each.keys() for each in rejected):
        raise ValueError("`rejected` is not a list of lines")
    return RejectedLines(source=str(body["source"]), size=int(body["size"]), rejected=tuple(rejected))


def _rows_entry(body: Mapping[str, Any], key: str) -> QuarantinedRows:
    rows, _ = read_stream(base64.b64decode(body["rows"], validate=True), "the quarantine entry", key)
    if rows.num_rows != body["count"]:
        raise ValueError(f"expected {body['count']} rows, found {rows.num_rows}")
    return _entry_of_rows({**body, "rows": rows})


def _entry_of_rows(about: Mapping[str, Any]) -> QuarantinedRows:
    return QuarantinedRows(
        source=str(about["source"]),
        size=None if about["size"] is None else int(about["size"]),
        reason=str(about["reason"]),
        by=str(about["by"]),
        arrived_ms=int(about["arrivedAt"]),
        rows=about["rows"],
    )


def _stream_of(rows: pa.Table) -> bytes:
    # The rows are written as one batch. So the same rows give the same bytes, regardless of their chunks.
    whole = rows.replace_schema_metadata(None).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, whole.schema, options=_OPTIONS) as writer:
        writer.write_table(whole)
    data: bytes = sink.getvalue().to_pybytes()
    return data
