"""Which regions are merged together where callers make regions by hand (decision 0150).

Nothing but a promise keeps a key out of two such regions, so no commit merges two of them: each could add a row of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from zlib import crc32

from storage_core.formats.region_manifest import RegionManifest
from storage_core.log.snapshot import Snapshot
from storage_core.settings.region_fields import BY_HAND_SPEC


def in_turn(
    snapshot: Snapshot, manifests: Sequence[RegionManifest], regions: Collection[str] | None
) -> list[RegionManifest]:
    """Return those of `regions`, None for all, that can be merged at once. No request.

    Where there may be regions by hand: those of the spec, or one by hand; each has its turn, which the version tells.
    """
    chosen = [each for each in manifests if regions is None or each.region_id in regions]
    if not snapshot.config.regions_by_hand:
        return chosen
    merged = snapshot.merged_generations
    waiting = [each for each in chosen if each.current_generation - 1 > merged.get(each.region_id, 0)]
    routed = [each for each in waiting if each.region_spec_id != BY_HAND_SPEC]
    turns = [*([routed] if routed else []), *([each] for each in waiting if each.region_spec_id == BY_HAND_SPEC)]
    # Hashed, so that commits of others in a regular order skip nobody for ever.
    return turns[crc32(str(snapshot.version).encode()) % len(turns)] if turns else []


def merges_of(snapshot: Snapshot) -> Mapping[str, int] | None:
    """Return what a plan on the snapshot sees merged of every region, where its commit has to demand it still is."""
    return dict(snapshot.merged_generations) if snapshot.config.regions_by_hand else None
