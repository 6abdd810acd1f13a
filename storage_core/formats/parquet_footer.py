"""Parquet footers: where they are, what they tell of the columns, and what is wrong with those nobody vouches for."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.formats import thrift
from storage_core.seekable import SeekableFile

MAGIC = b"PAR1"
_SCHEMA = 2  # the field of `FileMetaData` in parquet.thrift that follows the version
_PAGE_BUFFER = 4096  # with one, Arrow makes the readers of columns before it reads anything


def footer_start(data: pa.Buffer) -> int:
    """Return the first byte of the footer: it ends in its length and the magic, 8 bytes that the length leaves out."""
    return int(data.size - 8 - int.from_bytes(memoryview(data)[-8:-4], "little"))


def require_sound_chunks(metadata: pq.FileMetaData, size: int) -> None:
    """Return when Arrow takes the metadata of every column chunk of a file of `size` bytes. Nothing is read.

    `RowGroupMetaData.column` ends the process where it does not: where the histograms of a chunk do not fit its
    column, say. Reading a row group makes a reader for each of its columns first, and there it is an error. Raises
    that error, an `ArrowException` or `OSError`.
    """
    opened = pq.ParquetFile(_Pages(size), metadata=metadata, pre_buffer=False, buffer_size=_PAGE_BUFFER)
    for group in range(metadata.num_row_groups):
        with suppress(_NotRead):
            opened.read_row_group(group, use_threads=False)


def schema_bytes(footer: bytes) -> bytes | None:
    """Return how a footer begins, up to the end of its schema; None where it is none.

    Files that begin so have the same columns: names, order, types, nullability, all the way down.
    """
    try:
        return next((footer[:end] for field, _, end in thrift.fields(footer, 0) if field == _SCHEMA), None)
    except (IndexError, ValueError):
        return None


class _NotRead(Exception):  # noqa: N818 -- it ends a read that has come far enough
    pass


class _Pages(SeekableFile):
    """The bytes of a file, which are not to be read."""

    def read(self, size: int = -1, /) -> bytes:
        raise _NotRead(f"{size} bytes")
