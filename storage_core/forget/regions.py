"""Regions whose log or generations hold records of forgotten rows: flushed and merged, so that all of them can go."""

from __future__ import annotations

from collections.abc import Collection

from storage_core.forget.search import Found
from storage_core.log.log import TransactionLog
from storage_core.log.replanned import replanned
from storage_core.log.snapshot import Snapshot
from storage_core.region import merge, wal
from storage_core.region.idle import IdleRegion, flush_idle
from storage_core.region.registry import known_manifests


def merge_regions(log: TransactionLog, head: Snapshot, found: Found) -> Snapshot:
    """Flush and merge these regions until no record of theirs waits; return that version.

    A live writer is not fenced by it: it claims its region again and goes on. Requests: those of a flush and of merges.
    Raises the `Corrupt` of a log that cannot be read, and `CommitConflict` when others changed the same splits each
    time.
    """
    regions = found.regions
    waiting: list[IdleRegion] = []
    for manifest in known_manifests(log.store, head):
        if manifest.region_id in regions and not manifest.closed_by:
            after = manifest.replay_after_wal_id
            last = wal.find_tail(log.store, manifest.region_id, after=after, seed=manifest.wal_id_last_seen)
            if any(wal.read_tail(log.store, manifest.region_id, after=after)):
                waiting.append(IdleRegion(manifest=manifest, last_entry=last))
    for error in flush_idle(log.store, head, waiting, clock=log.clock, ids=log.ids):
        raise error
    return replanned(log, head, lambda newest: _merged(log, newest, regions))


def _merged(log: TransactionLog, head: Snapshot, regions: Collection[str]) -> Snapshot:
    while works := merge.plan(log.store, head, regions=regions):
        done = [merge.execute(log.store, each, ids=log.ids, now_ms=log.clock.now_ms()) for each in works]
        head = merge.commit(log, head, works, done).snapshot
    return head
