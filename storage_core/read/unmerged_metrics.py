"""How much of each region is not merged yet, for a person to look at.

Nothing decides by what is here. Moments are those that the store gives its objects (docs/architecture/ingestion.md,
"Regions").
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.formats import keys
from storage_core.formats.generation_manifest import MANIFEST_FILE
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.region import generation
from storage_core.region.progress import RegionProgress, progress_of
from storage_core.region.registry import PARALLEL_REGIONS, known_regions
from storage_core.region.unmerged import capture
from storage_core.settings.region_fields import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmergedMetrics:
    """How far one region has come, and how much of it waits for the merge, at one moment of it.

    `generations` wait and hold `generation_records` records; `wal_entries` behind them hold `wal_records`. `oldest_ms`
    is when the oldest object of these was written, in milliseconds since the epoch by the store's clock; None when
    everything is merged.
    """

    progress: RegionProgress
    generations: int
    generation_records: int
    wal_entries: int
    wal_records: int
    oldest_ms: int | None


def unmerged_metrics(store: ObjectStore, snapshot: Snapshot) -> list[UnmergedMetrics]:
    """Return the metrics of every claimed region of the current spec, by id; none for an append table.

    Per region three requests, one GET per generation that waits and per WAL entry behind them, one and a HEAD more at
    the end of the log, and a HEAD for the age. Raises `Corrupt` that names what is damaged.
    """
    known = sorted(known_regions(store, snapshot), key=lambda each: each.id)
    found = all_of(lambda each: _metrics(store, snapshot, each), known, PARALLEL_REGIONS)
    return [each for each in found if each is not None]


def _metrics(store: ObjectStore, snapshot: Snapshot, region: Region) -> UnmergedMetrics | None:
    captured = capture(store, snapshot, include_wal=True, regions=[region]).regions[0]
    manifest = captured.manifest
    if manifest is None:
        return None
    progress = progress_of(region, manifest, snapshot)
    merged = progress.merged_generation
    waiting = generation.unmerged(store, manifest, merged)
    flushed = [generation.read(store, region.id, each) for each in waiting]
    entries = [each for each in captured.entries if each.entry.generation > merged]
    oldest = [keys.generation_file_key(region.id, each.path, MANIFEST_FILE) for each in flushed[:1]]
    oldest += [keys.wal_entry_key(region.id, each.id) for each in entries[:1]]
    return UnmergedMetrics(
        progress=progress,
        generations=len(flushed),
        generation_records=sum(each.records for each in flushed),
        wal_entries=len(entries),
        wal_records=sum(each.entry.records.num_rows for each in entries),
        oldest_ms=store.head(oldest[0]).last_modified_ms if oldest else None,
    )
