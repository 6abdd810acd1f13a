"""The regions of a table: objects that the collector keeps, findings of a check, and records that a repair saves.

A `RegionReading` reads the objects of one region. An object that cannot be read is returned as an `Unread` value. If an
object cannot be read, the collector raises the error, and a check creates a finding. A repair works without the object
(docs/architecture/ingestion.md).

An entry contains its own number and generation. A manifest only adds facts that entries do not contain.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.base.errors import Corrupt, InvalidInput
from storage_core.base.text import shortened
from storage_core.data.formats import arrow_files, documents, keys
from storage_core.data.formats.arrow_files import WalEntry
from storage_core.data.formats.documents import Registry
from storage_core.data.formats.keys import ParsedKey
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.formats.region_manifest import (
    BLOOM_FILE,
    MANIFEST_FILE,
    RECORDS_FILE,
    FlushedGeneration,
    Generation,
    RegionManifest,
)
from storage_core.data.rows.conform import conform
from storage_core.data.rows.values import examined
from storage_core.data.settings.layout import WHOLE_TABLE_SPEC
from storage_core.index import segments
from storage_core.maintain.findings import DAMAGE, Finding, Findings, Kind, Read, Unread, required, try_read
from storage_core.maintain.table_objects import Listing
from storage_core.store.contract import ObjectStore, exists
from storage_core.write.region import generation, generation_write, wal
from storage_core.write.region.manifest import read_latest, read_version


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEntry:
    """The number inside a WAL entry with intact bytes, and the entry's content without the records.

    - `rows`: the number of records with valid values.
    - `lost`: the number of records with an invalid value. None if the whole entry is valid.
    - `refused`: the error for readers, or None. Readers get an error for an invalid value, and for an entry with the
      key of another entry.
    """

    key: str
    number: int
    says: WalEntry
    rows: int
    lost: int | None = None
    refused: Unread | None = None


@dataclass(slots=True, eq=False)
class RegionReading:
    """The objects of one region. Entries, generations and their records are read once. Records are not kept in memory.

    An error such as `Unavailable` does not prove that an object is damaged. The caller receives every error that does
    not prove damage.
    """

    store: ObjectStore
    region: str
    _known: dict[object, Any] = field(default_factory=dict)

    def manifest(self, version: int) -> RegionManifest | Unread:
        """Return one manifest of the region. One GET."""
        key = keys.region_manifest_key(self.region, version)
        return try_read(key, f"manifest {version}", lambda: read_version(self.store, self.region, version))

    def generation(self, flushed: FlushedGeneration) -> Generation | Unread:
        """Return the content of a generation's manifest. The first call makes one GET."""
        key = keys.generation_file_key(self.region, flushed.path, MANIFEST_FILE)
        what = f"generation {flushed.generation}"
        return self._once(
            flushed, lambda: try_read(key, what, lambda: generation.read(self.store, self.region, flushed))
        )

    def records(self, found: Generation) -> int | Unread:
        """Return the number of records in the file of a generation, or 0 if it has no file.

        The first call makes one GET.
        """
        if found.data is None:
            return 0
        key = keys.generation_file_key(self.region, found.path, RECORDS_FILE)

        def counted() -> int:
            return sum(each.num_rows for each in generation.read_records(self.store, found))

        return self._once(key, lambda: try_read(key, "the records of the generation", counted))

    def derived(self, found: Generation) -> Iterator[tuple[str, object]]:
        """Yield the filter and each segment of a generation by file name, or the `Unread` value. One GET each."""
        key = keys.generation_file_key(self.region, found.path, BLOOM_FILE)
        yield (
            BLOOM_FILE,
            try_read(key, "the filter of the generation", lambda: generation.read_filter(self.store, found)),
        )
        for action in (generation_write.of_base(found, each) for each in found.segments):
            what = f"the segment of {action.covers[0]}"
            yield action.index, try_read(action.path, what, partial(segments.load, self.store, action))

    def entry(self, number: int) -> ReadEntry | Unread:
        """Return the WAL entry with this number in its key. The first call makes one GET."""
        return self._once(number, lambda: _entry(self.store, self.region, number))

    def _once(self, name: object, read: Callable[[], Read]) -> Read:
        if name not in self._known:
            self._known[name] = read()
        found: Read = self._known[name]
        return found


