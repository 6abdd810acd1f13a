"""A moment of regions that outlives the process which captured it (docs/architecture/ingestion.md, "Paged reading").

Unlike `region.unmerged.capture` it holds no records, only which they are: a version of the region's manifest names the
generations, and two numbers the entries behind them. All of that is immutable, so a reader that comes back with it
reads the same records, until they are collected.
"""

from __future__ import annotations

from storage_core.errors import Corrupt
from storage_core.formats.history_token import RegionPosition
from storage_core.formats.keys import KeyKind, parse
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.objectstore.reading import exists
from storage_core.region import generation, wal
from storage_core.region.manifest import read_latest
from storage_core.region.registry import PARALLEL_REGIONS, known_regions


def region_positions(store: ObjectStore, snapshot: Snapshot, *, include_wal: bool) -> list[RegionPosition]:
    """Return the read position of every region that was ever claimed; the snapshot only says which there are.

    It may be combined with any later snapshot of the same region spec. Requests: those of `known_regions`, and per
    region about three, with `include_wal` HEADs that grow with the logarithm of the entries in no generation.
    """
    known = known_regions(store, snapshot)
    positions = all_of(lambda each: _position(store, each.id, include_wal=include_wal), known, PARALLEL_REGIONS)
    return [each for each in positions if each is not None]


def was_collected(store: ObjectStore, snapshot: Snapshot, damage: Corrupt) -> bool:
    """Return whether the damage is that an object of a region is gone which no read of this snapshot needs.

    Asked of the newest snapshot: then the collector may have taken it. One HEAD, about three requests, and one GET per
    unmerged generation where a WAL entry is gone. Raises `Corrupt` for damage to what it looks at.
    """
    key = str(damage.context.get("key", ""))
    parsed = parse(key)
    if parsed is None or parsed.region is None or exists(store, key):
        return False
    manifest = read_latest(store, parsed.region)
    if manifest is None:
        return False
    merged = snapshot.merged_generations.get(parsed.region, 0)
    unmerged = generation.unmerged(store, manifest, merged)
    if parsed.kind is KeyKind.GENERATION_FILE:
        return parsed.directory not in {each.path for each in unmerged}
    if parsed.entry is None or parsed.entry > manifest.replay_after_wal_id:
        return False
    return all(parsed.entry not in generation.read(store, parsed.region, each).entries for each in unmerged)


def _position(store: ObjectStore, region: str, *, include_wal: bool) -> RegionPosition | None:
    manifest = read_latest(store, region)
    if manifest is None:
        return None
    last = after = manifest.replay_after_wal_id
    if include_wal:
        last = wal.find_tail(store, region, after=after, seed=manifest.wal_id_last_seen)
    return RegionPosition(
        region=region,
        manifest=manifest.version,
        flushed=manifest.current_generation - 1,
        first=after + 1,
        last=last,
    )
