"""What is not merged into the base yet, for readers (design page 07, "Consistency")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from storage_core.formats.region_manifest import RegionManifest
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import generation, wal
from storage_core.region.manifest import read_latest, region_of
from storage_core.region.wal import Logged
from storage_core.rows.fold import record_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionState:
    """How far a region has come: its epoch, the generation being filled, and the last one merged at the snapshot."""

    region_id: str
    epoch: int
    current_generation: int
    merged_generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A moment of a region: its manifest, and the durable entries behind it if they were asked for.

    It can be combined with any snapshot, older or newer: `above` leaves out what that snapshot has merged.
    """

    store: ObjectStore
    manifest: RegionManifest | None
    entries: tuple[Logged, ...]

    def above(self, snapshot: Snapshot, *, key: pa.Table | None = None) -> pa.Table:
        """Return the records that the snapshot has not merged, in the order of their acknowledgement.

        With `key`, a table of one row with the key columns, of the generations only the records of that key are read,
        see `generation.find`.

        A generation up to the snapshot's merged one is left out, also where only its WAL entries were captured: the
        base may hold newer rows of its keys (lesson 22). One GET per generation and per WAL entry of it that is read.
        """
        empty = record_schema(snapshot.schema).empty_table()
        if self.manifest is None:
            return empty
        merged = snapshot.merged_generations.get(self.manifest.region_id, 0)
        live = [each.entry.records for each in self.entries if each.entry.generation > merged]
        return pa.concat_tables([empty, *self._flushed(self.manifest, merged, key), *live])

    def _flushed(self, manifest: RegionManifest, merged: int, key: pa.Table | None) -> Iterator[pa.Table]:
        for each in manifest.flushed_generations:
            if each.generation <= merged:
                continue
            found = generation.read(self.store, manifest.region_id, each)
            if key is None:
                yield from generation.read_records(self.store, found)
            elif generation.admits(found, key):
                yield from generation.find(self.store, found, key)


def capture(store: ObjectStore, snapshot: Snapshot, *, include_wal: bool) -> Captured:
    """Return this moment of the table's region; the snapshot only names the table.

    Generations and log come from one manifest version, so a flush in between neither hides a row nor doubles it.
    About three requests; with `include_wal` one GET per entry that is in no generation, and one more.
    Raises `Corrupt` that names a damaged entry.
    """
    region = region_of(snapshot.table_id)
    manifest = read_latest(store, region)
    if manifest is None or not include_wal:
        return Captured(store=store, manifest=manifest, entries=())
    tail = wal.read_tail(store, region, after=manifest.replay_after_wal_id)
    return Captured(store=store, manifest=manifest, entries=tuple(tail))


def unmerged(store: ObjectStore, snapshot: Snapshot, *, include_wal: bool) -> pa.Table:
    """Return the records that this snapshot has not merged, oldest first, as they are durable now.

    They belong over the base of *this* snapshot. Over a newer one they could bring back older rows: a reader that wants
    the newest base captures first, opens the snapshot then, and asks `Captured.above` with it.
    """
    return capture(store, snapshot, include_wal=include_wal).above(snapshot)


def list_regions(store: ObjectStore, snapshot: Snapshot) -> list[RegionState]:
    """Return the state of every region of the table; none before the first claim, and none for append tables."""
    if snapshot.config.kind != "keyed":
        return []
    manifest = read_latest(store, region_of(snapshot.table_id))
    if manifest is None:
        return []
    state = RegionState(
        region_id=manifest.region_id,
        epoch=manifest.writer_epoch,
        current_generation=manifest.current_generation,
        merged_generation=snapshot.merged_generations.get(manifest.region_id, 0),
    )
    return [state]
