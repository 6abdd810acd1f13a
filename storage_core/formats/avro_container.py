"""Avro object container files, read with bounds: lengths, counts and expansion are checked before decoding.

Pure: bytes to records or columns, no I/O of the table. The walk over the blocks costs a few steps per block and makes
four promises that the decoders do not: a file cut between two blocks is torn, not shorter; a block never expands
beyond a cap, whatever it claims; and no decoder meets a container that is not whole, or a schema that it would follow
without end (`avro_schema`). (Apache Avro 1.11 specification, "Object Container Files"; lessons 60, 61 and 82.)
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Final, cast

import pyarrow as pa
import xxhash

from storage_core.errors import Corrupt
from storage_core.foreign_text import quoted
from storage_core.formats.avro_codecs import CODEC_DAMAGE, MAX_EXPANDED_BYTES, expand, expanded_bytes, measure_of
from storage_core.formats.avro_schema import least_bytes
from storage_core.headroom import require_headroom
from storage_core.process import HomeProcess
from storage_core.scratch import scratch, scratch_folder
from storage_core.system_errors import panicked, raise_refused

MAGIC = b"Obj\x01"
CHECKSUM_KEY = "tidemark.xxh3"
OPEN_CHECKSUM = "-" * 16
SYNC_BYTES = 16
MAX_HEADER_BYTES = 2**20
MAX_RECORDS = 20_000_000
_SCHEMA_KEY = b"avro.schema"
_MARK = bytes(SYNC_BYTES)
_LONGEST_LONG = 10

# Address space of DataFusion. What it is loaded with, of which its allocator reserves 2 GiB; a stack and a heap for
# each thread that it starts, as many as cores and some; and per byte of a block what may be made of it, twice.
_LOADED_BYTES: Final = 2**31 + 256 * 2**20
_THREAD_BYTES: Final = 72 * 2**20
_OTHER_THREADS: Final = 4
_DECODED_BYTES: Final = 16


class _Decoder:
    # Mutable state at module level: the threads of DataFusion are of the process that began to use it.
    home: ClassVar[HomeProcess | None] = None


# A damaged file fails in whichever decoder meets the damage first.
_DAMAGE = (
    *CODEC_DAMAGE,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What the walk found: schema and codec as the header says them, records, blocks, and their bytes when expanded."""

    schema: bytes
    codec: str
    records: int
    blocks: tuple[slice, ...]
    expanded_bytes: int


def inspect(data: bytes, where: str) -> Container:
    """Return the metadata of a container that is whole and within bounds. Raises `Corrupt` naming `where` if it is not.

    Bounds: a header of 1 MiB, 20 million records, 512 MiB expanded. Memory: 1 MiB beside `data`. Raises `Unsupported`
    for a codec that this release does not read.
    """
    if not data.startswith(MAGIC):
        raise Corrupt(f"{where}: expected an Avro file, found {data[:4].hex(' ') or 'no bytes'}", key=where)
    cursor = _Cursor(data, len(MAGIC), where)
    schema, codec = _header(cursor)
    least = least_bytes(schema, where)
    sync = cursor.take(SYNC_BYTES)
    measure = measure_of(codec, where)
    records = expanded = 0
    blocks: list[slice] = []
    while not cursor.at_end:
        count, length = cursor.long(), cursor.long()
        if count < 0 or length < 0:
            raise Corrupt(f"{where}: a block claims {count} records in {length} bytes", key=where)
        records += count
        blocks.append(slice(cursor.position, cursor.position + length))
        block = cursor.take(length)
        if records > MAX_RECORDS:
            raise Corrupt(f"{where}: claims more than {MAX_RECORDS} records", key=where)
        expanded += expanded_bytes(measure, block, MAX_EXPANDED_BYTES - expanded, where)
        if cursor.take(SYNC_BYTES) != sync:
            raise Corrupt(
                f"{where}: the block before byte {cursor.position} does not end with the file's mark", key=where
            )
    if (
        records or expanded
    ) and not 0 < records * least <= expanded:  # of records without a byte a decoder reads on for ever
        raise Corrupt(f"{where}: claims {records} records in {expanded} bytes", key=where)
    return Container(schema=schema, codec=codec, records=records, blocks=tuple(blocks), expanded_bytes=expanded)


