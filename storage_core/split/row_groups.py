"""How many rows a row group has, and which row groups of a split may hold a key.

The file has bounds of them in its own metadata, with a checksum.

Parquet's statistics say the same in the footer. Splits of early 0.1 have no checksum of the footer, so its statistics
cannot be believed there: damaged they would hide a row, and on some of them Arrow aborts the process. Lookups use these
bounds in every split (decision 0107).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import Corrupt
from storage_core.rows import statistics
from storage_core.rows.key_ranges import with_room
from storage_core.rows.sortable import bound_keys
from storage_core.split.metadata import PREFIX, json_object, require_checksum
from storage_core.system_errors import raise_refused

ROWS_PER_GROUP: Final = 65_536
"""A lookup decodes whole column chunks of the row group that holds its key."""

GROUP_BYTES: Final = 32 * 2**20
"""What the rows of a row group take decoded, about, unless one row takes more: readers hold several at a time."""

_ENTRY: Final = "row_groups"


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


class Bounds:
    """The bounds of one column in each row group of a file that is being written; of none where `column` is None."""

    __slots__ = ("_column", "_found")

    def __init__(self, column: str | None) -> None:
        self._column = column
        self._found: list[statistics.Statistics] = []

    def add(self, group: pa.Table) -> None:
        """Take the rows of the next row group."""
        if self._column in group.column_names:
            self._found.append(statistics.compute(group.select([self._column])))

    def metadata(self) -> dict[str, str]:
        """Return the metadata that `admitting` reads; none for one row group or without the column."""
        if self._column is None or len(self._found) <= 1:
            return {}
        entry = {
            "column": self._column,
            "min": [each.min_values.get(self._column) for each in self._found],
            "max": [each.max_values.get(self._column) for each in self._found],
        }
        return {PREFIX + _ENTRY: json.dumps(entry, sort_keys=True, ensure_ascii=False, separators=(",", ":"))}


Recorded = tuple[str, pa.Array, pa.Array]


def recorded(metadata: Mapping[str, str], path: str, groups: int) -> Recorded | None:
    """Return the column that a file bounds in each of its row groups, and the texts of least and greatest values.

    None where it bounds none, or not so many row groups. Raises `Corrupt` where the bounds are damaged.
    """
    if PREFIX + _ENTRY not in metadata:
        return None
    require_checksum(metadata, path)
    try:
        entry = json_object(metadata, _ENTRY) or {}
        name, low, high = entry["column"], *(pa.array(entry[end], pa.string()) for end in ("min", "max"))
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise_refused(path, error)
        raise Corrupt(f"{path}: the bounds of its row groups cannot be read: {error}", key=path) from error
    return (name, low, high) if {len(low), len(high)} == {groups} else None


def admitting(bounds: Recorded | None, groups: int, wanted: pa.Table) -> Sequence[int]:
    """Return which of a file's row groups, ascending, may hold a row with one of the wanted values in every column.

    All of them where its `bounds` (`recorded`) are of none of the columns of `wanted`.
    """
    if bounds is None or bounds[0] not in wanted.column_names:
        return range(groups)
    name, *texts = bounds
    low, high = (bound_keys(each, wanted.schema.field(name).type) for each in texts)
    found: list[int] = np.flatnonzero(with_room([(low, high)], wanted.select([name]))).tolist()
    return found
