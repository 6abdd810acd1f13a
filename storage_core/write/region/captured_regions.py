"""Unmerged rows for readers (docs/architecture/reads.md, "Consistency").

`find` looks up keys in generations. `capture` reads the unmerged records of all regions into memory, one region at a
time. `region_positions` returns the read positions of all regions. Other processes can use these positions later
(docs/architecture/ingestion.md, "Paged reading"). A read position contains no records. A read position contains the
version of the region's manifest with the generations, and the range of later WAL entries. The manifest, the generations
and the entries are immutable. So a later reader with the same position reads the same records, until the collector
deletes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain

import pyarrow as pa

from storage_core.base.errors import Corrupt, NotFound
from storage_core.data.formats.history_token import RegionPosition
from storage_core.data.formats.key_hashes import (
    DENIES_NOTHING,
    BloomFilter,
    Hashes,
    KeyIndex,
    Rows,
    decode_key_index,
    key_hashes,
)
from storage_core.data.formats.keys import parse, region_hint_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.formats.region_manifest import (
    BLOOM_FILE,
    INDEX_FILE,
    RECORDS_FILE,
    Generation,
    RegionManifest,
    file_key,
)
from storage_core.data.rows.fold import conformed, left_open, record_schema
from storage_core.data.settings.layout import Region
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore, exists
from storage_core.store.meter import all_of, under_way
from storage_core.store.pieces import NOTHING, KeptValues, is_near
from storage_core.write.region import generation, wal
from storage_core.write.region.generation import admitted, admitting, find_key
from storage_core.write.region.manifest import memory_bytes, read_after, read_from, read_hint, read_latest
from storage_core.write.region.records import matching
from storage_core.write.region.spec import PARALLEL_REGIONS, known_regions
from storage_core.write.region.wal import Logged

# Lookups of keys in generations, by bounds, Bloom filter and key index (docs/architecture/reads.md).


_logger = logging.getLogger(__name__)

Regions = Callable[[Snapshot], Sequence[Region] | None]
"""A function that returns the regions that a read at a snapshot needs, or None for all regions (`read.lookup`)."""


def find(
    store: ObjectStore,
    generations: Sequence[Generation],
    wanted: pa.Table,
    kept: KeptValues = NOTHING,
    *,
    schema: pa.Schema | None = None,
) -> list[pa.Table]:
    """Return the records of these generations that determine the rows of the wanted keys, oldest first.

    The records are in the order of their acknowledgement, one table per WAL entry or data file. The newest generation
    is searched first. If a record contains the whole row of a key, no older generation is searched for this key.

    The filter and the index only save work. If the filter or the index is missing or damaged, all records of the
    generation are read. Filters, indexes and entries in `kept` are not read again. `kept` caches filters and indexes.
    Entries are not cached, because the manifest of the generation has no checksum of entries.

    Args:
        wanted: a table of the key columns, in key order and with the types of the key.
        schema: the record schema of the result. If it is None, records keep their original schema.

    Raises:
        Corrupt: in the cases of `read_records`. Also if an index with the right checksum contains an entry or row that
            does not exist.

    Cost:
        A generation makes no request if its bounds exclude every key. Otherwise there is one GET of its Bloom filter,
        unless the region's manifest has a valid copy of the filter. Filters are read concurrently, in growing groups.
        If the filter admits a key, there is one GET of the key index and one GET of each entry in the result of the
        index. A sorted generation has no key index. It takes ranged GETs of the chunks that may contain a key.
    """
    parts: list[pa.Table] = []
    hashes = key_hashes(wanted, wanted.column_names)
    for each, found_filter in _with_filters(store, generations, wanted, kept):
        if not found_filter.may_contain(hashes).any():
            continue
        requested = wanted.filter(pa.array(admitted(each, wanted)))
        found = list(_find(store, each, requested, kept, schema=schema)) if requested.num_rows else []
        if not found:
            continue
        parts = [*found, *parts]
        wanted = left_open(found, wanted)
        if not wanted.num_rows:
            break
        hashes = key_hashes(wanted, wanted.column_names)
    return parts


def admitting_generations(
    store: ObjectStore, generations: Sequence[Generation], wanted: pa.Table, kept: KeptValues
) -> tuple[int, int]:
    """Return how many generations have bounds that include a key, and how many of these also pass the filters.

    One GET per filter that has no copy and is not in `kept`.
    """
    hashes = key_hashes(wanted, wanted.column_names)
    admits = [each.may_contain(hashes).any() for _, each in _with_filters(store, generations, wanted, kept)]
    return len(admits), sum(map(bool, admits))


def _with_filters(
    store: ObjectStore, generations: Sequence[Generation], wanted: pa.Table, kept: KeptValues
) -> Iterator[tuple[Generation, BloomFilter]]:
    """Yield the generations whose bounds include a key, newest first, each with its filter."""
    waiting = admitting(generations, wanted)[::-1]
    at_once = 1  # Most requested keys were written recently, so the newest filter is often enough.
    while waiting:
        # A generation whose filter has a copy in the manifest costs no request. So `at_once` counts only generations
        # without this copy.
        asked = accumulate(not each.filter_bytes for each in waiting)
        size = sum(number <= at_once for number in asked)
        group, waiting = waiting[:size], waiting[size:]
        yield from zip(group, _filters(store, group, kept), strict=True)
        at_once *= 2


def _filters(store: ObjectStore, group: Sequence[Generation], kept: KeptValues) -> list[BloomFilter]:
    def read(number: int) -> BloomFilter:
        try:
            return generation.read_filter(store, group[number], kept.cached)
        except (Corrupt, NotFound) as error:
            _logger.warning("a bloom filter of region %s is not usable: %s", group[number].region, error)
            return DENIES_NOTHING

    names = [(file_key(each, BLOOM_FILE), each.bloom) for each in group]
    return kept.made_all(
        names,
        BloomFilter,
        read,
        lambda each: each.words.nbytes,
        at_hand=lambda number: generation.copied_filter(group[number]),
    )


def _find(
    store: ObjectStore, held: Generation, wanted: pa.Table, kept: KeptValues, *, schema: pa.Schema | None
) -> Iterator[pa.Table]:
    key = wanted.column_names

    def of_now(records: pa.Table) -> pa.Table:
        return records if schema is None else conformed(records, schema)

    if held.data is not None:
        parts = _chunks(store, held, wanted, kept) if held.chunks else [generation.read_data(store, held, kept.cached)]
        yield from (matching(of_now(each), wanted, key) for each in parts)
        return
    places = _places(store, held, key_hashes(wanted, key), kept)
    if places is not None and (beyond := sorted(places.keys() - {*held.entries})):
        raise _beyond(held, f"WAL entry {beyond[0]}, which is not an entry of the generation")
    for entry in held.entries:
        if places is not None and entry not in places:
            continue
        records = generation.read_entry(store, held, entry, kept)
        found = matching(of_now(records if places is None else _taken(held, records, places[entry])), wanted, key)
        if found.num_rows:
            yield found


def _chunks(store: ObjectStore, held: Generation, wanted: pa.Table, kept: KeptValues) -> Iterator[pa.Table]:
    where = file_key(held, RECORDS_FILE)
    with generation.there(held, where):
        yield from find_key(store, where, held.chunks, wanted, cached=kept.cached)


def _places(store: ObjectStore, held: Generation, hashes: Hashes, kept: KeptValues) -> Mapping[int, Rows] | None:
    """Return the rows of each entry that may have a wanted key.

    Return None if there is no usable index, or if there is only one entry.
    """
    if held.key_index is None or len(held.entries) == 1:
        return None
    where = file_key(held, INDEX_FILE)
    try:
        index = kept.made(
            (where, held.key_index),
            KeyIndex,
            lambda: decode_key_index(generation.read_verified(store, where, held.key_index, kept.cached), where),
            lambda found: found.nbytes,
        )
        return index.find(hashes)
    except (Corrupt, NotFound) as error:
        _logger.warning("a key index of region %s is not usable: %s", held.region, error)
        return None


def _taken(held: Generation, records: pa.Table, rows: Rows) -> pa.Table:
    if rows[-1] >= records.num_rows:
        raise _beyond(held, f"row {rows[-1]} of a WAL entry with {records.num_rows} rows")
    return records.take(pa.array(rows))


def _beyond(held: Generation, what: str) -> Corrupt:
    # If the lookup read all records and raised no error, a forged index would stay hidden. This lookup would also hide
    # a writer defect that omits other keys of the generation from the index.
    where = file_key(held, INDEX_FILE)
    return Corrupt(f"{where}: the key index of generation {held.generation} names {what}", key=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmerged:
    """Records of one generation, or of the log after the generations, in the order of their acknowledgement.

    For the log, `entries` contains the entry number of each table in `records`, if known.
    """

    generation: Generation | None
    records: tuple[pa.Table, ...]
    region: str = ""
    entries: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitting:
    """The unmerged generations of a snapshot, and the number of generations that may contain some keys.

    `by_bounds` counts the generations whose bounds include a key. `by_filters` counts the generations whose bounds and
    Bloom filter both allow a key.
    """

    unmerged: tuple[Generation, ...]
    by_bounds: int
    by_filters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedRegion:
    """Captured state of one region: the manifest, and the durable WAL entries that are newer than all generations.

    The manifest is None before the first claim.
    """

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
        """Return the unmerged records that determine the rows of these keys, in the order of their acknowledgement.

        The newest generation is searched first. If a record gives the whole row of a key, no older generation is
        searched for this key (see `find`).
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
        return [*find(self.store, flushed, wanted, self.kept, schema=schema), *parts]

    def admitting(self, snapshot: Snapshot, wanted: pa.Table) -> Admitting:
        """Return the numbers of generations that may contain a key.

        One GET per filter that is not copied and not kept.
        """
        held = [] if self.manifest is None else self._flushed(self.manifest, snapshot)
        by_bounds, by_filters = admitting_generations(self.store, held, wanted, self.kept)
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
    """Captured state of all regions of a table, captured one region at a time.

    For each region, this object contains the acknowledged records up to some point. This object fits any snapshot of
    the same region spec, older or newer. The method `above` omits the records that the snapshot has merged.
    """

    regions: tuple[CapturedRegion, ...]

    @property
    def raw_parts(self) -> tuple[()]:
        """Return an empty tuple, because no record comes from a raw log (`read.unmerged_records`)."""
        return ()

    def above(self, snapshot: Snapshot, *, keys: pa.Table | None = None) -> pa.Table:
        """Return the records that the snapshot has not merged.

        Records of one region are in the order of acknowledgement. Regions have disjoint keys, so the order of regions
        has no meaning. Generations up to the last generation that the snapshot has merged are omitted, even if only
        their WAL entries were captured. The base may contain newer rows of their keys (lesson 22).

        Args:
            keys: rows with the key columns. If given, the result has only records that determine the rows of these keys
                (`CapturedRegion.of_keys`). Generations that certainly contain none of the keys are not read. The bounds
                decide first, then the Bloom filter, with one more GET.

        Cost:
            One GET per generation, and one GET per WAL entry that is read.
        """
        if keys is None:
            records = chain.from_iterable(each.records for each in self.parts(snapshot))
        else:
            found = all_of(lambda each: each.of_keys(snapshot, keys), self.regions, PARALLEL_REGIONS)
            records = chain.from_iterable(found)
        return pa.concat_tables([record_schema(snapshot.schema).empty_table(), *records])

    def parts(self, snapshot: Snapshot) -> list[Unmerged]:
        """Return all unmerged records, generation by generation. Records of one region are oldest first."""
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
    """Return the current state of the table's regions, or of `regions`. The snapshot is only used to find the regions.

    The registry is read first, then the manifest and the log of each region. A region that is not in the registry yet
    has acknowledged nothing. The log is read from the replay point of the manifest. So a concurrent flush does not hide
    or repeat a row. Raises `Corrupt` with the name of a damaged entry.

    Cost:
        About three requests per region, `PARALLEL_REGIONS` regions at a time. With `include_wal`, also one GET per
        entry outside all generations, and two more requests. Immutable objects in `kept` are not read again. The hint
        takes one extra round trip, unless `kept` has a manifest.
    """
    chosen = known_regions(store, snapshot) if regions is None else regions
    parts = all_of(lambda each: _capture(store, each.id, kept, include_wal=include_wal), chosen, PARALLEL_REGIONS)
    return Captured(regions=tuple(parts))