def _entry(store: ObjectStore, region: str, number: int) -> ReadEntry | Unread:
    key, what = keys.wal_entry_key(region, number), f"WAL entry {number}"
    data = try_read(key, what, lambda: store.get(key).data)
    if isinstance(data, Unread):
        return data
    logged = try_read(key, what, lambda: wal.decoded(data, region, number).entry)
    known = try_read(key, what, lambda: decode_entry(data, key)) if isinstance(logged, Unread) else (logged, None)
    if isinstance(known, Unread):
        return logged if isinstance(logged, Unread) else known
    found, lost = known
    return ReadEntry(
        key=key,
        number=number if found.number is None else found.number,
        says=replace(found, records=found.records.schema.empty_table()),
        rows=found.records.num_rows,
        lost=lost,
        refused=logged if isinstance(logged, Unread) else None,
    )


def decode_entry(data: bytes, key: str) -> tuple[WalEntry, int | None]:
    """Return the WAL entry with its valid records, and the number of its invalid records.

    The number is None if the whole entry is valid. The number is 0 if only bytes outside the records are invalid.
    Raises `Corrupt` if the bytes have changed since they were written.
    """
    try:
        return arrow_files.decode_wal_entry(data, key), None
    except Corrupt:
        found = arrow_files.decode_wal_entry(data, key, checked=False)
    records: pa.Table = found.records
    valid = np.ones(records.num_rows, np.bool_)
    try:
        records, faults = examined(records)
        for each in faults:
            valid &= ~each.rows
    except InvalidInput:  # the values of a column cannot be determined
        valid = np.zeros(records.num_rows, np.bool_)
    kept = conform(
        records.filter(pa.array(valid)) if valid.any() else records.schema.empty_table(), found.records.schema
    )
    return replace(found, records=kept), int(np.count_nonzero(~valid))


@dataclass(slots=True, eq=False)
class Regions:
    """The regions whose objects are in a listing, and the registry of these regions.

    Each object is read only once, even if several functions use this instance.
    """

    store: ObjectStore
    listing: Listing
    _readings: dict[str, RegionReading] = field(default_factory=dict)

    def of(self, region: str) -> RegionReading:
        """Return the `RegionReading` of a region. No request."""
        return self._readings.setdefault(region, RegionReading(self.store, region))

    def registry(self) -> Registry | Unread:
        """Return the registry. One GET."""
        key = keys.region_registry_key()
        return try_read(
            key, "the regions of the table", lambda: documents.decode_region_registry(self.store.get(key).data)
        )


# Objects that the collector keeps.


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRoots:
    """The needed objects of one region: its newest manifest and its unmerged generations.

    The collector keeps a generation until *every* retained version contains the generation's records (Lance MemWAL,
    "Garbage Collector"). A generation is usually garbage if a sorted generation replaced it. The collector keeps a
    replaced generation only if a retained version has merged just a part of the sorted generation
    (docs/architecture/ingestion.md). Indexes do not extend the time for which a generation is kept. A merge adds the
    segments of the generation to the log (decision 0019).

    WAL entries are deleted together with the generation that references them. An entry outside all generations is a
    fence sentinel and is always kept. A fenced writer that was stalled for weeks gives its next WAL entry the number of
    the sentinel. So the collector must keep the object with this number (lesson 06). When the objects of the oldest
    generations are deleted, the manifest may prune these generations (docs/architecture/collection.md).

    - `merged_directories`: the folders of merged generations.
    - `merged_entries`: WAL entries of merged and replaced generations, which can be collected.
    - `collected_generation`: the manifest need not list generations up to this number, because their objects are
      deleted. `collected_generation` is 0 if the manifest must list all generations.
    - `segments`: keys of the index segments of unmerged generations.
    - `distributed`: the region's offsets of the raw log.

    All other objects of the region are kept, in particular WAL entries outside all generations.
    """

    region: str
    manifest_version: int
    unmerged_directories: frozenset[str]
    merged_directories: frozenset[str]
    merged_entries: frozenset[int]
    collected_generation: int
    segments: frozenset[str]
    distributed: Mapping[str, int]


