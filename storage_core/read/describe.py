"""Descriptions of a table as plain data (`docs/spec.md`). The engine does not depend on these descriptions.

- `describe` and `files`: the table's metrics, and its live splits.
- `describe_state`: the state from which a snapshot is loaded, the state's files, and the cost of opening the table.
- `unmerged_metrics`: the unmerged part of each region. The store reports the times of its objects
  (docs/architecture/ingestion.md, "Regions").
- `Tail`: the newest records of a keyed table, and the records that writers acknowledge after the start of the tail.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from storage_core.base.errors import NotFound
from storage_core.data.formats import keys
from storage_core.data.formats.region_manifest import MANIFEST_FILE, RegionManifest
from storage_core.data.rows.columns import default_of, stored_name
from storage_core.data.rows.fold import FIELDS, OPERATION, Operation, merging
from storage_core.data.rows.sort_order import bind, nameless
from storage_core.data.rows.times import as_text
from storage_core.data.rows.vectors import type_text
from storage_core.data.rows.windows import by_start
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.layout import Region
from storage_core.log.actions import Add
from storage_core.log.live_splits import ListedFiles
from storage_core.log.log import TransactionLog, has_compact_state
from storage_core.log.replay import open_head
from storage_core.log.sharing import SOURCE
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import MeteredStore, all_of
from storage_core.write.ingest.progress import delta_progress
from storage_core.write.region import generation, wal
from storage_core.write.region.manifest import read_latest
from storage_core.write.region.spec import PARALLEL_REGIONS, RegionProgress, known_regions, progress_of

if TYPE_CHECKING:
    from storage_core.write.region.captured_regions import CapturedRegion

Row = dict[str, object]


def describe(store: ObjectStore, snapshot: Snapshot, *, now_ms: int, recalls: Mapping[str, float] | None = None) -> Row:
    """Return an object with the table's metrics at this snapshot.

    Args:
        store: The store of the table.
        snapshot: The snapshot to describe.
        now_ms: The current time, in milliseconds since the epoch.
        recalls: The measured recall of indexes, by name.

    Cost:
        A few GETs and HEADs per region of a keyed table, and no request for other tables. The entries of the regions
        come from the regions' manifests, which may be newer than the snapshot.
    """
    config = snapshot.config
    return {
        "uri": store.uri,
        "table_id": snapshot.table_id,
        "kind": config.kind,
        "version": snapshot.version,
        "timestamp": snapshot.timestamp,
        "ahead_of_clock_ms": max(0, snapshot.timestamp - now_ms),
        "live_splits": len(snapshot.splits),
        "rows": snapshot.rows,
        "bytes": snapshot.bytes,
        "time_column": config.time_column,
        "sort_schema": config.sort_schema,
        "window_seconds": config.window_seconds,
        "partition_by": list(config.partition_by),
        "checkpoint_version": snapshot.checkpoint_version,
        "columns": [_column(each) for each in snapshot.schema],
        "sort_schemas": _sort_schemas(snapshot),
        "windows": _windows(snapshot),
        "indexes": [_index(snapshot, definition, recalls or {}) for definition in config.indexes],
        "regions": _regions(store, snapshot),
        **_progress(snapshot),
        **_delta(snapshot),
        **_clone_of(snapshot),
    }


def _clone_of(snapshot: Snapshot) -> Row:
    """Return the source version of a shallow clone, and the tag that protects this version."""
    text = snapshot.metadata.configuration.get(SOURCE)
    return {} if text is None else {"clone_of": json.loads(text)}


def files(snapshot: Snapshot) -> Iterator[Row]:
    """Yield one object per live split, ordered by window and path."""
    names = {stored_name(field): field.name for field in snapshot.schema}
    for add in sorted(snapshot.splits.values(), key=_by_window):
        yield {
            "path": add.path,
            "size": add.size,
            "rows": None if add.numRecords is None else add.visible_rows,
            "window_start": add.windowStart,
            "partition_values": dict(add.partitionValues),
            "min_values": {names[name]: value for name, value in (add.minValues or {}).items() if name in names},
            "max_values": {names[name]: value for name, value in (add.maxValues or {}).items() if name in names},
        }


def _column(field: pa.Field) -> Row:
    """Return the description of a column.

    `default` is the text of the value for rows older than the column, or None.
    """
    return {
        "name": field.name,
        "type": type_text(field.type),
        "nullable": field.nullable,
        "default": default_of(field),
    }


def _sort_schemas(snapshot: Snapshot) -> list[Row]:
    """Return the number of splits for each sort schema, with the table's own sort schema first.

    The key None has the number of splits without a sort schema.
    """
    own = nameless(bind(snapshot.config, snapshot.schema).text)
    found: defaultdict[str | None, list[Add]] = defaultdict(list)
    for add in snapshot.splits.values():
        found[None if add.sortSchema is None else nameless(add.sortSchema)].append(add)
    return [
        {
            "sort_schema": text,
            "is_declared": text == own,
            "splits": len(adds),
            "rows": sum(add.visible_rows for add in adds),
            "bytes": sum(add.size for add in adds),
        }
        for text, adds in sorted(found.items(), key=lambda each: (each[0] != own, each[0] or ""))
    ]


def _by_window(add: Add) -> tuple[bool, int, str]:
    return (*by_start(add.windowStart), add.path)


def _progress(snapshot: Snapshot) -> Row:
    """Return the state of exactly-once writes: the number of retained transactions, and the objects for them."""
    listed = snapshot.txns.listed
    parts = () if listed is None else listed.parts
    return {
        "progress_transactions": snapshot.txns.entries,
        "progress_objects": len(parts),
        "progress_bytes": sum(part.info.size_bytes for part in parts),
    }


def _delta(snapshot: Snapshot) -> Row:
    """Return the progress of landing from a Delta table, and the versions that were removed before their landing."""
    reached = delta_progress(snapshot.txns)
    if reached is None:
        return {}
    gaps = [[each.first, each.last] for each in reached.gaps]
    return {"delta_source": {"id": reached.table_id, "next_version": reached.next_version, "gaps": gaps}}


def _windows(snapshot: Snapshot) -> list[Row]:
    groups: dict[tuple[int | None, int | None], list[Add]] = defaultdict(list)
    for add in sorted(snapshot.splits.values(), key=_by_window):
        groups[add.windowStart, add.windowSeconds].append(add)
    return [
        {
            "window_start": window,
            "window_seconds": seconds,
            "splits": len(adds),
            "rows": sum(add.visible_rows for add in adds),
            "bytes": sum(add.size for add in adds),
        }
        for (window, seconds), adds in sorted(groups.items(), key=lambda each: (by_start(each[0][0]), each[0][1] or 0))
    ]


def _index(snapshot: Snapshot, definition: IndexDefinition, recalls: Mapping[str, float]) -> Row:
    from storage_core.index.catch_up import measure_backlog  # only tables with indexes need this import

    found = asdict(measure_backlog(snapshot, definition.name))
    found["segments"] += found.pop("stale_segments")
    return {"name": definition.name, "kind": definition.kind, **found, "recall": recalls.get(definition.name)}


def _regions(store: ObjectStore, snapshot: Snapshot) -> list[Row]:
    if snapshot.config.kind != "keyed":
        return []
    from storage_core.write.region.spec import list_regions  # this module imports protobuf, which only regions need

    return [
        {
            "region_id": state.region_id,
            "epoch": state.epoch,
            "current_generation": state.current_generation,
            "merged_generation": state.merged_generation,
        }
        for state in list_regions(store, snapshot)
    ]


def describe_state(log: TransactionLog, snapshot: Snapshot) -> Row:
    """Return a description of the state from which the snapshot is loaded. If there is no state, `key` is null.

    To count the requests, the function opens the newest version once more without a cache.

    Cost:
        The requests of opening the table, one GET and one HEAD of the root, and one HEAD per manifest or part.
    """
    behind = snapshot.checkpoint
    listed = snapshot.splits.listed
    manifests = [] if behind is None or listed is None else _manifests(log.store, listed)
    sizes = [_size(log.store, key) for key in _parts(log, snapshot)] if not manifests else []
    root = None if behind is None else log.store.head(behind.key)
    entries = 0 if listed is None else sum(part.info.num_entries for part in listed.parts)
    return {
        "version": snapshot.version,
        "checkpoint_version": snapshot.checkpoint_version,
        "key": None if behind is None else behind.key,
        "format": None if behind is None else behind.kind.value,
        "root_bytes": None if root is None else root.size,
        "age_ms": None if root is None else max(0, log.clock.now_ms() - root.last_modified_ms),
        "versions_behind": None if behind is None else snapshot.version - behind.version,
        "entries": entries,
        "tombstones": 0 if listed is None else len(listed.tombstones),
        "manifest_bytes": sum(int(str(each["size"])) for each in manifests) + sum(sizes),
        "manifests": manifests,
        "compact": has_compact_state(snapshot),
        "opening": _opening(log.store, len(manifests)),
    }


def _manifests(store: ObjectStore, listed: ListedFiles) -> list[Row]:
    from storage_core.log.checkpoint import key_of_manifest  # The module imports Avro, which young tables do not need.

    return [
        {
            "path": part.info.path,
            "size": _size(store, key_of_manifest(part.info.path, listed.version)),
            "entries": part.info.num_entries,
            "added_at": [part.info.min_added_at_version, part.info.max_added_at_version],
            "windows": None if part.info.windows is None else list(part.info.windows),
        }
        for part in listed.parts
    ]


def _parts(log: TransactionLog, snapshot: Snapshot) -> tuple[str, ...]:
    from storage_core.log.checkpoint import named_keys

    return () if snapshot.checkpoint is None else named_keys(log.store, snapshot.checkpoint)


def _size(store: ObjectStore, key: str) -> int:
    try:
        return store.head(key).size
    except NotFound:  # if a manifest is lost, reads make more requests but return the same results
        return 0


def _opening(store: ObjectStore, manifests: int) -> Row:
    """Return the cost of opening the newest version without a cache.

    Also return the number of GETs that read all splits of this version.
    """
    metered = MeteredStore(store)
    open_head(metered)
    return {"requests": metered.meter.requests, "bytes": metered.meter.bytes_read, "manifest_gets": manifests}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmergedMetrics:
    """The progress of one region and its unmerged records, at one point in time.

    Attributes:
        progress: The progress of the region.
        generations: The number of generations that wait.
        generation_records: The number of records in these generations.
        wal_entries: The number of WAL entries after these generations.
        wal_records: The number of records in these entries.
        oldest_ms: The time at which the oldest of these objects was written, by the store's clock, in milliseconds
            since the epoch. None if everything is merged.
    """

    progress: RegionProgress
    generations: int
    generation_records: int
    wal_entries: int
    wal_records: int
    oldest_ms: int | None


def unmerged_metrics(store: ObjectStore, snapshot: Snapshot) -> list[UnmergedMetrics]:
    """Return the metrics of every claimed region of the current spec, sorted by id.

    The result is empty for an append table.

    Raises:
        Corrupt: An object is damaged. The error names it.

    Cost:
        Per region three requests. One GET per waiting generation and per later WAL entry. One GET and one HEAD at the
        end of the log, and one HEAD for the age.
    """
    known = sorted(known_regions(store, snapshot), key=lambda each: each.id)
    found = all_of(lambda each: _metrics(store, snapshot, each), known, PARALLEL_REGIONS)
    return [each for each in found if each is not None]


def _metrics(store: ObjectStore, snapshot: Snapshot, region: Region) -> UnmergedMetrics | None:
    from storage_core.write.region.captured_regions import (
        capture,  # this module imports protobuf, which only regions need
    )

    captured = capture(store, snapshot, include_wal=True, regions=[region]).regions[0]
    manifest = captured.manifest
    if manifest is None:
        return None
    progress = progress_of(region, manifest, snapshot)
    merged = progress.merged_generation
    waiting = generation.unmerged(store, manifest, merged)
    flushed = [generation.read(store, region.id, each) for each in waiting]
    entries = [each for each in captured.entries if each.entry.generation > merged]
    oldest = [keys.generation_file_key(region.id, each.path, MANIFEST_FILE) for each in flushed[:1]]
    oldest += [keys.wal_entry_key(region.id, each.id) for each in entries[:1]]
    return UnmergedMetrics(
        progress=progress,
        generations=len(flushed),
        generation_records=sum(each.records for each in flushed),
        wal_entries=len(entries),
        wal_records=sum(each.entry.records.num_rows for each in entries),
        oldest_ms=store.head(oldest[0]).last_modified_ms if oldest else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRecord:
    """One record in the form in which the writer acknowledged it. `fields` are the columns of the record."""

    region_id: str
    operation: Operation
    fields: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedEntries:
    """The number of removed WAL entries of a region. The collector removed these entries before a follower read them.

    The entries were merged or sorted. The table contains the records of these entries, but the records can no longer be
    listed.
    """

    region_id: str
    entries: int


class Tail:
    """The newest records at one point in time, and the records that writers acknowledge after that time.

    Each record is either returned once or counted as removed. The result lists the regions one after the other. The
    order of records of different regions has no meaning.
    """

    def __init__(self, store: ObjectStore, snapshot: Snapshot) -> None:
        """Record the current state of the regions.

        Makes the requests of `region.captured_regions.capture`, and two requests for the registry.
        """
        from storage_core.write.region.captured_regions import capture

        self._store = store
        self._snapshot = snapshot
        self._captured = capture(store, snapshot, include_wal=True).regions
        # A region that was never claimed has not acknowledged a record yet. For a region that was never claimed, the
        # follower starts at the first entry.
        self._last = {each.id: 0 for each in known_regions(store, snapshot)} | {
            each.manifest.region_id: each.entries[-1].id if each.entries else each.manifest.replay_after_wal_id
            for each in self._captured
            if each.manifest is not None
        }

    def newest(self, limit: int) -> list[TailRecord]:
        """Return the newest unmerged records of each region, at most `limit` per region.

        They are in the order of acknowledgement.

        A sorted generation contains one record per key, in the order of keys.

        Raises:
            Corrupt: An object is damaged. The error names it.

        Cost:
            Reads only the generations that are needed. Makes one GET per generation, and one GET per entry or file.
        """
        return [each for region in self._captured for each in self._newest(region, limit)]

    def new(self, snapshot: Snapshot) -> list[TailRecord | CollectedEntries]:
        """Return the records since the last call.

        Collected records are counted. The count comes before the other records of the same region. Only the WAL is
        read. Rows that are distributed from a raw log arrive as generations and are not returned. A region that was
        created and closed between two calls is not seen. After an error, the next call starts where this call started.

        Raises:
            Corrupt: An entry is damaged, or was removed although a reader of the snapshot needs it. The error names it.

        Cost:
            One GET per new entry, and about five requests per region. If entries were removed, one more GET per
            unmerged generation.
        """
        current = {each.id for each in known_regions(self._store, snapshot)}
        found: list[TailRecord | CollectedEntries] = []
        last = dict(self._last)
        for region in [*last, *sorted(current - last.keys())]:
            behind, last[region] = self._since(snapshot, region, last.get(region, 0))
            found += behind
        # The regions of the earlier spec are merged and closed. These regions contain no further rows.
        self._last = {region: entry for region, entry in last.items() if region in current}
        return found

    def _since(self, snapshot: Snapshot, region: str, last: int) -> tuple[list[TailRecord | CollectedEntries], int]:
        """Return the new records of a region, and its last entry.

        Flushed entries may be collected. The log after them has no gaps (docs/architecture/ingestion.md, "WAL").
        """
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
        """Yield the unmerged records, beginning with the newest entry.

        Each table is in the order of acknowledgement.
        """
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