def _capture(store: ObjectStore, region: str, kept: KeptValues, *, include_wal: bool) -> CapturedRegion:
    """Capture one region.

    A hint or an earlier read contains the start of the log. The function can therefore read the log and the manifest of
    the region concurrently.
    """
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
    """Return the newest manifest, and all log entries after its replay point, up to the end of the log.

    Manifest and log are read concurrently. The log may be older or newer than the manifest. The result is correct,
    because no entry is deleted while a reader may need the entry. The function may have read the log from a start that
    differs from the manifest's replay point. The function then uses this log only if the log has all entries after the
    manifest's replay point.
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
    with suppress(Corrupt):  # Flushed entries may be collected by now.
        logged = ahead() if after < behind else []
        if logged and logged[-1].id >= behind:
            return manifest, [each for each in logged if each.id > behind]
    return manifest, tail(behind)


def region_positions(store: ObjectStore, snapshot: Snapshot, *, include_wal: bool) -> list[RegionPosition]:
    """Return the read position of every claimed region. The snapshot is only used to find the regions.

    The positions fit any later snapshot of the same region spec.

    Cost:
        The requests of `known_regions`, and about three requests per region. With `include_wal`, also about log n HEADs
        for n unflushed entries.
    """
    known = known_regions(store, snapshot)
    positions = all_of(lambda each: _position(store, each.id, include_wal=include_wal), known, PARALLEL_REGIONS)
    return [each for each in positions if each is not None]


def was_collected(store: ObjectStore, snapshot: Snapshot, damage: Corrupt) -> bool:
    """Return whether the damage is only a deleted object that no read of this snapshot needs.

    The snapshot must be the newest snapshot. A missing object can then be an object that only an earlier snapshot
    needed. Raises `Corrupt` for damage to an object that this check reads.

    Cost:
        One HEAD and about three requests. If a WAL entry is missing, one GET per unmerged generation.
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
