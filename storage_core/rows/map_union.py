"""The union of map values: later entries win per key, as `dict.update` does."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from storage_core.rows.codes import Codes, codes
from storage_core.rows.keys import Positions, dense_ranks, pack


def union(maps: pa.ChunkedArray, groups: Positions, count: int) -> pa.Array:
    """Return one map per group from 0 to `count` - 1: the entries of its maps in turn, the newest value per key.

    `groups` is the group of each map, ascending. Entries stand in the order in which their keys came first, null is
    a map without entries, and a null value is a value; so the union is associative, and no result is null. Raises
    `InvalidInput` when keys are lists, structs or maps, which have no order.
    """
    given = maps.drop_null().combine_chunks()
    offsets = given.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    keys, items = given.keys.slice(first, last - first), given.items.slice(first, last - first)
    entry_groups = np.repeat(groups[maps.is_valid().to_numpy()], np.diff(offsets))
    ends = _ends(entry_groups, count, keys)
    taken = entry_groups[ends[:, 0]]
    bounds = np.searchsorted(taken, np.arange(count + 1)).astype(np.int32)
    return pa.MapArray.from_arrays(
        pa.array(bounds), keys.take(pa.array(ends[:, 0])), items.take(pa.array(ends[:, 1])), type=maps.type
    )


def _ends(groups: Positions, count: int, keys: pa.Array) -> Positions:
    """Of every key of every group where it came first and last, in the order of the first."""
    packed = pack([Codes(groups.astype(np.uint64), count), codes(pa.chunked_array([keys]))], len(keys))
    ranks = dense_ranks(packed)
    order = np.argsort(ranks, kind="stable")
    changes = np.flatnonzero(np.diff(ranks[order], prepend=-1, append=len(ranks)))
    ends = np.stack([order[changes[:-1]], order[changes[1:] - 1]], axis=1)
    return ends[np.argsort(ends[:, 0], kind="stable")]
