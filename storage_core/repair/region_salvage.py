"""What the regions of a damaged table hold: every acknowledged record, found without trust in any one object.

Entries say their number and generation themselves; a manifest only adds what they cannot say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from storage_core.errors import Corrupt, InvalidInput
from storage_core.formats import keys, region_registry, wal_entry
from storage_core.formats.generation_manifest import MANIFEST_FILE, RECORDS_FILE, Generation
from storage_core.formats.keys import KeyKind
from storage_core.formats.region_manifest import FlushedGeneration, RegionManifest
from storage_core.formats.wal_entry import WalEntry
from storage_core.fsck.inventory import Inventory
from storage_core.fsck.report import DAMAGE
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import generation
from storage_core.region.manifest import read_version
from storage_core.rows.schema import conform
from storage_core.rows.validity import examined


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A WAL entry whose rows count: where it lies, its true number, and the generation that it belongs to.

    `lost` of its records have a value that is not valid, and are not among `rows`; None where the whole entry is valid.
    """

    key: str
    number: int
    generation: int
    rows: int
    lost: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A flushed generation that cannot be read, and how many records its manifest counts; None if that is lost too."""

    key: str
    flushed: FlushedGeneration
    reason: str
    records: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSalvage:
    """What a region holds: its acknowledged entries in order, and the generation that its writer was filling.

    `complete` are the flushed generations all of whose records are there. `filed` are those that the newest sound
    manifest names and that have their records in a file which is sound: distributed ones, and sorted ones, which stand
    for the range of those that they replaced; `offsets` are its offsets of the raw log, so that what is distributed is
    not distributed again. `unread` are those that it names and that cannot be read; `unreadable` counts the records
    that are lost of WAL entries whose bytes are what was written. `spec_id` and `closed_by` are that manifest's;
    without one the registry tells the spec, or nothing does.
    """

    region: str
    entries: tuple[Acknowledged, ...] = ()
    current_generation: int = 1
    complete: frozenset[int] = frozenset()
    spec_id: int | None = None
    closed_by: int = 0
    filed: tuple[Generation, ...] = ()
    unread: tuple[Unread, ...] = ()
    unreadable: Mapping[str, int] = field(default_factory=dict)
    offsets: Mapping[str, int] = field(default_factory=dict)

    def filed_above(self, merged: int) -> tuple[Generation, ...]:
        """Return the generations with a file of records that are not merged.

        A sorted one of which the base has a part is among them, whole: its records do the same again (decision 0054).
        """
        return tuple(each for each in self.filed if each.generation > merged)

    def above(self, merged: int) -> tuple[Acknowledged, ...]:
        """Return the entries of generations that are not merged, and that no sorted one stands for."""
        sorted_ones = _stood_for(self.filed)
        return tuple(each for each in self.entries if each.generation > merged and each.generation not in sorted_ones)

    def unread_above(self, merged: int) -> Iterator[Unread]:
        """Yield the unmerged generations whose records are neither readable nor in WAL entries."""
        written = {each.generation for each in self.entries}
        for each in self.unread:
            if each.flushed.generation > merged and not written.issuperset(
                range(each.flushed.first, each.flushed.generation + 1)
            ):
                yield each

    def records_above(self, merged: int) -> int:
        """Return how many records are not merged."""
        written = sum(each.rows for each in self.above(merged))
        return written + sum(each.records for each in self.filed_above(merged))


def read_regions(store: ObjectStore, inventory: Inventory) -> dict[str, RegionSalvage]:
    """Return what every region holds. One GET per WAL entry, and per manifest down to the first that is sound.

    Entries say their own number, so one that lies under another's key counts where it belongs.
    """
    return {region: _read_region(store, inventory, region) for region in inventory.regions}


def _read_region(store: ObjectStore, inventory: Inventory, region: str) -> RegionSalvage:
    entries = sorted(_entries(store, inventory, region), key=lambda pair: pair[0].number)
    written = list(_written(store, inventory, region))
    highest, acknowledged = 0, []
    for each, epoch in entries:
        # Behind the first entry of a later epoch the earlier writer was told nothing (see `region.wal`).
        highest = max(highest, epoch)
        if epoch == highest and each.rows:
            acknowledged.append(each)
    manifest = _newest_manifest(store, inventory, region)
    named = () if manifest is None else tuple(_filed(store, manifest))
    filed = tuple(each for each in named if isinstance(each, Generation))
    return RegionSalvage(
        region=region,
        entries=_placed(acknowledged, manifest, written),
        # Without a manifest every record counts as not flushed.
        current_generation=1 if manifest is None else manifest.current_generation,
        spec_id=_registered_spec(store, region) if manifest is None else manifest.region_spec_id,
        closed_by=0 if manifest is None else manifest.closed_by,
        complete=_complete(store, written, {each.number for each in acknowledged}) | _stood_for(filed),
        filed=filed,
        unread=tuple(each for each in named if isinstance(each, Unread)),
        unreadable={each.key: each.lost for each, _ in entries if each.lost is not None},
        offsets={} if manifest is None else manifest.distributed,
    )


def _entries(store: ObjectStore, inventory: Inventory, region: str) -> Iterator[tuple[Acknowledged, int]]:
    for parsed in inventory.of(KeyKind.WAL_ENTRY):
        if parsed.region != region or parsed.entry is None:
            continue
        try:
            found, lost = read_entry(store, parsed.key)
        except DAMAGE:
            continue  # a finding of the check already
        number = parsed.entry if found.number is None else found.number
        rows: int = found.records.num_rows
        entry = Acknowledged(key=parsed.key, number=number, generation=found.generation, rows=rows, lost=lost)
        yield entry, found.writer_epoch


def read_entry(store: ObjectStore, key: str) -> tuple[WalEntry, int | None]:
    """Return the WAL entry with those of its records whose values are valid, and the number of the others. One GET.

    The number is None for an entry that is valid as a whole. It is 0 where only bytes that no record has are not valid.
    Raises what reading an entry raises, `Corrupt` for bytes that are not what was written.
    """
    data = store.get(key).data
    try:
        return wal_entry.decode(data, key), None
    except Corrupt:
        found = wal_entry.decode(data, key, checked=False)
    records: pa.Table = found.records
    valid = np.ones(records.num_rows, np.bool_)
    try:
        records, faults = examined(records)
        for each in faults:
            valid &= ~each.rows
    except InvalidInput:  # no value of a column can be told
        valid = np.zeros(records.num_rows, np.bool_)
    kept = conform(
        records.filter(pa.array(valid)) if valid.any() else records.schema.empty_table(), found.records.schema
    )
    return replace(found, records=kept), int(np.count_nonzero(~valid))


def _written(store: ObjectStore, inventory: Inventory, region: str) -> Iterator[Generation]:
    """The sound generations, of several flush attempts each."""
    for parsed in inventory.of(KeyKind.GENERATION_FILE):
        if parsed.region != region or parsed.name != MANIFEST_FILE:
            continue
        number, directory = parsed.generation or 0, parsed.directory or ""
        with suppress(*DAMAGE):  # a finding of the check already
            yield generation.read(store, region, FlushedGeneration(generation=number, path=directory))


def _placed(
    entries: Iterable[Acknowledged], manifest: RegionManifest | None, written: Iterable[Generation]
) -> tuple[Acknowledged, ...]:
    """The entries with the generation that names them, or that is flushed next: they may say less (`wal.belonging`)."""
    after, following = (0, 0) if manifest is None else (manifest.replay_after_wal_id, manifest.current_generation)
    named: dict[int, int] = {}
    for each in written:
        named |= {number: max(each.generation, named.get(number, 0)) for number in each.entries}
    return tuple(
        replace(each, generation=max(each.generation, named.get(each.number, 0), following * (each.number > after)))
        for each in entries
    )


def _complete(store: ObjectStore, written: Iterable[Generation], numbers: set[int]) -> frozenset[int]:
    """A generation of several flush attempts is complete when what any of them names is there."""
    complete: set[int] = set()
    wanting: set[int] = set()
    for found in written:
        there = numbers.issuperset(found.entries) and _has_records(store, found)
        (complete if there else wanting).add(found.generation)
    return frozenset(complete - wanting)


def _has_records(store: ObjectStore, found: Generation) -> bool:
    """Whether the file of records is sound, of a generation that has one."""
    try:
        return found.data is None or bool(list(generation.read_records(store, found)))
    except DAMAGE:
        return False  # a finding of the check already


def _newest_manifest(store: ObjectStore, inventory: Inventory, region: str) -> RegionManifest | None:
    """The newest sound one; without it every record counts as not flushed, and no generation has a file."""
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


def _filed(store: ObjectStore, manifest: RegionManifest) -> Iterator[Generation | Unread]:
    """Only a manifest tells a distributed generation from what a distributor that died left behind."""
    for flushed in manifest.flushed_generations:
        yield from _with_records(store, manifest.region_id, flushed)


def _with_records(store: ObjectStore, region: str, flushed: FlushedGeneration) -> Iterator[Generation | Unread]:
    """The generation when its file of records is sound; of a sorted one whose file is not, what it replaced."""
    try:
        found = generation.read(store, region, flushed)
    except DAMAGE as error:  # a finding of the check already, unless it is merged and collected
        key = keys.generation_file_key(region, flushed.path, MANIFEST_FILE)
        yield Unread(key=key, flushed=flushed, reason=error.found)
        return
    if found.data is not None and _has_records(store, found):
        yield found
        return
    for each in found.replaces:
        yield from _with_records(store, region, each)
    if found.data is not None and not found.replaces:
        key = keys.generation_file_key(region, flushed.path, RECORDS_FILE)
        yield Unread(
            key=key, flushed=flushed, reason="the records of the generation cannot be read", records=found.records
        )


def _stood_for(filed: Iterable[Generation]) -> frozenset[int]:
    sorted_ones = (each for each in filed if each.sorted_from)
    return frozenset(number for each in sorted_ones for number in range(each.sorted_from, each.generation + 1))
