"""Is what is not merged yet all there: region manifests, WAL entries, generations (docs/architecture/ingestion.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from storage_core.foreign_text import shortened
from storage_core.formats import keys
from storage_core.formats.generation_manifest import (
    BLOOM_FILE,
    MANIFEST_FILE,
    RECORDS_FILE,
    Generation,
)
from storage_core.formats.keys import KeyKind, ParsedKey
from storage_core.formats.region_manifest import FlushedGeneration, RegionManifest
from storage_core.formats.region_registry import decode
from storage_core.fsck.inventory import Inventory
from storage_core.fsck.report import DAMAGE, Finding, Kind, damage_of
from storage_core.index import segments
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.reading import exists
from storage_core.region import generation, generation_segments, wal
from storage_core.region.manifest import read_latest, read_version
from storage_core.settings.region_fields import WHOLE_TABLE_SPEC


def check_regions(store: ObjectStore, inventory: Inventory, merged: dict[str, int], *, deep: bool) -> Iterator[Finding]:
    """Yield what is wrong with the regions; `merged` is their merge progress in the base.

    One GET for the newest manifest and the hint of a region, one per unmerged WAL entry, two and one per index
    segment per unmerged generation; deep: one per object of the region.
    """
    found = set(inventory.regions)
    for region in inventory.regions:
        check = _Region(store, inventory, region, merged.get(region, 0), deep)
        check.run()
        yield from check.findings
    yield from _registry(store, inventory, found)


def _registry(store: ObjectStore, inventory: Inventory, found: set[str]) -> Iterator[Finding]:
    """A registry that is lost is made again from the regions; one that lacks a region hides its rows."""
    key = keys.region_registry_key()
    if key not in inventory.objects:
        return
    try:
        registered = decode(store.get(key).data).regions
    except DAMAGE as error:
        yield damage_of(Kind.REGION_REGISTRY_DAMAGED, error, key, "the regions of the table")
        return
    for region in sorted(found - set(registered)):
        with suppress(*DAMAGE):  # a finding of the region already
            manifest = read_latest(store, region)
            if manifest is not None and manifest.region_spec_id != WHOLE_TABLE_SPEC:
                expected = f"the region {region} of spec {manifest.region_spec_id}"
                yield Finding(kind=Kind.REGION_NOT_REGISTERED, key=key, expected=expected, found="nothing")


@dataclass(slots=True)
class _Region:
    store: ObjectStore
    inventory: Inventory
    region: str
    merged: int
    deep: bool
    findings: list[Finding] = field(default_factory=list)
    _read: set[int] = field(default_factory=set)

    def run(self) -> None:
        manifest = self._manifests()
        if manifest is None:
            return
        self._hint(manifest)
        self._log_behind(manifest)
        self._generations(manifest)
        if self.deep:
            self._spent(manifest)

    def _of(self, kind: KeyKind) -> list[ParsedKey]:
        return [each for each in self.inventory.of(kind) if each.region == self.region]

    def _manifests(self) -> RegionManifest | None:
        versions = sorted(each.version or 0 for each in self._of(KeyKind.REGION_MANIFEST))
        if not versions:
            key = keys.region_manifest_key(self.region, 1)
            self._add(Kind.REGION_MANIFEST_MISSING, key, "a manifest of the region", "none, but other objects of it")
            return None
        for missing in sorted(set(range(versions[0], versions[-1])) - set(versions)):
            self._add(Kind.REGION_HISTORY_DAMAGED, self._manifest_key(missing), "a manifest", "nothing")
        for version in versions[:-1] if self.deep else ():
            self._manifest(version, Kind.REGION_HISTORY_DAMAGED)
        return self._manifest(versions[-1], Kind.REGION_MANIFEST_DAMAGED)

    def _manifest_key(self, version: int) -> str:
        return keys.region_manifest_key(self.region, version)

    def _manifest(self, version: int, kind: Kind) -> RegionManifest | None:
        try:
            found = read_version(self.store, self.region, version)
        except DAMAGE as error:
            self.findings.append(damage_of(kind, error, self._manifest_key(version), f"manifest {version}"))
            return None
        older = kind is Kind.REGION_HISTORY_DAMAGED
        self._copies(found, kind if older else Kind.GENERATION_COPY_DAMAGED)
        return found

    def _hint(self, manifest: RegionManifest) -> None:
        key = keys.region_hint_key(self.region)
        if key not in self.inventory.objects:
            return
        try:
            hinted = int(json.loads(self.store.get(key).data)["version"])
        except DAMAGE as error:
            self.findings.append(damage_of(Kind.REGION_HINT_DAMAGED, error, key, "a hint"))
            return
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._add(Kind.REGION_HINT_DAMAGED, key, "a hint", shortened(repr(error)))
            return
        if hinted > manifest.version:  # it is written behind the manifest that it names
            missing = self._manifest_key(hinted)
            self._add(Kind.REGION_MANIFEST_MISSING, missing, f"the manifest that {key} names", "nothing")
        elif hinted < 1:
            self._add(Kind.REGION_HINT_DAMAGED, key, "a version from 1 on", str(hinted))

    def _log_behind(self, manifest: RegionManifest) -> None:
        """No number is missing behind the replay point, up to the last entry that is there or known to have been."""
        numbers = {each.entry or 0 for each in self._of(KeyKind.WAL_ENTRY)}
        last = max([*numbers, manifest.wal_id_last_seen])
        for number in range(manifest.replay_after_wal_id + 1, last + 1):
            if number in numbers:
                self._entry(number, None, Kind.WAL_ENTRY_DAMAGED)
            else:
                key = keys.wal_entry_key(self.region, number)
                self._add(Kind.WAL_ENTRY_MISSING, key, f"entries up to {last}", "nothing")

    def _generations(self, manifest: RegionManifest) -> None:
        key = self._manifest_key(manifest.version)
        waiting = self._waiting(manifest)
        if waiting is None:
            return
        held = [number for each in waiting for number in range(each.first, each.generation + 1)]
        wanted = list(range(self.merged + 1, manifest.current_generation))
        if manifest.current_generation <= self.merged:
            found = str(manifest.current_generation)
            self._add(Kind.REGION_MANIFEST_DAMAGED, key, f"a generation above {self.merged}, which is merged", found)
        elif held != wanted:
            self._add(Kind.GENERATION_GAP, key, f"the unmerged generations {wanted}", f"{held}")
        for flushed in waiting:
            self._generation(flushed, Kind.GENERATION_DAMAGED, Kind.BLOOM_DAMAGED, Kind.WAL_ENTRY_DAMAGED)

    def _waiting(self, manifest: RegionManifest) -> list[FlushedGeneration] | None:
        if (collected := manifest.collected_generation) > self.merged:
            where, lacking = self._manifest_key(manifest.version), f"{self.merged + 1} to {collected}"
            self._add(
                Kind.GENERATION_GAP,
                where,
                f"the unmerged generations {lacking}",
                f"`collected_generation` = {collected}",
            )
            return None
        try:
            return generation.unmerged(self.store, manifest, self.merged)
        except DAMAGE as error:  # a sorted one, merged in part, that no longer says what it was made of
            where = self._manifest_key(manifest.version)
            self.findings.append(damage_of(Kind.GENERATION_DAMAGED, error, where, "what a generation replaced"))
            return None

    def _generation(self, flushed: FlushedGeneration, damaged: Kind, bloom: Kind, entry: Kind) -> None:
        where = keys.generation_file_key(self.region, flushed.path, MANIFEST_FILE)
        try:
            found = generation.read(self.store, self.region, flushed)
        except DAMAGE as error:
            self.findings.append(damage_of(damaged, error, where, f"generation {flushed.generation}"))
            return
        for number in found.entries:
            self._entry(number, flushed.generation, entry)
        if found.data is not None:
            self._data(found, damaged)
        where = keys.generation_file_key(self.region, flushed.path, BLOOM_FILE)
        try:
            generation.read_filter(self.store, found)
        except DAMAGE as error:
            self.findings.append(damage_of(bloom, error, where, "the filter of the generation"))
        self._segments(found, Kind.GENERATION_SEGMENT_DAMAGED if bloom is Kind.BLOOM_DAMAGED else bloom)

    def _copies(self, manifest: RegionManifest, kind: Kind) -> None:
        """A copy that is not what was written, by its own checksum."""
        for each in manifest.flushed_generations:
            found = generation.copied(self.region, each)
            wrong = [MANIFEST_FILE] if found is None and each.copies.manifest else []
            if found is not None and found.filter_bytes and generation.copied_filter(found) is None:
                wrong.append(BLOOM_FILE)
            for name in wrong:
                of = keys.generation_file_key(self.region, each.path, name)
                self._add(kind, self._manifest_key(manifest.version), f"a copy of {of}", "other bytes")

    def _segments(self, found: Generation, kind: Kind) -> None:
        for segment in found.segments:
            action = generation_segments.of_base(found, segment)
            try:
                segments.load(self.store, action)
            except DAMAGE as error:
                self.findings.append(damage_of(kind, error, action.path, f"the segment of {action.covers[0]}"))

    def _data(self, found: Generation, kind: Kind) -> None:
        try:
            list(generation.read_records(self.store, found))
        except DAMAGE as error:
            where = keys.generation_file_key(self.region, found.path, RECORDS_FILE)
            self.findings.append(damage_of(kind, error, where, "the records of the generation"))

    def _entry(self, number: int, of_generation: int | None, kind: Kind) -> None:
        self._read.add(number)
        key = keys.wal_entry_key(self.region, number)
        if key not in self.inventory.objects:
            missing = Kind.WAL_ENTRY_MISSING if kind is Kind.WAL_ENTRY_DAMAGED else kind
            self._add(missing, key, f"an entry of generation {of_generation}", "nothing")
            return
        try:
            logged = wal.read(self.store, self.region, number)
        except DAMAGE as error:
            self.findings.append(damage_of(kind, error, key, f"WAL entry {number}"))
            return
        if of_generation is not None and not wal.is_of(logged, of_generation):
            self._add(kind, key, f"an entry of generation {of_generation}", f"one of {logged.entry.generation}")

    def _spent(self, manifest: RegionManifest) -> None:
        """What merged generations left behind is not needed, but somebody may want to know that it is damaged.

        What is gone a collection took: the manifest of a generation outlives the rest, for it tells what is left.
        """
        spent = Kind.SPENT_OBJECT_DAMAGED
        before = len(self.findings)
        directories = {each.directory for each in self._of(KeyKind.GENERATION_FILE) if each.name == MANIFEST_FILE}
        for flushed in manifest.flushed_generations:
            if flushed.generation <= self.merged and flushed.path in directories:
                self._generation(flushed, spent, spent, spent)
        for parsed in self._of(KeyKind.WAL_ENTRY):
            if parsed.entry is not None and parsed.entry not in self._read:
                self._entry(parsed.entry, None, spent)
        self.findings[before:] = [each for each in self.findings[before:] if exists(self.store, each.key)]

    def _add(self, kind: Kind, key: str, expected: str, found: str) -> None:
        self.findings.append(Finding(kind=kind, key=key, expected=expected, found=found))
