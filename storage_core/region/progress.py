"""How far the regions of a table have come, as their manifests and a snapshot say (docs/architecture/ingestion.md,
"Regions").
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.formats.region_manifest import RegionManifest
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.region.manifest import read_latest
from storage_core.region.registry import PARALLEL_REGIONS, known_regions
from storage_core.settings.region_fields import Region, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionProgress:
    """How far a region has come: its epoch, the generation being filled, and the last one merged at the snapshot.

    `values` are those of the region spec's fields, None where they are not known.
    """

    region_id: str
    values: tuple[Value, ...] | None
    epoch: int
    current_generation: int
    merged_generation: int


def list_regions(store: ObjectStore, snapshot: Snapshot) -> list[RegionProgress]:
    """Return the progress of every region of the table that was ever claimed, by id; none for append tables.

    Those of earlier region specs, which take no more rows, are left out. About three requests per region.
    """
    known = sorted(known_regions(store, snapshot), key=lambda each: each.id)
    manifests = all_of(lambda each: read_latest(store, each.id), known, PARALLEL_REGIONS)
    found = zip(known, manifests, strict=True)
    return [progress_of(region, manifest, snapshot) for region, manifest in found if manifest is not None]


def progress_of(region: Region, manifest: RegionManifest, snapshot: Snapshot) -> RegionProgress:
    """Return the progress of a region that has this manifest. No request."""
    return RegionProgress(
        region_id=region.id,
        values=region.values,
        epoch=manifest.writer_epoch,
        current_generation=manifest.current_generation,
        merged_generation=snapshot.merged_generations.get(region.id, 0),
    )
