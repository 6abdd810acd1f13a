"""Regions in a new place: every acknowledged record that is not merged, in order, under fresh numbers (design page 03).

A region is written anew, not copied. Its records are what counts: entries get the next free numbers, so that a lost one
leaves no hole, and generations continue behind the merged one, so that the next writer's rows are seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace

import pyarrow as pa

from storage_core.clock import Clock
from storage_core.errors import CommitConflict
from storage_core.formats import keys, region_registry, wal_entry
from storage_core.formats.generation_manifest import MANIFEST_FILE, Generation
from storage_core.formats.keys import KeyKind
from storage_core.formats.region_manifest import FlushedGeneration, RegionManifest
from storage_core.formats.wal_entry import WalEntry
from storage_core.fsck.inventory import Inventory
from storage_core.fsck.report import DAMAGE
from storage_core.ids import Ids
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_numbered
from storage_core.region import generation, generation_write
from storage_core.region.manifest import commit, read_version
from storage_core.region.memtable import Memtable
from storage_core.region_fields import WHOLE_TABLE_SPEC
from storage_core.rows.fold import record_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A WAL entry whose rows count: where it lies, its true number, and the generation that it belongs to."""

    key: str
    number: int
    generation: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSalvage:
    """What a region holds: its acknowledged entries in order, and the generation that its writer was filling.

    `complete` are the flushed generations all of whose records are there. `dealt` are those that the newest sound
    manifest names and that have their records in a file which is sound: dealt ones, and sorted ones, which stand for
    the range of those that they replaced; `marks` are its tide marks of the raw log, so that what is dealt is not dealt
    again. `spec_id` and `sealed_by` are that manifest's; without one the registry tells
    the spec, or nothing does.
    """

    region: str
    entries: tuple[Acknowledged, ...] = ()
    current_generation: int = 1
    complete: frozenset[int] = frozenset()
    spec_id: int | None = None
    sealed_by: int = 0
    dealt: tuple[Generation, ...] = ()
    marks: Mapping[str, int] = field(default_factory=dict)

    def dealt_above(self, merged: int) -> tuple[Generation, ...]:
        """Return the generations with a file of records that are not merged.

        A sorted one of which the base has a part is among them, whole: its records do the same again (decision 0054).
        """
        return tuple(each for each in self.dealt if each.generation > merged)

    def above(self, merged: int) -> tuple[Acknowledged, ...]:
        """Return the entries of generations that are not merged, and that no sorted one stands for."""
        sorted_ones = _stood_for(self.dealt)
        return tuple(each for each in self.entries if each.generation > merged and each.generation not in sorted_ones)

    def records_above(self, merged: int) -> int:
        """Return how many records are not merged."""
        written = sum(each.rows for each in self.above(merged))
        return written + sum(each.records for each in self.dealt_above(merged))


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseTable:
    """What the regions of a table need to know of its base: schema, primary key, merge progress per region."""

    schema: pa.Schema
    key: tuple[str, ...]
    merged: Mapping[str, int]


def read_regions(store: ObjectStore, inventory: Inventory) -> dict[str, RegionSalvage]:
    """Return what every region holds. One GET per WAL entry, and per manifest down to the first that is sound.

    Entries say their own number, so one that lies under another's key counts where it belongs.
    """
    return {region: _read_region(store, inventory, region) for region in inventory.regions}


def write_region(
    source: ObjectStore,
    target: ObjectStore,
    found: RegionSalvage,
    base: BaseTable,
    *,
    clock: Clock,
    ids: Ids,
) -> None:
    """Write the unmerged records of a region into `target`, which must not have the region.

    One GET and one PUT per entry, two PUTs per generation, two for the manifest and its hint. Memory: one generation.
    """
    merged = base.merged.get(found.region, 0)
    schema, key = record_schema(base.schema), base.key
    writing = _Writing(
        source, target, region=found.region, schema=schema, key=key, clock=clock, ids=ids, writer_id=ids.uuid()
    )
    waiting = found.above(merged)
    numbers = {each.generation for each in waiting if each.generation < found.current_generation}
    dealt = {each.generation: each for each in found.dealt_above(merged)}
    flushed: list[FlushedGeneration] = []
    for number in sorted(numbers | dealt.keys()):
        members = [each for each in waiting if each.generation == number]
        following = merged + 1 + len(flushed)
        flushed.append(
            writing.dealt(dealt[number], following) if number in dealt else writing.generation(members, following)
        )
    current = merged + 1 + len(flushed)
    replay_after = writing.last
    writing.tail([each for each in waiting if each.generation not in numbers], current)
    manifest = RegionManifest(
        region_id=found.region,
        version=1,
        writer_epoch=1,
        current_generation=current,
        replay_after_wal_id=replay_after,
        wal_id_last_seen=writing.last,
        flushed_generations=tuple(flushed),
        region_spec_id=found.spec_id or WHOLE_TABLE_SPEC,
        sealed_by=found.sealed_by,
        writer_id=writing.writer_id,
        dealt=found.marks,
        collected_generation=merged,
    )
    if not commit(target, manifest, clock=clock):
        raise _taken(keys.region_manifest_key(found.region, 1))


