"""Which ranges of values have room for one of some keys: for all ranges and keys at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.rows.codes import Mask, codes
from storage_core.rows.sortable import sortable, unless_false

_COMPARED_AT_ONCE = 2**20
_LEAST, _GREATEST = -(2**63), 2**63 - 1

Range = tuple[pa.Array, pa.Array]
"""The least and the greatest values of a column as keys of `rows.sortable`, inclusive, null where unknown."""


def with_room(ranges: Sequence[Range], wanted: pa.Table) -> Mask:
    """Tell per range False only when no row of `wanted` is in it; `ranges` has those of each column of `wanted`.

    Of decimals it tells whether the range has room for a value between the least and the greatest of `wanted`.
    """
    count = len(ranges[0][0])
    found = np.zeros(count, np.bool_)
    inside = [_Inside(*each, wanted.column(number)) for number, each in enumerate(ranges)]
    step = max(1, _COMPARED_AT_ONCE // max(1, count))
    for start in range(0, wanted.num_rows, step):
        some = slice(start, min(start + step, wanted.num_rows))
        room = np.ones((count, some.stop - start), np.bool_)
        for each in inside:
            room &= each.of(some)
        found |= room.any(axis=1)
    return found


class _Inside:
    """Which keys of one column are in which ranges."""

    def __init__(self, low: pa.Array, high: pa.Array, column: pa.ChunkedArray) -> None:
        keys = sortable(column.combine_chunks())
        self._between: Mask | None = None
        if pa.types.is_decimal(keys.type):  # bounds may have other digits than the column
            ends = pc.min_max(keys)
            room = unless_false(pc.less_equal(low, ends["max"])) & unless_false(pc.greater_equal(high, ends["min"]))
            self._between = room[:, None]
            return
        if pa.types.is_int64(keys.type) and not keys.null_count:
            self._low = low.fill_null(_LEAST).to_numpy()
            self._high = high.fill_null(_GREATEST).to_numpy()
            self._keys = keys.to_numpy()
            return
        coded = codes(pa.chunked_array([low, high, keys])).values.view(np.int64)
        self._low, self._high, self._keys = np.split(coded, [len(low), 2 * len(low)])
        self._low[low.is_null().to_numpy(zero_copy_only=False)] = _LEAST
        self._high[high.is_null().to_numpy(zero_copy_only=False)] = _GREATEST

    def of(self, some: slice) -> Mask:
        """Return it per range and per key of these."""
        if self._between is not None:
            return self._between
        mask: Mask = (self._low[:, None] <= self._keys[some]) & (self._high[:, None] >= self._keys[some])
        return mask
