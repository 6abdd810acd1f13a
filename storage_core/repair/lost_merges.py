"""Rows that lost versions have hidden: told by newer rows of their keys, and by the records of merges.

A merge hides the rows it supersedes in deletion vectors, which are in the log alone. With its version lost the files
still tell most of it. The base never holds two live rows of a key, so of two that are found the one in the split that
was planned later is live. A row that was deleted has no newer one; there the records of the merge tell, while they are
there and the split is sure to be older. Where neither is so the repair says that deleted rows may be back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from storage_core.formats import wal_entry
from storage_core.fsck.report import DAMAGE
from storage_core.log.actions import Add
from storage_core.log.deletion_vector import inline
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import generation
from storage_core.repair.region_salvage import RegionSalvage
from storage_core.rows.columns import as_wide
from storage_core.rows.keys import key_codes
from storage_core.rows.positions import bitmap_of, positions
from storage_core.split.read import read_split
from storage_core.split.vectors import deleted_rows

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatedSplit:
    """A split that may be live, and where it belongs in time.

    Of two rows of a key the one in the split of the higher `order` is newer. `progress` are the generations, per
    region, that were merged when its rows were as they are; `certain` tells that none above are in it already.
    """

    add: Add
    order: int
    progress: Mapping[str, int]
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LostMerges:
    """What lost merges did: `marked` have a longer vector, of `deleted` no row is left.

    `doubtful` splits may hold rows, per region, that generations which nobody can read any more have deleted.
    """

    marked: tuple[Add, ...]
    deleted: tuple[Add, ...]
    doubtful: Mapping[str, int]


def superseded(
    store: ObjectStore,
    splits: Sequence[DatedSplit],
    key: Sequence[str],
    *,
    merged: Mapping[str, int],
    regions: Mapping[str, RegionSalvage],
) -> LostMerges:
    """Return what merges up to `merged` have done to splits whose vectors do not say so.

    One GET per WAL entry of those merges, and two or three ranged ones per split. Memory: all keys of the splits and
    of the records. A split that cannot be read is left out: it is not brought over either, which says so.
    """
    held = [each for each in (_Held.read(store, split, key) for split in splits) if each is not None]
    if not held:
        return LostMerges(marked=(), deleted=(), doubtful={})
    records = [
        (region, number, keys)
        for region, last in sorted(merged.items())
        if region in regions
        for number, keys in _records(store, regions[region], key, after=_oldest(splits, region), last=last)
    ]
    every = [*(each.keys for each in held), *(keys for _, _, keys in records)]
    codes = key_codes(as_wide(every, key), key)
    size = max((int(each.max()) + 1 for each in codes if len(each)), default=0)
    newest = np.full(size, -1, np.int64)
    for each, own in zip(held, codes, strict=False):
        np.maximum.at(newest, own[each.visible], each.split.order)
    touched = {region: np.zeros(size, np.int64) for region, _, _ in records}
    for (region, number, _), own in zip(records, codes[len(held) :], strict=True):
        np.maximum.at(touched[region], own, number)
    changed = [_changed(each, own, newest, touched) for each, own in zip(held, codes, strict=False)]
    return LostMerges(
        marked=tuple(add for add in changed if add is not None and add.visible_rows),
        deleted=tuple(add for add in changed if add is not None and not add.visible_rows),
        doubtful=_doubtful(splits, merged, regions),
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """The keys of every row of a split's file, and which of them are visible as far as the log says."""

    split: DatedSplit
    keys: pa.Table
    deleted: BitMap
    visible: npt.NDArray[np.bool_]

    @staticmethod
    def read(store: ObjectStore, split: DatedSplit, key: Sequence[str]) -> _Held | None:
        try:
            keys, deleted = read_split(store, split.add.as_written, key), deleted_rows(store, split.add)
        except DAMAGE:
            return None
        visible = np.ones(keys.num_rows, np.bool_)
        visible[positions(deleted)] = False
        return _Held(split, keys, deleted, visible)


def _changed(held: _Held, codes: Codes, newest: Codes, touched: Mapping[str, Codes]) -> Add | None:
    """The entry with the rows that are superseded hidden; None when it has no such row."""
    dead = newest[codes] > held.split.order
    if held.split.certain:
        for region, generations in touched.items():
            dead |= generations[codes] > held.split.progress.get(region, 0)
    places = np.flatnonzero(dead & held.visible)
    if not len(places):
        return None
    vector = inline(held.deleted | bitmap_of(places))
    return replace(held.split.add, deletionVector=vector, numRecords=len(codes))


def _oldest(splits: Iterable[DatedSplit], region: str) -> int:
    return min((split.progress.get(region, 0) for split in splits), default=0)


def _records(
    store: ObjectStore, region: RegionSalvage, key: Sequence[str], *, after: int, last: int
) -> Iterable[tuple[int, pa.Table]]:
    for each in region.entries:
        if after < each.generation <= last:
            yield each.generation, wal_entry.decode(store.get(each.key).data, each.key).records.select(list(key))
    for filed in region.filed:
        if after < filed.generation <= last:
            # Of a sorted one only its first generation is sure: nothing is hidden by what may have come before.
            number = filed.flushed.first
            yield from ((number, records.select(list(key))) for records in generation.read_records(store, filed))


def _doubtful(
    splits: Sequence[DatedSplit], merged: Mapping[str, int], regions: Mapping[str, RegionSalvage]
) -> dict[str, int]:
    found: dict[str, int] = {}
    for region, last in merged.items():
        complete = regions[region].complete if region in regions else frozenset()
        for split in splits:
            since = range(split.progress.get(region, 0) + 1, last + 1)
            if since and not (split.certain and complete.issuperset(since)):
                found[region] = found.get(region, 0) + 1
    return found
