"""Bytes of a WAL entry: one Arrow IPC stream (LZ4) and a trailer. Pure: records to bytes, no I/O.

| Bytes | Content |
|---|---|
| 0 … n | Arrow IPC stream of the records; any Arrow stream reader opens it and stops before the trailer |
| n … n+8 | n, unsigned 64-bit little-endian |
| n+8 … n+16 | xxh3-64 of bytes 0 … n, unsigned 64-bit little-endian |
| n+16 … n+24 | `TMWAL` and the format version: `54 4d 57 41 4c 00 00 01` |

The schema metadata holds `writer_epoch`, `generation`, `writer_id`, `seq` and, but in early 0.1, `number` and a random
`nonce` as text. (writer_id, seq, nonce) is unique, so no two entries have equal bytes, not even those of two copies of
one process that write the same rows. The number is the entry's place in its log: two entries that changed places would
each be sound, and the older record would win. An entry without rows is a fence sentinel: it only occupies its place in
the log.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from storage_core.errors import Corrupt, Unsupported
from storage_core.formats.arrow_stream import read_stream

_TRAILER = struct.Struct("<QQ8s")
_MAGIC = b"TMWAL\x00\x00"
_FORMAT_VERSION = 1
# Without threads: of columns of some kilobytes each, starting the threads costs more than compressing.
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalEntry:
    """One entry: who wrote it under which epoch, the generation it will be flushed into, and its records in order.

    `records` has the columns of `rows.fold.record_schema`. `number` is the place in the log that it was written for,
    None where the release that wrote it did not say; so is `nonce`, random text.
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
        """Whether this entry only fences: it holds no rows."""
        return bool(self.records.num_rows == 0)


def encode(entry: WalEntry) -> bytes:
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
    with pa.ipc.new_stream(sink, records.schema, options=_OPTIONS) as writer:
        writer.write_table(records)
    body: bytes = sink.getvalue().to_pybytes()
    magic = _MAGIC + bytes([_FORMAT_VERSION])
    return body + _TRAILER.pack(len(body), xxhash.xxh3_64_intdigest(body), magic)


def decode(data: bytes, where: str, *, checked: bool = True) -> WalEntry:
    """Return the entry in `data`; `where` is its key, for the error. Unless `checked`, its values may be not valid.

    Raises `Corrupt` when length, checksum, stream or metadata are not what was written; `Unsupported` for the format of
    a newer release. No row is returned from bytes that do not verify.
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
            f"{where}: WAL entry of format {magic[-1]}, this release reads {_FORMAT_VERSION}; upgrade", key=where
        )
    if length != len(body):
        raise Corrupt(f"{where}: torn WAL entry: expected {length} bytes of records, found {len(body)}", key=where)
    found = xxhash.xxh3_64_intdigest(body)
    if found != digest:
        raise Corrupt(f"{where}: damaged WAL entry: expected xxh3 {digest:016x}, found {found:016x}", key=where)
    return body