def read_records(data: bytes, where: str, inspected: Container | None = None) -> list[dict[str, Any]]:
    """Return the records as Python objects, for small files. Raises `Corrupt` naming `where`, and as `inspect` does.

    `inspected` is what `inspect` said of just these bytes.
    """
    if inspected is None:
        inspect(data, where)
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType

    found: list[dict[str, Any]] = []
    try:
        for block in fastavro.block_reader(io.BytesIO(data)):
            found.extend(cast("dict[str, Any]", record) for record in block)
            if block.bytes_.read(1):  # type: ignore[attr-defined]  # its stub lacks it
                raise Corrupt(f"{where}: a block of {block.num_records} records holds more than them", key=where)
    except (*_DAMAGE, SchemaParseException, UnknownType) as error:
        raise Corrupt(f"{where}: damaged Avro file: {type(error).__name__}: {error}", key=where) from error
    return found


def read_columns(data: bytes, where: str, inspected: Container | None = None) -> pa.Table:
    """Return the records as an Arrow table, columns named and typed as the file declares them, rows in file order.

    Decoded by DataFusion, column by column, which makes no object per record ("Checkpoints").
    `inspected` is what `inspect` said of just these bytes. Raises as `read_records` does, and `CopiedProcess` in a copy
    by fork() of a process that called this: there it would wait for threads that are not there.
    """
    found = inspected or inspect(data, where)
    if _Decoder.home is not None:
        _Decoder.home.require("what reads Avro files", "start the process anew instead (by `spawn` or `forkserver`)")
    with require_headroom(where, reserved=_reserved_bytes(found)), scratch_folder("state") as folder:
        from datafusion import SessionConfig, SessionContext

        # DataFusion reads files only. The folder is private to this call, and gone when it ends.
        path = folder / "block.avro"
        plain = _plain_copy(data, found, where)
        with scratch(f"a copy of {where}"), path.open("wb") as file:
            file.writelines(plain)
        # A batch for all records, and a next one for what there may be beside them: see `_plain_copy`.
        context = SessionContext(SessionConfig().with_target_partitions(1).with_batch_size(max(1, found.records)))
        _Decoder.home = HomeProcess()
        try:
            frame = context.read_avro(path)
            batches = [_right_sized(batch.to_pyarrow()) for batch in islice(frame.execute_stream(), 2)]
            table = pa.Table.from_batches(batches, frame.schema())
        except BaseException as error:
            if not isinstance(error, Exception) and not panicked(error):
                raise
            raise_refused(where, error)  # the file was whole when it was inspected
            raise Corrupt(f"{where}: damaged Avro file: {error}", key=where) from error
    if table.num_rows != found.records:
        raise Corrupt(f"{where}: expected {found.records} records, found {table.num_rows}", key=where)
    return table


def _reserved_bytes(found: Container) -> int:
    """What of address space DataFusion takes for these records, and for itself where it does not run yet."""
    started = (
        0 if _Decoder.home is not None else _LOADED_BYTES + ((os.cpu_count() or 1) + _OTHER_THREADS) * _THREAD_BYTES
    )
    return started + _DECODED_BYTES * found.expanded_bytes


def _plain_copy(data: bytes, found: Container, where: str) -> list[bytes]:
    """The file with one block that is not compressed, and claims a record per byte.

    DataFusion reads on for ever where it has read the records that a block claims and bytes are left. A record takes a
    byte at least, so of this block it never has: it ends where the bytes do, or fails within a record.
    """
    header = [MAGIC, _long(1), _long(len(_SCHEMA_KEY)), _SCHEMA_KEY, _long(len(found.schema)), found.schema, _long(0)]
    blocks = [expand(found.codec, data[each], where) for each in found.blocks]
    size = sum(map(len, blocks))
    body = [_long(size), _long(size), *blocks, _MARK] if size else []
    return [*header, _MARK, *body]


