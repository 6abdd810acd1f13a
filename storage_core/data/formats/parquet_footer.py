"""Footers of Parquet files, and the encoding of footers, which is Thrift's compact protocol.

The bytes may come from an untrusted writer. The first part reads Thrift's compact protocol as Parquet uses it. The
second part finds a footer and checks the metadata of its column chunks. The second part also writes a shorter footer
for a file in which each column has a single page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.store.contract import SeekableFile

# Thrift's compact protocol.

_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _STRUCT = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12
_MOST_FIELDS = 64
_DEEPEST = 8

LeftOut = Mapping[int, "LeftOut | None"]
"""The fields of a struct to remove, by id.

The value None removes the field. If the value is a mapping, it lists the fields to remove from the structs inside the
field.
"""


def struct(data: bytes | memoryview, position: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the numbers, structs and lists of a struct by field id, and the end position of the struct.

    Texts are skipped.

    Raises `ValueError` or `IndexError` for bytes that are not a struct.
    """
    found: dict[int, Any] = {}
    end = position
    for field, value, after in fields(data, position, depth):
        end = after
        if value is not None:
            found[field] = value
    return found, end + 1


def fields(data: bytes | memoryview, position: int, depth: int = 0) -> Iterator[tuple[int, Any, int]]:
    """Yield the id, the value and the end position of each field of a struct, in order.

    The value is the same as in `struct`.

    Raises the errors of `struct`.
    """
    field = 0
    for _ in range(_MOST_FIELDS):
        if data[position] == _STOP:
            return
        field, kind, position = _head(data, position, field)
        value, position = _value(data, position, kind, depth)
        yield field, value, position
    raise ValueError("too many fields")


def without(data: bytes | memoryview, position: int, left_out: LeftOut) -> tuple[bytes, int]:
    """Return the bytes of a struct without the fields in `left_out`, and the position after the original struct.

    Raises the errors of `struct`, and `ValueError` if two remaining fields would be more than 15 ids apart.
    """
    found, field, last = bytearray(), 0, 0
    while data[position] != _STOP:
        field, kind, start = _head(data, position, field)
        inner = left_out.get(field)
        if inner is None:
            value, position = None, _value(data, start, kind, 0)[1]
        else:
            value, position = _without_in(data, start, kind, inner)
        if inner is not None or field not in left_out:
            found.append((field - last) << 4 | kind)
            found += data[start:position] if value is None else value
            last = field
    found.append(_STOP)
    return bytes(found), position + 1


def _without_in(data: bytes | memoryview, start: int, kind: int, left_out: LeftOut) -> tuple[bytes, int]:
    """Return a struct or a list of structs without the fields in `left_out`."""
    if kind == _STRUCT:
        return without(data, start, left_out)
    of, size, position = _list_head(data, start)
    if kind != _LIST or of != _STRUCT:
        raise ValueError(f"a field of kind {kind} has no structs")
    found = bytearray(data[start:position])
    for _ in range(size):
        value, position = without(data, position, left_out)
        found += value
    return bytes(found), position


def _head(data: bytes | memoryview, position: int, last: int) -> tuple[int, int, int]:
    """Return the id and the kind of the field at `position`, and the position of its value.

    `last` is the id of the previous field.
    """
    head = data[position]
    if head >> 4:
        return last + (head >> 4), head & 15, position + 1
    field, position = _signed(data, position + 1)
    return field, head & 15, position


