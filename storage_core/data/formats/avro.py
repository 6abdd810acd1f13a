"""Reading and writing of Avro object container files: schemas, blocks and codecs.

The bytes of a file may be damaged or hostile, so lengths, counts and expanded sizes are checked before decoding. The
functions convert bytes to records or columns and back, without I/O on the table. The parts of the module:

- **Blocks**: the size of a compressed block is measured while the block expands. The file may claim any size. However,
  only one piece of the block is in memory at a time. (Apache Avro 1.11 specification, "Required Codecs", "Optional
  Codecs".)
- **Schemas of files** (`least_bytes`): a schema is checked before a decoder uses it. A schema could make the decoders
  in C recurse and repeat without a limit. The check refuses schemas in which a type contains itself. (A value with a
  million levels would end the process.) The check also refuses schemas in which each level of nested types multiplies
  the size of a value. The check also refuses schemas in which a value needs no bytes. A small file could then claim to
  have any number of values.
- **Schemas of records that Tidemark writes** (`record_schema`, `optional`), without Avro's boilerplate.
- **Containers** (`inspect`): the function reads all blocks and needs a few steps per block. `inspect` guarantees four
  properties that the decoders do not guarantee. A file that ends too early between two blocks is refused. A block never
  expands beyond a limit. A decoder never receives an incomplete container. A decoder never receives a schema that would
  make it run without end. (Apache Avro 1.11 specification, "Object Container Files", and lessons 60, 61 and 82.)
- **Writing** (`write_container`): the same records give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import cramjam
import pyarrow as pa
import xxhash

from storage_core.base.errors import Corrupt, InvalidInput, Unsupported, panicked, raise_refused
from storage_core.base.process import HomeProcess, check_free_resources, scratch, scratch_folder
from storage_core.base.text import quoted, shortened

if TYPE_CHECKING:
    from fastavro.types import Schema


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


# Blocks.

MAX_EXPANDED_BYTES = 2**29
CODEC_DAMAGE = (zstd.ZstdError, cramjam.DecompressionError, zlib.error, ValueError, EOFError)
_STEP = 2**20
_CHECKSUM_BYTES = 4

Measure = Callable[[bytes, int], int]
"""A function that returns the expanded size of a block in bytes.

