"""Reading Arrow IPC streams that somebody else may have made: whatever is in the bytes, a table or `Corrupt`."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

import pyarrow as pa

from storage_core.errors import Corrupt, InvalidInput
from storage_core.foreign_text import shortened
from storage_core.system_errors import raise_refused

# A stream of ours has the first kind only; Arrow raises each of the others for some bytes it has never seen.
_REFUSALS = (
    *(pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, TypeError, KeyError, RecursionError),
    struct.error,
)
DEEPEST = 64
"""Nesting of a column's type, to which Spark's and Parquet's readers do not come near."""
_MOST_EXPANSION = 255
"""Bytes that one byte of LZ4, which is what ours are compressed with, becomes at the most. Of zstd it may be 30,000."""

# Numbers of fields in the flatbuffers of Arrow's Message.fbs, and the size of the `Buffer` there.
_HEADER, _DICTIONARY_DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3
_BUFFER_BYTES = 16


def read_stream(
    data: bytes | memoryview, what: str, where: str, *, checked: bool = True
) -> tuple[pa.Table, Mapping[bytes, bytes]]:
    """Return the rows of the stream, every value of which may be looked at, and the metadata of its schema.

    `what` and `where`, the key, are for the error. Raises `Corrupt` for bytes that are no such stream: claims of
    lengths that do not hold, or that no LZ4 holds, before anything is allocated for them. If `checked`, also for
    offsets outside of their values and text that is no UTF-8. Raises `Unavailable` where memory is lacking. Memory:
    what the rows take, at most 255 times the stream.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            _require_shallow(reader.schema)
            _require_credible(data)
            records = reader.read_all()
        if checked:
            records.validate(full=True)
    except _REFUSALS as error:
        raise_refused(where, error)  # whatever the bytes claim is compared with what they are, before
        raise Corrupt(f"{where}: {what} is no Arrow stream: {shortened(str(error))}", key=where) from error
    return records, records.schema.metadata or {}


def require_readable(records: pa.Table) -> None:
    """Raise `InvalidInput` for rows that `read_stream` would refuse once they are written, whoever made them."""
    try:
        _require_shallow(records.schema)
        records.validate(full=True)
    except (ValueError, pa.ArrowException) as error:
        raise InvalidInput(
            f"the rows cannot be read back once they are written: {shortened(str(error))}. Nothing of them was written"
        ) from error


def _require_shallow(schema: pa.Schema) -> None:
    level, kinds = 0, [field.type for field in schema]
    while kinds:
        level += 1
        if level > DEEPEST:
            raise ValueError(f"a column nests deeper than {DEEPEST} types")
        kinds = [kind.field(number).type for kind in kinds for number in range(kind.num_fields)]


def _require_credible(data: bytes | memoryview) -> None:
    """Compare what every compressed buffer claims to become, its first 8 bytes, with what it takes."""
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(data)):
        if message.type not in ("record batch", "dictionary"):
            continue
        body = memoryview(message.body)
        for start, length in _compressed(memoryview(message.metadata), message.type == "dictionary"):
            (claimed,) = struct.unpack_from("<q", body, start)
            if claimed > _MOST_EXPANSION * length:
                raise ValueError(f"a buffer of {length} bytes claims to hold {claimed}")


def _compressed(metadata: memoryview, is_dictionary: bool) -> Iterator[tuple[int, int]]:  # noqa: FBT001 -- as read
    """Where the buffers of a batch lie in its body, none of one that is not compressed. Arrow verified the metadata."""
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
    """Where the table or vector lies that a field of a table refers to."""
    at = _field(metadata, table, number)
    return None if at is None else _follow(metadata, at)


def _field(metadata: memoryview, table: int, number: int) -> int | None:
    """Where a field of a flatbuffer table lies, None where it is absent."""
    slots = table - struct.unpack_from("<i", metadata, table)[0]
    size, place = struct.unpack_from("<H", metadata, slots)[0], 4 + 2 * number
    offset = struct.unpack_from("<H", metadata, slots + place)[0] if place < size else 0
    return table + offset if offset else None
