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
from storage_core.region import generation, key_lookup, wal
from storage_core.region.manifest import read_latest
from storage_core.region.memtable import matching
from storage_core.region.registry import PARALLEL_REGIONS, known_regions
from storage_core.region.wal import Logged
from storage_core.rows.fold import left_open, record_schema
from storage_core.settings.region_fields import Region
from storage_core.split.kept_values import NOTHING, KeptValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmerged:
    """Records of one generation in the order of their acknowledgement, or of a region's log behind its generations."""

    generation: Generation | None
    records: tuple[pa.Table, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedRegion:
    """A moment of one region: its manifest, None before the first claim, and the durable entries behind it."""

    store: ObjectStore
    kept: KeptValues
    manifest: RegionManifest | None
    entries: tuple[Logged, ...]

    def above(self, snapshot: Snapshot) -> list[Unmerged]:
        """Return the records that the snapshot has not merged, in the order of their acknowledgement."""
        if self.manifest is None:
            return []
        flushed = self._flushed(self.manifest, snapshot)
        records = generation.read_all_records(self.store, flushed, self.kept.cached)
        parts = [Unmerged(generation=each, records=own) for each, own in zip(flushed, records, strict=True)]
        return [*parts, Unmerged(generation=None, records=tuple(self._logged(self.manifest, snapshot)))]

    def of_keys(self, snapshot: Snapshot, wanted: pa.Table) -> list[pa.Table]:
        """Return of those records the ones that say what the rows of these keys are, in the same order.

        Newest first: of a key whose row a record tells whole, no older generation is asked. See `key_lookup.find`.
        """
        if self.manifest is None:
            return []
        logged = list(self._logged(self.manifest, snapshot))
        parts = [matching(pa.concat_tables(logged), wanted, wanted.column_names)] if logged else []
        wanted = left_open(parts, wanted)
        if not wanted.num_rows:
            return parts
        return [*key_lookup.find(self.store, self._flushed(self.manifest, snapshot), wanted, self.kept), *parts]

    def _flushed(self, manifest: RegionManifest, snapshot: Snapshot) -> list[Generation]:
        flushed = generation.unmerged(self.store, manifest, _merged(manifest, snapshot), self.kept)
        return generation.read_all(self.store, manifest.region_id, flushed, self.kept)

    def _logged(self, manifest: RegionManifest, snapshot: Snapshot) -> Iterator[pa.Table]:
        merged = _merged(manifest, snapshot)
        return (each.entry.records for each in self.entries if each.entry.generation > merged)


def _merged(manifest: RegionManifest, snapshot: Snapshot) -> int:
    return snapshot.merged_generations.get(manifest.region_id, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A moment of the regions of a table, one after the other: each is a prefix of what was acknowledged in it.

    It can be combined with any snapshot of the same region spec, older or newer: `above` leaves out what that has
    merged.
    """

    regions: tuple[CapturedRegion, ...]

    def above(self, snapshot: Snapshot, *, keys: pa.Table | None = None) -> pa.Table:
        """Return the records that the snapshot has not merged, those of one region in the order they were acknowledged.

        Regions hold disjoint keys, so their order means nothing. With `keys`, rows with the key columns, those that say
        what the rows of these keys are (`CapturedRegion.of_keys`), and generations that certainly hold none are left
        out: by their bounds, then by their bloom filter, for one GET more.

        A generation up to the snapshot's merged one is left out, also where only its WAL entries were captured: the
        base may hold newer rows of its keys (lesson 22). One GET per generation and per WAL entry of it that is read.
        """
        if keys is None:
            records = chain.from_iterable(each.records for each in self.parts(snapshot))
        else:
            found = all_of(lambda each: each.of_keys(snapshot, keys), self.regions, PARALLEL_REGIONS)
            records = chain.from_iterable(found)
        return pa.concat_tables([record_schema(snapshot.schema).empty_table(), *records])

    def parts(self, snapshot: Snapshot) -> list[Unmerged]:
        """Return all of these records, generation by generation, those of one region oldest first."""
        found = all_of(lambda each: each.above(snapshot), self.regions, PARALLEL_REGIONS)
        return list(chain.from_iterable(found))


def capture(
    store: ObjectStore,
    snapshot: Snapshot,
    *,
    include_wal: bool,
    regions: Sequence[Region] | None = None,
    kept: KeptValues = NOTHING,
) -> Captured:
    """Return this moment of the table's regions, or of these; the snapshot only says which regions there are.

    The registry is read first, then of each region its manifest and its log: a region that is not in it yet had
    acknowledged nothing. Generations and log come from one manifest version, so a flush in between neither hides a row
    nor doubles it. About three requests per region, `PARALLEL_REGIONS` regions at a time; with `include_wal` one GET
    per entry that is in no generation, and one more. What never changes is read once, as long as `kept` has it.
    Raises `Corrupt` that names a damaged entry.
    """
    chosen = known_regions(store, snapshot) if regions is None else regions
    parts = all_of(lambda each: _capture(store, each.id, kept, include_wal=include_wal), chosen, PARALLEL_REGIONS)
    return Captured(regions=tuple(parts))


def _capture(store: ObjectStore, region: str, kept: KeptValues, *, include_wal: bool) -> CapturedRegion:
    manifest = read_latest(store, region, kept)
    if manifest is None or not include_wal:
        return CapturedRegion(store=store, kept=kept, manifest=manifest, entries=())
    tail = wal.read_tail(store, region, after=manifest.replay_after_wal_id, kept=kept)
    entries = tuple(wal.belonging(each, manifest.current_generation) for each in tail)
    return CapturedRegion(store=store, kept=kept, manifest=manifest, entries=entries)
