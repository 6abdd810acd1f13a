"""Pruning what is collected or said elsewhere, so that a region's manifest does not grow with its history.

Every flush and every claim writes the whole list of generations. Those that each retained version has merged are
collected (`gc.regions`), and when their objects are gone the collector takes them off the list (decision 0055). So it
does with offsets of the raw log that the table's log has reached (decision 0133). It claims nothing, like a sorter: it
keeps the epoch, and carries on whatever others committed meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from storage_core.clock import Clock
from storage_core.errors import SnapshotExpired
from storage_core.formats.region_manifest import RegionManifest
from storage_core.objectstore.contract import ObjectStore
from storage_core.region.manifest import advance, read_latest

NOTHING_REACHED: Mapping[str, int] = MappingProxyType({})

_logger = logging.getLogger(__name__)


def beyond(distributed: Mapping[str, int], reached: Mapping[str, int]) -> dict[str, int]:
    """Return the offsets of a region that say more than those that the table's log has `reached`."""
    return {writer: last for writer, last in distributed.items() if last > reached.get(writer, 0)}


def prune_collected(
    store: ObjectStore,
    region: str,
    generation: int,
    *,
    reached: Mapping[str, int] = NOTHING_REACHED,
    clock: Clock,
    writer_id: str,
) -> bool:
    """Make sure that the region's manifest lists no generation up to this one; return whether it was us who did it.

    Nor any offset that the table's log has `reached`, in commits so long ago that no distributor still plans on less.

    Only for generations whose objects are gone; `collected_generation` never goes back, so a late caller changes
    nothing. About four requests, and the newest manifest is read again after each lost race. Raises `CommitUnknown`
    when the store does not say: the next collection reads what is there.
    """
    before = 0

    def shortened() -> RegionManifest | None:
        nonlocal before
        latest = read_latest(store, region)
        if latest is None:
            return None
        offsets = beyond(latest.distributed, reached)
        if latest.collected_generation >= generation and len(offsets) == len(latest.distributed):
            return None
        before = len(latest.flushed_generations)
        collected = max(generation, latest.collected_generation)
        listed = tuple(each for each in latest.flushed_generations if each.generation > collected)
        return replace(latest, flushed_generations=listed, collected_generation=collected, distributed=offsets)

    committed = advance(store, shortened, clock=clock, writer_id=writer_id)
    if committed is None:
        return False
    count = before - len(committed.flushed_generations)
    _logger.info("region %s: %d generations up to %d are collected, not listed any more", region, count, generation)
    return True


def require_listed(manifest: RegionManifest, merged: int) -> None:
    """Raise `SnapshotExpired` unless the manifest lists every flushed generation above the merged one of a snapshot.

    A snapshot that was retained when something was collected has merged it; an older one would miss rows.
    """
    if merged < manifest.collected_generation:
        raise SnapshotExpired(
            f"region {manifest.region_id}: generations up to {manifest.collected_generation} are merged and collected, "
            f"this snapshot has merged those up to {merged} and would lack the rows between; open the newest version, "
            "and if this is the newest, see tidemark fsck",
            region=manifest.region_id,
            expected=merged,
            found=manifest.collected_generation,
        )
