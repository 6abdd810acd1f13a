"""Into how many clusters a search looks, and which blocks it fetches for that."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LEAST_PROBES = 16
SHARE, RANGED_SHARE = 3 / 16, 1 / 12
"""A search looks into the nearest clusters, until they hold this share of the rows; of fetched ones the smaller.

With a filter rows that count: a share of these, or where each costs by itself as many as without it.
"""

REQUESTS = 12
"""So many a search sends to its segments, where it can: one to open each, the others for blocks."""

LEAST_PIECES = 3

Rows = npt.NDArray[np.int64]


def probes(held: Rows, of: int, *, is_ranged: bool) -> int:
    """Return into how many clusters a search looks where nothing else is said; they hold `held`, nearest first.

    Until that is the share of so many rows.
    """
    share = (RANGED_SHARE if is_ranged else SHARE) * of
    return max(LEAST_PROBES, int(np.searchsorted(np.cumsum(held), share)) + 1)


def pieces_per_segment(segments: int) -> int:
    """Return in how many pieces what is fetched of each of so many segments shall lie."""
    return max(LEAST_PIECES, REQUESTS // max(1, segments) - 1)


def in_pieces(blocks: Rows, sizes: Rows, turns: Rows, needed: int, *, pieces: int) -> Rows:
    """Return the blocks, ascending, with the smallest gaps between them filled towards `pieces` pieces.

    Filling adds at most half as many rows. All pieces beyond the nearest `pieces` are dropped, unless more than half
    of the rows are in them, or a block of the first `needed` `turns`, which tell the nearer of two. `sizes` are the
    rows of each block of the segment.
    """
    ends = np.cumsum(sizes)
    gaps = np.flatnonzero(np.diff(blocks) > 1)
    after = blocks[gaps + 1]
    rows = ends[after] - sizes[after] - ends[blocks[gaps]]
    smallest = np.argsort(rows, kind="stable")[: max(0, len(gaps) + 1 - pieces)]
    spared = smallest[2 * np.cumsum(rows[smallest]) <= sizes[blocks].sum()]
    between = [np.arange(blocks[gap] + 1, blocks[gap + 1]) for gap in gaps[spared]]
    found = np.sort(np.concatenate([blocks, *between]))
    starts = np.flatnonzero(np.diff(found, prepend=-2) > 1)
    nearest = np.minimum.reduceat(turns[found], starts)
    far = np.argsort(nearest, kind="stable")[pieces:]
    is_spare = 2 * np.add.reduceat(sizes[found], starts)[far].sum() <= sizes[found].sum()
    if not len(far) or not is_spare or nearest[far[0]] < needed:
        return found
    return found[~np.isin(np.searchsorted(starts, np.arange(len(found)), side="right") - 1, far)]
