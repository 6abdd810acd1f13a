"""Into how many clusters a search looks, and which blocks it fetches for that."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

LEAST_PROBES = 32

PIECES = 8
"""Blocks that are fetched lie in so many pieces, where those between them are few: they are looked into as well."""

Rows = npt.NDArray[np.int64]


def probes(clusters: int, *, is_ranged: bool = False) -> int:
    """Return into how many of so many clusters a search looks where nothing else is said; of fetched ones half."""
    return max(LEAST_PROBES, math.ceil(3 * clusters / (32 if is_ranged else 16)))


def in_pieces(blocks: Rows, sizes: Rows, ends: Rows) -> Rows:
    """Return the blocks, ascending, and with them the smallest gaps: until there are `PIECES`, or a third more rows.

    `sizes` are the rows of each block of the segment, `ends` the rows up to its last.
    """
    gaps = np.flatnonzero(np.diff(blocks) > 1)
    after = blocks[gaps + 1]
    rows = ends[after] - sizes[after] - ends[blocks[gaps]]
    smallest = np.argsort(rows, kind="stable")[: max(0, len(gaps) + 1 - PIECES)]
    spared = smallest[3 * np.cumsum(rows[smallest]) <= sizes[blocks].sum()]
    between = [np.arange(blocks[gap] + 1, blocks[gap + 1]) for gap in gaps[spared]]
    return np.sort(np.concatenate([blocks, *between]))