def region_roots(store: ObjectStore, region: str, *, merged: int, newest: int) -> RegionRoots | None:
    """Return the roots of a region. None means that the region has no manifest and all of its objects are kept.

    Raises the errors of the reads.

    Args:
        store: Store of the table.
        region: Id of the region.
        merged: Last generation that every retained version has merged.
        newest: Last generation that the newest version has merged.

    Cost:
        About three requests. One GET per generation in the region's manifest, and one GET per generation that a listed
        generation replaced. One HEAD per generation that the newest version has merged.
    """
    manifest = read_latest(store, region)
    if manifest is None:
        return None
    reading = RegionReading(store, region)
    listed = [each for each in manifest.flushed_generations if each.generation <= merged]
    # Another collector may already have deleted a generation that the newest version has merged. A collector with a
    # later time retains fewer versions than this collector.
    there = [each for each in manifest.flushed_generations if each.generation > newest or _exists(store, region, each)]
    unmerged = [each for each in there if each.generation > merged]
    spent = [each for each in there if each.generation <= merged]
    opened = [required(reading.generation(each)) for each in there]
    originals = {part: each for each in opened for part in each.replaces}
    # The merge of a retained version may have applied only a part of a sorted generation. Readers of this version read
    # the generations that the sorted generation replaced.
    needed = [
        part
        for part, each in originals.items()
        if part.generation > merged and merged < each.generation and newest >= each.sorted_from
    ]
    replaced = [part for part in originals if part not in needed and _exists(store, region, part)]
    # At some version, a merge may have taken only a part of the sorted generation. If a replaced generation is missing,
    # the collector deleted the generation before a merge applied only a part of the sorted generation.
    still = [part for part in needed if _exists(store, region, part)]
    needed_ones = [required(reading.generation(each)) for each in (*unmerged, *still)]
    deleted = _entries(required(reading.generation(each)) for each in (*spent, *replaced))
    return RegionRoots(
        region=region,
        manifest_version=manifest.version,
        unmerged_directories=frozenset(each.path for each in (*unmerged, *needed)),
        merged_directories=frozenset(each.path for each in listed),
        merged_entries=deleted - _entries(needed_ones),
        collected_generation=_collected(listed, spent),
        segments=frozenset(own.key for each in needed_ones for own in each.segments),
        distributed=manifest.distributed,
    )


def _collected(listed: Iterable[FlushedGeneration], spent: Collection[FlushedGeneration]) -> int:
    """Return the last generation before the first generation with objects. Pruned generations are contiguous."""
    in_order = sorted(listed, key=lambda each: each.generation)
    return max((each.generation for each in takewhile(lambda each: each not in spent, in_order)), default=0)


def _entries(generations: Iterable[Generation]) -> frozenset[int]:
    return frozenset(entry for each in generations for entry in each.entries)


def _exists(store: ObjectStore, region: str, flushed: FlushedGeneration) -> bool:
    # The sweep deletes the manifest of a generation last. A generation without a manifest thus has no entries to
    # collect.
    return exists(store, keys.generation_file_key(region, flushed.path, MANIFEST_FILE))


# Findings of a check.


def check_regions(regions: Regions, merged: Mapping[str, int], *, deep: bool) -> Iterator[Finding]:
    """Yield the damage of the regions. `merged` contains the last merged generation of each region.

    Cost:
        Per region, one GET for the newest manifest and one GET for the hint. One GET per unmerged WAL entry, two GETs
        per unmerged generation, and one GET per index segment of the generation. If `deep`, one GET per object of the
        region.
    """
    for region in regions.listing.regions:
        check = _Check(regions.of(region), regions.listing, merged.get(region, 0), deep)
        check.run()
        yield from check.findings.every
    yield from _registry(regions)


def _registry(regions: Regions) -> Iterator[Finding]:
    """Yield the damage of the registry. A missing registry is rebuilt from the regions.

    If a region is missing in the registry, the rows of the region are hidden.
    """
    key = keys.region_registry_key()
    if key not in regions.listing.objects:
        return
    registered = regions.registry()
    if isinstance(registered, Unread):
        yield registered.finding(Kind.REGION_REGISTRY_DAMAGED)
        return
    for region in sorted(set(regions.listing.regions) - set(registered.regions)):
        with suppress(*DAMAGE):  # the check of the region has already reported a damaged manifest
            manifest = read_latest(regions.store, region)
            if manifest is not None and manifest.region_spec_id != WHOLE_TABLE_SPEC:
                expected = f"the region {region} of spec {manifest.region_spec_id}"
                yield Finding(kind=Kind.REGION_NOT_REGISTERED, key=key, expected=expected, found="nothing")


