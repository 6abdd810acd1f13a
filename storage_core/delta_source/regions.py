"""Rows of a Delta table into the regions of a keyed table: generations, with how far they reach, as distribution does.

The offset in a region's manifest moves in the put that names the last generation of a group. So a run that ended before
its commit is repeated for the regions that it did not reach, and one that was overtaken fails instead of bringing back
what was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from storage_core.distribution.parts import Part
from storage_core.distribution.work import FillWork
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.region import distributor
from storage_core.region.distributor import Stretch
from storage_core.settings.region_fields import Region
from storage_core.split.context import context_of

ROWS_OF_A_GENERATION: Final = 500_000
"""About so many are in memory at a time, and what a merge takes at once."""


@dataclass(frozen=True, slots=True)
class Filling:
    """One generation to write, and the offset that moves with it: with the last one of a region."""

    work: FillWork
    stretches: tuple[Stretch, ...] = ()


def fillings(
    log: TransactionLog, snapshot: Snapshot, parts: Sequence[tuple[Region, Part]], *, writer: str, last: int
) -> Iterator[Filling]:
    """Claim the regions of these parts, and yield the generations that are to be written, region by region.

    `last` is what the offset of `writer` becomes; a region that has it needs nothing.
    Requests: those of a turn per region.
    """
    regions = {region.id: region for region, _ in parts}
    context = context_of(snapshot)
    for region in regions.values():
        turn = distributor.take_turn(log.store, snapshot, region, clock=log.clock, ids=log.ids)
        after = distributor.offsets(log.store, region.id).get(writer, 0)
        if after >= last:
            continue
        chunks = list(_chunks([part for each, part in parts if each.id == region.id]))
        for number, chunk in enumerate(chunks):
            work = FillWork(
                uri=log.store.uri,
                key=snapshot.config.primary_key,
                parts=chunk,
                turn=replace(turn, generation=turn.generation + number),
                context=context,
            )
            is_last = number + 1 == len(chunks)
            yield Filling(work, (Stretch(writer=writer, after=after, last=last),) if is_last else ())


def finish(log: TransactionLog, filling: Filling, path: str) -> None:
    """Make a generation that was written part of its region. Raises what `distributor.finish` raises."""
    distributor.finish(log.store, filling.work.turn, path, filling.stretches, clock=log.clock, writer_id=log.ids.uuid())


def _chunks(parts: Sequence[Part]) -> Iterator[tuple[Part, ...]]:
    held: list[Part] = []
    rows = 0
    for part in parts:
        if held and rows + part.rows > ROWS_OF_A_GENERATION:
            yield tuple(held)
            held, rows = [], 0
        held.append(part)
        rows += part.rows
    if held:
        yield tuple(held)
