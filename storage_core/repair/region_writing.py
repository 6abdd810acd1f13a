"""Regions in a new place: every acknowledged record that is not merged, in order, under fresh numbers.

A region is written anew, not copied. Its records are what counts: entries get the next free numbers, so that a lost one
leaves no hole, and generations continue behind the merged one, so that the next writer's rows are seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace

import pyarrow as pa

from storage_core.clock import Clock
from storage_core.errors import CommitConflict
from storage_core.formats import keys, wal_entry
from storage_core.formats.generation_manifest import Generation
from storage_core.formats.region_manifest import FlushedGeneration, RegionManifest
from storage_core.formats.wal_entry import WalEntry
from storage_core.ids import Ids
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_numbered
from storage_core.region import generation, generation_write
from storage_core.region.manifest import commit
from storage_core.region.memtable import Memtable
from storage_core.repair.region_salvage import Acknowledged, RegionSalvage, read_entry
from storage_core.rows.fold import record_schema
from storage_core.settings.region_fields import WHOLE_TABLE_SPEC


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseTable:
    """What the regions of a table need to know of its base: schema, primary key, merge progress per region."""

    schema: pa.Schema
    key: tuple[str, ...]
    merged: Mapping[str, int]


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
    writing = _Writing(source, target, found, base, clock=clock, ids=ids, writer_id=ids.uuid())
    flushed = writing.flushed_above(merged)
    current = merged + 1 + len(flushed)
    replay_after = writing.last
    writing.tail_above(merged, current)
    manifest = RegionManifest(
        region_id=found.region,
        version=1,
        writer_epoch=1,
        current_generation=current,
        replay_after_wal_id=replay_after,
        wal_id_last_seen=writing.last,
        flushed_generations=flushed,
        region_spec_id=WHOLE_TABLE_SPEC if found.spec_id is None else found.spec_id,
        closed_by=found.closed_by,
        writer_id=writing.writer_id,
        distributed=found.offsets,
        collected_generation=merged,
    )
    if not commit(target, manifest, clock=clock):
        raise _taken(keys.region_manifest_key(found.region, 1))


@dataclass(slots=True)
class _Writing:
    """One region in its new place, entry after entry; `last` is the number of the last one."""

    _source: ObjectStore
    _target: ObjectStore
    _found: RegionSalvage
    _base: BaseTable
    _: KW_ONLY
    clock: Clock
    ids: Ids
    writer_id: str
    last: int = 0

    def flushed_above(self, merged: int) -> tuple[FlushedGeneration, ...]:
        """Write the generations that are not merged, from entries or from files, under the numbers behind `merged`."""
        entries: dict[int, list[Acknowledged]] = {}
        for each in self._found.above(merged):
            if each.generation < self._found.current_generation:
                entries.setdefault(each.generation, []).append(each)
        filed = {each.generation: each for each in self._found.filed_above(merged)}
        return tuple(
            self._of_file(filed[number], following) if number in filed else self._of_entries(entries[number], following)
            for following, number in enumerate(sorted(entries.keys() | filed.keys()), start=merged + 1)
        )

    def tail_above(self, merged: int, number: int) -> None:
        """Write the entries that no flush has taken yet, as those of generation `number`."""
        for each in self._found.above(merged):
            if each.generation >= self._found.current_generation:
                self._entry(each, number)

    def _of_entries(self, entries: list[Acknowledged], number: int) -> FlushedGeneration:
        memtable = Memtable(record_schema(self._base.schema), self._base.key)
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
            self._base.key,
            region=self._found.region,
            generation=number,
            clock=self.clock,
            ids=self.ids,
        )
        return written.copied

    def _entry(self, each: Acknowledged, number: int) -> WalEntry:
        found, _ = read_entry(self._source, each.key)
        self.last += 1
        written = replace(
            found, writer_epoch=1, generation=number, writer_id=self.writer_id, seq=self.last, number=self.last
        )
        key = keys.wal_entry_key(self._found.region, self.last)
        if not create_numbered(self._target, key, wal_entry.encode(written), clock=self.clock):
            raise _taken(key)
        return written


def _taken(key: str) -> CommitConflict:
    return CommitConflict(f"{key}: somebody else writes into the new location; repair into another one", key=key)