def _long(number: int) -> bytes:
    """A number that is not negative as Avro writes it: zig-zag, seven bits a byte, the least first."""
    number <<= 1
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def _right_sized(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy without the room to grow that the decoder's own buffers have: of a large state twice the memory."""
    columns = [pa.concat_arrays([column, column.slice(0, 0)]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def with_checksum(data: bytes) -> bytes:
    """Return the file with its checksum in the place of `OPEN_CHECKSUM`, under `CHECKSUM_KEY` in its header.

    A checksummed file of which any bit changes does not open: the checksum is over all other bytes.
    """
    start = data.index(OPEN_CHECKSUM.encode())
    return data[:start] + _checksum_of(data, start) + data[start + len(OPEN_CHECKSUM) :]


def _checksum_of(data: bytes, start: int) -> bytes:
    return xxhash.xxh3_64_hexdigest(data[:start] + OPEN_CHECKSUM.encode() + data[start + len(OPEN_CHECKSUM) :]).encode()


class _Cursor:
    """A position in the bytes that never leaves them."""

    def __init__(self, data: bytes, position: int, where: str) -> None:
        self._data = data
        self.position = position
        self.where = where

    @property
    def at_end(self) -> bool:
        return self.position == len(self._data)

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes; a claim beyond the end is refused before anything is allocated."""
        end = self.position + size
        if end > len(self._data):
            raise Corrupt(
                f"{self.where}: {size} bytes claimed at byte {self.position}, the file ends at {len(self._data)}",
                key=self.where,
            )
        found = self._data[self.position : end]
        self.position = end
        return found

    def long(self) -> int:
        """Return the next zig-zag number of at most 64 bits."""
        number = 0
        for index, byte in enumerate(self._data[self.position : self.position + _LONGEST_LONG]):
            number |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                self.position += index + 1
                return (number >> 1) ^ -(number & 1)
        self.take(_LONGEST_LONG)  # which is refused where the file ends within the number
        raise Corrupt(f"{self.where}: a number at byte {self.position} is longer than 64 bits", key=self.where)

    def require_checksum(self, found: bytes) -> None:
        """Compare the checksum that was just read with the file around it."""
        start = self.position - len(found)
        expected = _checksum_of(self._data, start)
        if found != expected:
            raise Corrupt(
                f"{self.where}: has the checksum {found!r}, its content is {expected!r}; it is not what was written",
                key=self.where,
            )

    def sized(self) -> bytes:
        """Return the next bytes that come with their length."""
        size = self.long()
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise Corrupt(f"{self.where}: {size} bytes claimed in the header", key=self.where)
        return self.take(size)


def _header(cursor: _Cursor) -> tuple[bytes, str]:
    """Return schema and codec, which the header's map names. Raises `Corrupt` where the checksum differs."""
    found: dict[bytes, bytes] = {}
    for key, value in _pairs(cursor):
        if key in found:
            raise Corrupt(f"{cursor.where}: {quoted(key)} stands twice in the header", key=cursor.where)
        found[key] = value
        if key == CHECKSUM_KEY.encode():
            cursor.require_checksum(value)
    return found.get(_SCHEMA_KEY, b""), found.get(b"avro.codec", b"null").decode("ascii", "replace")


def _pairs(cursor: _Cursor) -> Iterator[tuple[bytes, bytes]]:
    while (count := cursor.long()) != 0:
        if count < 0:  # then the bytes of the block follow, which we do not need
            cursor.long()
        for _ in range(abs(count)):
            yield cursor.sized(), cursor.sized()