@dataclass(slots=True)
class _Check:
    """The check of one region."""

    reading: RegionReading
    listing: Listing
    merged: int
    deep: bool
    findings: Findings = field(default_factory=Findings)
    _read: set[int] = field(default_factory=set)

    @property
    def region(self) -> str:
        return self.reading.region

    def run(self) -> None:
        manifest = self._manifests()
        if manifest is None:
            return
        self._hint(manifest)
        self._log_behind(manifest)
        self._generations(manifest)
        if self.deep:
            self._spent(manifest)

    def _of(self, kind: KeyKind) -> Sequence[ParsedKey]:
        return self.listing.of_region(self.region, kind)

    def _manifests(self) -> RegionManifest | None:
        versions = sorted(each.version or 0 for each in self._of(KeyKind.REGION_MANIFEST))
        if not versions:
            key = keys.region_manifest_key(self.region, 1)
            self.findings.add(
                Kind.REGION_MANIFEST_MISSING,
                key,
                "a manifest of the region",
                "other objects of the region, but no manifest",
            )
            return None
        for missing in sorted(set(range(versions[0], versions[-1])) - set(versions)):
            self.findings.add(Kind.REGION_HISTORY_DAMAGED, self._manifest_key(missing), "a manifest", "nothing")
        for version in versions[:-1] if self.deep else ():
            self._manifest(version, Kind.REGION_HISTORY_DAMAGED)
        return self._manifest(versions[-1], Kind.REGION_MANIFEST_DAMAGED)

    def _manifest_key(self, version: int) -> str:
        return keys.region_manifest_key(self.region, version)

    def _manifest(self, version: int, kind: Kind) -> RegionManifest | None:
        found = self.findings.unwrap(self.reading.manifest(version), kind)
        if found is None:
            return None
        older = kind is Kind.REGION_HISTORY_DAMAGED
        self._copies(found, kind if older else Kind.GENERATION_COPY_DAMAGED)
        return found

    def _hint(self, manifest: RegionManifest) -> None:
        key, damaged = keys.region_hint_key(self.region), Kind.REGION_HINT_DAMAGED
        if key not in self.listing.objects:
            return
        data = self.findings.unwrap(try_read(key, "a hint", lambda: self.reading.store.get(key).data), damaged)
        if data is None:
            return
        try:
            hinted = int(json.loads(data)["version"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self.findings.add(damaged, key, "a hint", shortened(repr(error)))
            return
        if hinted > manifest.version:  # the hint is written after its manifest
            missing = self._manifest_key(hinted)
            self.findings.add(Kind.REGION_MANIFEST_MISSING, missing, f"the manifest that {key} names", "nothing")
        elif hinted < 1:
            self.findings.add(damaged, key, "a version from 1 on", str(hinted))

    def _log_behind(self, manifest: RegionManifest) -> None:
        """Check that no entry is missing between the replay point and the last existing or known entry."""
        numbers = {each.entry or 0 for each in self._of(KeyKind.WAL_ENTRY)}
        last = max([*numbers, manifest.wal_id_last_seen])
        for number in range(manifest.replay_after_wal_id + 1, last + 1):
            if number in numbers:
                self._entry(number, None, Kind.WAL_ENTRY_DAMAGED)
            else:
                key = keys.wal_entry_key(self.region, number)
                self.findings.add(Kind.WAL_ENTRY_MISSING, key, f"entries up to {last}", "nothing")

    def _generations(self, manifest: RegionManifest) -> None:
        key = self._manifest_key(manifest.version)
        waiting = self._waiting(manifest)
        if waiting is None:
            return
        held = [number for each in waiting for number in range(each.first, each.generation + 1)]
        wanted = list(range(self.merged + 1, manifest.current_generation))
        if manifest.current_generation <= self.merged:
            found = str(manifest.current_generation)
            self.findings.add(
                Kind.REGION_MANIFEST_DAMAGED,
                key,
                f"a current generation above the merged generation {self.merged}",
                found,
            )
        elif held != wanted:
            self.findings.add(Kind.GENERATION_GAP, key, f"the unmerged generations {wanted}", f"{held}")
        for flushed in waiting:
            self._generation(flushed, Kind.GENERATION_DAMAGED, Kind.BLOOM_DAMAGED, Kind.WAL_ENTRY_DAMAGED)

    def _waiting(self, manifest: RegionManifest) -> list[FlushedGeneration] | None:
        if (collected := manifest.collected_generation) > self.merged:
            where, lacking = self._manifest_key(manifest.version), f"{self.merged + 1} to {collected}"
            self.findings.add(
                Kind.GENERATION_GAP,
                where,
                f"the unmerged generations {lacking}",
                f"`collected_generation` = {collected}",
            )
            return None
        # If a sorted generation is partly merged, its source objects may be missing.
        where, store = self._manifest_key(manifest.version), self.reading.store
        waiting = try_read(
            where, "what a generation replaced", lambda: generation.unmerged(store, manifest, self.merged)
        )
        return self.findings.unwrap(waiting, Kind.GENERATION_DAMAGED)

    def _generation(self, flushed: FlushedGeneration, damaged: Kind, bloom: Kind, entry: Kind) -> None:
        found = self.findings.unwrap(self.reading.generation(flushed), damaged)
        if found is None:
            return
        for number in found.entries:
            self._entry(number, flushed.generation, entry)
        self.findings.unwrap(self.reading.records(found), damaged)
        segment = Kind.GENERATION_SEGMENT_DAMAGED if bloom is Kind.BLOOM_DAMAGED else bloom
        for name, each in self.reading.derived(found):
            self.findings.unwrap(each, bloom if name == BLOOM_FILE else segment)

    def _copies(self, manifest: RegionManifest, kind: Kind) -> None:
        """Add a finding for each copy that differs from its own checksum."""
        for each in manifest.flushed_generations:
            found = generation.copied(self.region, each)
            wrong = [MANIFEST_FILE] if found is None and each.copies.manifest else []
            if found is not None and found.filter_bytes and generation.copied_filter(found) is None:
                wrong.append(BLOOM_FILE)
            for name in wrong:
                of = keys.generation_file_key(self.region, each.path, name)
                self.findings.add(kind, self._manifest_key(manifest.version), f"a copy of {of}", "other bytes")

    def _entry(self, number: int, of_generation: int | None, kind: Kind) -> None:
        self._read.add(number)
        key = keys.wal_entry_key(self.region, number)
        if key not in self.listing.objects:
            missing = Kind.WAL_ENTRY_MISSING if kind is Kind.WAL_ENTRY_DAMAGED else kind
            self.findings.add(missing, key, f"an entry of generation {of_generation}", "nothing")
            return
        entry = self.findings.unwrap(self.reading.entry(number), kind)
        if entry is None:
            return
        if entry.refused is not None:
            self.findings.unwrap(entry.refused, kind)
        elif of_generation is not None and not wal.is_of(entry.says, of_generation):
            self.findings.add(kind, key, f"an entry of generation {of_generation}", f"one of {entry.says.generation}")

    def _spent(self, manifest: RegionManifest) -> None:
        """Check the remaining objects of merged generations.

        The table does not need these objects, but the check reports damaged ones.

        Objects that a collection deleted concurrently are skipped. The manifest of a generation is deleted last,
        because only the manifest lists the remaining objects.
        """
        spent = Kind.SPENT_OBJECT_DAMAGED
        before = len(self.findings.every)
        directories = {each.directory for each in self._of(KeyKind.GENERATION_FILE) if each.name == MANIFEST_FILE}
        for flushed in manifest.flushed_generations:
            if flushed.generation <= self.merged and flushed.path in directories:
                self._generation(flushed, spent, spent, spent)
        for parsed in self._of(KeyKind.WAL_ENTRY):
            if parsed.entry is not None and parsed.entry not in self._read:
                self._entry(parsed.entry, None, spent)
        self.findings.every[before:] = [
            each for each in self.findings.every[before:] if exists(self.reading.store, each.key)
        ]


# Records that a repair saves.


@dataclass(frozen=True, slots=True, kw_only=True)
class LostGeneration:
    """A flushed generation that cannot be read, and the number of its records.

    The number is None if the manifest is lost, too.
    """

    key: str
    flushed: FlushedGeneration
    reason: str
    records: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSalvage:
    """The content of a region: the acknowledged entries in order, and the unfinished generation of the writer.

    - `complete`: flushed generations with all of their records.
    - `filed`: generations in the newest valid manifest with a valid file of records. All generations in `filed` are
      distributed or sorted generations. A sorted generation represents the range of generations that it replaced.
    - `unread`: generations in this manifest that cannot be read.
    - `unreadable`: the number of records with invalid values in WAL entries with intact bytes, by key of the entry.
    - `offsets`: the manifest's offsets of the raw log. The offsets prevent a second distribution of the same records.
    - `spec_id`, `closed_by`: values of this manifest. If there is no manifest, the registry may contain the spec.
    """

    region: str
    entries: tuple[ReadEntry, ...] = ()
    current_generation: int = 1
    complete: frozenset[int] = frozenset()
    spec_id: int | None = None
    closed_by: int = 0
    filed: tuple[Generation, ...] = ()
    unread: tuple[LostGeneration, ...] = ()
    unreadable: Mapping[str, int] = field(default_factory=dict)
    offsets: Mapping[str, int] = field(default_factory=dict)

    def filed_above(self, merged: int) -> tuple[Generation, ...]:
        """Return the unmerged generations that have a file of records.

        This includes a partly merged sorted generation. A second merge of its records has no further effect
        (docs/architecture/ingestion.md).
        """
        return tuple(each for each in self.filed if each.generation > merged)

    def above(self, merged: int) -> tuple[ReadEntry, ...]:
        """Return the entries of unmerged generations, without the entries that sorted generations replaced."""
        sorted_ones = _stood_for(self.filed)
        numbers = ((each, each.says.generation) for each in self.entries)
        return tuple(each for each, number in numbers if number > merged and number not in sorted_ones)

    def unread_above(self, merged: int) -> Iterator[LostGeneration]:
        """Yield the unmerged generations without readable records and without WAL entries."""
        written = {each.says.generation for each in self.entries}
        for each in self.unread:
            if each.flushed.generation > merged and not written.issuperset(
                range(each.flushed.first, each.flushed.generation + 1)
            ):
                yield each

    def records_above(self, merged: int) -> int:
        """Return the number of unmerged records."""
        written = sum(each.rows for each in self.above(merged))
        return written + sum(each.records for each in self.filed_above(merged))


def salvage_regions(regions: Regions) -> dict[str, RegionSalvage]:
    """Return the content of every region.

    An entry contains its own number. If an entry is stored under the key of another entry, the function uses the number
    inside the entry.

    Cost:
        One GET per WAL entry. One GET per manifest, from the newest manifest down to the first valid manifest.
    """
    return {region: _salvage(regions, region) for region in regions.listing.regions}


def _salvage(regions: Regions, region: str) -> RegionSalvage:
    reading, listing = regions.of(region), regions.listing
    found = (reading.entry(each.entry or 0) for each in listing.of_region(region, KeyKind.WAL_ENTRY))
    entries = sorted((each for each in found if isinstance(each, ReadEntry)), key=lambda each: each.number)
    written = list(_written(reading, listing))
    highest, acknowledged = 0, list[ReadEntry]()
    for each in entries:
        # After the first entry with a new writer epoch, the region acknowledges no entry with a lower epoch (see
        # `region.wal`).
        highest = max(highest, each.says.writer_epoch)
        if each.says.writer_epoch == highest and each.rows:
            acknowledged.append(each)
    manifest = _newest_manifest(reading, listing)
    named = () if manifest is None else tuple(_filed(reading, manifest))
    filed = tuple(each for each in named if isinstance(each, Generation))
    return RegionSalvage(
        region=region,
        entries=_placed(acknowledged, manifest, written),
        # Without a manifest, every record counts as not flushed.
        current_generation=1 if manifest is None else manifest.current_generation,
        spec_id=_registered_spec(regions, region) if manifest is None else manifest.region_spec_id,
        closed_by=0 if manifest is None else manifest.closed_by,
        complete=_complete(reading, written, {each.number for each in acknowledged}) | _stood_for(filed),
        filed=filed,
        unread=tuple(each for each in named if isinstance(each, LostGeneration)),
        unreadable={each.key: each.lost for each in entries if each.lost is not None},
        offsets={} if manifest is None else manifest.distributed,
    )


def _written(reading: RegionReading, listing: Listing) -> Iterator[Generation]:
    """Yield the valid generations of all flush attempts."""
    files = listing.of_region(reading.region, KeyKind.GENERATION_FILE)
    for each in (each for each in files if each.name == MANIFEST_FILE):
        flushed = FlushedGeneration(generation=each.generation or 0, path=each.directory or "")
        found = reading.generation(flushed)
        if isinstance(found, Generation):
            yield found


def _placed(
    entries: Iterable[ReadEntry], manifest: RegionManifest | None, written: Iterable[Generation]
) -> tuple[ReadEntry, ...]:
    """Return the entries with their generation. Entries outside all generations get the number of the next flush.

    The generation number inside an entry may be lower than the returned generation (`wal.belonging`).
    """
    after, following = (0, 0) if manifest is None else (manifest.replay_after_wal_id, manifest.current_generation)
    named: dict[int, int] = {}
    for each in written:
        named |= {number: max(each.generation, named.get(number, 0)) for number in each.entries}

    def placed(entry: ReadEntry) -> ReadEntry:
        number = max(entry.says.generation, named.get(entry.number, 0), following * (entry.number > after))
        return replace(entry, says=replace(entry.says, generation=number))

    return tuple(map(placed, entries))


def _complete(reading: RegionReading, written: Iterable[Generation], numbers: set[int]) -> frozenset[int]:
    """Return the generations for which all entries of every flush attempt exist."""
    complete: set[int] = set()
    wanting: set[int] = set()
    for found in written:
        there = numbers.issuperset(found.entries) and not isinstance(reading.records(found), Unread)
        (complete if there else wanting).add(found.generation)
    return frozenset(complete - wanting)


def _newest_manifest(reading: RegionReading, listing: Listing) -> RegionManifest | None:
    """Return the newest valid manifest.

    If there is no valid manifest, every record counts as not flushed, and no generation has a file.
    """
    versions = (each.version or 0 for each in listing.of_region(reading.region, KeyKind.REGION_MANIFEST))
    found = (reading.manifest(version) for version in sorted(versions, reverse=True))
    return next((each for each in found if isinstance(each, RegionManifest)), None)


def _registered_spec(regions: Regions, region: str) -> int | None:
    registered = regions.registry()
    known = None if isinstance(registered, Unread) else registered.regions.get(region)
    return None if known is None else known.spec_id


def _filed(reading: RegionReading, manifest: RegionManifest) -> Iterator[Generation | LostGeneration]:
    """Yield the generations with a file.

    Only a manifest distinguishes these generations from leftover files of a killed distributor.
    """
    for flushed in manifest.flushed_generations:
        yield from _with_records(reading, flushed)


def _with_records(reading: RegionReading, flushed: FlushedGeneration) -> Iterator[Generation | LostGeneration]:
    """Yield the generation, or the generations that it replaced if its file of records is invalid."""
    found = reading.generation(flushed)
    if isinstance(found, Unread):  # the check reports an unreadable file, unless its generation is merged and collected
        yield LostGeneration(key=found.key, flushed=flushed, reason=found.error.found)
        return
    records = reading.records(found)
    if found.data is not None and not isinstance(records, Unread):
        yield found
        return
    for each in found.replaces:
        yield from _with_records(reading, each)
    if isinstance(records, Unread) and not found.replaces:
        reason = "the records of the generation cannot be read"
        yield LostGeneration(key=records.key, flushed=flushed, reason=reason, records=found.records)


def _stood_for(filed: Iterable[Generation]) -> frozenset[int]:
    sorted_ones = (each for each in filed if each.sorted_from)
    return frozenset(number for each in sorted_ones for number in range(each.sorted_from, each.generation + 1))
