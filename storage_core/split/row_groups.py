"""Which row groups of a split may hold a key, by bounds that the file has of them in its own metadata (page 07).

Parquet's statistics say the same in the footer, which has no checksum: damaged they would hide a row, and on some of
them Arrow aborts the process. Our metadata is sealed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import Corrupt
from storage_core.rows import statistics
from storage_core.rows.sortable import bound_keys, sortable, unless_false
from storage_core.split.metadata import PREFIX, json_object, require_sealed

ROWS_PER_GROUP: Final = 65_536
"""A lookup decodes whole column chunks of the row group that holds its key."""

_ENTRY: Final = "row_groups"


def bounds(rows: pa.Table, column: str) -> dict[str, str]:
    """Return the metadata that bounds a column in every row group of a file of these rows; none for one row group."""
    if rows.num_rows <= ROWS_PER_GROUP or column not in rows.column_names:
        return {}
    starts = range(0, rows.num_rows, ROWS_PER_GROUP)
    found = [statistics.compute(rows.select([column]).slice(start, ROWS_PER_GROUP)) for start in starts]
    entry = {
        "column": column,
        "min": [each.min_values.get(column) for each in found],
        "max": [each.max_values.get(column) for each in found],
    }
    return {PREFIX + _ENTRY: json.dumps(entry, sort_keys=True, ensure_ascii=False, separators=(",", ":"))}


def admitting(metadata: Mapping[str, str], path: str, groups: int, wanted: pa.Table) -> Sequence[int]:
    """Return which of a file's row groups, ascending, may hold a row with one of the wanted values in every column.

    All of them where the file bounds none of the columns of `wanted`. Raises `Corrupt` where the bounds are damaged.
    """
    if PREFIX + _ENTRY not in metadata:
        return range(groups)
    require_sealed(metadata, path)
    try:
        entry = json_object(metadata, _ENTRY) or {}
        name, texts = entry["column"], [pa.array(entry[end], pa.string()) for end in ("min", "max")]
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise Corrupt(f"{path}: the bounds of its row groups cannot be read: {error}", key=path) from error
    if name not in wanted.column_names or {len(each) for each in texts} != {groups}:
        return range(groups)
    low, high = (bound_keys(each, wanted.schema.field(name).type) for each in texts)
    mask = np.zeros(groups, np.bool_)
    for value in sortable(wanted.column(name).combine_chunks()).unique():
        mask |= unless_false(pc.less_equal(low, value)) & unless_false(pc.greater_equal(high, value))
    found: list[int] = np.flatnonzero(mask).tolist()
    return found
