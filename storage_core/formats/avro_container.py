"""Avro object container files, read with bounds: lengths, counts and expansion are checked before decoding.

Pure: bytes to records or columns, no I/O of the table. The walk over the blocks costs a few steps per block and makes
four promises that the decoders do not: a file cut between two blocks is torn, not shorter; a block never expands
beyond a cap, whatever it claims; and no decoder meets a container that is not whole, or a schema that it would follow
without end (`avro_schema`). (Apache Avro 1.11 specification, "Object Container Files"; lessons 60, 61 and 82.)
"""

from __future__ import annotations

import io
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import cramjam
import pyarrow as pa
import xxhash

from storage_core.errors import Corrupt, Unavailable, Unsupported
from storage_core.formats.avro_schema import least_bytes
from storage_core.os_errors import scratch, scratch_folder, unavailable

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError
else:
    from backports.zstd import ZstdDecompressor, ZstdError

MAGIC = b"Obj\x01"
SEAL_KEY = "tidemark.xxh3"
OPEN_SEAL = "-" * 16
SYNC_BYTES = 16
MAX_HEADER_BYTES = 2**20
MAX_EXPANDED_BYTES = 2**29
MAX_RECORDS = 20_000_000
_STEP = 2**20
_BATCH_ROWS = 65_536
_OF_THE_SYSTEM = re.compile(r"os error \d+|code: \d+, kind")
_LONGEST_LONG = 10

