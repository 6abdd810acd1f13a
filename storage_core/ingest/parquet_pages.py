"""What the pages of a Parquet file say of themselves, judged before Arrow believes it.

A page of a hundred bytes may claim to expand to 2 GB, or to hold two thousand million values, and Arrow makes room for
them. The headers stand outside of what is compressed: Thrift's compact protocol, as the format's specification has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow.parquet as pq

from storage_core.errors import unsound
from storage_core.formats import thrift

LARGEST_PAGE = 256 * 2**20
PAGE_RATIO = 20
"""A page may be larger where it has a twentieth of that in the file: writers put a thousand long texts into one."""

MOST_VALUES = 2**27
"""Values of one nested column in one row group: one row may hold all of them, and is read as a whole."""

DELTA_BYTE_ARRAY: Final = 7

# Numbers of fields in `PageHeader` of parquet.thrift, and in the structs of its three kinds of pages.
_EXPANDED_SIZE, _STORED_SIZE = 2, 3
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 5, 7, 8
_NUM_VALUES = 1
_ENCODINGS = {_DATA_PAGE: 2, _DICTIONARY_PAGE: 2, _DATA_PAGE_V2: 4}


@dataclass(frozen=True, slots=True)
class Chunk:
    """One column of one row group: where it begins and ends, and what its pages may be."""

    column: str
    start: int
    end: int
    is_nested: bool
    may_be_delta: bool


def groups_of_rows(metadata: pq.FileMetaData) -> list[int]:
    """Return which row groups have rows. Those of none may say that pages are where there are none: none is read."""
    return [group for group in range(metadata.num_row_groups) if metadata.row_group(group).num_rows]


def chunks_of(metadata: pq.FileMetaData) -> dict[int, Chunk]:
    """Return the column chunks by where they begin, of groups that have rows.

    Raises `Corrupt` for one that says that it lies in another file.
    """
    found: dict[int, Chunk] = {}
    for group in map(metadata.row_group, groups_of_rows(metadata)):
        for index in range(group.num_columns):
            column = group.column(index)
            if column.file_path:
                raise unsound(f"its column {column.path_in_schema} lies in another file")
            first = column.dictionary_page_offset
            start = min(first, column.data_page_offset) if first else column.data_page_offset
            path = column.path_in_schema
            leaf = metadata.schema.column(index)
            nested, delta = leaf.max_repetition_level > 0, "DELTA_BYTE_ARRAY" in column.encodings
            found[start] = Chunk(path, start, start + column.total_compressed_size, nested, delta)
    return found


def check_read(chunks: Mapping[int, Chunk], position: int, data: bytes) -> None:
    """Raise as `check_pages` does where a column chunk begins at the position."""
    if position in chunks:
        check_pages(data, chunks[position])


def check_pages(data: bytes, chunk: Chunk) -> None:
    """Raise `Corrupt` unless the pages of a column chunk, which `data` begins with, claim what can be held."""
    position, end, values = 0, min(len(data), chunk.end - chunk.start), 0
    while position < len(data):
        is_beyond = position >= end  # Arrow reads more of old writers, whose sizes leave out the header of a dictionary
        try:
            header, position = thrift.struct(data, position)
        except (IndexError, ValueError) as error:
            if is_beyond:
                return
            raise unsound(f"column {chunk.column}: the header of a page cannot be read") from error
        expanded, length = header.get(_EXPANDED_SIZE), header.get(_STORED_SIZE)
        if not isinstance(expanded, int) or not isinstance(length, int) or not 0 <= length <= len(data) - position:
            if is_beyond:
                return
            raise unsound(f"column {chunk.column}: a page is not whole")
        most = max(LARGEST_PAGE, PAGE_RATIO * length)
        if not 0 <= expanded <= most:
            raise unsound(
                f"column {chunk.column}: a page expands from {length} to {expanded} bytes, {most} are the most"
            )
        for place, encoding in _ENCODINGS.items():
            about = header.get(place)
            if isinstance(about, dict):
                if place != _DICTIONARY_PAGE:  # whose values are no rows'
                    count = about.get(_NUM_VALUES)
                    values += count if isinstance(count, int) else 0
                if about.get(encoding) == DELTA_BYTE_ARRAY and not chunk.may_be_delta:
                    raise unsound(f"column {chunk.column}: its pages are encoded otherwise than the footer says")
        if values > MOST_VALUES and chunk.is_nested:
            raise unsound(
                f"column {chunk.column}: more than {MOST_VALUES} values in a row group; write smaller row groups"
            )
        position += length
