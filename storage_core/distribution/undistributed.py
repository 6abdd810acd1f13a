"""Rows of raw logs that a table does not have yet, for readers at `latest` (docs/architecture/reads.md, "Consistency").

They are what distribution would make of the chunks that wait if it took all of them now: first those of closed
segments, then the others, each in the order of the history; typed, judged and without duplicates by its own functions.

The order of looking makes each row come once (decision 0144). The stores of the raw log are listed first, then the
regions are captured, then the head of the table's log is read. A chunk that a table has not by then is read here. It
is in an append table when the head's offset says so. Of a keyed table, whose regions were captured between two looks at
the log, the offsets of both have to agree, and the head must not have merged a generation that no manifest named:
`settled` returns None where another distribution or merge was in between, and the reader looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from storage_core.distribution.fitting import admitted, by_region
from storage_core.distribution.offsets import log_offsets, read_offsets
from storage_core.distribution.unique import NONE, find_in, ids_of
from storage_core.distribution.work import UNIQUE_FOR_MS, DivideWork, Source, Target
from storage_core.errors import Corrupt, Unavailable
from storage_core.formats.history_token import RawRun
from storage_core.formats.raw_columns import RawColumns
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.raw_log.chunks import Damage, RawChunkRef, read_columns
from storage_core.raw_log.history import CLOSED_AFTER_MS, History, MissingChunks, union
from storage_core.region.distributor import Stretch
from storage_core.settings.raw_logs import FeedingRawLog
from storage_core.split.context import context_of
from storage_core.split.kept_values import NOTHING, KeptValues

Opener = Callable[[str], ObjectStore]
Offsets = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A raw log as its stores listed it at one moment. `stores` are all of them, mandatory ones first."""

    raw_log: FeedingRawLog
    stores: tuple[ObjectStore, ...]
    history: History

    @classmethod
    def look(cls, raw_log: FeedingRawLog, opened: Opener) -> Listed:
        """Return it as it is now; see `raw_log.history.union` for the requests.

        Each mandatory store has every acknowledged chunk, so one that answers suffices. Raises `Unavailable` when none
        does.
        """
        stores = tuple(map(opened, (*raw_log.stores, *raw_log.optional)))
        history = union(stores)
        if {each.uri for each in stores[: len(raw_log.stores)]} <= {*history.unreachable}:
            raise Unavailable(
                f"raw log {raw_log.name}: no mandatory store answers ({', '.join(history.unreachable)}), so which rows "
                "are acknowledged is not known; try again later, or read with consistency='committed'",
                raw_log=raw_log.name,
            )
        return cls(raw_log=raw_log, stores=stores, history=history)

    def behind(self, offsets: Offsets) -> list[RawChunkRef]:
        """Return the chunks that a table with these offsets lacks, in the order of the history. No request.

        Raises `Corrupt` for one that no store lists, `Unavailable` where a store that does not answer may have it.
        """
        for hole in self.history.missing:
            if hole.last > offsets.get(hole.writer, 0):
                raise self._lacking(hole)
        reached = self.history.collected_up_to
        return [
            each for each in self.history.chunks if each.number > max(offsets.get(each.writer, 0), reached(each.writer))
        ]

    def of(self, runs: Sequence[RawRun]) -> tuple[RawChunkRef, ...]:
        """Return the chunks of these runs, in their order. Raises what `behind` raises for one that is gone."""
        found: list[RawChunkRef] = []
        for run in runs:
            listed = {each.number: each for each in self.history.chunks_of(run.writer)}
            for number in range(run.first, run.last + 1):
                if number not in listed:
                    raise self._lacking(MissingChunks(writer=run.writer, first=number, last=number))
                found.append(listed[number])
        return tuple(found)

    def _lacking(self, hole: MissingChunks) -> Corrupt | Unavailable:
        what = f"raw log {self.raw_log.name}: chunks {hole.first} to {hole.last} of writer {hole.writer}"
        context: dict[str, Any] = {"raw_log": self.raw_log.name, "writer": hole.writer, "number": hole.last}
        if self.history.unreachable:
            silent = ", ".join(self.history.unreachable)
            return Unavailable(f"{what} may be in {silent}, which does not answer; try again later", **context)
        return Corrupt(f"{what} {_UNREAD.format(**context)}", **context)

    def damaged(self, damage: Damage) -> Corrupt:
        """Return the error of a chunk without a sound copy."""
        writer, number = damage.chunk.writer, damage.chunk.number
        context: dict[str, Any] = {"raw_log": self.raw_log.name, "writer": writer, "number": number}
        what = f"raw log {self.raw_log.name}: chunk {number} of writer {writer} ({'; '.join(damage.reasons)})"
        return Corrupt(f"{what} {_UNREAD.format(**context)}", **context)


