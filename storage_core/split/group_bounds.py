"""Which row groups of a split may hold a key: by bounds in the file's own metadata, with a checksum.

Parquet's statistics say the same in the footer. Splits of early 0.1 have no checksum of the footer, so its statistics
cannot be believed there: damaged they would hide a row, and on some of them Arrow aborts the process. Lookups use these
bounds in every split (decision 0107).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from storage_core.errors import Corrupt
from storage_core.rows import statistics
from storage_core.rows.key_ranges import with_room
from storage_core.rows.sortable import bound_keys
from storage_core.split.metadata import PREFIX, json_object, require_checksum
from storage_core.system_errors import raise_refused

_ENTRY: Final = "row_groups"


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
