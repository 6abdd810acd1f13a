"""What is not merged into the base yet, for readers (docs/architecture/reads.md, "Consistency")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from storage_core.formats.generation_manifest import Generation
from storage_core.formats.region_manifest import RegionManifest
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.region import generation, wal
from storage_core.region.manifest import read_latest
from storage_core.region.overlap import admitted
from storage_core.region.registry import PARALLEL_REGIONS, known_regions
from storage_core.region.wal import Logged
from storage_core.rows.fold import record_schema
from storage_core.settings.region_fields import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmerged:
    """Records of one generation in the order of their acknowledgement, or of a region's log behind its generations."""

    generation: Generation | None
    records: tuple[pa.Table, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedRegion:
    """A moment of one region: its manifest, None before the first claim, and the durable entries behind it."""

    store: ObjectStore
    manifest: RegionManifest | None
    entries: tuple[Logged, ...]

    def above(self, snapshot: Snapshot, wanted: pa.Table | None) -> Iterator[Unmerged]:
        """Yield the records that the snapshot has not merged, in the order of their acknowledgement.

        With `wanted`, a table of keys, of the generations only the records of those are read, see `generation.find`.
        """
        if self.manifest is None:
            return
        merged = snapshot.merged_generations.get(self.manifest.region_id, 0)
        for each in generation.unmerged(self.store, self.manifest, merged):
            found = generation.read(self.store, self.manifest.region_id, each)
            yield Unmerged(generation=found, records=tuple(self._flushed(found, wanted)))
        behind = (each.entry for each in self.entries if each.entry.generation > merged)
        yield Unmerged(generation=None, records=tuple(each.records for each in behind))

    def _flushed(self, found: Generation, wanted: pa.Table | None) -> Iterator[pa.Table]:
        if wanted is None:
            yield from generation.read_records(self.store, found)
            return
        kept = wanted.filter(pa.array(admitted(found, wanted)))
        if kept.num_rows:
            yield from generation.find(self.store, found, kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A moment of the regions of a table, one after the other: each is a prefix of what was acknowledged in it.

    It can be combined with any snapshot of the same region spec, older or newer: `above` leaves out what that has
    merged.
    """

    regions: tuple[CapturedRegion, ...]

    def above(self, snapshot: Snapshot, *, keys: pa.Table | None = None) -> pa.Table:
        """Return the records that the snapshot has not merged, those of one region in the order they were acknowledged.

        Regions hold disjoint keys, so their order means nothing. With `keys`, rows with the key columns, generations
        that certainly hold none of these keys are left out: by their bounds, then by their bloom filter, for one GET
        more.

        A generation up to the snapshot's merged one is left out, also where only its WAL entries were captured: the
        base may hold newer rows of its keys (lesson 22). One GET per generation and per WAL entry of it that is read.
        """
        parts = self.parts(snapshot, keys=keys)
        records = chain.from_iterable(each.records for each in parts)
        return pa.concat_tables([record_schema(snapshot.schema).empty_table(), *records])

    def parts(self, snapshot: Snapshot, *, keys: pa.Table | None = None) -> list[Unmerged]:
        """Return the same records, generation by generation, those of one region oldest first."""
        found = all_of(lambda each: list(each.above(snapshot, keys)), self.regions, PARALLEL_REGIONS)
        return list(chain.from_iterable(found))


def capture(
    store: ObjectStore, snapshot: Snapshot, *, include_wal: bool, regions: Sequence[Region] | None = None
) -> Captured:
    """Return this moment of the table's regions, or of these; the snapshot only says which regions there are.

    The registry is read first, then of each region its manifest and its log: a region that is not in it yet had
    acknowledged nothing. Generations and log come from one manifest version, so a flush in between neither hides a row
    nor doubles it. About three requests per region, `PARALLEL_REGIONS` regions at a time; with `include_wal` one GET
    per entry that is in no generation, and one more. Raises `Corrupt` that names a damaged entry.
    """
    chosen = known_regions(store, snapshot) if regions is None else regions
    parts = all_of(lambda each: _capture(store, each.id, include_wal=include_wal), chosen, PARALLEL_REGIONS)
    return Captured(regions=tuple(parts))


def _capture(store: ObjectStore, region: str, *, include_wal: bool) -> CapturedRegion:
    manifest = read_latest(store, region)
    if manifest is None or not include_wal:
        return CapturedRegion(store=store, manifest=manifest, entries=())
    tail = wal.read_tail(store, region, after=manifest.replay_after_wal_id)
    entries = tuple(wal.belonging(each, manifest.current_generation) for each in tail)
    return CapturedRegion(store=store, manifest=manifest, entries=entries)