# A damaged file fails in whichever decoder meets the damage first.
_DAMAGE = (
    ValueError,
    LookupError,
    EOFError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    ZstdError,
    cramjam.DecompressionError,
    zlib.error,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What the walk found: the codec of the blocks, their records, and their bytes when expanded."""

    codec: str
    records: int
    expanded_bytes: int


def inspect(data: bytes, where: str) -> Container:
    """Return the figures of a container that is whole and within bounds. Raises `Corrupt` naming `where` if it is not.

    Bounds: a header of 1 MiB, 20 million records, 512 MiB expanded. Memory: 1 MiB beside `data`. Raises `Unsupported`
    for a codec that this release does not read.
    """
    if not data.startswith(MAGIC):
        raise Corrupt(f"{where}: expected an Avro file, found {data[:4].hex(' ') or 'no bytes'}", key=where)
    cursor = _Cursor(data, len(MAGIC), where)
    codec, least = _header(cursor)
    sync = cursor.take(SYNC_BYTES)
    measure = _measure(codec, where)
    records = expanded = 0
    while not cursor.at_end:
        count, length = cursor.long(), cursor.long()
        if count < 0 or length < 0:
            raise Corrupt(f"{where}: a block claims {count} records in {length} bytes", key=where)
        records += count
        block = cursor.take(length)
        if records > MAX_RECORDS:
            raise Corrupt(f"{where}: claims more than {MAX_RECORDS} records", key=where)
        expanded += _expanded(measure, block, MAX_EXPANDED_BYTES - expanded, where)
        if cursor.take(SYNC_BYTES) != sync:
            raise Corrupt(
                f"{where}: the block before byte {cursor.position} does not end with the file's mark", key=where
            )
    if records and not 0 < records * least <= expanded:  # of records without a byte a decoder reads on for ever
        raise Corrupt(f"{where}: claims {records} records in {expanded} bytes", key=where)
    return Container(codec=codec, records=records, expanded_bytes=expanded)


def read_records(data: bytes, where: str, inspected: Container | None = None) -> list[dict[str, Any]]:
    """Return the records as Python objects, for small files. Raises `Corrupt` naming `where`, and as `inspect` does.

    `inspected` is what `inspect` said of just these bytes.
    """
    if inspected is None:
        inspect(data, where)
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        return [cast("dict[str, Any]", record) for record in fastavro.reader(io.BytesIO(data))]
    except (*_DAMAGE, SchemaParseException, UnknownType) as error:
        raise Corrupt(f"{where}: damaged Avro file: {type(error).__name__}: {error}", key=where) from error


def read_columns(data: bytes, where: str, inspected: Container | None = None) -> pa.Table:
    """Return the records as an Arrow table, columns named and typed as the file declares them, rows in file order.

    Decoded by DataFusion, column by column, which makes no object per record ("Checkpoints").
    `inspected` is what `inspect` said of just these bytes. Raises as `read_records` does.
    """
    from datafusion import SessionConfig, SessionContext

    found = inspected or inspect(data, where)
    with scratch_folder("tidemark-") as folder:
        # DataFusion reads files only. The folder is private to this call, and gone when it ends.
        path = folder / "block.avro"
        with scratch(f"a copy of {where}"):
            path.write_bytes(data)
        context = SessionContext(SessionConfig().with_target_partitions(1).with_batch_size(_BATCH_ROWS))
        try:
            frame = context.read_avro(path)
            batches = [_right_sized(batch.to_pyarrow()) for batch in frame.execute_stream()]
            table = pa.Table.from_batches(batches, frame.schema())
        except MemoryError as error:
            raise unavailable(where, error) from error
        except Exception as error:  # DataFusion raises plain exceptions, one class for everything
            if _OF_THE_SYSTEM.search(str(error)):  # the file was whole when it was inspected
                raise Unavailable(
                    f"{where}: a copy of it cannot be read: {error}; try again later", key=where
                ) from error
            raise Corrupt(f"{where}: damaged Avro file: {error}", key=where) from error
    if table.num_rows != found.records:
        raise Corrupt(f"{where}: expected {found.records} records, found {table.num_rows}", key=where)
    return table


def _right_sized(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy without the room to grow that the decoder's own buffers have: of a large state twice the memory."""
    columns = [pa.concat_arrays([column, column.slice(0, 0)]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def seal(data: bytes) -> bytes:
    """Return the file with its seal filled in: it was written with `OPEN_SEAL` under `SEAL_KEY` in its header.

    A sealed file of which any bit changes does not open: the seal is over all other bytes.
    """
    start = data.index(OPEN_SEAL.encode())
    return data[:start] + _seal_of(data, start) + data[start + len(OPEN_SEAL) :]


def _seal_of(data: bytes, start: int) -> bytes:
    return xxhash.xxh3_64_hexdigest(data[:start] + OPEN_SEAL.encode() + data[start + len(OPEN_SEAL) :]).encode()


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

    def require_seal(self, found: bytes) -> None:
        """Compare the seal that was just read with the file around it."""
        start = self.position - len(found)
        expected = _seal_of(self._data, start)
        if found != expected:
            raise Corrupt(
                f"{self.where}: is sealed {found!r}, its content is {expected!r}; it is not what was written",
                key=self.where,
            )

    def sized(self) -> bytes:
        """Return the next bytes that come with their length."""
        size = self.long()
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise Corrupt(f"{self.where}: {size} bytes claimed in the header", key=self.where)
        return self.take(size)


def _header(cursor: _Cursor) -> tuple[str, int]:
    """Read the header's map; return the codec and the least bytes of a record.

    Raises `Corrupt` when it holds a seal that the file does not fit, or a schema that no decoder may follow.
    """
    found: dict[bytes, bytes] = {}
    for key, value in _pairs(cursor):
        if key in found:
            raise Corrupt(f"{cursor.where}: {key[:40]!r} stands twice in the header", key=cursor.where)
        found[key] = value
        if key == SEAL_KEY.encode():
            cursor.require_seal(value)
    return found.get(b"avro.codec", b"null").decode("ascii", "replace"), least_bytes(
        found.get(b"avro.schema", b""), cursor.where
    )


def _pairs(cursor: _Cursor) -> Iterator[tuple[bytes, bytes]]:
    while (count := cursor.long()) != 0:
        if count < 0:  # then the bytes of the block follow, which we do not need
            cursor.long()
        for _ in range(abs(count)):
            yield cursor.sized(), cursor.sized()


Measure = Callable[[bytes, int], int]
"""The bytes that a block expands to, or more than `room` as soon as it is known to be more."""


def _expanded(measure: Measure, block: bytes, room: int, where: str) -> int:
    try:
        size = measure(block, room)
    except (ZstdError, cramjam.DecompressionError, zlib.error, ValueError, EOFError) as error:
        raise Corrupt(f"{where}: damaged block: {error}", key=where) from error
    if size > room:
        raise Corrupt(f"{where}: expands beyond {MAX_EXPANDED_BYTES} bytes; no manifest of ours does", key=where)
    return size


def _measure(codec: str, where: str) -> Measure:
    found = _MEASURES.get(codec)
    if found is None:
        raise Unsupported(
            f"{where}: Avro codec {codec!r}; this release reads {', '.join(sorted(_MEASURES))}", key=where
        )
    return found


def _plain(block: bytes, _room: int) -> int:
    return len(block)


def _deflated(block: bytes, room: int) -> int:
    return _streamed(zlib.decompressobj(-zlib.MAX_WBITS), block, room)


def _zstandard(block: bytes, room: int) -> int:
    total = 0
    while block and total <= room:
        stream = ZstdDecompressor()
        total += _streamed(stream, block, room - total)
        block = stream.unused_data
    return total


def _streamed(stream: Any, block: bytes, room: int) -> int:
    """Expand piece by piece, keeping nothing. zlib hands back what it has not consumed, zstd keeps it inside."""
    total = len(stream.decompress(block, _STEP))
    while not stream.eof and total <= room:
        rest = getattr(stream, "unconsumed_tail", b"")
        piece = stream.decompress(rest, _STEP)
        if not piece and not rest:
            raise EOFError(f"the block ends early after {len(block)} bytes")
        total += len(piece)
    return total


def _snappy(block: bytes, room: int) -> int:
    # The length in front is what the decoder allocates and enforces; four bytes of checksum follow the block.
    claimed = int(cramjam.snappy.decompress_raw_len(block[:-4]))
    return claimed if claimed <= room else room + 1


_MEASURES: Mapping[str, Measure] = {
    "null": _plain,
    "deflate": _deflated,
    "zstandard": _zstandard,
    "snappy": _snappy,
}
