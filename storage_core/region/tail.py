"""What is not merged into the base yet, for readers (design page 07, "Consistency")."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import pyarrow as pa

from storage_core.formats.generation_manifest import Generation
from storage_core.formats.region_manifest import RegionManifest
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import generation, wal
from storage_core.region.manifest import read_latest
from storage_core.region.overlap import admitted
from storage_core.region.registry import read_registry
from storage_core.region.spec import Region, closing_region, only_region
from storage_core.region.wal import Logged
from storage_core.rows.fold import record_schema

PARALLEL = 8
"""Regions that a reader asks at once."""

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionState:
    """How far a region has come: its epoch, the generation being filled, and the last one merged at the snapshot."""

    region_id: str
    epoch: int
    current_generation: int
    merged_generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedRegion:
    """A moment of one region: its manifest, None before the first claim, and the durable entries behind it."""

    store: ObjectStore
    manifest: RegionManifest | None
    entries: tuple[Logged, ...]

    def above(self, snapshot: Snapshot, wanted: pa.Table | None) -> Iterator[pa.Table]:
        """Yield the records that the snapshot has not merged, in the order of their acknowledgement.

        With `wanted`, a table of keys, of the generations only the records of those are read, see `generation.find`.
        """
        if self.manifest is None:
            return
        merged = snapshot.merged_generations.get(self.manifest.region_id, 0)
        for each in generation.unmerged(self.store, self.manifest, merged):
            yield from self._flushed(generation.read(self.store, self.manifest.region_id, each), wanted)
        for logged in self.entries:
            if logged.entry.generation > merged:
                yield logged.entry.records

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
    merged. `spec_id` is the spec whose regions were captured.
    """

    spec_id: int
    regions: tuple[CapturedRegion, ...]

    def above(self, snapshot: Snapshot, *, keys: pa.Table | None = None) -> pa.Table:
        """Return the records that the snapshot has not merged, those of one region in the order they were acknowledged.

        Regions hold disjoint keys, so their order means nothing. With `keys`, rows with the key columns, generations
        that certainly hold none of these keys are left out: by their bounds, then by their bloom filter, for one GET
        more.

        A generation up to the snapshot's merged one is left out, also where only its WAL entries were captured: the
        base may hold newer rows of its keys (lesson 22). One GET per generation and per WAL entry of it that is read.
        """
        parts = side_by_side(lambda each: list(each.above(snapshot, keys)), self.regions)
        return pa.concat_tables([record_schema(snapshot.schema).empty_table(), *chain.from_iterable(parts)])


def known_regions(store: ObjectStore, snapshot: Snapshot) -> list[Region]:
    """Return the regions that may hold rows which the snapshot has not merged: those of its current spec.

    Regions of the specs before it were merged whole before it became current (decision 0040). None for append tables.
    Without fields no request, else one GET of the registry.
    """
    config = snapshot.config
    if config.kind != "keyed":
        return []
    if not config.region_spec.fields:
        return [only_region(snapshot.table_id, config.region_spec)]
    empty = closing_region(snapshot.table_id, config.region_spec).id
    return [each for each in read_registry(store).of_spec(config.region_spec.id) if each.id != empty]


def capture(
    store: ObjectStore, snapshot: Snapshot, *, include_wal: bool, regions: Sequence[Region] | None = None
) -> Captured:
    """Return this moment of the table's regions, or of these; the snapshot only says which regions there are.

    The registry is read first, then of each region its manifest and its log: a region that is not in it yet had
    acknowledged nothing. Generations and log come from one manifest version, so a flush in between neither hides a row
    nor doubles it. About three requests per region, `PARALLEL` regions at once; with `include_wal` one GET per entry
    that is in no generation, and one more. Raises `Corrupt` that names a damaged entry.
    """
    chosen = known_regions(store, snapshot) if regions is None else regions
    parts = side_by_side(lambda each: _capture(store, each.id, include_wal=include_wal), chosen)
    return Captured(spec_id=snapshot.config.region_spec.id, regions=tuple(parts))


def unmerged(store: ObjectStore, snapshot: Snapshot, *, include_wal: bool) -> pa.Table:
    """Return the records that this snapshot has not merged, oldest first per region, as they are durable now.

    They belong over the base of *this* snapshot. Over a newer one they could bring back older rows: a reader that wants
    the newest base captures first, opens the snapshot then, and asks `Captured.above` with it.
    """
    return capture(store, snapshot, include_wal=include_wal).above(snapshot)


def list_regions(store: ObjectStore, snapshot: Snapshot) -> list[RegionState]:
    """Return the state of every region of the table that was ever claimed, by id; none for append tables.

    Those of earlier region specs, which take no more rows, are left out. About three requests per region.
    """
    known = sorted(known_regions(store, snapshot), key=lambda each: each.id)
    manifests = side_by_side(lambda each: read_latest(store, each.id), known)
    return [
        RegionState(
            region_id=manifest.region_id,
            epoch=manifest.writer_epoch,
            current_generation=manifest.current_generation,
            merged_generation=snapshot.merged_generations.get(manifest.region_id, 0),
        )
        for manifest in manifests
        if manifest is not None
    ]


def side_by_side(work: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
    """Return what `work` gives for each item, in order; up to `PARALLEL` at once. A single one runs right here."""
    if len(items) <= 1:
        return [work(each) for each in items]
    with ThreadPoolExecutor(min(PARALLEL, len(items)), thread_name_prefix="tidemark-regions") as pool:
        return list(pool.map(work, items))


def _capture(store: ObjectStore, region: str, *, include_wal: bool) -> CapturedRegion:
    manifest = read_latest(store, region)
    if manifest is None or not include_wal:
        return CapturedRegion(store=store, manifest=manifest, entries=())
    tail = wal.read_tail(store, region, after=manifest.replay_after_wal_id)
    return CapturedRegion(store=store, manifest=manifest, entries=tuple(tail))
