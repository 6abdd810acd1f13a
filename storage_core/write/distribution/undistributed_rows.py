"""Rows of raw logs that a table does not have yet, for readers at `latest`.

The result is the same as if a distribution took all waiting chunks now (docs/architecture/reads.md, "Consistency"). The
chunks of closed segments come first, then the chunks of open segments. Each group is in the order of the history. The
functions of distribution convert the records, check for late records, and remove duplicates.

Each row occurs once, because the reads have this order (decision 0027):

1. The stores of the raw log are listed.
2. The regions are captured.
3. The head of the table's log is read.

The third step determines which chunks the table does not have. This module then reads the missing chunks. An append
table has the rows of a chunk if the writer's offset in the head is at least the chunk's number. For a keyed table, the
log is read before and after the capture of the regions. The offsets in the log must be the same before and after the
capture. The captured manifests must contain every generation that a merge in the head has applied. If another
distribution or merge committed in between, `find_pending_chunks` returns None, and the reader starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import Corrupt, Unavailable
from storage_core.data.formats.history_token import RawRun
from storage_core.data.formats.raw_chunk import RawColumns
from storage_core.data.rows.conform import conform
from storage_core.data.rows.fold import puts
from storage_core.data.rows.windows import LateRule
from storage_core.data.settings.layout import Region, RegionSpec
from storage_core.data.settings.table import FeedingRawLog
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import context_of
from storage_core.store.contract import ObjectStore
from storage_core.store.pieces import NOTHING, KeptValues
from storage_core.write.distribution.unique import NONE, find_in, ids_of
from storage_core.write.distribution.work import UNIQUE_FOR_MS, DivideWork, Source, Target, log_offsets, read_offsets
from storage_core.write.late_rows import in_time
from storage_core.write.raw_log.history import (
    CLOSED_AFTER_MS,
    Damage,
    History,
    MissingChunks,
    RawChunkRef,
    read_columns,
    union,
)
from storage_core.write.raw_log.read import TypedRecords, typed_records
from storage_core.write.region.router import ChunkRange
from storage_core.write.region.spec import Routed, route

# Records of one chunk for one table: the records that fit the table, and their regions.


def of_table(records: pa.Table, name: str) -> pa.Table:
    """Return the records for the table. No request."""
    own = pc.equal(records.column("table"), name)
    # Most chunks have records of only one table. If all records of a chunk belong to one table, the records are
    # returned unfiltered. A filter would copy all text, and this is expensive.
    return records if pc.all(own).as_py() else records.filter(own)


def fit(records: pa.Table, target: Target) -> TypedRecords:
    """Return the records that fit the table, and the records that do not fit. No request."""
    config = target.config
    return typed_records(
        records,
        target.context.schema,
        key=config.primary_key,
        merged_maps=config.merged_maps,
        nonzero=config.nonzero_vectors,
    )


def fit_puts(records: pa.Table, target: Target) -> tuple[TypedRecords, pa.Table]:
    """Return the result of `fit` for records with the operation put, and the rows of the records that fit.

    An append table takes only puts.
    """
    schema = target.context.schema
    fitting = fit(records.filter(pc.equal(records.column("operation"), "put")), target)
    return fitting, conform(fitting.records.select(schema.names), schema)


def admitted(records: pa.Table, target: Target) -> pa.Table:
    """Return those records of one chunk that a distribution writes into the table.

    For an append table, all returned records are puts.

    The returned records are for this table and fit the table. Late records are returned only if the table accepts late
    records. This function does not quarantine the other records. No request.
    """
    own, config = of_table(records, target.name), target.config
    rule = LateRule.of(config)
    if config.kind == "append":
        fitting, rows = fit_puts(own, target)
        return puts(in_time(rule, rows, fitting.written_ms, are_records=False))
    fitting = fit(own, target)
    return in_time(rule, fitting.records, fitting.written_ms, are_records=True)


def group_by_region(records: pa.Table, ref: RawChunkRef, target: Target) -> Iterator[tuple[Region, pa.Table]]:
    """Yield each region that needs records of the chunk, with the records of the region in order.

    The function omits regions that already have the chunk. An omitted region belongs to the current region spec or to
    an earlier spec. A region of an earlier spec received the chunk's records while the earlier spec was current. Raises
    `InvalidInput` if an expression of a region spec fails on a record.
    """
    having = {region for region, offsets in target.further.items() if offsets.get(ref.writer, 0) >= ref.number}
    for spec in _earlier_specs(target) if having else ():
        found = _of_any(_routed(records, target, spec), having)
        records = records.filter(pa.array(~np.asarray(found)))
    routed = _routed(records, target, target.config.region_spec)
    for region in routed.regions:
        if region.id not in having:
            rows = records if len(routed.regions) == 1 else records.filter(_of_any(routed, {region.id}))
            if rows.num_rows:
                yield region, rows


def _earlier_specs(target: Target) -> Iterator[RegionSpec]:
    yield from target.config.region_specs[:-1]


def _routed(records: pa.Table, target: Target, spec: RegionSpec) -> Routed:
    return route(target.context.table_id, spec, records)


def _of_any(routed: Routed, regions: set[str]) -> pa.BooleanArray:
    wanted = np.array([each.id in regions for each in routed.regions], np.bool_)
    return pa.array(wanted[routed.positions], pa.bool_())


Opener = Callable[[str], ObjectStore]
Offsets = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLogListing:
    """The listing of a raw log at one time. `stores` are all stores, mandatory stores first."""

    raw_log: FeedingRawLog
    stores: tuple[ObjectStore, ...]
    history: History

    @classmethod
    def load(cls, raw_log: FeedingRawLog, opened: Opener) -> RawLogListing:
        """Return the current listing of a raw log. Requests: see `raw_log.history.union`.

        Each mandatory store has every acknowledged chunk, so one answer from a mandatory store is enough. Raises
        `Unavailable` if no mandatory store answers.
        """
        stores = tuple(map(opened, (*raw_log.stores, *raw_log.optional)))
        history = union(stores)
        if {each.uri for each in stores[: len(raw_log.stores)]} <= {*history.unreachable}:
            raise Unavailable(
                f"raw log {raw_log.name}: no mandatory store answers ({', '.join(history.unreachable)}), so the "
                "acknowledged rows are not known. Try again later, or read with consistency='committed'",
                raw_log=raw_log.name,
            )
        return cls(raw_log=raw_log, stores=stores, history=history)

    def behind(self, offsets: Offsets) -> list[RawChunkRef]:
        """Return the chunks that a table with these offsets lacks, in the order of the history. No request.

        Raises `Corrupt` for a chunk that no store lists, and `Unavailable` if a store without an answer may have it.
        """
        for hole in self.history.missing:
            if hole.last > offsets.get(hole.writer, 0):
                raise self._lacking(hole)
        reached = self.history.collected_up_to
        return [
            each for each in self.history.chunks if each.number > max(offsets.get(each.writer, 0), reached(each.writer))
        ]

    def of(self, runs: Sequence[RawRun]) -> tuple[RawChunkRef, ...]:
        """Return the chunks of these ranges, in the same order. If a chunk is missing, raise the error of `behind`."""
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
            return Unavailable(f"{what} may be in {silent}, which does not answer. Try again later", **context)
        return Corrupt(f"{what} {_UNREAD.format(**context)}", **context)

    def damaged(self, damage: Damage) -> Corrupt:
        """Return the error of a chunk without a valid copy."""
        writer, number = damage.chunk.writer, damage.chunk.number
        context: dict[str, Any] = {"raw_log": self.raw_log.name, "writer": writer, "number": number}
        what = f"raw log {self.raw_log.name}: chunk {number} of writer {writer} ({'; '.join(damage.reasons)})"
        return Corrupt(f"{what} {_UNREAD.format(**context)}", **context)


_UNREAD = (
    "has no valid copy in any store, and the table does not have its rows. Copy a backup of `live/` into a store, or "
    "skip it: tidemark distribute {raw_log} --skip-gap {writer}:{number}. To read without these rows, use "
    "consistency='committed'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionOffsets:
    """A captured region: the last generation and the offsets in its manifest."""

    region: str
    generation: int
    distributed: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingChunks:
    """The chunks of one raw log that a table lacks. `rounds` has these chunks in the order of distribution.

    For each region, `further` contains the offsets that are higher than the offsets of the table's log. Only rows of
    `regions` are read. `regions=None` means all regions.
    """

    listed: RawLogListing
    rounds: tuple[tuple[RawChunkRef, ...], ...]
    further: Mapping[str, Offsets] = field(default_factory=dict)
    regions: frozenset[str] | None = None

    @property
    def chunks(self) -> list[RawChunkRef]:
        """The chunks of all rounds."""
        return [each for several in self.rounds for each in several]

    def records(self, store: ObjectStore, snapshot: Snapshot, kept: KeptValues) -> Iterator[pa.Table]:
        """Yield the records of each chunk for the table in `store`.

        For an append table, all records are puts (`rows.fold`).

        Raises `Corrupt` for a chunk without a valid copy. Raises `Unavailable` if a store that may have a valid copy
        does not answer.

        Cost:
            One GET per chunk that is not in `kept`. If records have ids, also the requests of `unique.find_in` for each
            round, and, if `regions` is set, the requests of `read_offsets`. Memory holds all chunks.
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
                name=name, uri=store.uri, context=context_of(snapshot), chunk_ranges=stretches, further=further
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
        """Return the records of one chunk for requested regions that lack the chunk.

        For an append table, return all records.
        """
        if self.regions is None and not target.further:
            return records
        parts = group_by_region(records, ref, target)
        wanted = (rows for region, rows in parts if self.regions is None or region.id in self.regions)
        return pa.concat_tables([records.slice(0, 0), *wanted])


