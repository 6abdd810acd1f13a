"""What one round of distribution takes: chunks in the order of the history, and for each table its own of them.

The plan reads listings and offsets only. A round is bounded in bytes, because the rows of a keyed table's region become
one generation in one task; rounds follow one another until nothing is left.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from storage_core.distribution.offsets import Offsets, read_offsets
from storage_core.distribution.remaining import LEAST_WORK_BYTES, DistributionPlan, Terms, left
from storage_core.distribution.work import DivideWork, Source, Target
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.raw_log.chunks import RawChunkRef
from storage_core.raw_log.history import History, MissingChunks, RawSegment
from storage_core.region.distributor import Stretch
from storage_core.split.context import context_of


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table that rows are distributed into, as of a snapshot and its offsets."""

    name: str
    log: TransactionLog
    snapshot: Snapshot
    offsets: Offsets

    @classmethod
    def look(cls, name: str, log: TransactionLog) -> TargetTable:
        """Return the table as it is now. Requests of opening it and of `read_offsets`."""
        snapshot = log.snapshot()
        return cls(name, log, snapshot, read_offsets(log.store, snapshot))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldChunks:
    """Chunks `first` to `last` that are missing, so that what their writer wrote later waits for these tables."""

    writer: str
    first: int
    last: int
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """One round: the work, the tables whose offsets move, and what is in the way."""

    source: Source
    works: tuple[DivideWork, ...]
    targets: Mapping[str, Target]
    held: tuple[HeldChunks, ...]
    given_up: tuple[HeldChunks, ...]


def plan_round(
    source: Source, history: History, tables: Sequence[TargetTable], terms: Terms, *, now_ms: int
) -> RoundPlan:
    """Return what to do next; without targets there is nothing.

    No request. Raises `Unavailable` where missing chunks are to be given up while a store that may have them does not
    answer.
    """
    plans = {each.name: left(history, each.offsets.log, terms, now_ms=now_ms) for each in tables}
    chosen = _first_of(history, plans.values(), terms.round_bytes)
    numbers = {(each.writer, each.number) for each in chosen}
    targets = {each.name: target for each in tables if (target := _target(each, plans[each.name], numbers)).stretches}
    return RoundPlan(
        source=source,
        works=tuple(
            DivideWork(source=source, chunks=part, targets=tuple(targets.values()))
            for part in cut_into_works(chosen, history.segments(), terms)
        ),
        targets=targets,
        held=by_gap({name: plan.held for name, plan in plans.items()}),
        given_up=by_gap({name: plan.given_up for name, plan in plans.items()}),
    )


def _target(table: TargetTable, plan: DistributionPlan, chosen: Collection[tuple[str, int]]) -> Target:
    after = table.offsets.log
    own: dict[str, list[int]] = {}
    for ref in plan.chunks:
        own.setdefault(ref.writer, []).append(ref.number)
    stretches = []
    for writer, offset in sorted(plan.offsets.items()):
        numbers = own.get(writer, [])
        taken = [number for number in numbers if (writer, number) in chosen]
        # What was given up behind the last chunk is passed with that chunk only.
        last = offset if len(taken) == len(numbers) else max(taken, default=0)
        if last > after.get(writer, 0):
            stretches.append(Stretch(writer=writer, after=after.get(writer, 0), last=last))
    return Target(
        name=table.name,
        uri=table.log.store.uri,
        context=context_of(table.snapshot),
        stretches=tuple(stretches),
        further=table.offsets.further,
    )


def _first_of(history: History, plans: Iterable[DistributionPlan], most_bytes: int) -> list[RawChunkRef]:
    """The oldest chunks that any table wants, up to about `most_bytes`, at least one."""
    wanted = {(each.segment_ms, each.writer, each.number): each for plan in plans for each in plan.chunks}
    ordered = [wanted[place] for place in sorted(wanted)]
    return next(_cut(ordered, chunk_bytes(ordered, history.segments()), most_bytes), [])


def cut_into_works(
    chunks: Sequence[RawChunkRef], segments: Iterable[RawSegment], terms: Terms
) -> Iterator[tuple[RawChunkRef, ...]]:
    """Yield the chunks of one round in order, those of one work after another, cut as `Terms` says."""
    sizes = chunk_bytes(chunks, segments)
    return map(tuple, _cut(chunks, sizes, _most_bytes(sizes, terms)))


def _most_bytes(sizes: Sequence[float], terms: Terms) -> float:
    """The bytes of one work. With a chunk more than its share none is below it, so there is no work too many."""
    total = sum(sizes)
    waves = math.ceil(total / (terms.work_bytes * terms.slots))
    share = total / max(1, waves * terms.slots) + max(sizes, default=0)
    return min(terms.work_bytes, max(share, LEAST_WORK_BYTES))


def chunk_bytes(chunks: Iterable[RawChunkRef], segments: Iterable[RawSegment]) -> list[float]:
    """Return the bytes of each chunk as it is stored: the mean of its segment."""
    means = {(each.writer, each.segment_ms): each.bytes / each.chunks for each in segments}
    return [means[each.writer, each.segment_ms] for each in chunks]


def _cut(chunks: Sequence[RawChunkRef], sizes: Sequence[float], most_bytes: float) -> Iterator[list[RawChunkRef]]:
    """Yield the chunks in order, in parts of about `most_bytes`, each of at least one chunk."""
    part: list[RawChunkRef] = []
    taken = 0.0
    for each, size in zip(chunks, sizes, strict=True):
        if part and taken + size > most_bytes:
            yield part
            part, taken = [], 0.0
        part.append(each)
        taken += size
    if part:
        yield part


def by_gap(missing: Mapping[str, Sequence[MissingChunks]]) -> tuple[HeldChunks, ...]:
    """Return what is missing, by table, as one entry per gap."""
    tables: dict[MissingChunks, list[str]] = {}
    for name, gaps in missing.items():
        for gap in gaps:
            tables.setdefault(gap, []).append(name)
    return tuple(
        HeldChunks(writer=gap.writer, first=gap.first, last=gap.last, tables=tuple(names))
        for gap, names in sorted(tables.items(), key=lambda each: (each[0].writer, each[0].first))
    )
