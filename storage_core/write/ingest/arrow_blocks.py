"""Reader of landed Arrow files: the IPC file format and the IPC stream format, with or without compressed buffers.

The messages are checked before Arrow expands them, because a small buffer can claim to expand to gigabytes. A file
without an end marker is refused, because rows may be missing.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import BinaryIO

import pyarrow as pa

from storage_core.base.errors import Corrupt, InvalidInput, damaged_file_error, raise_refused
from storage_core.base.text import shortened
from storage_core.data.formats.arrow_files import claims_of, require_shallow
from storage_core.data.rows.values import examined
from storage_core.write.ingest.convert import Parsed, RowFormat
from storage_core.write.ingest.drift import QUARANTINE, DriftRule
from storage_core.write.ingest.landed_times import AS_WRITTEN, LandedTimes
from storage_core.write.ingest.landing import HEAD_BYTES, Expansion, require_uncompressed
from storage_core.write.ingest.parquet_files import check_columns, checked_rows, in_pieces

LARGEST_BATCH = 512 * 2**20
BATCH_RATIO = 20
"""A batch of more than `LARGEST_BATCH` bytes may expand to at most this number times its stored size."""

_MAGIC, _MAGIC_BYTES = b"ARROW1", 8
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_ROWS_AT_ONCE = 250_000
_ROW_BYTES = 8
"""The number of bytes that is added to the size of a row, because columns of nulls count as zero bytes."""
_DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError, TypeError, KeyError, RecursionError, struct.error)


def arrow_blocks(
    file: str,
    stream: BinaryIO,
    schema: pa.Schema,
    *,
    nonzero: Collection[str] = (),
    times: LandedTimes = AS_WRITTEN,
    drift: DriftRule = QUARANTINE,
) -> Iterator[Parsed]:
    """Yield the records of an Arrow file or stream, numbered from 1.

    The rules for rejecting rows are the same as for Parquet.

    Raises:
        Corrupt: the file is truncated or damaged, its columns do not convert exactly to the table's, or it expands too
            far.
        Unavailable: the system refuses the read. The file may be valid.
    """
    number = 1
    target = RowFormat(schema, nonzero=frozenset(nonzero), times=times, drift=drift)
    try:
        for batch in _batches(stream, partial(check_columns, target=target)):
            yield checked_rows(file, batch, number, target)
            number += batch.num_rows
    except Corrupt:
        raise
    except _DAMAGE as error:
        raise_refused(file, error)
        raise damaged_file_error("the file is not a whole Arrow file, or the file is damaged") from error


def _batches(stream: BinaryIO, check: Callable[[pa.Schema], None]) -> Iterator[pa.RecordBatch]:
    size = stream.seek(0, io.SEEK_END)
    start = _start(stream)
    _check_messages(stream, start, size)
    stream.seek(start)
    expansion = Expansion(size)
    with pa.ipc.open_stream(pa.PythonFile(stream, mode="r")) as reader:
        require_shallow(reader.schema)
        check(reader.schema.remove_metadata())
        for batch in reader:
            expansion.add(_ROW_BYTES * batch.num_rows)
            for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
                rows = batch.slice(first, _ROWS_AT_ONCE)
                _require_consistent(rows)
                yield from in_pieces(rows, expansion)


def _start(stream: BinaryIO) -> int:
    """Return the position of the first message."""
    stream.seek(0)
    head = stream.read(HEAD_BYTES)
    if not head.startswith(_MAGIC):
        require_uncompressed(head, "An Arrow")
        return 0
    stream.seek(-len(_MAGIC), io.SEEK_END)
    if stream.read() != _MAGIC:
        raise damaged_file_error("its Arrow footer is missing, so the file is not complete")
    return _MAGIC_BYTES


def _check_messages(stream: BinaryIO, start: int, size: int) -> None:
    """Raise `Corrupt` if a batch expands too far, or if messages are missing. Reads the whole file."""
    stream.seek(start)
    batches = 0
    for message in pa.ipc.MessageReader.open_stream(pa.PythonFile(stream, mode="r")):
        if message.type not in ("record batch", "dictionary"):
            continue
        batches += message.type == "record batch"
        length = len(message.body)
        expanded = length + sum(claimed for _, claimed in claims_of(message))
        if any(claimed < -1 for _, claimed in claims_of(message)) or expanded > max(
            LARGEST_BATCH, BATCH_RATIO * length
        ):
            raise damaged_file_error(
                f"a batch of {length} bytes expands to {expanded} bytes. The limit is "
                f"{max(LARGEST_BATCH, BATCH_RATIO * length)} bytes. Write smaller batches"
            )
    if start:
        stream.seek(0)
        footer = pa.ipc.open_file(pa.PythonFile(stream, mode="r"))
        if footer.num_record_batches != batches:
            raise damaged_file_error(
                f"the Arrow footer lists {footer.num_record_batches} batches, but the file has {batches}"
            )
        return
    end = stream.tell()
    stream.seek(max(0, end - len(_END)))
    if stream.read(len(_END)) != _END:
        raise damaged_file_error("the Arrow stream has no end marker, so the file may not be complete")
    if end != size:
        raise damaged_file_error(f"{size - end} bytes follow the end of the Arrow stream. Land each stream as a file")


def _require_consistent(rows: pa.RecordBatch) -> None:
    """Raise `Corrupt` if an offset or an index points outside the values."""
    try:
        examined(pa.Table.from_batches([rows]))
    except InvalidInput as error:
        raise damaged_file_error(f"the values of the file are not valid ({shortened(str(error), 500)})") from error