def _bytes(records: pa.Table) -> int:
    return int(records.nbytes)


def find_pending_chunks(
    listed: Sequence[RawLogListing],
    before: Snapshot,
    snapshot: Snapshot,
    captured: Callable[[], Sequence[RegionOffsets]],
    *,
    store: ObjectStore,
    now_ms: int,
    regions: frozenset[str] | None = None,
) -> tuple[PendingChunks, ...] | None:
    """Return the chunks that the table at `snapshot` does not have yet.

    Return None if `snapshot` does not match the captured regions. Raises the errors of `RawLogListing.behind`.

    Args:
        before: the snapshot at the capture of the regions.
        snapshot: the head of the log, read after the regions were captured.
        captured: returns the captured regions. It is called only if chunks are waiting.
        regions: the regions that were captured. None means all.

    Cost:
        The requests of `log_offsets`. If chunks are waiting and the table had other region specs, also the requests of
        `read_offsets`.
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
        PendingChunks(listed=each, rounds=_rounds(each, chunks, now_ms), further=further, regions=regions)
        for each, chunks in waiting
        if chunks
    )


def _has_moved(listed: Sequence[RawLogListing], before: Offsets, after: Offsets) -> bool:
    """Return whether an offset of a writer of these raw logs has changed.

    In this case, a captured region or its manifest may lack rows of the writer.
    """
    writers = (writer for each in listed for writer in each.history.writers)
    return any(before.get(writer, 0) != after.get(writer, 0) for writer in writers)


def _merged_meanwhile(
    captured_offsets: Sequence[RegionOffsets], before: Snapshot, snapshot: Snapshot, *, is_whole: bool
) -> bool:
    """Return whether the base may contain a generation that is newer than the captured manifests."""
    known = {each.region: each.generation for each in captured_offsets}
    earlier = before.merged_generations
    merged = snapshot.merged_generations.items()
    return any(last > known.get(region, earlier.get(region, 0) if is_whole else last) for region, last in merged)


def _further(
    captured_offsets: Sequence[RegionOffsets], offsets: Offsets, store: ObjectStore, snapshot: Snapshot
) -> dict[str, Offsets]:
    """Return by region the offsets that are higher than those in the log.

    The result has captured regions and closed regions of earlier specs.
    """
    found: dict[str, Offsets] = {
        each.region: ahead
        for each in captured_offsets
        if (ahead := {writer: last for writer, last in each.distributed.items() if last > offsets.get(writer, 0)})
    }
    if len(snapshot.config.region_specs) > 1:
        every = read_offsets(store, snapshot)
        found |= {region: each for region, each in every.further.items() if region not in every.regions}
    return found


def _rounds(listed: RawLogListing, chunks: Sequence[RawChunkRef], now_ms: int) -> tuple[tuple[RawChunkRef, ...], ...]:
    """Return the chunks of closed segments, then the other chunks. Chunks of open segments are distributed later."""
    closed_after = listed.raw_log.closed_after_ms
    closed_after = CLOSED_AFTER_MS if closed_after is None else closed_after
    closed = {(each.writer, each.segment_ms) for each in listed.history.closed_segments(now_ms, closed_after)}
    first = tuple(each for each in chunks if (each.writer, each.segment_ms) in closed)
    then = tuple(each for each in chunks if (each.writer, each.segment_ms) not in closed)
    return tuple(each for each in (first, then) if each)


def _stretches(chunks: Sequence[RawChunkRef], after: Offsets) -> Iterator[ChunkRange]:
    last: dict[str, int] = {}
    for each in chunks:
        last[each.writer] = max(last.get(each.writer, 0), each.number)
    for writer, number in last.items():
        yield ChunkRange(writer=writer, after=after.get(writer, 0), last=number)
