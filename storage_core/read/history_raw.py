"""The part of a history that raw logs have: which chunks it reads, and their records (decision 0144).

A token names the chunks, not their records: a page behind the logs of the regions reads all of them that are not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from storage_core.distribution.offsets import log_offsets
from storage_core.distribution.undistributed import Listed, RegionOffsets, Waiting, settled
from storage_core.errors import Corrupt, InvalidInput, SnapshotExpired
from storage_core.foreign_text import quoted
from storage_core.formats.history_token import RawPosition, RawRun, RegionPosition
from storage_core.log.snapshot import Snapshot
from storage_core.raw_log.chunks import RawChunkRef
from storage_core.read.raw_rows import look
from storage_core.read.view import View
from storage_core.region.distributor import Stretch
from storage_core.region.manifest import read_version
from storage_core.region.read_position import region_positions


def positions_with(view: View) -> tuple[Snapshot, list[RegionPosition], tuple[RawPosition, ...]] | None:
    """Return the head, the read positions of the regions, and which chunks of raw logs the table does not have yet.

    None where others distributed or merged meanwhile; see `undistributed.settled`. Requests: those of `Listed.look`, of
    `region_positions` and of `refresh`, and where chunks wait one GET per region.
    """
    before = view.snapshot
    listed = look(view, before)
    positions = region_positions(view.store, before, include_wal=True)
    snapshot = view.refresh()
    if snapshot.config.dividing != before.config.dividing:
        return None
    waiting = settled(
        listed,
        before,
        snapshot,
        lambda: [_offsets(view, each) for each in positions],
        store=view.store,
        now_ms=view.log.clock.now_ms(),
    )
    return None if waiting is None else (snapshot, positions, tuple(map(_position, waiting)))


def records(view: View, snapshot: Snapshot, position: RawPosition) -> Iterator[pa.Table]:
    """Yield the records of a position for the table at the snapshot, chunk by chunk, in the order in which they count.

    Requests: those of `Listed.look` and `Waiting.records`. Raises what these raise, and `SnapshotExpired` for chunks
    that were collected since, for the table has them now.
    """
    raw_log = next((each for each in snapshot.config.raw_logs if each.name == position.name), None)
    if raw_log is None:
        raise InvalidInput(
            f"the history token names raw log {quoted(position.name)}, of which version {snapshot.version} of "
            f"{view.store.uri} takes no rows; begin without a token"
        )
    listed = Listed.look(raw_log, view.raw_store)
    try:
        rounds = tuple(listed.of([_stretch(run) for run in runs]) for runs in position.rounds)
        yield from Waiting(listed=listed, rounds=rounds, further=position.further).records(
            view.store, snapshot, view.kept
        )
    except Corrupt as error:
        writer, number = str(error.context.get("writer")), error.context.get("number")
        if isinstance(number, int) and log_offsets(view.refresh()).get(writer, 0) >= number:
            raise SnapshotExpired(f"{view.store.uri}: {error.found}", version=snapshot.version) from error
        raise


def _offsets(view: View, position: RegionPosition) -> RegionOffsets:
    manifest = read_version(view.store, position.region, position.manifest)
    return RegionOffsets(region=position.region, generation=position.flushed, distributed=manifest.distributed)


def _position(waiting: Waiting) -> RawPosition:
    rounds = tuple(tuple(_runs(chunks)) for chunks in waiting.rounds)
    return RawPosition(name=waiting.listed.raw_log.name, rounds=rounds, further=waiting.further)


def _runs(chunks: Sequence[RawChunkRef]) -> Iterator[RawRun]:
    """The chunks, in their order, as stretches without a break of one writer each."""
    numbered: Iterable[tuple[int, RawChunkRef]] = enumerate(chunks)
    for (writer, _), group in groupby(numbered, lambda each: (each[1].writer, each[1].number - each[0])):
        own = [ref.number for _, ref in group]
        yield RawRun(writer=writer, first=own[0], last=own[-1])


def _stretch(run: RawRun) -> Stretch:
    return Stretch(writer=run.writer, after=run.first - 1, last=run.last)