_UNREAD = (
    "has no sound copy in any store, and the table does not have its rows; copy a backup of `live/` into a store, or "
    "give it up: tidemark distribute {raw_log} --skip-gap {writer}:{number}; consistency='committed' reads without it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionOffsets:
    """A captured region: the last generation that its manifest knows, and the offsets there."""

    region: str
    generation: int
    distributed: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What of one raw log a table lacks: chunks, in `rounds` as they would be distributed.

    `further` are by region the offsets that are ahead of the log's. Only rows of `regions` are wanted, None for all.
    """

    listed: Listed
    rounds: tuple[tuple[RawChunkRef, ...], ...]
    further: Mapping[str, Offsets] = field(default_factory=dict)
    regions: frozenset[str] | None = None

    @property
    def chunks(self) -> list[RawChunkRef]:
        """All of them."""
        return [each for several in self.rounds for each in several]

    def records(self, store: ObjectStore, snapshot: Snapshot, kept: KeptValues) -> Iterator[pa.Table]:
        """Yield the records of each chunk for the table in `store`, of an append table as puts (`rows.fold`).

        One GET per chunk that is not kept. Where records have ids, the requests of `unique.find_in` for each round, and
        those of `read_offsets` where `regions` are a part of the table's. Memory: all of the chunks. Raises `Corrupt`
        for a chunk without a sound copy, `Unavailable` where a store that may have one does not answer.
        """
        raw_log, name = self.listed.raw_log, self.listed.raw_log.table
        columns = dict(zip(self.chunks, self._columns(kept), strict=True))
        own = ids_of((ref, each) for ref, each in columns.items())
        after, further = log_offsets(snapshot), self.further
        if own is not None and self.regions is not None:
            others = read_offsets(store, snapshot).further
            further = {**{region: each for region, each in others.items() if region not in self.regions}, **further}
        source = Source(
            name=raw_log.name,
            stores=tuple(each.uri for each in self.listed.stores),
            tables=(name,),
            mandatory=len(raw_log.stores),
            unique_for_ms=UNIQUE_FOR_MS if raw_log.unique_for_ms is None else raw_log.unique_for_ms,
        )
        form = (name, snapshot.metadata.schemaString, frozenset(snapshot.metadata.configuration.items()))
        for chunks in self.rounds:
            stretches = tuple(_stretches(chunks, after))
            target = Target(
                name=name, uri=store.uri, context=context_of(snapshot), stretches=stretches, further=further
            )
            duplicates = NONE
            if own is not None and any(columns[each].unique_ids is not None for each in chunks):
                work = DivideWork(source=source, chunks=chunks, targets=(target,))
                duplicates = find_in(work, own, {name: after}, self.listed.stores)
            for ref in chunks:
                records = duplicates.without(ref, columns[ref].records)
                keeping = kept if len(records) == len(columns[ref].records) else NOTHING
                found = keeping.made(
                    ("raw rows", ref.writer, ref.number, form), pa.Table, partial(admitted, records, target), _bytes
                )
                if found.num_rows:
                    yield self._lacking_in_regions(ref, found, target)
            after |= {each.writer: each.last for each in stretches}

    def _columns(self, kept: KeptValues) -> list[RawColumns]:
        chunks = self.chunks
        names = [("raw chunk", each.writer, each.number) for each in chunks]

        def read(place: int) -> RawColumns:
            found = read_columns(self.listed.history.stores, chunks[place])
            if isinstance(found, Damage):
                raise self.listed.damaged(found)
            return found

        return kept.made_all(names, RawColumns, read, lambda each: _bytes(each.records))

    def _lacking_in_regions(self, ref: RawChunkRef, records: pa.Table, target: Target) -> pa.Table:
        """Those of one chunk that are wanted, of regions that lack them; all of an append table."""
        if self.regions is None and not target.further:
            return records
        parts = by_region(records, ref, target)
        wanted = (rows for region, rows in parts if self.regions is None or region.id in self.regions)
        return pa.concat_tables([records.slice(0, 0), *wanted])


def _bytes(records: pa.Table) -> int:
    return int(records.nbytes)


def settled(
    listed: Sequence[Listed],
    before: Snapshot,
    snapshot: Snapshot,
    captured: Callable[[], Sequence[RegionOffsets]],
    *,
    store: ObjectStore,
    now_ms: int,
    regions: frozenset[str] | None = None,
) -> tuple[Waiting, ...] | None:
    """Return what waits at `snapshot`, the head after regions were captured, or None where they do not fit together.

    `before` is the snapshot by which the regions were captured, all of them or those of `regions`; they are asked for
    where chunks wait. Requests: those of `log_offsets`, and where chunks wait and there were other region specs those
    of `read_offsets`. Raises what `Listed.behind` raises.
    """
    if before.config.raw_logs != snapshot.config.raw_logs:
        return None
    offsets = log_offsets(snapshot)
    waiting = [(each, each.behind(offsets)) for each in listed]
    is_keyed = snapshot.config.kind == "keyed"
    if is_keyed and _has_moved(listed, log_offsets(before), offsets):
        return None
    further: Mapping[str, Offsets] = {}
    if is_keyed and any(chunks for _, chunks in waiting):
        captured_offsets = captured()
        if _merged_meanwhile(captured_offsets, before, snapshot, is_whole=regions is None):
            return None
        further = _further(captured_offsets, offsets, store, snapshot)
    return tuple(
        Waiting(listed=each, rounds=_rounds(each, chunks, now_ms), further=further, regions=regions)
        for each, chunks in waiting
        if chunks
    )


def _has_moved(listed: Sequence[Listed], before: Offsets, after: Offsets) -> bool:
    """Whether a writer of these raw logs has another offset: a region may lack it, or its rows be in no manifest."""
    writers = (writer for each in listed for writer in each.history.writers)
    return any(before.get(writer, 0) != after.get(writer, 0) for writer in writers)


def _merged_meanwhile(
    captured_offsets: Sequence[RegionOffsets], before: Snapshot, snapshot: Snapshot, *, is_whole: bool
) -> bool:
    """Whether the base may have rows of a generation that no captured manifest names."""
    known = {each.region: each.generation for each in captured_offsets}
    earlier = before.merged_generations
    merged = snapshot.merged_generations.items()
    return any(last > known.get(region, earlier.get(region, 0) if is_whole else last) for region, last in merged)


def _further(
    captured_offsets: Sequence[RegionOffsets], offsets: Offsets, store: ObjectStore, snapshot: Snapshot
) -> dict[str, Offsets]:
    """The offsets of regions that are ahead of the log: of those captured, and of closed ones of earlier specs."""
    found: dict[str, Offsets] = {
        each.region: ahead
        for each in captured_offsets
        if (ahead := {writer: last for writer, last in each.distributed.items() if last > offsets.get(writer, 0)})
    }
    if len(snapshot.config.region_specs) > 1:
        every = read_offsets(store, snapshot)
        found |= {region: each for region, each in every.further.items() if region not in every.regions}
    return found


def _rounds(listed: Listed, chunks: Sequence[RawChunkRef], now_ms: int) -> tuple[tuple[RawChunkRef, ...], ...]:
    """The chunks of closed segments, and those that are distributed after them."""
    closed_after = listed.raw_log.closed_after_ms
    closed_after = CLOSED_AFTER_MS if closed_after is None else closed_after
    closed = {(each.writer, each.segment_ms) for each in listed.history.closed_segments(now_ms, closed_after)}
    first = tuple(each for each in chunks if (each.writer, each.segment_ms) in closed)
    then = tuple(each for each in chunks if (each.writer, each.segment_ms) not in closed)
    return tuple(each for each in (first, then) if each)


def _stretches(chunks: Sequence[RawChunkRef], after: Offsets) -> Iterator[Stretch]:
    last: dict[str, int] = {}
    for each in chunks:
        last[each.writer] = max(last.get(each.writer, 0), each.number)
    for writer, number in last.items():
        yield Stretch(writer=writer, after=after.get(writer, 0), last=number)
