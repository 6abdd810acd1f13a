"""What a distributor does in a region: rows of the raw log become a generation of it, exactly once (lesson 03).

The offset of the raw log is in the region's manifest: one put makes a generation and the chunks that it is made of
known together. So a distributor that ends anywhere before it left nothing behind that counts, and one that comes after
it finds the offset. Distribution claims the region first, which fences a direct writer and every other distributor;
what that writer has not flushed becomes a generation before the distributed one, so the order of acknowledgement holds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from storage_core.clock import Clock
from storage_core.errors import CommitConflict
from storage_core.formats.generation_manifest import Generation
from storage_core.formats.region_manifest import FlushedGeneration, RegionManifest
from storage_core.ids import Ids
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import generation
from storage_core.region.generation_write import write_records
from storage_core.region.manifest import advance, check_epoch, read_latest
from storage_core.region.options import SEGMENT_ROWS
from storage_core.region.writer import RegionWriter
from storage_core.settings.region_fields import Region
from storage_core.split.context import SplitContext

OFFSETS = "raw"
"""The kind of the transactions that are a table's own offsets: `raw:<writer>`."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A distributor's turn in a region: the epoch that it owns, the generation that comes next, the last WAL entry.

    All rows of the log are in generations by then.
    """

    region: str
    epoch: int
    generation: int
    last_entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Chunks of one writer of the raw log: those behind number `after` up to `last`."""

    writer: str
    after: int
    last: int


def offsets(store: ObjectStore, region: str) -> Mapping[str, int]:
    """Return per writer of the raw log its last chunk that is in the region. About three requests."""
    manifest = read_latest(store, region)
    return {} if manifest is None else manifest.distributed


def take_turn(store: ObjectStore, snapshot: Snapshot, region: Region, *, clock: Clock, ids: Ids) -> Turn:
    """Claim the region, registering it when it is new, and flush what its last writer acknowledged and did not flush.

    Requests of a claim, of a flush where there is something, and about three more. Raises what these raise.
    """
    with RegionWriter.open(store, snapshot, clock=clock, ids=ids, region=region) as writer:
        writer.flush()
        manifest = check_epoch(store, writer.region_id, writer.epoch)
        return Turn(
            region=writer.region_id,
            epoch=writer.epoch,
            generation=manifest.current_generation,
            last_entry=writer.last_entry,
        )


def write(
    store: ObjectStore,
    records: pa.Table,
    key: Sequence[str],
    *,
    turn: Turn,
    clock: Clock,
    ids: Ids,
    context: SplitContext | None = None,
) -> Generation:
    """Write records, in order, as the generation of the turn; durable when this returns, and known to nobody.

    `records` has the columns of `rows.fold.record_schema`. Three PUTs; from `SEGMENT_ROWS` records on, with
    the context of the table, one more for each of its maintained indexes. Raises `CommitUnknown`.
    """
    return write_records(
        store,
        records,
        key,
        region=turn.region,
        generation=turn.generation,
        clock=clock,
        ids=ids,
        context=context if records.num_rows >= SEGMENT_ROWS else None,
    )


def finish(
    store: ObjectStore, turn: Turn, path: str, stretches: Sequence[Stretch], *, clock: Clock, writer_id: str
) -> None:
    """Make the generation in directory `path` part of the region, and move its offset, in one put.

    Raises `CommitConflict` when the offset is not where a stretch begins: another distributor was there since the plan.
    Raises `WriterFenced` when the region was claimed since the turn began: nothing is written then. Raises
    `CommitUnknown` when the store does not say: the next plan reads what is there. Requests: those of
    `generation.with_copies`, and of `advance`.
    """
    flushed = generation.with_copies(store, turn.region, FlushedGeneration(generation=turn.generation, path=path))

    def with_generation() -> RegionManifest:
        latest = check_epoch(store, turn.region, turn.epoch)
        for each in stretches:
            _require_start(turn.region, each, latest.distributed.get(each.writer, 0))
        return replace(
            latest,
            current_generation=turn.generation + 1,
            replay_after_wal_id=turn.last_entry,
            wal_id_last_seen=turn.last_entry,
            flushed_generations=(*latest.flushed_generations, flushed),
            distributed={**latest.distributed, **{each.writer: each.last for each in stretches}},
        )

    advance(store, with_generation, clock=clock, writer_id=writer_id)
    _logger.info("region %s: distributed generation %d from %d writers", turn.region, turn.generation, len(stretches))


def _require_start(region: str, stretch: Stretch, recorded: int) -> None:
    if recorded != stretch.after:
        raise CommitConflict(
            f"region {region}: chunks of raw log writer {stretch.writer} up to {recorded} are distributed, this "
            f"plan begins after {stretch.after}; plan again",
            region=region,
            expected=stretch.after,
            found=recorded,
        )