If the result is greater than `room`, the real size may be even larger.
"""


def expanded_bytes(measure: Measure, block: bytes, room: int, where: str) -> int:
    """Return the number of bytes to which the block expands.

    Raises `Corrupt` if the block is damaged or expands to more than `room` bytes.
    """
    try:
        size = measure(block, room)
    except CODEC_DAMAGE as error:
        raise Corrupt(f"{where}: damaged block: {error}", key=where) from error
    if size > room:
        raise Corrupt(
            f"{where}: expands to more than {MAX_EXPANDED_BYTES} bytes, which is the limit of a manifest", key=where
        )
    return size


def measure_of(codec: str, where: str) -> Measure:
    """Return the function that measures blocks of the codec. Raises `Unsupported` for an unknown codec."""
    found = _MEASURES.get(codec)
    if found is None:
        raise Unsupported(
            f"{where}: Avro codec {codec!r} is not supported. This release reads {', '.join(sorted(_MEASURES))}",
            key=where,
        )
    return found


def expand(codec: str, block: bytes, where: str) -> bytes:
    """Return the expanded content of a block that was already measured. Raises `Corrupt` if the block is damaged."""
    try:
        match codec:
            case "deflate":
                return zlib.decompress(block, -zlib.MAX_WBITS)
            case "zstandard":
                return zstd.decompress(block)
            case "snappy":
                data = bytes(cramjam.snappy.decompress_raw(block[:-_CHECKSUM_BYTES]))
                if zlib.crc32(data) != int.from_bytes(block[-_CHECKSUM_BYTES:], "big"):
                    raise ValueError("the block does not match its checksum")
                return data
            case _:
                return block
    except CODEC_DAMAGE as error:
        raise Corrupt(f"{where}: damaged block: {error}", key=where) from error


def _plain(block: bytes, _room: int) -> int:
    return len(block)


def _deflated(block: bytes, room: int) -> int:
    return _streamed(zlib.decompressobj(-zlib.MAX_WBITS), block, room)


def _zstandard(block: bytes, room: int) -> int:
    total = 0
    while block and total <= room:
        stream = zstd.ZstdDecompressor()
        total += _streamed(stream, block, room - total)
        block = stream.unused_data
    return total


def _streamed(stream: Any, block: bytes, room: int) -> int:
    """Return the expanded size, computed piece by piece without keeping the pieces.

    zlib returns the input that it has not consumed. zstd keeps this input internally.
    """
    total = len(stream.decompress(block, _STEP))
    while not stream.eof and total <= room:
        rest = getattr(stream, "unconsumed_tail", b"")
        piece = stream.decompress(rest, _STEP)
        if not piece and not rest:
            raise EOFError(f"the block ends early after {len(block)} bytes")
        total += len(piece)
    return total


def _snappy(block: bytes, room: int) -> int:
    # The block starts with its expanded length. The decoder allocates this length and enforces it. A checksum of four
    # bytes follows the block.
    claimed = int(cramjam.snappy.decompress_raw_len(block[:-_CHECKSUM_BYTES]))
    return claimed if claimed <= room else room + 1


_MEASURES: Mapping[str, Measure] = {
    "null": _plain,
    "deflate": _deflated,
    "zstandard": _zstandard,
    "snappy": _snappy,
}


# Schemas of files.

DEEPEST = 64
MOST_PARTS = 10_000
LARGEST_FIXED = 2**20

_PRIMITIVES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


def least_bytes(text: bytes, where: str) -> int:
    """Return the minimum number of bytes of a record with this schema. Raises `Corrupt` for the file `where`.

    See the module's docstring for the schemas that are refused.
    """
    try:
        least, _ = _Types().measured(json.loads(text), 0)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Corrupt(f"{where}: its Avro schema cannot be used: {shortened(str(error))}", key=where) from error
    return least


class _Types:
    """Two numbers for each known type name: the minimum bytes of a value, and its number of parts.

    The keys are the last parts of the type names. Two types must not have the same last part of their names.
    """

    def __init__(self) -> None:
        self._named: dict[str, tuple[int, int] | None] = {}

    def measured(self, schema: Any, depth: int) -> tuple[int, int]:
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} levels")
        if isinstance(schema, str):
            least, parts = self._known(schema)
        elif isinstance(schema, list):
            least, parts = 1, 1 + sum(self.measured(each, depth + 1)[1] for each in schema)
        else:
            least, parts = self._declared(schema, depth + 1)
        if parts > MOST_PARTS:
            raise ValueError(f"more than {MOST_PARTS} parts")
        return least, parts

    def _known(self, name: str) -> tuple[int, int]:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name], 1
        found = self._named.get(_short(name))
        if found is None:
            raise ValueError(f"the type {name!r} is not declared, or contains itself")
        return found

    def _declared(self, schema: dict[str, Any], depth: int) -> tuple[int, int]:
        kind = schema["type"]
        if kind in ("array", "map"):
            least, parts = self.measured(schema["items" if kind == "array" else "values"], depth)
            if kind == "array" and least == 0:
                raise ValueError("the values of an array have no bytes")
            return 1, 1 + parts
        if kind not in ("record", "error", "enum", "fixed"):
            return self.measured(kind, depth)
        name = _short(schema["name"])
        if name in self._named or name in _PRIMITIVES:
            raise ValueError(f"{name!r} is declared twice")
        self._named[name] = None
        found = self._of_name(schema, depth)
        self._named[name] = found
        return found

    def _of_name(self, schema: dict[str, Any], depth: int) -> tuple[int, int]:
        if schema["type"] == "enum":
            return 1, 1
        if schema["type"] == "fixed":
            size = schema["size"]
            if not isinstance(size, int) or not 0 <= size <= LARGEST_FIXED:
                raise ValueError(f"a fixed type has the invalid size {size!r}")
            return size, 1
        fields = [self.measured(each["type"], depth) for each in schema["fields"]]
        return sum(least for least, _ in fields), 1 + sum(parts for _, parts in fields)


def _short(name: str) -> str:
    return name.rsplit(".", 1)[-1]


# Schemas of records that Tidemark writes.


def record_schema(name: str, fields: Sequence[Mapping[str, object]], *, namespace: str | None = None) -> Schema:
    """Return the schema of a record. The keys of the schema have the same order as in the files."""
    named = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    return {"type": "record", **named, "fields": list(fields)}


def avro_field(name: str, kind: object, **more: object) -> dict[str, object]:
    """Return a field of a record. `more` contains other entries of the field, such as its default."""
    return {"name": name, "type": kind, **more}


def optional(name: str, kind: object) -> dict[str, object]:
    """Return a field that may be null. An absent field is null."""
    return avro_field(name, or_null(kind), default=None)


def or_null(kind: object) -> list[object]:
    """Return the type of a value that may be null."""
    return ["null", kind]


def array(items: object) -> dict[str, object]:
    """Return the type of a list."""
    return {"type": "array", "items": items}


def map_of(values: object) -> dict[str, object]:
    """Return the type of a map with text keys."""
    return {"type": "map", "values": values}


# Containers.

MAGIC = b"Obj\x01"
CHECKSUM_KEY = "tidemark.xxh3"
OPEN_CHECKSUM = "-" * 16
SYNC_BYTES = 16
MAX_HEADER_BYTES = 2**20
MAX_RECORDS = 20_000_000
_SCHEMA_KEY = b"avro.schema"
_MARK = bytes(SYNC_BYTES)
_LONGEST_LONG = 10

# The address space that DataFusion needs. The libraries of DataFusion need space, and their allocator reserves 2 GiB.
# Each thread needs a stack and a heap. There is one thread per core, and there are some more threads. One byte of an
# expanded block may become several bytes of decoded data. DataFusion needs twice this number of bytes.
_LOADED_BYTES: Final = 2**31 + 256 * 2**20
_THREAD_BYTES: Final = 72 * 2**20
_OTHER_THREADS: Final = 4
_DECODED_BYTES: Final = 16


class _Decoder:
    # This state is mutable at module level, because DataFusion's threads belong to the process that first used
    # DataFusion.
    home: ClassVar[HomeProcess | None] = None


# For a damaged file, the error class depends on the decoder that finds the damage first.
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
    """The result of `inspect`: schema and codec of the header, number of records, blocks, and their expanded bytes."""

    schema: bytes
    codec: str
    records: int
    blocks: tuple[slice, ...]
    expanded_bytes: int


def inspect(data: bytes, where: str) -> Container:
    """Check that a container is complete and within the limits, and return its metadata.

    The limits are a header of 1 MiB, 20 million records, and 512 MiB of expanded blocks.

    Args:
        data: The file.
        where: The name of the file in errors.

    Raises:
        Corrupt: The container is incomplete, damaged or beyond the bounds.
        Unsupported: This release does not read the codec.

    Cost: 1 MiB of memory in addition to `data`.
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
    ) and not 0 < records * least <= expanded:  # a decoder would run without end on records without bytes
        raise Corrupt(f"{where}: the file claims {records} records in {expanded} bytes", key=where)
    return Container(schema=schema, codec=codec, records=records, blocks=tuple(blocks), expanded_bytes=expanded)


