"""How many rows a row group has (decision 0127), and which of them have a row that is visible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

ROWS_PER_GROUP: Final = 65_536
"""A lookup decodes whole column chunks of the row group that holds its key."""

GROUP_BYTES: Final = 32 * 2**20
"""What the rows of a row group take decoded, about, unless one row takes more: readers hold several at a time."""


def rows_per_group(rows: int, taken: int) -> int:
    """Return how many rows make a row group where so many `rows` have taken so many bytes, decoded."""
    return min(ROWS_PER_GROUP, max(1, rows * GROUP_BYTES // max(1, taken)))


def divided(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows that would make a row group; in halves, where they take far more than those before them did."""
    if rows.num_rows < 2 or decoded_bytes(rows) <= 2 * GROUP_BYTES:
        yield rows
        return
    half = rows.num_rows // 2
    yield from divided(rows.slice(0, half))
    yield from divided(rows.slice(half))


def groups_about(rows: int, size_bytes: int) -> int:
    """Return how many row groups a split has, at least about: encoded it takes no more than decoded."""
    return max(1, -(-rows // ROWS_PER_GROUP), -(-size_bytes // GROUP_BYTES))


def decoded_bytes(rows: pa.Table) -> int:
    """Return what rows take in memory where each has its own text, also of columns that are dictionaries."""
    return sum(_decoded_bytes(column) for column in rows.columns)


def _decoded_bytes(column: pa.ChunkedArray) -> int:
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = [pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
    return sum(each.nbytes + (pc.sum(each).as_py() or 0) for each in lengths)


def shown(footer: pq.FileMetaData, deleted: BitMap) -> list[int]:
    """Return the row groups of a file that have a row which is not deleted."""
    found, first = list[int](), 0
    for group in range(footer.num_row_groups):
        end = first + footer.row_group(group).num_rows
        if not deleted or deleted.range_cardinality(first, end) < end - first:
            found.append(group)
        first = end
    return found


def stretches(groups: Sequence[int]) -> list[list[int]]:
    """Return ascending row groups, those that follow one another together."""
    found: list[list[int]] = []
    for each in groups:
        if found and found[-1][-1] + 1 == each:
            found[-1].append(each)
        else:
            found.append([each])
    return found
