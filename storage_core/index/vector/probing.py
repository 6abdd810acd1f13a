"""Into how many clusters a search looks, and which blocks it fetches for that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.index.vector.distances import Distances
from storage_core.rows.vectors import Mask

LEAST_PROBES = 16
FILTERED_BYTES = 64 * 2**20
SHARE, RANGED_SHARE = 3 / 16, 1 / 12
"""A search looks into the nearest clusters, until they hold this share of the rows; of fetched ones the smaller.

What is nearest of the rows that a filter leaves is farther away, and so in more clusters. Of codes up to
`FILTERED_BYTES` these hold as many of them as the greater share is of all rows, of more codes that share of them.
"""

REQUESTS, BYTES = 12, 8 * 2**20
"""So many a search sends to its segments, where it can, one to open each; and so much it fetches of them."""

FALLOFF, SPARED = 14.0, 0.15
"""Pieces that are too many are dropped if they hold at most a share of what is near: see `nearness`.

Clusters of vectors that lie around points are much nearer than others, and few pieces hold what is near. Where all are
about as far, as those of single words, each has some of it.
"""

LEAST_PIECES = 3

Rows = npt.NDArray[np.int64]


def probes(held: Rows, of: int, *, is_ranged: bool) -> int:
    """Return into how many clusters a search looks where nothing else is said; they hold `held`, nearest first.

    Until that is the share of so many rows.
    """
    share = (RANGED_SHARE if is_ranged else SHARE) * of
    return max(LEAST_PROBES, int(np.searchsorted(np.cumsum(held), share)) + 1)


@dataclass(frozen=True, slots=True)
class Budget:
    """What of one segment is fetched: in how many pieces it shall lie, and up to how many bytes there is room."""

    pieces: int
    bytes: int

    @staticmethod
    def of_one(segments: int) -> Budget:
        """Return that of each of so many segments of a search."""
        return Budget(max(LEAST_PIECES, REQUESTS // max(1, segments) - 1), BYTES // max(1, segments))


BUDGET_OF_ONE = Budget.of_one(1)
"""That of the only segment of a search."""


def nearness(away: Distances, nearest: float) -> Distances:
    """Return how much of what is nearest to a query a cluster may hold, to that of the nearest one.

    `away` is how much farther a cluster is than that, whose distance is `nearest`; both in the unit of squares.
    """
    found: Distances = np.exp(-FALLOFF * np.minimum(away / max(abs(nearest), np.finfo(np.float64).tiny), 1.0))
    return found


def in_pieces(blocks: Rows, sizes: Rows, near: Distances, needed: Mask, *, pieces: int, most_rows: int) -> Rows:
    """Return the blocks, ascending, with the smallest gaps between them filled towards `pieces` pieces.

    Filling adds at most half as many rows, or what there is room for, `most_rows` in all. Pieces beyond the `pieces`
    that hold most of what is `near` are dropped, unless in these blocks is more than `SPARED` of it, and but for those
    with a block that is `needed`. `sizes` are the rows of each block of the segment, as are the other arrays.
    """
    ends = np.cumsum(sizes)
    gaps = np.flatnonzero(np.diff(blocks) > 1)
    after = blocks[gaps + 1]
    rows, wanted = ends[after] - sizes[after] - ends[blocks[gaps]], int(sizes[blocks].sum())
    smallest = np.argsort(rows, kind="stable")[: max(0, len(gaps) + 1 - pieces)]
    filled = smallest[np.cumsum(rows[smallest]) <= max(wanted // 2, most_rows - wanted)]
    between = [np.arange(blocks[gap] + 1, blocks[gap + 1]) for gap in gaps[filled]]
    found = np.sort(np.concatenate([blocks, *between]))
    starts = np.flatnonzero(np.diff(found, prepend=-2) > 1)
    worth = np.add.reduceat(near[found], starts)
    is_needed = np.logical_or.reduceat(needed[found], starts)
    far = np.lexsort((-worth, ~is_needed))[pieces:]
    far = far[~is_needed[far]]
    if not len(far) or worth[far].sum() > SPARED * worth.sum():
        return found
    return found[~np.isin(np.searchsorted(starts, np.arange(len(found)), side="right") - 1, far)]
