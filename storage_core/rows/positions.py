"""Rows by their numbers: as an array, or as a bitmap."""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap

from storage_core.rows.keys import Positions


def positions(rows: BitMap) -> Positions:
    """Return the rows of a bitmap, ascending."""
    return np.asarray(rows.to_array()).astype(np.int64)


def bitmap_of(rows: Positions) -> BitMap:
    """Return the bitmap of rows, in whatever order."""
    return BitMap(rows.astype(np.uint32))
