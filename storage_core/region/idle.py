"""Regions whose writer has ended, or seems to have: a merge flushes what they left (docs/architecture/ingestion.md,
"Merge").

Nothing says that a writer has ended, so silence stands for it: the log has rows in no generation, and neither its last
entry nor the manifest is younger than the table's `idle_after`, by the clock of the store. Silence decides when to look
after them, and nothing else: the merge claims the region as a writer does, which fences the one before. If that one is
alive, its next call finds out before it acknowledges anything, claims the region again, writes its rows there and goes
on (`region.claim`).

The claim is of the manifest that was looked at, so a region that was claimed or flushed since is left alone. A region
whose log holds no rows is not claimed: a distributor may be at work in it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from storage_core.clock import Clock
from storage_core.errors import Corrupt, NotFound, Unsupported, WriterFenced
from storage_core.formats import keys
from storage_core.formats.region_manifest import RegionManifest
from storage_core.ids import Ids
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.region import merge, wal
from storage_core.region.claim import claim_idle, require_unmerged
from storage_core.region.following import Following, Known
from storage_core.region.memtable import Memtable
from storage_core.region.merge_work import MergeWork
from storage_core.region.options import WriterOptions
from storage_core.region.region_log import RegionLog
from storage_core.region.registry import PARALLEL_REGIONS, known_manifests
from storage_core.rows.fold import record_schema

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeDue:
    """What a merge has to do: regions to flush first, and generations that wait already. Sized by both.

    `silent_in_ms` says when time alone may add a region to flush, None where no other has anything in its log.
    """

    idle: Sequence[IdleRegion]
    works: Sequence[MergeWork]
    silent_in_ms: int | None = None

    def __len__(self) -> int:
        """Return the number of regions to flush and of works."""
        return len(self.idle) + len(self.works)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRegion:
    """A region whose silent writer left rows in no generation: its manifest, and the number of its last WAL entry.

    With `silent_in_ms` its writer is not silent before that time is over, and its log may turn out to hold no rows.
    """

    manifest: RegionManifest
    last_entry: int
    silent_in_ms: int = 0


def merge_due(store: ObjectStore, snapshot: Snapshot) -> MergeDue:
    """Return what there is to flush and to merge. Requests: `known_manifests`, `find_idle`, and a plan given those."""
    manifests = known_manifests(store, snapshot)
    found = _unflushed(store, snapshot, manifests)
    return MergeDue(
        idle=[each for each in found if not each.silent_in_ms],
        works=merge.plan(store, snapshot, manifests=manifests),
        silent_in_ms=min((each.silent_in_ms for each in found if each.silent_in_ms), default=None),
    )


def find_idle(store: ObjectStore, snapshot: Snapshot, manifests: Sequence[RegionManifest]) -> list[IdleRegion]:
    """Return which of these regions, given by their newest manifests, hold rows that a silent writer left.

    `PARALLEL_REGIONS` at a time. One HEAD for a region whose log is flushed. With n entries behind that about log n
    more and one or two for the age; where it is silent a GET, and one more for each claim since its last row.
    """
    return [each for each in _unflushed(store, snapshot, manifests) if not each.silent_in_ms]


def _unflushed(store: ObjectStore, snapshot: Snapshot, manifests: Sequence[RegionManifest]) -> list[IdleRegion]:
    look = partial(unflushed_in, store, snapshot.config.idle_after_ms)
    found = all_of(look, [each for each in manifests if not each.closed_by], PARALLEL_REGIONS)
    return [each for each in found if each is not None]


def unflushed_in(store: ObjectStore, idle_after_ms: int, manifest: RegionManifest) -> IdleRegion | None:
    """Return what a region has in no generation, None for no rows or where it changes. Requests: as of `find_idle`."""
    region, after = manifest.region_id, manifest.replay_after_wal_id
    last = wal.find_tail(store, region, after=after, seed=manifest.wal_id_last_seen)
    if last == after:
        return None
    newest = (keys.wal_entry_key(region, last), keys.region_manifest_key(region, manifest.version))
    with suppress(NotFound):  # collected since: another manifest is the newest by now
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
        return True  # its flush says what is wrong


def flush_idle(
    store: ObjectStore, snapshot: Snapshot, found: Sequence[IdleRegion], *, clock: Clock, ids: Ids
) -> list[Corrupt | Unsupported]:
    """Make a generation of what each region's writer left; return the errors of those whose log cannot be read.

    A region in which somebody was at work since it was found is left alone. Where this ends between claim and flush,
    the region is found again once it was silent for so long again. One region after the other, so memory holds the rows
    of one. Requests per region: those of a claim, which reads each entry, and of a flush.
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
    following = Following(None, clock, Known.of(snapshot))
    log = RegionLog(claimed, memtable, options=WriterOptions(), ids=ids, following=following)
    log.flush()
