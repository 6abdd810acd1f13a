"""Claiming a region: from here on nobody else's write to it succeeds (Lance MemWAL).

The order matters. The manifest with the higher epoch comes first: whoever loads it knows. The sentinel comes second:
whoever does not, collides. Then the manifest is read once more: a claim that slept between the two while another one
was made finds out before it acknowledges anything. Replay comes last, when nothing can be added in front of the
sentinel any more.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import pyarrow as pa

from storage_core.clock import Clock
from storage_core.errors import Unavailable
from storage_core.formats.region_manifest import RegionManifest
from storage_core.ids import Ids, random_pause_ms
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import wal
from storage_core.region.manifest import check_epoch, commit, read_latest
from storage_core.region.registry import closed_region, register
from storage_core.region.wal import Logged, WalAppender
from storage_core.settings.region_fields import Region

_logger = logging.getLogger(__name__)

_ATTEMPTS = 10
_FIRST_PAUSE_MS = 20
_LONGEST_PAUSE_MS = 10_240


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A region that is ours: its manifest, where to append, and the entries that are in no generation yet, in order."""

    manifest: RegionManifest
    appender: WalAppender
    unflushed: tuple[Logged, ...]


def claim(store: ObjectStore, target: Region, *, record_schema: pa.Schema, clock: Clock, ids: Ids) -> Claim:
    """Take the region over, fence every earlier writer, and read what it left behind.

    About nine requests for a region without a tail; each unflushed entry costs one GET more, and a region of a spec
    with fields one to be in the registry. Raises `RegionClosed` when the region takes no more rows, `WriterFenced` when
    another claim came after this one, `Corrupt` when an entry is damaged or missing, `CommitUnknown` when the store
    does not say what happened (claim again), `Unavailable` when many claims race.
    """
    region, writer_id = target.id, ids.uuid()
    register(store, target, clock=clock, ids=ids)
    manifest = _raise_epoch(store, target, writer_id, clock=clock, ids=ids)
    tail = wal.find_tail(store, region, after=manifest.replay_after_wal_id, seed=manifest.wal_id_last_seen)
    appender = WalAppender(
        store=store,
        clock=clock,
        ids=ids,
        region=region,
        epoch=manifest.writer_epoch,
        writer_id=writer_id,
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


def _raise_epoch(store: ObjectStore, target: Region, writer_id: str, *, clock: Clock, ids: Ids) -> RegionManifest:
    region = target.id
    for attempt in range(_ATTEMPTS):
        if attempt:
            clock.sleep_ms(random_pause_ms(ids, attempt, first_ms=_FIRST_PAUSE_MS, longest_ms=_LONGEST_PAUSE_MS))
        latest = read_latest(store, region)
        if latest is None:
            claimed = RegionManifest(
                region_id=region, version=1, region_spec_id=target.spec_id, writer_epoch=1, writer_id=writer_id
            )
        elif latest.closed_by:
            raise closed_region(region, target.spec_id, latest.closed_by)
        else:
            claimed = replace(
                latest, version=latest.version + 1, writer_epoch=latest.writer_epoch + 1, writer_id=writer_id
            )
        if commit(store, claimed, clock=clock):
            return claimed
    raise Unavailable(
        f"region {region}: lost {_ATTEMPTS} races for its next epoch; other writers are claiming it, try again later",
        region=region,
    )
