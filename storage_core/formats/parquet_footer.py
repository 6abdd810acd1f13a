"""Parquet footers: where they are, what they tell of the columns, and what is wrong with those nobody vouches for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.formats import thrift
from storage_core.seekable import SeekableFile

MAGIC = b"PAR1"
# Fields in parquet.thrift: of `FileMetaData`, `RowGroup`, `ColumnChunk` and so on down.
_SCHEMA, _ROW_GROUPS = 2, 4
_COLUMNS = 1
_META_DATA, _OFFSET_INDEX, _OFFSET_INDEX_LENGTH, _COLUMN_INDEX, _COLUMN_INDEX_LENGTH = 3, 4, 5, 6, 7
_STATISTICS, _ENCODING_STATS, _BLOOM_FILTER, _SIZE_STATISTICS = 12, 13, 14, 16
_OLD_MAX, _OLD_MIN = 1, 2
_PAGE_TYPE, _COUNT = 1, 3
_DATA_PAGES = (0, 3)

_OF_MORE_PAGES: thrift.LeftOut = {
    _ROW_GROUPS: {
        _COLUMNS: {
            **dict.fromkeys((_OFFSET_INDEX, _OFFSET_INDEX_LENGTH, _COLUMN_INDEX, _COLUMN_INDEX_LENGTH)),
            _META_DATA: {_STATISTICS: dict.fromkeys((_OLD_MAX, _OLD_MIN)), _SIZE_STATISTICS: None},
        }
    }
}
"""What a file of a page per column leaves out: its bounds stand in the footer once, as those of the row group."""

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


def of_single_pages(end: bytes | memoryview) -> tuple[bytes, int] | None:
    """Return the end of a file as it is without indexes of its pages, and where these began: there it belongs.

    `end` is all from the footer on, and so is what is returned. Bounds that only readers of before 2018 look at and
    histograms go as well. None for a file with more than one row group, with a column chunk of more than one data
    page, without indexes, or with anything behind them.
    """
    footer, _ = thrift.struct(end, 0)
    chunks = [chunk for group in footer.get(_ROW_GROUPS, []) for chunk in group[_COLUMNS]]
    if len(footer.get(_ROW_GROUPS, [])) != 1 or any(_data_pages(each) != 1 for each in chunks):
        return None
    starts = [each[name] for each in chunks for name in (_OFFSET_INDEX, _COLUMN_INDEX) if name in each]
    filters = [each[_META_DATA].get(_BLOOM_FILTER, 0) for each in chunks]
    if not starts or max(filters) > min(starts):
        return None
    shortened, _ = thrift.without(end, 0, _OF_MORE_PAGES)
    return shortened + len(shortened).to_bytes(4, "little") + MAGIC, min(starts)


def _data_pages(chunk: Mapping[int, Any]) -> int:
    counted: list[Mapping[int, int]] = chunk[_META_DATA].get(_ENCODING_STATS, [])
    return sum(each[_COUNT] for each in counted if each[_PAGE_TYPE] in _DATA_PAGES)


class _NotRead(Exception):  # noqa: N818 -- it ends a read that has come far enough
    pass


class _Pages(SeekableFile):
    """The bytes of a file, which are not to be read."""

    def read(self, size: int = -1, /) -> bytes:
        raise _NotRead(f"{size} bytes")
