"""What waits for the merge, without reading any of it: generations, rows of silent writers, and the oldest record."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from storage_core.errors import NotFound
from storage_core.formats import keys
from storage_core.formats.generation_manifest import MANIFEST_FILE
from storage_core.formats.region_manifest import RegionManifest
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.region import wal
from storage_core.region.idle import unflushed_in
from storage_core.region.manifest import read_latest
from storage_core.region.registry import PARALLEL_REGIONS, known_regions
from storage_core.settings.region_fields import Region

MOST_REGIONS = 64
"""So many regions are looked at."""
MOST_CLAIMS = 4
"""So many WAL entries without rows, which claims leave behind, are passed over in a region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits in all regions looked at, of `regions`: `generations`, and the age of the oldest record in ms.

    `silent` are the regions without any in which a merge makes one, of the rows of a silent writer (`region.idle`).
    The age is by the clock of the store, that of the object which the record is in; None where everything is merged.
    """

    regions: int
    generations: int
    silent: int
    oldest_ms: int | None


def waiting(store: ObjectStore, snapshot: Snapshot) -> Waiting:
    """Return what the snapshot has not merged; of more than `MOST_REGIONS` regions the first by id.

    None waits in an append table, which costs no request. Else those of `known_regions`, and per region about three and
    a HEAD; where only the log has records, one GET, and one more for each claim since the last flush. Where the oldest
    of these is older than `idle_after` those of `idle.unflushed_in` besides.
    """
    known = sorted(known_regions(store, snapshot), key=lambda each: each.id)

    def look(region: Region) -> Waiting:
        return _look(store, snapshot, read_latest(store, region.id))

    found: Sequence[Waiting] = all_of(look, known[:MOST_REGIONS], PARALLEL_REGIONS)
    return Waiting(
        regions=len(known),
        generations=sum(each.generations for each in found),
        silent=sum(each.silent for each in found),
        oldest_ms=max((each.oldest_ms for each in found if each.oldest_ms is not None), default=None),
    )


def _look(store: ObjectStore, snapshot: Snapshot, manifest: RegionManifest | None) -> Waiting:
    if manifest is None:
        return Waiting(regions=1, generations=0, silent=0, oldest_ms=None)
    merged = snapshot.merged_generations.get(manifest.region_id, 0)
    flushed = sorted((each.generation, each.path) for each in manifest.flushed_generations if each.generation > merged)
    age_ms, silent = None, 0
    with suppress(NotFound):  # merged and collected since
        if flushed:
            key = keys.generation_file_key(manifest.region_id, flushed[0][1], MANIFEST_FILE)
        else:
            key = _first_entry(store, manifest)
        age_ms = store.head(key).age_ms
        if not flushed and not manifest.closed_by and age_ms >= snapshot.config.idle_after_ms:
            idle = unflushed_in(store, snapshot.config.idle_after_ms, manifest)
            silent = int(idle is not None and not idle.silent_in_ms)
    return Waiting(regions=1, generations=len(flushed), silent=silent, oldest_ms=age_ms)


def _first_entry(store: ObjectStore, manifest: RegionManifest) -> str:
    """The key of the first WAL entry with rows behind the generations. Raises `NotFound` where there is none."""
    region, after = manifest.region_id, manifest.replay_after_wal_id
    for entry in range(after + 1, after + 1 + MOST_CLAIMS):
        if not wal.read(store, region, entry).entry.is_sentinel:
            return keys.wal_entry_key(region, entry)
    raise NotFound(f"region {region}: no record is in its log")
