"""The leaf columns of a Parquet file: which ones a column of a table has, and what their chunks take in memory."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow.parquet as pq

from storage_core.errors import Corrupt
from storage_core.rows.sort_order import OrderColumn
from storage_core.split.row_groups import GROUP_BYTES

VALUE_BYTES = 16
"""What a decoded value takes, about: texts that repeat take more than they do encoded."""


def decoded_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    """Return about what a chunk takes while Arrow decodes it.

    What texts of a dictionary take is not said: as much as the longer of the least and the greatest each, or, where
    these are too long to be there, as a row group has.
    """
    size = int(chunk.total_uncompressed_size) + VALUE_BYTES * int(chunk.num_values)
    if chunk.physical_type != "BYTE_ARRAY":
        return size
    size += int(chunk.total_uncompressed_size)
    if not chunk.has_dictionary_page:
        return size
    found = chunk.statistics
    if found is not None and found.has_min_max:
        ends = [each if isinstance(each, bytes) else str(each).encode() for each in (found.min_raw, found.max_raw)]
        return max(size, max(map(len, ends)) * int(chunk.num_values))
    nulls = 0 if found is None else found.null_count or 0
    return size if nulls == chunk.num_values else max(size, GROUP_BYTES)


def leaves_of(footer: pq.FileMetaData, columns: Collection[str] | None) -> list[int]:
    """Return the leaf columns, ascending, that Arrow reads for these columns of a file, or all: also `a.b` for `a`."""
    if columns is None:
        return [*range(footer.num_columns)]
    wanted = {*columns}
    paths = [footer.schema.column(index).path.split(".") for index in range(footer.num_columns)]
    return [
        index
        for index, path in enumerate(paths)
        if any(".".join(path[:length]) in wanted for length in range(1, len(path) + 1))
    ]


def native_order(footer: pq.FileMetaData, columns: Collection[str], path: str) -> list[OrderColumn]:
    """Return the columns of the order that a file of these columns records. Raises `Corrupt` for one of others.

    They are told by path: files of earlier releases may name another leaf with the path of the column.
    """
    try:
        recorded = footer.row_group(0).sorting_columns
        named = [(footer.schema.column(each.column_index).path, each) for each in recorded]
        unknown = [name for name, _ in named if name not in columns]
    except (IndexError, ValueError, OverflowError) as error:
        unknown, named = [repr(error)], []
    if unknown:
        raise Corrupt(f"{path}: the order that its footer records is damaged: {', '.join(unknown)}", key=path)
    return [OrderColumn(name, each.descending, each.nulls_first) for name, each in named]
