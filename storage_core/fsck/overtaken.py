"""Splits that a lost merge has replaced without leaving a file that says so (design page 03, "Merge").

A merge rewrites every split that holds a key it touches; when it deletes all rows of one, and writes none, only its
version file tells. With that file lost the records still do: a split from before them that holds one of their keys is
not live any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from storage_core.formats import wal_entry
from storage_core.fsck.region_salvage import RegionSalvage
from storage_core.fsck.report import DAMAGE
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import generation
from storage_core.rows.keys import key_codes
from storage_core.split.read import read_split


def overtaken(
    store: ObjectStore,
    kept: Snapshot,
    live: Iterable[str],
    *,
    merged: Mapping[str, int],
    regions: Mapping[str, RegionSalvage],
) -> list[Add]:
    """Return those of the `live` splits of `kept` that merges after it, up to `merged`, must have replaced.

    Exact where the records of those merges are still there, blind where they are not. One GET per WAL entry of them,
    and two or three ranged ones per split. Memory: the keys of the records and of one split.
    """
    key = kept.config.primary_key
    keys = [
        records
        for region, last in merged.items()
        if last > kept.merged_generations.get(region, 0) and region in regions
        for records in _keys(store, regions[region], key, after=kept.merged_generations.get(region, 0), last=last)
    ]
    if not keys:
        return []
    touched = pa.concat_tables(keys)
    return [
        add for path in sorted(live) if (add := kept.splits.get(path)) is not None and _holds(store, add, touched, key)
    ]


def _keys(
    store: ObjectStore, region: RegionSalvage, key: Sequence[str], *, after: int, last: int
) -> Iterable[pa.Table]:
    for each in region.entries:
        if after < each.generation <= last:
            yield wal_entry.decode(store.get(each.key).data, each.key).records.select(list(key))
    for dealt in region.dealt:
        if after < dealt.generation <= last:
            yield from (records.select(list(key)) for records in generation.read_records(store, dealt))


def _holds(store: ObjectStore, add: Add, touched: pa.Table, key: Sequence[str]) -> bool:
    try:
        held = read_split(store, add, list(key))
    except DAMAGE:
        return False  # it is not brought over in any case, which says so
    wanted, present = key_codes([touched, held], key)
    return bool(np.isin(wanted, present).any())
