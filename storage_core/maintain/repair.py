"""`repair`: write the readable content of a damaged table as a valid table in a new location.

docs/architecture/transaction-log.md describes repairs in the section "History".

A repair only reads the damaged table. In the new location, the repair writes objects first, then regions, and the log
last. A killed repair thus leaves a folder that no reader accepts as a table.

Each object is verified during the copy (lessons 60 and 61). A region is rewritten and not copied. The unmerged records
of a region are written in order. The repair numbers the entries again without gaps, even if an entry was lost.
Generations get the numbers after the last merged generation, so readers see the rows of the next writer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Literal

import pyarrow as pa
import xxhash

from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import CommitConflict, InvalidInput, NotFound
from storage_core.data.formats import arrow_files, keys
from storage_core.data.formats.arrow_files import WalEntry
from storage_core.data.formats.documents import Tag
from storage_core.data.formats.keys import parse, tags_key, version_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.formats.region_manifest import FlushedGeneration, Generation, RegionManifest
from storage_core.data.rows.fold import record_schema
from storage_core.data.rows.schema import from_schema_string
from storage_core.data.settings.layout import WHOLE_TABLE_SPEC
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import (
    Action,
    Add,
    File,
    MergedGenerations,
    Metadata,
    Remove,
    RemoveIndexSegment,
    RemoveTranslation,
    RemoveTxn,
)
from storage_core.log.checkpoint import named_keys
from storage_core.log.conflicts import MergeProgress, pruning, records_a_version
from storage_core.log.listing import Checkpointed, list_log, reject_nested_table
from storage_core.log.log import TransactionLog, read_tags
from storage_core.log.snapshot import Snapshot
from storage_core.log.transactions import Progress
from storage_core.maintain.check import fsck, list_whole_table
from storage_core.maintain.collect import advance_boundary
from storage_core.maintain.findings import DAMAGE, Kind, Report, Severity
from storage_core.maintain.history import set_tag, with_renumbered
from storage_core.maintain.log_check import PreservedLog, check_log, newest_planned, part_of_log
from storage_core.maintain.regions import (
    ReadEntry,
    Regions,
    RegionSalvage,
    check_regions,
    decode_entry,
    salvage_regions,
)
from storage_core.maintain.salvage import Replacement, Salvage, salvage
from storage_core.maintain.table_objects import KIND_OF, Listing, files_of
from storage_core.split.deletion_vectors import deleted_rows
from storage_core.store.contract import ObjectStore, create_numbered, create_once
from storage_core.store.resolve import locations_above
from storage_core.write.late_rows import read_object
from storage_core.write.region import generation, generation_write
from storage_core.write.region.manifest import commit, region_of
from storage_core.write.region.records import Memtable


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A source object that was damaged or lost, and the method that restored the object in the new location."""

    key: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """An object that is missing in the new location, and the reason.

    `rows` is the number of lost rows. `rows` is None if no row is lost or if the number is unknown. `is_uncounted` is
    True if an unknown number of rows is lost.
    """

    key: str
    reason: str
    rows: int | None = None
    is_uncounted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a repair. With the status `planned` nothing was written.

    - `first_version`, `version`: the oldest and the newest version that open in the new location. For a rebuilt log,
      the versions are 0 and 1.
    - `splits`, `rows`, `bytes`: metrics of the new base.
    - `records`: the number of records that are not merged into the base.
    - `unproven`: live splits without proof that they were committed.
    - `check`: a deep check of the new location. `check` is None if nothing was written.
    """

    source: str
    target: str
    status: Literal["repaired", "planned"]
    first_version: int
    version: int
    splits: int
    rows: int
    bytes: int
    records: int
    recovered: tuple[Recovered, ...]
    lost: tuple[Lost, ...]
    unproven: tuple[str, ...]
    check: Report | None

    @property
    def rows_lost(self) -> int:
        """The number of rows that are known to be lost. The number does not include rows of `uncounted` objects."""
        return sum(each.rows or 0 for each in self.lost)

    @property
    def uncounted(self) -> int:
        """The number of lost objects with an unknown number of rows."""
        return sum(each.is_uncounted for each in self.lost)


@dataclass(slots=True)
class Transfer:
    """Copies verified objects to the target. Without a target, this class only verifies the objects.

    The transfer also remembers which objects were found under another key, and which objects were not found.

    Cost:
        One GET and one PUT per object. If an object has wrong content, one more GET per object of equal size. One
        object is in memory at a time.
    """

    source: ObjectStore
    target: ObjectStore | None
    listing: Listing
    recovered: list[Recovered] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    _done: dict[str, bool] = field(default_factory=dict)

    def place(self, named: File) -> bool:
        """Copy a split, segment or row translation. Return False if no object has the content recorded in the log.

        An object under the key of another object of its kind is found by size and checksum. A split is not copied if
        its deletion vector is lost, because deleted rows would be visible again.
        """
        if isinstance(named, Add) and not self.has_vector(named):
            return False
        if named.path not in self._done:
            self._done[named.path] = self._placed(named)
        return self._done[named.path]

    def place_all(self, *named: Iterable[File]) -> None:
        """Copy each of these files that exists."""
        for each in chain.from_iterable(named):
            self.place(each)

    def has_vector(self, add: Add) -> bool:
        """Return whether the deleted rows of the split are known."""
        try:
            deleted_rows(self.source, add)
        except DAMAGE:
            return False
        return True

    @property
    def placed(self) -> list[str]:
        """The copied splits, in order."""
        parsed = {key: parse(key) for key, done in self._done.items() if done}
        return sorted(key for key, each in parsed.items() if each is not None and each.kind is KeyKind.SPLIT)

    def copy(self, key: str) -> None:
        """Copy an object that is known to be valid. Raises `NotFound`."""
        self._put(key, self.source.get(key).data)

    def copy_if(self, key: str, check: Callable[[], object]) -> None:
        """Copy an object if `check` reads it without an error. Otherwise, add the object to the lost objects."""
        try:
            check()
        except DAMAGE as error:
            self.lost.append(Lost(key=key, reason=error.found))
        else:
            self.copy(key)

    def _placed(self, named: File) -> bool:
        for key in self._places(named):
            data = self.source.get(key).data
            if named.xxh3 is None or xxhash.xxh3_64_hexdigest(data) == named.xxh3:
                self._put(named.path, data)
                if key != named.path:
                    self.recovered.append(Recovered(key=named.path, how=f"the object was found at {key}"))
                return True
        return False

    def _places(self, named: File) -> Iterator[str]:
        """Yield the recorded key if the object under this key has the recorded size.

        If there is a checksum, also yield the keys of objects with the same kind and size.
        """
        own = self.listing.objects.get(named.path)
        if own is not None and own.size == named.size:
            yield named.path
        if named.xxh3 is None:
            return
        for parsed in self.listing.of(KIND_OF[type(named)]):
            if parsed.key != named.path and self.listing.objects[parsed.key].size == named.size:
                yield parsed.key

    def _put(self, key: str, data: bytes) -> None:
        if self.target is None:
            return
        if not create_once(self.target, key, data, advice="repair into another location"):
            raise CommitConflict(
                f"{key}: another process writes into {self.target.uri}. Repair into another location", key=key
            )


# Findings of a region about acknowledged records. A repair rewrites all objects of a region that do not contain
# acknowledged records.
_RECORDS = frozenset({Kind.WAL_ENTRY_DAMAGED, Kind.WAL_ENTRY_MISSING})


@dataclass(slots=True)
class _RegionWriting:
    """Rewrites one region, entry by entry. `last` is the number of the last written entry."""

    _source: ObjectStore
    _target: ObjectStore
    _found: RegionSalvage
    _schema: pa.Schema
    _key: tuple[str, ...]
    _: KW_ONLY
    clock: Clock
    ids: Ids
    writer_id: str
    last: int = 0

    def write(self, merged: int) -> None:
        """Write the records above the merged generation into the target, which must not have this region.

        Cost:
            One GET and one PUT per entry, two PUTs per generation, and two PUTs for the manifest and its hint. Memory:
            one generation.
        """
        found = self._found
        flushed = self.flushed_above(merged)
        current = merged + 1 + len(flushed)
        replay_after = self.last
        self.tail_above(merged, current)
        manifest = RegionManifest(
            region_id=found.region,
            version=1,
            writer_epoch=1,
            current_generation=current,
            replay_after_wal_id=replay_after,
            wal_id_last_seen=self.last,
            flushed_generations=flushed,
            region_spec_id=WHOLE_TABLE_SPEC if found.spec_id is None else found.spec_id,
            closed_by=found.closed_by,
            writer_id=self.writer_id,
            distributed=found.offsets,
            collected_generation=merged,
        )
        if not commit(self._target, manifest, clock=self.clock):
            raise _taken(keys.region_manifest_key(found.region, 1))

    def flushed_above(self, merged: int) -> tuple[FlushedGeneration, ...]:
        """Write the unmerged generations, from entries or from files, with the numbers after `merged`."""
        entries: dict[int, list[ReadEntry]] = {}
        for each in self._found.above(merged):
            if each.says.generation < self._found.current_generation:
                entries.setdefault(each.says.generation, []).append(each)
        filed = {each.generation: each for each in self._found.filed_above(merged)}
        return tuple(
            self._of_file(filed[number], following) if number in filed else self._of_entries(entries[number], following)
            for following, number in enumerate(sorted(entries.keys() | filed.keys()), start=merged + 1)
        )

    def tail_above(self, merged: int, number: int) -> None:
        """Write the entries that are not flushed yet, as entries of generation `number`."""
        for each in self._found.above(merged):
            if each.says.generation >= self._found.current_generation:
                self._entry(each, number)

    def _of_entries(self, entries: list[ReadEntry], number: int) -> FlushedGeneration:
        memtable = Memtable(record_schema(self._schema), self._key)
        for each in entries:
            written = self._entry(each, number)
            memtable.add(self.last, written.records)
        flushed = generation_write.write(
            self._target, memtable, region=self._found.region, generation=number, clock=self.clock, ids=self.ids
        )
        return flushed.copied

    def _of_file(self, found: Generation, number: int) -> FlushedGeneration:
        written = generation_write.write_records(
            self._target,
            pa.concat_tables(generation.read_records(self._source, found)),
            self._key,
            region=self._found.region,
            generation=number,
            clock=self.clock,
            ids=self.ids,
        )
        return written.copied

    def _entry(self, each: ReadEntry, number: int) -> WalEntry:
        found, _ = decode_entry(self._source.get(each.key).data, each.key)
        self.last += 1
        written = replace(
            found, writer_epoch=1, generation=number, writer_id=self.writer_id, seq=self.last, number=self.last
        )
        key = keys.wal_entry_key(self._found.region, self.last)
        if not create_numbered(self._target, key, arrow_files.encode_wal_entry(written), clock=self.clock):
            raise _taken(key)
        return written


def _taken(key: str) -> CommitConflict:
    return CommitConflict(f"{key}: another process writes into the new location. Repair into another location", key=key)


def _damaged_entries(known: Regions, merged: Mapping[str, int], regions: Mapping[str, RegionSalvage]) -> Iterator[Lost]:
    counted = {key: rows for region in regions.values() for key, rows in region.unreadable.items()}
    for each in check_regions(known, merged, deep=False):
        if each.severity is Severity.ERROR and each.kind in _RECORDS:
            reason, rows = f"{each.expected}, found: {each.found}", counted.get(each.key)
            if rows != 0:
                yield Lost(key=each.key, reason=reason, rows=rows, is_uncounted=rows is None)


def _lost_of_region(region: RegionSalvage, merged: int, records: int, config: TableConfig) -> Iterator[Lost]:
    """Yield the losses of a region except WAL entries: records of unknown region specs, and unreadable generations."""
    if records and region.spec_id is not None and region.spec_id > config.region_spec.id:
        why = f"{records} records belong to region spec {region.spec_id}, whose description is lost"
        yield Lost(key=f"_mem_wal/{region.region}/", reason=why, rows=records)
    for each in region.unread_above(merged):
        yield Lost(key=each.key, reason=each.reason, rows=each.records, is_uncounted=each.records is None)


def _with_spec(region: RegionSalvage, table_id: str, config: TableConfig) -> RegionSalvage:
    """Return the region with its spec. If manifest and registry have no spec, the region gets the current spec."""
    if region.spec_id is not None:
        return region
    return replace(region, spec_id=WHOLE_TABLE_SPEC if region.region == region_of(table_id) else config.region_spec.id)


OPERATION = "REPAIR"

_logger = logging.getLogger(__name__)


def repair(source: ObjectStore, target: ObjectStore, *, clock: Clock, ids: Ids, dry_run: bool = False) -> Outcome:
    """Write a valid table with all readable content of `source` into `target`, and return the losses.

    The repair keeps the longest part of the log that can be opened, every valid split and segment, the quarantine and
    the tags. The repair rebuilds states, the hint and regions. A rebuilt region contains every acknowledged record that
    is not merged. The repair also rebuilds a lost log.

    Args:
        source: Store of the damaged table. It is never written.
        target: Store of the new location. It must be empty.
        clock: Clock of this machine.
        ids: Source of new ids.
        dry_run: True writes nothing.

    Returns:
        The outcome. After a repair, the outcome contains a deep check of the target.

    Raises:
        InvalidInput: The target is not empty, overlaps the source, or is inside another table's folder.
        NotFound: There is nothing to repair.
        Corrupt: No readable object contains the definition of the table.
        Unsupported: A newer release wrote some of the files.
        CommitConflict: Another process writes into `target`.
        CommitUnknown: The store did not report the outcome of a write.
        Unavailable: A store does not answer.

    Cost:
        The requests of a check and of `reject_nested_table`, and one GET and one PUT per object. Memory: two snapshots
        and one object.
    """
    _require_new_place(source, target)
    listing = list_whole_table(source)
    if not listing.parsed:
        raise NotFound(f"{source.uri}: no object of a table exists here to repair. Check the location", uri=source.uri)
    written = None if dry_run else target
    work = _Repair(source, written, listing, Transfer(source, written, listing), clock=clock, ids=ids)
    outcome = work.run(target.uri)
    if dry_run:
        return outcome
    _logger.info("repaired %s into %s: version %d", source.uri, target.uri, outcome.version)
    return replace(outcome, check=fsck(target, clock=clock, deep=True))


def _named(lost: range) -> str:
    return "this version" if len(lost) == 1 else f"this version and all versions up to {lost[-1]}"


def _require_new_place(source: ObjectStore, target: ObjectStore) -> None:
    ours, theirs = source.uri, target.uri
    if ours == theirs or ours.startswith(theirs + "/") or ours in locations_above(theirs):
        raise InvalidInput(
            f"{target.uri}: a repair writes into a new location, apart from {source.uri}. Choose another location",
            uri=target.uri,
        )
    found = next(iter(target.list("")), None)
    if found is not None:
        raise InvalidInput(
            f"{target.uri} is not empty, because it contains {found.key}. Repair into an empty location", uri=target.uri
        )
    reject_nested_table(target)


@dataclass(slots=True)
class _Repair:
    """One repair. A `target` of None writes nothing."""

    source: ObjectStore
    target: ObjectStore | None
    listing: Listing
    transfer: Transfer
    _: KW_ONLY
    clock: Clock
    ids: Ids

    def run(self, target_uri: str) -> Outcome:
        check = check_log(self.source, self.listing)
        known = Regions(self.source, self.listing)
        regions = salvage_regions(known)
        found = salvage(self.source, self.listing, check, regions)
        tags = self._tags()
        tagged = self._tagged(tags, found, check.checkpoints)
        base = self._base(found, tagged)
        found = replace(found, metadata=self._renumbered(found, check.newest))
        records = self._bring_regions(found, known, regions)
        for parsed in self.listing.of(KeyKind.QUARANTINE):
            self.transfer.copy_if(parsed.key, partial(read_object, self.source, parsed.key))
        version = self._log(found, base, tagged)
        self._set_tags(tags)
        return Outcome(
            source=self.source.uri,
            target=target_uri,
            status="planned" if self.target is None else "repaired",
            first_version=0 if found.kept is None else found.kept.first,
            version=version,
            splits=len(base),
            rows=sum(add.visible_rows for add in base.values()),
            bytes=sum(add.size for add in base.values()),
            records=records,
            recovered=tuple(self.transfer.recovered),
            lost=tuple(self.transfer.lost),
            unproven=tuple(path for path in found.unproven if path in base),
            check=None,
        )

    # The base.

    def _base(self, found: Salvage, tagged: list[Checkpointed]) -> dict[str, Add]:
        """Copy the splits and segments, and return the live splits.

        Files that only older versions name are copied if possible.
        """
        base = {path: add for path, add in found.splits.items() if self.transfer.place(add)}
        missing = {path: add for path, add in found.splits.items() if path not in base}
        for replacement in found.replacements:
            if self._undo(replacement, base, missing):
                base = {path: add for path, add in base.items() if path not in replacement.outputs}
                base |= {add.path: add for add in replacement.inputs}
                missing = {path: add for path, add in missing.items() if path not in replacement.outputs}
        for path, add in missing.items():
            why = (
                "the content of the split differs from what was written"
                if path in self.listing.objects
                else "the split is missing"
            )
            if not self.transfer.has_vector(add):
                why = "the deletion vector of the split is lost, so the deleted rows are not known"
            self.transfer.lost.append(Lost(key=path, reason=why, rows=add.visible_rows))
        self._note_found(found)
        place_all = self.transfer.place_all
        place_all(found.older.values(), found.named_segments.values(), found.named_translations.values())
        for each in self._opened(tagged):
            place_all(files_of(each))
        for vector in self.listing.of(KeyKind.VECTOR):  # copy without a check: readers use the checksums in the log
            self.transfer.copy(vector.key)
        return base

    def _undo(self, replacement: Replacement, base: dict[str, Add], missing: dict[str, Add]) -> bool:
        """Return whether a compaction with a lost output can be undone.

        No output may have been replaced since, and all inputs must be valid.
        """
        lost = replacement.outputs & missing.keys()
        if not lost or not replacement.outputs <= base.keys() | missing.keys():
            return False
        if not all(self.transfer.place(add) for add in replacement.inputs):
            return False
        inputs = ", ".join(add.path for add in replacement.inputs)
        self.transfer.recovered += [
            Recovered(key=path, how=f"the rows of the split are in {inputs}") for path in sorted(lost)
        ]
        return True

    def _note_found(self, found: Salvage) -> None:
        for path, reason in sorted(found.unreadable.items()):
            self.transfer.lost.append(Lost(key=path, reason=f"cannot be judged: {reason}", is_uncounted=True))
        self.transfer.lost += [
            Lost(key=add.path, reason="all of its rows were replaced by merges whose versions are lost")
            for add in found.superseded
        ]
        self.transfer.lost += [
            Lost(
                key=f"_mem_wal/{region}/",
                reason="merges of this region are lost, and some records of these merges are missing. Deleted rows "
                "may be "
                f"live again in {splits} splits",
            )
            for region, splits in sorted(found.doubtful.items())
        ]
        self.transfer.lost += [
            Lost(key=version_key(lost[0]), reason=f"{_named(lost)} cannot be opened in the repaired table")
            for lost in found.lost_versions
        ]

    def _renumbered(self, found: Salvage, newest: int) -> Metadata:
        """Return the metadata.

        If the new log may lack the newest version in a copied split, the metadata stores this version.
        """
        last = 0 if found.kept is None else found.kept.snapshot.version  # a repair without changes adds no version
        if newest <= last:
            return found.metadata
        here = [path for path in self.transfer.placed if path in self.listing.objects]
        planned = newest_planned(self.source, self.listing, here, found.metadata.id)
        if planned is None or planned.version <= last:
            return found.metadata
        configuration = with_renumbered(found.metadata.configuration, planned.version)
        return replace(found.metadata, configuration=configuration)

    def _opened(self, checkpoints: list[Checkpointed]) -> Iterator[Snapshot]:
        for each in checkpoints:
            yield TransactionLog(part_of_log(self.source, versions=(), checkpoints=(each,))).snapshot()

    # The regions.

    def _bring_regions(self, found: Salvage, known: Regions, regions: Mapping[str, RegionSalvage]) -> int:
        """Write the unmerged records, and return their number. An append table has no unmerged records."""
        config = TableConfig.from_configuration(found.metadata.configuration)
        if config.kind != "keyed":
            return 0
        self.transfer.lost += _damaged_entries(known, found.merged, regions)
        schema, records = from_schema_string(found.metadata.schemaString), 0
        for name in sorted({*regions, *found.merged}):
            region = _with_spec(regions.get(name) or RegionSalvage(region=name), found.metadata.id, config)
            merged = found.merged.get(name, 0)
            waiting = region.records_above(merged)
            self.transfer.lost += _lost_of_region(region, merged, waiting, config)
            records += waiting
            if self.target is not None:
                _RegionWriting(
                    self.source,
                    self.target,
                    region,
                    schema,
                    config.primary_key,
                    clock=self.clock,
                    ids=self.ids,
                    writer_id=self.ids.uuid(),
                ).write(merged)
        return records

    # The log.

    def _log(self, found: Salvage, base: dict[str, Add], tagged: list[Checkpointed]) -> int:
        """Write the log: the kept part, then one commit with the changes of the base. Return the newest version."""
        kept = found.kept
        if kept is not None:
            self._copy_log(kept, tagged)
        if self.target is None:
            changed = kept is None or bool(self._actions(found, base, kept.snapshot))
            return (0 if kept is None else kept.snapshot.version) + int(changed)
        table = TransactionLog(self.target, clock=self.clock, ids=self.ids)
        head = table.create(found.metadata, operation=OPERATION) if kept is None else table.snapshot()
        actions = self._actions(found, base, head)
        if actions:
            metrics = {"splits_out": len(base), "splits_lost": len(found.splits) - len(base)}
            regions = [each.region for each in actions if isinstance(each, MergedGenerations)]
            starts = [MergeProgress(region, head.merged_generations.get(region, 0)) for region in regions]
            head = table.commit(head, actions, operation=OPERATION, metrics=metrics, requirements=starts).snapshot
        table.checkpoint(head)
        versions = list_log(self.target).versions
        first = versions[0] if versions else head.version
        if first > 0:
            advance_boundary(self.target, first, nonce=self.ids.uuid())
        return head.version

    def _copy_log(self, kept: PreservedLog, tagged: list[Checkpointed]) -> None:
        for each in [*kept.checkpoints, *tagged]:
            for key in (*named_keys(self.source, each), each.key):
                self.transfer.copy(key)
        for version in kept.versions:
            self.transfer.copy(version_key(version))

    def _actions(self, found: Salvage, base: dict[str, Add], head: Snapshot) -> list[Action]:
        now_ms = self.clock.now_ms()
        before = dict(head.splits)
        deleted = [add for path, add in before.items() if path not in base]
        actions: list[Action] = [found.metadata] if found.metadata != head.metadata and found.kept is not None else []
        actions += [Remove(path=add.path, deletionTimestamp=now_ms, size=add.size) for add in deleted]
        actions += [add for path, add in sorted(base.items()) if before.get(path) != add]
        dropped = [each for each in head.segments.values() if not self.transfer.place(each)]
        actions += [RemoveIndexSegment(index=each.index, path=each.path) for each in dropped]
        gone = [each for each in head.translations.values() if not self.transfer.place(each)]
        actions += [RemoveTranslation(path=each.path) for each in gone]
        # A fence with a version as its token belongs to the damaged log. A commit that was planned on the damaged log
        # fails on the new log.
        known = Progress(txns=found.txns, fences=found.fences, merged_generations=found.merged)
        # Progress that contains a version number is not copied. The version belongs to the damaged log, and the new log
        # has other version numbers.
        actions += [each for each in known.beyond(head.progress) if not records_a_version(each)]
        return [*actions, pruning(head)] if any(isinstance(each, RemoveTxn) for each in actions) else actions

    # The tags.

    def _tags(self) -> list[Tag]:
        if tags_key() not in self.listing.objects:
            return []
        try:
            return read_tags(self.source).live(self.clock.now_ms())
        except DAMAGE as error:
            self.transfer.lost.append(Lost(key=tags_key(), reason=error.found))
            return []

    def _tagged(self, tags: list[Tag], found: Salvage, sound: frozenset[Checkpointed]) -> list[Checkpointed]:
        """Return the checkpoints of tags below the kept versions. Each checkpoint opens only its own version."""
        if found.kept is None:
            return []
        versions = {each.version for each in tags if each.version < found.kept.first}
        return sorted((each for each in sound if each.version in versions), key=lambda each: each.key)

    def _set_tags(self, tags: list[Tag]) -> None:
        if self.target is None:
            return
        table = TransactionLog(self.target, clock=self.clock, ids=self.ids)
        for tag in tags:
            try:
                snapshot = table.snapshot(version=tag.version)
                set_tag(table, tag.name, snapshot, expires_at_ms=tag.expires_at_ms)
            except DAMAGE as error:
                self.transfer.lost.append(Lost(key=tags_key(), reason=f"the tag {tag.name!r}: {error.found}"))