@dataclass(slots=True)
class _Writing:
    """One region in its new place, entry after entry."""

    _source: ObjectStore
    _target: ObjectStore
    _: KW_ONLY
    region: str
    schema: pa.Schema
    key: tuple[str, ...]
    clock: Clock
    ids: Ids
    writer_id: str
    last: int = 0

    def generation(self, entries: list[Acknowledged], number: int) -> FlushedGeneration:
        memtable = Memtable(self.schema, self.key)
        for each in entries:
            written = self._entry(each, number)
            memtable.add(self.last, written.records)
        flushed = generation_write.write(
            self._target, memtable, region=self.region, generation=number, clock=self.clock, ids=self.ids
        )
        return FlushedGeneration(generation=number, path=flushed.path)

    def dealt(self, found: Generation, number: int) -> FlushedGeneration:
        records = pa.concat_tables(generation.read_records(self._source, found))
        written = generation_write.write_records(
            self._target,
            records,
            self.key,
            region=self.region,
            generation=number,
            clock=self.clock,
            ids=self.ids,
        )
        return FlushedGeneration(generation=number, path=written.path)

    def tail(self, entries: list[Acknowledged], number: int) -> None:
        for each in entries:
            self._entry(each, number)

    def _entry(self, each: Acknowledged, number: int) -> WalEntry:
        found = wal_entry.decode(self._source.get(each.key).data, each.key)
        self.last += 1
        written = replace(
            found, writer_epoch=1, generation=number, writer_id=self.writer_id, seq=self.last, number=self.last
        )
        key = keys.wal_entry_key(self.region, self.last)
        if not create_numbered(self._target, key, wal_entry.encode(written), clock=self.clock):
            raise _taken(key)
        return written


def _read_region(store: ObjectStore, inventory: Inventory, region: str) -> RegionSalvage:
    entries = sorted(_entries(store, inventory, region), key=lambda pair: pair[0].number)
    highest, acknowledged = 0, []
    for each, epoch in entries:
        # Behind the first entry of a later epoch the earlier writer was told nothing (see `region.wal`).
        highest = max(highest, epoch)
        if epoch == highest and each.rows:
            acknowledged.append(each)
    manifest = _newest_manifest(store, inventory, region)
    dealt = () if manifest is None else tuple(_dealt(store, manifest))
    return RegionSalvage(
        region=region,
        entries=tuple(acknowledged),
        # Without a manifest every record counts as not flushed.
        current_generation=1 if manifest is None else manifest.current_generation,
        spec_id=_registered_spec(store, region) if manifest is None else manifest.region_spec_id,
        sealed_by=0 if manifest is None else manifest.sealed_by,
        complete=_complete(store, inventory, region, {each.number for each in acknowledged}) | _stood_for(dealt),
        dealt=dealt,
        marks={} if manifest is None else manifest.dealt,
    )


def _entries(store: ObjectStore, inventory: Inventory, region: str) -> Iterator[tuple[Acknowledged, int]]:
    for parsed in inventory.of(KeyKind.WAL_ENTRY):
        if parsed.region != region or parsed.entry is None:
            continue
        try:
            found = wal_entry.decode(store.get(parsed.key).data, parsed.key)
        except DAMAGE:
            continue  # a finding of the check already
        number = parsed.entry if found.number is None else found.number
        rows: int = found.records.num_rows
        yield Acknowledged(key=parsed.key, number=number, generation=found.generation, rows=rows), found.writer_epoch


def _complete(store: ObjectStore, inventory: Inventory, region: str, numbers: set[int]) -> frozenset[int]:
    """A generation of several flush attempts is complete when what any of them names is there."""
    complete: set[int] = set()
    wanting: set[int] = set()
    for parsed in inventory.of(KeyKind.GENERATION_FILE):
        if parsed.region != region or parsed.name != MANIFEST_FILE:
            continue
        number, directory = parsed.generation or 0, parsed.directory or ""
        try:
            found = generation.read(store, region, FlushedGeneration(generation=number, path=directory))
        except DAMAGE:
            continue  # a finding of the check already
        (complete if numbers.issuperset(found.entries) and _has_records(store, found) else wanting).add(number)
    return frozenset(complete - wanting)


def _has_records(store: ObjectStore, found: Generation) -> bool:
    """Whether the file of records is sound, of a generation that has one."""
    try:
        return found.data is None or bool(list(generation.read_records(store, found)))
    except DAMAGE:
        return False  # a finding of the check already


def _newest_manifest(store: ObjectStore, inventory: Inventory, region: str) -> RegionManifest | None:
    """The newest sound one; without it every record counts as not flushed, and no generation as dealt."""
    versions = [each.version for each in inventory.of(KeyKind.REGION_MANIFEST) if each.region == region]
    for version in sorted((each for each in versions if each is not None), reverse=True):
        try:
            return read_version(store, region, version)
        except DAMAGE:
            continue  # a finding of the check already
    return None


def _registered_spec(store: ObjectStore, region: str) -> int | None:
    key = keys.region_registry_key()
    try:
        known = region_registry.decode(store.get(key).data).regions.get(region)
    except DAMAGE:
        return None  # a finding of the check already
    return None if known is None else known.spec_id


def _dealt(store: ObjectStore, manifest: RegionManifest) -> Iterator[Generation]:
    """Only a manifest tells a dealt generation from what a dealer that died left behind."""
    for flushed in manifest.flushed_generations:
        yield from _with_records(store, manifest.region_id, flushed)


def _with_records(store: ObjectStore, region: str, flushed: FlushedGeneration) -> Iterator[Generation]:
    """The generation when its file of records is sound; of a sorted one whose file is not, what it replaced."""
    try:
        found = generation.read(store, region, flushed)
    except DAMAGE:
        return  # a finding of the check already, unless it is merged and collected
    if found.data is not None and _has_records(store, found):
        yield found
    else:
        for each in found.replaces:
            yield from _with_records(store, region, each)


def _stood_for(dealt: Iterable[Generation]) -> frozenset[int]:
    sorted_ones = (each for each in dealt if each.sorted_from)
    return frozenset(number for each in sorted_ones for number in range(each.sorted_from, each.generation + 1))


def _taken(key: str) -> CommitConflict:
    return CommitConflict(f"{key}: somebody else writes into the new location; repair into another one", key=key)
