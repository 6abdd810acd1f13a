"""The roots: everything that may still be read, gathered before anything is called garbage.

Roots come from the log and from region manifests, never from a listing: a listing that misses a page can hide garbage,
not make any (lesson 49). The only listed roots are checkpoints, which are derived; those that matter, of the base, the
head and tagged versions, are asked for by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from storage_core.formats.keys import ParsedKey
from storage_core.gc.published import published, published_in_iceberg
from storage_core.gc.regions import RegionRoots, region_roots
from storage_core.gc.retention import Retained, retained
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.checkpoints.root import named_keys
from storage_core.log.log import TransactionLog
from storage_core.objectstore.contract import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """What must stay.

    `keys` are splits, also those that a mirror shows, and its manifests, translations, segments, also those of
    unmerged generations, retained checkpoints, and the manifests and parts of all that exist. Version files are kept
    from `first_version` on, which is the base or the oldest of the newest states that the table retains, two or more:
    should the newest be damaged, those files lead from another one to the head. Objects of a region are kept by its
    `RegionRoots`, by id.
    Commits and checkpoints of the Delta mirror are kept from `first_published` on, metadata files of the Iceberg mirror
    from `first_metadata` on; `published` are the splits and manifests that they name.
    """

    retained: Retained
    first_version: int
    keys: frozenset[str]
    regions: Mapping[str, RegionRoots]
    published: frozenset[str] = frozenset()
    first_published: int = 0
    first_metadata: int = 0


def roots(store: ObjectStore, log: TransactionLog, listed: Iterable[ParsedKey], *, now_ms: int) -> Roots:
    """Return the roots at `now_ms`; `listed` tells which states and regions exist.

    Requests: see `retained`, `region_roots`, `published` and `published_in_iceberg`, and one GET per checkpoint. Any
    read error is raised and ends a sweep.
    """
    kept, every_listed = retained(log, now_ms=now_ms), [*listed]
    checkpoints = {each.key: each for each in kept.checkpoints}
    region_ids = set(kept.head.merged_generations)
    for parsed in every_listed:
        if (checkpointed := Checkpointed.at(parsed)) is not None:
            checkpoints.setdefault(checkpointed.key, checkpointed)
        elif parsed.region is not None:
            region_ids.add(parsed.region)
    newest = sorted(each.version for each in checkpoints.values())[-kept.head.config.retained_states :]
    every = checkpoints.values()
    looked = {region: region_roots(store, region, kept) for region in sorted(region_ids)}
    regions = {region: found for region, found in looked.items() if found is not None}
    unmerged = frozenset(key for found in regions.values() for key in found.segments)
    cutoff_ms = now_ms - kept.head.config.version_retention_ms
    delta = published(store, cutoff_ms=cutoff_ms)
    iceberg = published_in_iceberg(store, every_listed, cutoff_ms=cutoff_ms)
    mirrored = delta.keys | iceberg.keys
    return Roots(
        retained=kept,
        first_version=min((kept.base.version, *newest)),
        keys=kept.keys | _retained_checkpoints(every, newest, kept) | _named(store, every) | unmerged | mirrored,
        regions=regions,
        published=mirrored,
        first_published=delta.first,
        first_metadata=iceberg.first,
    )


def _retained_checkpoints(every: Iterable[Checkpointed], newest: Sequence[int], kept: Retained) -> frozenset[str]:
    named = kept.tagged.union(newest)
    return frozenset(each.key for each in every if each.version >= kept.base.version or each.version in named)


def _named(store: ObjectStore, every: Iterable[Checkpointed]) -> frozenset[str]:
    # Also of checkpoints that are about to go: as long as one exists, it can be opened whole.
    return frozenset(key for each in every for key in named_keys(store, each))