def read_records(data: bytes, where: str, inspected: Container | None = None) -> list[dict[str, Any]]:
    """Return the records as Python objects. Use this function for small files only.

    Args:
        data: The file.
        where: The name of the file in errors.
        inspected: The result of `inspect` for exactly these bytes.

    Raises:
        Corrupt: The file is damaged.
        Unsupported: This release does not read the codec.
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
                raise Corrupt(f"{where}: a block of {block.num_records} records has more bytes after them", key=where)
    except (*_DAMAGE, SchemaParseException, UnknownType) as error:
        raise Corrupt(f"{where}: damaged Avro file: {type(error).__name__}: {error}", key=where) from error
    return found


def read_columns(data: bytes, where: str, inspected: Container | None = None) -> pa.Table:
    """Return the records as an Arrow table.

    The columns have the names and types of the file. The rows are in the order of the file.

    DataFusion decodes each column as a whole and creates no object per record ("Checkpoints"). Raises the errors of
    `read_records`. Also raises `CopiedProcess` if this process is a fork() copy of a process that called this function.
    In a fork() copy, the call would wait without end for threads that do not exist. `inspected` is the result of
    `inspect` for exactly these bytes.
    """
    found = inspected or inspect(data, where)
    if _Decoder.home is not None:
        _Decoder.home.require("the reader of Avro files", "start a new process instead (by `spawn` or `forkserver`)")
    with check_free_resources(where, reserved=_reserved_bytes(found)), scratch_folder("state") as folder:
        from datafusion import SessionConfig, SessionContext

        # DataFusion reads only files. The folder is private to this call and removed at its end.
        path = folder / "block.avro"
        plain = _plain_copy(data, found, where)
        with scratch(f"a copy of {where}"), path.open("wb") as file:
            file.writelines(plain)
        # One batch is enough for all records. A second batch exists only if the file contains more records than it
        # declares (see `_plain_copy`).
        context = SessionContext(SessionConfig().with_target_partitions(1).with_batch_size(max(1, found.records)))
        _Decoder.home = HomeProcess()
        try:
            frame = context.read_avro(path)
            batches = [_right_sized(batch.to_pyarrow()) for batch in islice(frame.execute_stream(), 2)]
            table = pa.Table.from_batches(batches, frame.schema())
        except BaseException as error:
            if not isinstance(error, Exception) and not panicked(error):
                raise
            raise_refused(where, error)  # `inspect` has found that the file is complete
            raise Corrupt(f"{where}: damaged Avro file: {error}", key=where) from error
    if table.num_rows != found.records:
        raise Corrupt(f"{where}: expected {found.records} records, found {table.num_rows}", key=where)
    return table


def _reserved_bytes(found: Container) -> int:
    """Return the address space that DataFusion needs for these records.

    Add the space for DataFusion itself if it is not loaded yet.
    """
    started = (
        0 if _Decoder.home is not None else _LOADED_BYTES + ((os.cpu_count() or 1) + _OTHER_THREADS) * _THREAD_BYTES
    )
    return started + _DECODED_BYTES * found.expanded_bytes


def _plain_copy(data: bytes, found: Container, where: str) -> list[bytes]:
    """Return a copy of the file with a single uncompressed block.

    In the block's header, the number of records equals the number of bytes.

    If a block has more bytes than its records need, DataFusion runs without end. A record has at least one byte, so the
    number of bytes is never smaller than the number of records. DataFusion stops at the end of the bytes, or fails
    inside a record.
    """
    header = [MAGIC, _long(1), _long(len(_SCHEMA_KEY)), _SCHEMA_KEY, _long(len(found.schema)), found.schema, _long(0)]
    blocks = [expand(found.codec, data[each], where) for each in found.blocks]
    size = sum(map(len, blocks))
    body = [_long(size), _long(size), *blocks, _MARK] if size else []
    return [*header, _MARK, *body]


def _long(number: int) -> bytes:
    """Return a non-negative number in Avro's form: zig-zag, with seven bits per byte and the lowest bits first."""
    number <<= 1
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def _right_sized(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy without the spare capacity of the decoder's buffers. The spare capacity can double the memory."""
    columns = [pa.concat_arrays([column, column.slice(0, 0)]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def with_checksum(data: bytes) -> bytes:
    """Return the file with its checksum in place of `OPEN_CHECKSUM`.

    The checksum is in the header, under `CHECKSUM_KEY`.

    The checksum covers all other bytes. So if any bit of the file changes, the file is refused.
    """
    start = data.index(OPEN_CHECKSUM.encode())
    return data[:start] + _checksum_of(data, start) + data[start + len(OPEN_CHECKSUM) :]


def _checksum_of(data: bytes, start: int) -> bytes:
    return xxhash.xxh3_64_hexdigest(data[:start] + OPEN_CHECKSUM.encode() + data[start + len(OPEN_CHECKSUM) :]).encode()


class _Cursor:
    """A position in the bytes that never moves beyond their end."""

    def __init__(self, data: bytes, position: int, where: str) -> None:
        self._data = data
        self.position = position
        self.where = where

    @property
    def at_end(self) -> bool:
        return self.position == len(self._data)

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes. A size beyond the end is refused before memory is allocated."""
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
        self.take(_LONGEST_LONG)  # raises an error if the file ends inside the number
        raise Corrupt(f"{self.where}: a number at byte {self.position} is longer than 64 bits", key=self.where)

    def require_checksum(self, found: bytes) -> None:
        """Raise `Corrupt` unless the checksum that was just read matches the rest of the file."""
        start = self.position - len(found)
        expected = _checksum_of(self._data, start)
        if found != expected:
            raise Corrupt(
                f"{self.where}: has the checksum {found!r}, but the content has the checksum {expected!r}. The "
                "content is not what was written",
                key=self.where,
            )

    def sized(self) -> bytes:
        """Read the length of the next byte string, and return the bytes of the string."""
        size = self.long()
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise Corrupt(f"{self.where}: {size} bytes claimed in the header", key=self.where)
        return self.take(size)


def _header(cursor: _Cursor) -> tuple[bytes, str]:
    """Return schema and codec from the header's map. Raises `Corrupt` if the checksum differs."""
    found: dict[bytes, bytes] = {}
    for key, value in _pairs(cursor):
        if key in found:
            raise Corrupt(f"{cursor.where}: {quoted(key)} occurs twice in the header", key=cursor.where)
        found[key] = value
        if key == CHECKSUM_KEY.encode():
            cursor.require_checksum(value)
    return found.get(_SCHEMA_KEY, b""), found.get(b"avro.codec", b"null").decode("ascii", "replace")


def _pairs(cursor: _Cursor) -> Iterator[tuple[bytes, bytes]]:
    while (count := cursor.long()) != 0:
        if count < 0:  # the size of the block follows, but the reader does not need the size
            cursor.long()
        for _ in range(abs(count)):
            yield cursor.sized(), cursor.sized()


# Writing.

MAX_ENTRIES_PER_MANIFEST = 50_000


class Compression(StrEnum):
    """The compression of blocks of manifests and states. Tidemark can always read every compression in this list."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    NONE = "none"


_CODECS: Mapping[Compression, tuple[str, int | None]] = {
    Compression.ZSTD: ("zstandard", 3),
    Compression.SNAPPY: ("snappy", None),
    Compression.NONE: ("null", None),
}
# Blocks are larger than the default of 16 kB. Large blocks compress better, and fewer blocks must be checked.
_BLOCK_BYTES = 256 * 2**10
_SYNC_MARKER = hashlib.sha256(b"tidemark state").digest()[:16]


def require_fits(count: int) -> None:
    """Raise `InvalidInput` if there are more entries than one object of a state may contain."""
    if count > MAX_ENTRIES_PER_MANIFEST:
        raise InvalidInput(
            f"a manifest has {count:,} entries. The limit is {MAX_ENTRIES_PER_MANIFEST:,}. Write several manifests"
        )


def write_container(
    schema: Schema,
    records: Sequence[Mapping[str, object]],
    compression: Compression,
    header: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Return a container with the records. The header of the container contains the entries of `header`."""
    import fastavro

    codec, level = _CODECS[compression]
    target = io.BytesIO()
    fastavro.writer(
        target,
        schema,
        records,
        codec=codec,
        codec_compression_level=level,
        sync_interval=_BLOCK_BYTES,
        sync_marker=_SYNC_MARKER,
        metadata=dict(header),
    )
    return target.getvalue()