def _value(data: bytes | memoryview, position: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, position
    if kind in (_I16, _I32, _I64):
        return _signed(data, position)
    if kind == _BINARY:
        length, position = _unsigned(data, position)
        return None, position + length
    if kind in (_BYTE, _DOUBLE):
        return None, position + (1 if kind == _BYTE else 8)
    if depth < _DEEPEST and kind == _STRUCT:
        return struct(data, position, depth + 1)
    if depth < _DEEPEST and kind == _LIST:
        return _list(data, position, depth + 1)
    raise ValueError(f"no field is of kind {kind}")


def _list(data: bytes | memoryview, position: int, depth: int) -> tuple[list[Any], int]:
    kind, size, position = _list_head(data, position)
    found = []
    for _ in range(size):
        value, position = _value(data, position, _BYTE if kind in (_TRUE, _FALSE) else kind, depth)
        found.append(value)
    return found, position


def _list_head(data: bytes | memoryview, position: int) -> tuple[int, int, int]:
    """Return the kind and the number of a list's values, and the position of the first value."""
    head = data[position]
    size, position = head >> 4, position + 1
    if size == 15:  # the size does not fit into half a byte, so it follows separately
        size, position = _unsigned(data, position)
    if size > len(data):
        raise ValueError(f"a list of {size} values")
    return head & 15, size, position


def _signed(data: bytes | memoryview, position: int) -> tuple[int, int]:
    number, position = _unsigned(data, position)
    return (number >> 1) ^ -(number & 1), position


def _unsigned(data: bytes | memoryview, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # this is the last byte of the number
            return number, position
    raise ValueError("a number without an end")


# Footers.

MAGIC = b"PAR1"
# The field ids in parquet.thrift, in the order of nesting: `FileMetaData`, `RowGroup`, `ColumnChunk`, and the structs
# inside a column chunk.
_SCHEMA, _ROW_GROUPS = 2, 4
_COLUMNS = 1
_META_DATA, _OFFSET_INDEX, _OFFSET_INDEX_LENGTH, _COLUMN_INDEX, _COLUMN_INDEX_LENGTH = 3, 4, 5, 6, 7
_STATISTICS, _ENCODING_STATS, _BLOOM_FILTER, _SIZE_STATISTICS = 12, 13, 14, 16
_OLD_MAX, _OLD_MIN = 1, 2
_PAGE_TYPE, _COUNT = 1, 3
_DATA_PAGES = (0, 3)

_OF_MORE_PAGES: LeftOut = {
    _ROW_GROUPS: {
        _COLUMNS: {
            **dict.fromkeys((_OFFSET_INDEX, _OFFSET_INDEX_LENGTH, _COLUMN_INDEX, _COLUMN_INDEX_LENGTH)),
            _META_DATA: {_STATISTICS: dict.fromkeys((_OLD_MAX, _OLD_MIN)), _SIZE_STATISTICS: None},
        }
    }
}
"""The fields that a file with one page per column does not need.

The row group's bounds in the footer are sufficient.
"""

_PAGE_BUFFER = 4096  # with buffered pages, Arrow creates a reader for every column before Arrow reads any data


def footer_start(data: pa.Buffer) -> int:
    """Return the position of the footer's first byte.

    The last 8 bytes of the file follow the footer: the length of the footer (4 bytes) and the magic (4 bytes).
    """
    return int(data.size - 8 - int.from_bytes(memoryview(data)[-8:-4], "little"))


def require_valid_chunks(metadata: pq.FileMetaData, size: int) -> None:
    """Raise Arrow's error if Arrow refuses the metadata of a column chunk in a file of `size` bytes. Nothing is read.

    For invalid metadata, such as histograms that do not fit their column, `RowGroupMetaData.column` ends the process.
    The function does not call `RowGroupMetaData.column`, but starts to read each row group. Arrow then first creates a
    reader for each column, and raises an error for invalid metadata. The error is an `ArrowException` or `OSError`.
    """
    opened = pq.ParquetFile(_Pages(size), metadata=metadata, pre_buffer=False, buffer_size=_PAGE_BUFFER)
    for group in range(metadata.num_row_groups):
        with suppress(_NotRead):
            opened.read_row_group(group, use_threads=False)


def schema_bytes(footer: bytes) -> bytes | None:
    """Return the bytes of a footer from its start to the end of its schema. Return None if the bytes are not a footer.

    If two files have the same start, their columns have the same names, order, types and nullability at all levels.
    """
    try:
        return next((footer[:end] for field, _, end in fields(footer, 0) if field == _SCHEMA), None)
    except (IndexError, ValueError):
        return None


def of_single_pages(end: bytes | memoryview) -> tuple[bytes, int] | None:
    """Return the end of a file without its page indexes, and the position at which the caller must write this end.

    `end` starts at the first byte of the footer, and the returned bytes also start with the footer. The function also
    removes histograms, and the old bounds that only readers from before 2018 use. The function returns None if the file
    has several row groups, or if a column chunk has several data pages. The function also returns None if there are no
    indexes, or if other data follows the indexes.
    """
    footer, _ = struct(end, 0)
    chunks = [chunk for group in footer.get(_ROW_GROUPS, []) for chunk in group[_COLUMNS]]
    if len(footer.get(_ROW_GROUPS, [])) != 1 or any(_data_pages(each) != 1 for each in chunks):
        return None
    starts = [each[name] for each in chunks for name in (_OFFSET_INDEX, _COLUMN_INDEX) if name in each]
    filters = [each[_META_DATA].get(_BLOOM_FILTER, 0) for each in chunks]
    if not starts or max(filters) > min(starts):
        return None
    shortened, _ = without(end, 0, _OF_MORE_PAGES)
    return shortened + len(shortened).to_bytes(4, "little") + MAGIC, min(starts)


def _data_pages(chunk: Mapping[int, Any]) -> int:
    counted: list[Mapping[int, int]] = chunk[_META_DATA].get(_ENCODING_STATS, [])
    return sum(each[_COUNT] for each in counted if each[_PAGE_TYPE] in _DATA_PAGES)


class _NotRead(Exception):  # noqa: N818 -- it ends a read that has come far enough
    pass


class _Pages(SeekableFile):
    """A file object that raises an error if a caller reads its bytes."""

    def read(self, size: int = -1, /) -> bytes:
        raise _NotRead(f"{size} bytes")
