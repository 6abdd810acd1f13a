"""Regions with an idle writer. A merge flushes the rows of these regions (docs/architecture/ingestion.md, "Merge").

A writer does not announce its end, so the merge measures the idle time. An idle region has unflushed rows in its log.
The last log entry and the manifest of the region must also be older than the table's `idle_after`. The store's clock
measures the age. Idle time only decides when a merge flushes the region. The merge claims the region like a writer, and
so fences the earlier writer. If the earlier writer is alive, its next call detects the claim before it acknowledges a
row. The earlier writer then claims the region again, writes its rows and continues (`region.writer`).

The claim succeeds only if the known manifest is still the newest manifest. So the merge does not change a region that
was claimed or flushed in the meantime. A region without rows in its log is not claimed, because a distributor may be
writing to it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import (
    Corrupt,
    NotFound,
    Unsupported,
    WriterFenced,
)
from storage_core.data.formats import keys
from storage_core.data.formats.region_manifest import MANIFEST_FILE, RegionManifest
from storage_core.data.rows.fold import record_schema
from storage_core.data.settings.layout import Region
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import all_of
from storage_core.write.region import merge, wal
from storage_core.write.region.manifest import read_latest
from storage_core.write.region.merge_work import MergeWork
from storage_core.write.region.records import Following, Memtable, WriterOptions, WriterSnapshot
from storage_core.write.region.spec import (
    PARALLEL_REGIONS,
    known_manifests,
    known_regions,
)
from storage_core.write.region.writer import RegionLog, claim_idle, require_unmerged

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeDue:
    """The tasks of a merge: regions to flush first, and pending generations.

    The length is the number of regions to flush plus the number of planned merge tasks.

    `silent_in_ms` is the time until another region may become idle. `silent_in_ms` is None if no other region has
    entries in its log.
    """

    idle: Sequence[IdleRegion]
    works: Sequence[MergeWork]
    silent_in_ms: int | None = None

    def __len__(self) -> int:
        """Return the number of regions to flush plus the number of planned merge tasks."""
        return len(self.idle) + len(self.works)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRegion:
    """A region with unflushed rows of an idle writer: the manifest, and the number of the last WAL entry.

    If `silent_in_ms` is positive, the writer becomes idle only after this time, and its log may contain no unflushed
    rows.
    """

    manifest: RegionManifest
    last_entry: int
    silent_in_ms: int = 0


def merge_due(store: ObjectStore, snapshot: Snapshot) -> MergeDue:
    """Return the regions to flush and the generations to merge.

    Cost:
        The requests of `known_manifests`, `find_idle` and `merge.plan` with given manifests.
    """
    manifests = known_manifests(store, snapshot)
    found = _unflushed(store, snapshot, manifests)
    return MergeDue(
        idle=[each for each in found if not each.silent_in_ms],
        works=merge.plan(store, snapshot, manifests=manifests),
        silent_in_ms=min((each.silent_in_ms for each in found if each.silent_in_ms), default=None),
    )


def find_idle(store: ObjectStore, snapshot: Snapshot, manifests: Sequence[RegionManifest]) -> list[IdleRegion]:
    """Return the regions with unflushed rows of an idle writer. The manifests are the newest manifests of the regions.

    Cost:
        `PARALLEL_REGIONS` regions at a time. One HEAD for a region with a flushed log. For n unflushed entries, about
        log n more HEADs, and one or two HEADs for the age. For an idle region, one GET, and one more GET per claim
        since its last row.
    """
    return [each for each in _unflushed(store, snapshot, manifests) if not each.silent_in_ms]


def _unflushed(store: ObjectStore, snapshot: Snapshot, manifests: Sequence[RegionManifest]) -> list[IdleRegion]:
    look = partial(unflushed_in, store, snapshot.config.idle_after_ms)
    found = all_of(look, [each for each in manifests if not each.closed_by], PARALLEL_REGIONS)
    return [each for each in found if each is not None]


def unflushed_in(store: ObjectStore, idle_after_ms: int, manifest: RegionManifest) -> IdleRegion | None:
    """Return the unflushed part of a region, or None if the part has no rows or the region was changed.

    Requests: see `find_idle`.
    """
    region, after = manifest.region_id, manifest.replay_after_wal_id
    last = wal.find_tail(store, region, after=after, seed=manifest.wal_id_last_seen)
    if last == after:
        return None
    newest = (keys.wal_entry_key(region, last), keys.region_manifest_key(region, manifest.version))
    with suppress(NotFound):  # The object was collected in the meantime. So there is a newer manifest.
        for key in newest:
            if (silent_in_ms := idle_after_ms - store.head(key).age_ms) > 0:
                return IdleRegion(manifest=manifest, last_entry=last, silent_in_ms=silent_in_ms)
        if any(_may_have_rows(store, region, entry) for entry in range(last, after, -1)):
            return IdleRegion(manifest=manifest, last_entry=last)
    return None


def _may_have_rows(store: ObjectStore, region: str, entry: int) -> bool:
    try:
        return not wal.read(store, region, entry).entry.is_sentinel
    except (Corrupt, Unsupported):
        return True  # the flush will report the fault


def flush_idle(
    store: ObjectStore, snapshot: Snapshot, found: Sequence[IdleRegion], *, clock: Clock, ids: Ids
) -> list[Corrupt | Unsupported]:
    """Write the unflushed rows of each region as a generation. Return the errors of regions with an unreadable log.

    A region that another process has changed in the meantime is skipped. This function may end between a claim and a
    flush. A later call then finds the region again when the idle time has passed once more. Regions are flushed one at
    a time, so memory holds the rows of one region.

    Cost:
        Per region: the requests of a claim, which reads each entry, and of a flush.
    """
    damaged: list[Corrupt | Unsupported] = []
    for each in found:
        try:
            _flush(store, snapshot, each, clock=clock, ids=ids)
        except WriterFenced as fenced:
            _logger.info("not idle any more: %s", fenced.found)
        except (Corrupt, Unsupported) as error:
            _logger.warning("region %s: what its writer left cannot be merged: %s", each.manifest.region_id, error)
            damaged.append(error)
    return damaged


def _flush(store: ObjectStore, snapshot: Snapshot, idle: IdleRegion, *, clock: Clock, ids: Ids) -> None:
    config = snapshot.config
    records = record_schema(snapshot.schema)
    require_unmerged(idle.manifest, snapshot)
    claimed = claim_idle(store, idle.manifest, record_schema=records, clock=clock, ids=ids)
    memtable = Memtable(records, config.primary_key)
    following = Following(None, clock, WriterSnapshot.of(snapshot))
    log = RegionLog(claimed, memtable, options=WriterOptions(), ids=ids, following=following)
    log.flush()


# Metrics of pending merges, without reading the rows: generations, regions of idle writers, and the oldest record.


MOST_REGIONS = 64
"""Maximum number of checked regions."""
MOST_CLAIMS = 4
"""Maximum number of skipped WAL entries without rows in a region. A claim writes one entry without rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Pending work of a merge in the checked regions.

    `regions` is the number of all regions. `generations` is the number of pending generations. Some regions have no
    pending generation, but their idle writer left unflushed rows. `silent` is the number of regions that have only
    unflushed rows of an idle writer. A merge will flush these rows (`region.idle`). `oldest_ms` is the age of the
    object with the oldest record, by the store's clock. `oldest_ms` is None if everything is merged.
    """

    regions: int
    generations: int
    silent: int
    oldest_ms: int | None


def waiting(store: ObjectStore, snapshot: Snapshot) -> Waiting:
    """Return the pending merge work of the snapshot. Only the first `MOST_REGIONS` regions by id are checked.

    Cost:
        No request for an append table. Otherwise the requests of `known_regions`, and, per region, about three requests
        and one HEAD. If only the log of a region has records, also one GET, and one more GET per claim since the last
        flush. If the oldest record is older than `idle_after`, also the requests of `idle.unflushed_in`.
    """
    known = sorted(known_regions(store, snapshot), key=lambda each: each.id)

    def look(region: Region) -> Waiting:
        return _look(store, snapshot, read_latest(store, region.id))

    found: Sequence[Waiting] = all_of(look, known[:MOST_REGIONS], PARALLEL_REGIONS)
    return Waiting(
        regions=len(known),
        generations=sum(each.generations for each in found),
        silent=sum(each.silent for each in found),
        oldest_ms=max((each.oldest_ms for each in found if each.oldest_ms is not None), default=None),
    )


def _look(store: ObjectStore, snapshot: Snapshot, manifest: RegionManifest | None) -> Waiting:
    if manifest is None:
        return Waiting(regions=1, generations=0, silent=0, oldest_ms=None)
    merged = snapshot.merged_generations.get(manifest.region_id, 0)
    flushed = sorted((each.generation, each.path) for each in manifest.flushed_generations if each.generation > merged)
    age_ms, silent = None, 0
    with suppress(NotFound):  # The object was merged and collected in the meantime.
        if flushed:
            key = keys.generation_file_key(manifest.region_id, flushed[0][1], MANIFEST_FILE)
        else:
            key = _first_entry(store, manifest)
        age_ms = store.head(key).age_ms
        if not flushed and not manifest.closed_by and age_ms >= snapshot.config.idle_after_ms:
            idle = unflushed_in(store, snapshot.config.idle_after_ms, manifest)
            silent = int(idle is not None and not idle.silent_in_ms)
    return Waiting(regions=1, generations=len(flushed), silent=silent, oldest_ms=age_ms)


def _first_entry(store: ObjectStore, manifest: RegionManifest) -> str:
    """Return the key of the first WAL entry with rows after the generations. Raise `NotFound` if no entry has rows."""
    region, after = manifest.region_id, manifest.replay_after_wal_id
    for entry in range(after + 1, after + 1 + MOST_CLAIMS):
        if not wal.read(store, region, entry).entry.is_sentinel:
            return keys.wal_entry_key(region, entry)
    raise NotFound(f"region {region}: the log contains no record")
