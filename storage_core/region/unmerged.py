"""What is not merged into the base yet, for readers (docs/architecture/reads.md, "Consistency")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain

import pyarrow as pa

from storage_core.errors import Corrupt
from storage_core.formats.generation_manifest import Generation
from storage_core.formats.keys import region_hint_key
from storage_core.formats.region_manifest import RegionManifest
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of, under_way
from storage_core.region import generation, key_lookup, wal
from storage_core.region.manifest import memory_bytes, read_after, read_from, read_hint
from storage_core.region.memtable import matching
from storage_core.region.registry import PARALLEL_REGIONS, known_regions
from storage_core.region.wal import Logged
from storage_core.rows.earlier_records import conformed
from storage_core.rows.fold import left_open, record_schema
from storage_core.settings.region_fields import Region
from storage_core.split.kept_values import NOTHING, KeptValues, is_near


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmerged:
    """Records of one generation in the order of their acknowledgement, or of a region's log behind its generations.

    Of the log `entries` are the numbers of the entries with each of the `records`, where they are known.
    """

    generation: Generation | None
    records: tuple[pa.Table, ...]
    region: str = ""
    entries: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitting:
    """Generations that a snapshot has not merged, and how many of them bounds and Bloom filters admit for some keys."""

    unmerged: tuple[Generation, ...]
    by_bounds: int
    by_filters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedRegion:
    """A moment of one region: its manifest, None before the first claim, and the durable entries behind it."""

    store: ObjectStore
    kept: KeptValues
    region: str
    manifest: RegionManifest | None
    entries: tuple[Logged, ...]

    def above(self, snapshot: Snapshot) -> list[Unmerged]:
        """Return the records that the snapshot has not merged, in the order of their acknowledgement."""
        if self.manifest is None:
            return []
        schema, flushed = record_schema(snapshot.schema), self._flushed(self.manifest, snapshot)
        records = generation.read_all_records(self.store, flushed, self.kept.cached)
        parts = [
            Unmerged(generation=each, records=tuple(conformed(part, schema) for part in own))
            for each, own in zip(flushed, records, strict=True)
        ]
        logged = self._logged(self.manifest, snapshot)
        log = Unmerged(
            generation=None,
            records=tuple(conformed(each.entry.records, schema) for each in logged),
            region=self.region,
            entries=tuple(each.id for each in logged),
        )
        return [*parts, log]

    def of_keys(self, snapshot: Snapshot, wanted: pa.Table) -> list[pa.Table]:
        """Return of those records the ones that say what the rows of these keys are, in the same order.

        Newest first: of a key whose row a record tells whole, no older generation is asked. See `key_lookup.find`.
        """
        if self.manifest is None:
            return []
        schema = record_schema(snapshot.schema)
        logged = [conformed(each.entry.records, schema) for each in self._logged(self.manifest, snapshot)]
        parts = [matching(pa.concat_tables(logged), wanted, wanted.column_names)] if logged else []
        wanted = left_open(parts, wanted)
        if not wanted.num_rows:
            return parts
        flushed = self._flushed(self.manifest, snapshot)
        return [*key_lookup.find(self.store, flushed, wanted, self.kept, schema=schema), *parts]

    def admitting(self, snapshot: Snapshot, wanted: pa.Table) -> Admitting:
        """Return which generations may hold one of the keys. One GET per filter that is not at hand."""
        held = [] if self.manifest is None else self._flushed(self.manifest, snapshot)
        by_bounds, by_filters = key_lookup.admitting_generations(self.store, held, wanted, self.kept)
        return Admitting(unmerged=tuple(held), by_bounds=by_bounds, by_filters=by_filters)

    def _flushed(self, manifest: RegionManifest, snapshot: Snapshot) -> list[Generation]:
        flushed = generation.unmerged(self.store, manifest, _merged(manifest, snapshot), self.kept)
        return generation.read_all(self.store, manifest.region_id, flushed, self.kept)

    def _logged(self, manifest: RegionManifest, snapshot: Snapshot) -> list[Logged]:
        merged = _merged(manifest, snapshot)
        return [each for each in self.entries if each.entry.generation > merged]


def _merged(manifest: RegionManifest, snapshot: Snapshot) -> int:
    return snapshot.merged_generations.get(manifest.region_id, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A moment of the regions of a table, one after the other: each is a prefix of what was acknowledged in it.

    It can be combined with any snapshot of the same region spec, older or newer: `above` leaves out what that has
    merged.
    """

    regions: tuple[CapturedRegion, ...]

    @property
    def raw_parts(self) -> tuple[()]:
        """None of the records are of raw logs (`read.raw_rows`)."""
        return ()

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
    acknowledged nothing. The log is what lies behind the replay point of that manifest, so a flush in between neither
    hides a row nor doubles it. About three requests per region, `PARALLEL_REGIONS` regions at a time; with
    `include_wal` one GET per entry that is in no generation, and two more. What never changes is read once, as long as
    `kept` has it. They wait for one another once: for the hint, unless `kept` has a manifest.
    Raises `Corrupt` that names a damaged entry.
    """
    chosen = known_regions(store, snapshot) if regions is None else regions
    parts = all_of(lambda each: _capture(store, each.id, kept, include_wal=include_wal), chosen, PARALLEL_REGIONS)
    return Captured(regions=tuple(parts))


def _capture(store: ObjectStore, region: str, kept: KeptValues, *, include_wal: bool) -> CapturedRegion:
    """Besides the manifest the log is read, where a hint or an earlier read says behind which entry."""
    name = ("newest manifest", region)
    known = kept.get(name)
    near = is_near(store, region_hint_key(region), kept)
    if isinstance(known, RegionManifest):
        newest = partial(read_after, store, known, near=near)
        after: int | None = known.replay_after_wal_id
    else:
        hint = read_hint(store, region)
        newest, after = partial(read_from, store, region, hint, near=near), hint.replay_after

    def tail(behind: int) -> list[Logged]:
        return list(wal.read_tail(store, region, after=behind, kept=kept, near=near))

    manifest, logged = _with_tail(newest, tail, after, near=near) if include_wal else (newest(), [])
    if manifest is None:
        return CapturedRegion(store=store, kept=kept, region=region, manifest=manifest, entries=())
    kept.keep(name, manifest, memory_bytes(manifest))
    entries = tuple(wal.belonging(each, manifest.current_generation) for each in logged)
    return CapturedRegion(store=store, kept=kept, region=region, manifest=manifest, entries=entries)


def _with_tail(
    newest: Callable[[], RegionManifest | None], tail: Callable[[int], list[Logged]], after: int | None, *, near: bool
) -> tuple[RegionManifest | None, list[Logged]]:
    """The newest manifest and the log behind its replay point, without a gap up to an end that was seen.

    Both are read side by side: which of them is older does not matter, since no entry goes away while a reader may need
    it. Read from a point that is not that of the manifest, the log counts only where it has all that is behind that.
    """
    if after is None:
        manifest = newest()
        return manifest, [] if manifest is None else tail(manifest.replay_after_wal_id)
    with under_way(partial(tail, after), near=near) as ahead:
        manifest = newest()
    if manifest is None:
        return None, []
    behind = manifest.replay_after_wal_id
    if behind == after:
        return manifest, ahead()
    with suppress(Corrupt):  # what is flushed by now may be collected
        logged = ahead() if after < behind else []
        if logged and logged[-1].id >= behind:
            return manifest, [each for each in logged if each.id > behind]
    return manifest, tail(behind)
