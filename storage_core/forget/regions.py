"""Regions whose log or generations hold records of forgotten rows: flushed and merged, so that all of them can go."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from storage_core.errors import CommitConflict
from storage_core.forget.search import Found
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.region import merge, wal
from storage_core.region.idle import IdleRegion, flush_idle
from storage_core.region.registry import known_manifests

_ATTEMPTS: Final = 10


def merge_regions(log: TransactionLog, head: Snapshot, found: Found) -> Snapshot:
    """Return a version that has merged all of these regions' records, and of none a record waits in its log.

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
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _merged(log, head, regions)
        except CommitConflict:
            if attempt == _ATTEMPTS:
                raise
            head = log.refresh(head)
    raise AssertionError("unreachable")


def _merged(log: TransactionLog, head: Snapshot, regions: Collection[str]) -> Snapshot:
    while works := merge.plan(log.store, head, regions=regions):
        done = [merge.execute(log.store, each, ids=log.ids, now_ms=log.clock.now_ms()) for each in works]
        head = merge.commit(log, head, works, done).snapshot
    return head
