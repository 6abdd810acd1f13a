"""Claiming a region: from here on nobody else's write to it succeeds (Lance MemWAL).

The order matters. The manifest with the higher epoch comes first: a writer that loads it knows. The sentinel comes
second: a writer that does not collides. Then the manifest is read once more: a claim that slept between the two while
another one was made finds out before it acknowledges anything. Replay comes last, when nothing can be added in front of
the sentinel any more.

A merge claims as well, for a writer that seems to have ended (`region.idle`), and says in the manifest from which epoch
it took the region. As long as only merges claimed since, the writer of that epoch may claim again by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from storage_core.clock import Clock
from storage_core.errors import Corrupt, Unavailable, WriterFenced
from storage_core.formats.region_manifest import RegionManifest
from storage_core.ids import Ids, random_pause_ms
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import wal
from storage_core.region.manifest import check_epoch, commit, fenced, read_latest
from storage_core.region.registry import closed_region, register
from storage_core.region.wal import Logged, WalAppender
from storage_core.settings.region_fields import Region

_logger = logging.getLogger(__name__)

_ATTEMPTS = 10
_FIRST_PAUSE_MS = 20
_LONGEST_PAUSE_MS = 10_240

Follow = Callable[[RegionManifest | None], RegionManifest]
"""Makes of the newest manifest the one of a claim, but for its version and its writer; or raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A region that is ours: its manifest, where to append, and the entries that are in no generation yet, in order.

    `again` claims for the same writer a region that only merges claimed since, for the requests and errors of `claim`;
    it raises `WriterFenced` when another writer did. A merge, for which it is None, never takes a region back.
    """

    manifest: RegionManifest
    appender: WalAppender
    unflushed: tuple[Logged, ...]
    again: Callable[[], Claim] | None = None


def claim(store: ObjectStore, target: Region, *, record_schema: pa.Schema, clock: Clock, ids: Ids) -> Claim:
    """Take the region over, fence every earlier writer, and read what it left behind.

    About nine requests for a region without a tail; each unflushed entry costs one GET more, and a region of a spec
    with fields one to be in the registry. Raises `RegionClosed` when the region takes no more rows, `WriterFenced` when
    another writer claimed it after this one, `Corrupt` when an entry is damaged or missing, `CommitUnknown` when the
    store does not say what happened (claim again), `Unavailable` when many claims race.
    """
    register(store, target, clock=clock, ids=ids)
    return _claim(store, target, partial(_next, target), record_schema=record_schema, clock=clock, ids=ids)


def claim_idle(store: ObjectStore, seen: RegionManifest, *, record_schema: pa.Schema, clock: Clock, ids: Ids) -> Claim:
    """Take over for a merge the region whose manifest is still the one that was seen. Requests: those of `claim`.

    Raises `WriterFenced` when the manifest is another one by now, else what `claim` raises.
    """

    def follow(latest: RegionManifest | None) -> RegionManifest:
        if latest != seen:
            raise fenced(seen.region_id, seen.writer_epoch, latest)
        return replace(seen, writer_epoch=seen.writer_epoch + 1, idle_epoch=seen.idle_epoch or seen.writer_epoch)

    claimed = _raise_epoch(store, seen.region_id, follow, clock=clock, ids=ids)
    return _take(store, claimed, record_schema=record_schema, clock=clock, ids=ids)


def require_unmerged(manifest: RegionManifest, snapshot: Snapshot) -> None:
    """Return when rows that are flushed next will be merged. Raises `Corrupt` when their generation is merged already.

    Only a manifest that was lost can leave this behind; what is written into such a generation would never be seen.
    """
    merged = snapshot.merged_generations.get(manifest.region_id, 0)
    if manifest.current_generation <= merged:
        raise Corrupt(
            f"region {manifest.region_id}: its manifest goes on with generation {manifest.current_generation}, but "
            f"{merged} is merged",
            region=manifest.region_id,
        )


def _next(target: Region, latest: RegionManifest | None) -> RegionManifest:
    if latest is None:
        return RegionManifest(region_id=target.id, version=0, region_spec_id=target.spec_id, writer_epoch=1)
    if latest.closed_by:
        raise closed_region(target.id, target.spec_id, latest.closed_by)
    return replace(latest, writer_epoch=latest.writer_epoch + 1, idle_epoch=0)


def _again(target: Region, epoch: int, latest: RegionManifest | None) -> RegionManifest:
    if latest is None or latest.idle_epoch != epoch:
        raise fenced(target.id, epoch, latest)
    return _next(target, latest)


def _claim(
    store: ObjectStore, target: Region, follow: Follow, *, record_schema: pa.Schema, clock: Clock, ids: Ids
) -> Claim:
    """Claim for a writer, again where a merge claimed in between."""
    while True:
        manifest = _raise_epoch(store, target.id, follow, clock=clock, ids=ids)
        follow = partial(_again, target, manifest.writer_epoch)
        with suppress(WriterFenced):
            claimed = _take(store, manifest, record_schema=record_schema, clock=clock, ids=ids)
            again = partial(_claim, store, target, follow, record_schema=record_schema, clock=clock, ids=ids)
            return replace(claimed, again=again)


def _take(store: ObjectStore, manifest: RegionManifest, *, record_schema: pa.Schema, clock: Clock, ids: Ids) -> Claim:
    region = manifest.region_id
    tail = wal.find_tail(store, region, after=manifest.replay_after_wal_id, seed=manifest.wal_id_last_seen)
    appender = WalAppender(
        store=store,
        clock=clock,
        ids=ids,
        region=region,
        epoch=manifest.writer_epoch,
        writer_id=manifest.writer_id,
        next_id=tail + 1,
    )
    sentinel = appender.append(record_schema.empty_table(), generation=manifest.current_generation)
    check_epoch(store, region, manifest.writer_epoch)
    unflushed = tuple(wal.replay(store, region, after=manifest.replay_after_wal_id, before=sentinel))
    _logger.info(
        "region %s: claimed with epoch %d, sentinel at WAL entry %d, %d entries to replay",
        region,
        manifest.writer_epoch,
        sentinel,
        len(unflushed),
    )
    return Claim(manifest=manifest, appender=appender, unflushed=unflushed)


def _raise_epoch(store: ObjectStore, region: str, follow: Follow, *, clock: Clock, ids: Ids) -> RegionManifest:
    writer_id = ids.uuid()
    for attempt in range(_ATTEMPTS):
        if attempt:
            clock.sleep_ms(random_pause_ms(ids, attempt, first_ms=_FIRST_PAUSE_MS, longest_ms=_LONGEST_PAUSE_MS))
        following = follow(read_latest(store, region))
        claimed = replace(following, version=following.version + 1, writer_id=writer_id)
        if commit(store, claimed, clock=clock):
            return claimed
    raise Unavailable(
        f"region {region}: lost {_ATTEMPTS} races for its next epoch; other writers are claiming it, try again later",
        region=region,
    )
