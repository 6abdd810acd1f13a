"""The tail of a keyed table, for a person to look at: its newest records, and what writers acknowledge after them.

Nothing decides by what is here (docs/architecture/ingestion.md, "Regions").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from storage_core.formats.region_manifest import RegionManifest
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import generation, wal
from storage_core.region.manifest import read_latest
from storage_core.region.registry import known_regions
from storage_core.region.unmerged import CapturedRegion, capture
from storage_core.rows.calendar import as_text
from storage_core.rows.fold import FIELDS, OPERATION, Operation, merging


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRecord:
    """One record as it was acknowledged; `fields` are the columns that it gives."""

    region_id: str
    operation: Operation
    fields: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedEntries:
    """So many WAL entries of a region were merged or sorted, and collected, before a follower read them.

    The table has their records; which they were cannot be told one by one any more.
    """

    region_id: str
    entries: int


class Tail:
    """The newest records at one moment, and what writers acknowledge after it: each record is told once, or counted.

    Regions come one after the other, and between them there is no order.
    """

    def __init__(self, store: ObjectStore, snapshot: Snapshot) -> None:
        """Take the moment. Requests: those of `region.unmerged.capture`, the registry twice."""
        self._store = store
        self._snapshot = snapshot
        self._captured = capture(store, snapshot, include_wal=True).regions
        # A region that was never claimed has acknowledged nothing yet, and is followed from its first entry on.
        self._last = {each.id: 0 for each in known_regions(store, snapshot)} | {
            each.manifest.region_id: each.entries[-1].id if each.entries else each.manifest.replay_after_wal_id
            for each in self._captured
            if each.manifest is not None
        }

    def newest(self, limit: int) -> list[TailRecord]:
        """Return at most so many of the newest unmerged records of each region, in the order of their acknowledgement.

        A sorted generation gives its records by key, one per key. Of generations only those that are needed are read:
        a GET each, and one per entry or file. Raises `Corrupt` that names what is damaged.
        """
        return [each for region in self._captured for each in self._newest(region, limit)]

    def new(self, snapshot: Snapshot) -> list[TailRecord | CollectedEntries]:
        """Return the records since the last call; what was collected meanwhile is counted, before those of its region.

        It reads the WAL alone: rows that are distributed from a raw log come as generations, and not here. One GET per
        entry since, and about five requests per region; where entries are gone, one GET more per unmerged generation.
        Raises `Corrupt` that names an entry which is damaged, or gone though a reader of the snapshot needs it; after
        an error the next call begins where this one did. Regions that came and were closed between two calls are not
        seen.
        """
        current = {each.id for each in known_regions(self._store, snapshot)}
        found: list[TailRecord | CollectedEntries] = []
        last = dict(self._last)
        for region in [*last, *sorted(current - last.keys())]:
            behind, last[region] = self._since(snapshot, region, last.get(region, 0))
            found += behind
        # Regions of the spec before are merged and closed: no row follows.
        self._last = {region: entry for region, entry in last.items() if region in current}
        return found

    def _since(self, snapshot: Snapshot, region: str, last: int) -> tuple[list[TailRecord | CollectedEntries], int]:
        """What is flushed may be collected; behind it the log has no gaps (docs/architecture/ingestion.md, "WAL")."""
        manifest = read_latest(self._store, region)
        if manifest is None:
            return [], last
        flushed = manifest.replay_after_wal_id
        entries, missing = wal.read_kept(self._store, region, after=last, before=flushed + 1)
        if missing:
            self._require_collected(snapshot, manifest, missing)
        entries += wal.read_tail(self._store, region, after=max(last, flushed))
        key = snapshot.config.primary_key
        told = [record for each in entries for record in _listed(region, key, each.entry.records)]
        notice = [CollectedEntries(region_id=region, entries=len(missing))] if missing else []
        return [*notice, *told], max([last, flushed, *(each.id for each in entries)])

    def _require_collected(self, snapshot: Snapshot, manifest: RegionManifest, missing: Sequence[int]) -> None:
        merged = snapshot.merged_generations.get(manifest.region_id, 0)
        for each in generation.unmerged(self._store, manifest, merged):
            for entry in sorted({*generation.read(self._store, manifest.region_id, each).entries} & {*missing}):
                wal.read_known(self._store, manifest.region_id, entry)

    def _newest(self, region: CapturedRegion, limit: int) -> list[TailRecord]:
        if region.manifest is None:
            return []
        batches: list[list[TailRecord]] = []
        left = limit
        for records in self._backwards(region, region.manifest):
            some = records.slice(max(0, records.num_rows - left))
            batches.append(_listed(region.manifest.region_id, self._snapshot.config.primary_key, some))
            left -= some.num_rows
            if left <= 0:
                break
        return [each for batch in reversed(batches) for each in batch]

    def _backwards(self, region: CapturedRegion, manifest: RegionManifest) -> Iterator[pa.Table]:
        """The unmerged records, the newest entry first; each table is in the order of acknowledgement."""
        merged = self._snapshot.merged_generations.get(manifest.region_id, 0)
        for logged in reversed(region.entries):
            if logged.entry.generation > merged:
                yield logged.entry.records
        for each in reversed(generation.unmerged(self._store, manifest, merged)):
            found = generation.read(self._store, manifest.region_id, each)
            yield from reversed(list(generation.read_records(self._store, found)))


def _listed(region: str, key: Sequence[str], records: pa.Table) -> list[TailRecord]:
    return [_record(region, key, row) for row in as_text(records).to_pylist()]


def _record(region: str, key: Sequence[str], row: dict[str, object]) -> TailRecord:
    operation, named = Operation(int(str(row.pop(OPERATION)))), row.pop(FIELDS)
    if operation is Operation.DELETE:
        given = {name: row[name] for name in key}
    elif isinstance(named, list):
        given = {name: value for name, value in row.items() if name in key or {name, merging(name)} & {*named}}
    else:
        given = row
    return TailRecord(region_id=region, operation=operation, fields=given)
