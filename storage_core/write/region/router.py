"""Writers for all regions of a table, for callers and for a distributor of a raw log.

`RoutingWriter` writes each row to the region of its key. `RoutingWriter` is for tables with a region spec that has
fields (docs/architecture/ingestion.md, "Regions"). `open_writer` returns the writer for a table.

A distributor writes rows of the raw log as a generation of a region, exactly once (lesson 03). The manifest of the
region contains the offset of the raw log. One PUT adds the generation and moves the offset past the chunks of the
generation. So a distributor that ends before this PUT leaves no visible rows. A later distributor then finds the old
offset. The distributor first claims the region. The claim fences a direct writer and every other distributor. The
distributor first writes the unflushed rows of the direct writer as a generation. The next generation contains the
distributed rows. So the order of acknowledgement does not change.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from storage_core.base.arguments import checked
from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import CommitConflict, InvalidInput, TidemarkError
from storage_core.base.process import HomeProcess
from storage_core.data.formats.region_manifest import FlushedGeneration, Generation, RegionManifest
from storage_core.data.rows.fold import conformed
from storage_core.data.rows.incoming import Rows
from storage_core.data.rows.windows import LateMetrics
from storage_core.data.settings.layout import Region
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import SplitContext
from storage_core.store.contract import ObjectStore
from storage_core.write.region import generation
from storage_core.write.region.generation_write import write_records
from storage_core.write.region.manifest import advance, check_epoch, read_latest
from storage_core.write.region.records import (
    SEGMENT_ROWS,
    Following,
    Keys,
    RecordBuilder,
    WriterOptions,
    WriterSnapshot,
)
from storage_core.write.region.spec import Routed, hand_region, region_of_values, route
from storage_core.write.region.writer import RegionWriter, close_after

T = TypeVar("T")


class RoutingWriter:
    """Writer to all regions of a keyed table, or to one of them. Threads of one process can share the writer.

    - A call groups its rows by region and writes one WAL entry per region, one region after the other. All rows of a
      call are checked before the first write.
    - Atomicity: all rows of a call in one region become durable together.
    - Errors: a region may refuse its part of the rows (fenced, unknown, unavailable). The parts of earlier regions are
      then durable, and later parts are not written. The error contains the written regions (`context["written"]`). The
      whole call can be repeated, because the second application of a record has no effect.
    - Order: records of one key keep their order, because all these records are in one region.
    - Claims: the first row of a region claims this region and fences its earlier writer. Other regions are not
      claimed.
    """

    def __init__(
        self,
        store: ObjectStore,
        snapshot: Snapshot,
        *,
        clock: Clock,
        ids: Ids,
        only: Region | None = None,
        options: WriterOptions | None = None,
    ) -> None:
        """Use the schema, the key and the region spec of the snapshot.

        If `only` is set, the writer refuses rows of other regions.

        The limits in `options` apply to each region.
        """
        self._options = options
        self._store, self._snapshot, self._clock, self._ids = store, snapshot, clock, ids
        self._only = only
        self._following = Following(store, clock, WriterSnapshot.of(snapshot))
        self._writers: dict[str, RegionWriter] = {}
        self._home = HomeProcess()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def _builder(self) -> RecordBuilder:
        return self._following.known.builder

    @property
    def metrics(self) -> LateMetrics:
        """The numbers of late rows that this writer accepted, quarantined and dropped, over all regions."""
        return sum((each.metrics for each in self._claimed()), LateMetrics())

    @property
    def regions(self) -> list[str]:
        """The ids of the regions that this writer has claimed, sorted."""
        with self._lock:
            return sorted(self._writers)

    @checked
    def put(self, rows: Rows, *, durable: bool | None = None) -> None:
        """Write whole rows. The newest row of a key wins. The rows are durable on return. One PUT per region.

        Raises `InvalidInput` if a row does not fit the table or the region. Nothing is written then. Raises the errors
        of `RegionWriter.put` per region, and `RegionClosed` if the table's region spec has changed.
        """
        self._each(self._builder.puts(rows), durable)

    @checked
    def patch(self, rows: Rows, *, durable: bool | None = None) -> None:
        """Write some fields of rows. The other fields keep their values. The rows are durable on return.

        One PUT per region.
        """
        self._each(self._builder.patches(rows), durable)

    @checked
    def reset(self, rows: Rows, *, durable: bool | None = None) -> None:
        """Delete rows and write complete new rows with the same keys.

        The rows are durable when this returns. One PUT per region.
        """
        self._each(self._builder.resets(rows), durable)

    @checked
    def delete(self, keys: Keys, *, durable: bool | None = None) -> None:
        """Delete rows by key. The deletes are durable when the call returns. One PUT per region."""
        self._each(self._builder.deletes(keys), durable)

    def sync(self) -> None:
        """Wait until all given rows of all regions are durable. Raise the same errors as `close`."""
        self._every(RegionWriter.sync)

    def flush(self) -> dict[str, int]:
        """Write the unflushed records of each claimed region as a generation.

        Return the generation numbers by region id.
        """
        numbers = self._every(RegionWriter.flush)
        return {region: number for region, number in numbers.items() if number is not None}

    def unflushed(self) -> pa.Table:
        """Return the unflushed records of the claimed regions, in order per region. No request."""
        schema = self._following.known.schema
        parts = (conformed(each.unflushed(), schema) for each in self._claimed())
        return pa.concat_tables([schema.empty_table(), *parts])

    def close(self) -> None:
        """Close the writer of every claimed region, even after a writer has failed.

        Raises the first error. In the context of the error, `lost_rows` is the number of lost rows of all regions, and
        `failed` is the number of failed regions.
        """
        self._require_home()
        with self._lock:
            self._closed = True
        self._every(RegionWriter.close)

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the writer.

        If the block raised an error, raise this error. An error of closing becomes a note of this error.
        """
        close_after(error, self.close)

    def _every(self, act: Callable[[RegionWriter], T]) -> dict[str, T]:
        """Return the result of `act` for every claimed region. A failure does not stop the other regions."""
        done: dict[str, T] = {}
        failures: list[TidemarkError] = []
        for each in self._claimed():
            try:
                done[each.region_id] = act(each)
            except TidemarkError as error:
                failures.append(error)
        if failures:
            lost = sum(int(str(error.context.get("lost_rows", 0))) for error in failures)
            failures[0].context |= {"failed": len(failures), "lost_rows": lost}
            raise failures[0]
        return done

    def _each(self, records: pa.Table, durable: bool | None) -> None:  # noqa: FBT001 -- as its callers were given it
        """Write the records of each region."""
        routed = self._routed(records)
        written: list[str] = []
        for region, chosen in groups_of(routed):
            try:
                self._writer(region).write(records.take(chosen), durable)
            except TidemarkError as error:
                error.context["written"] = written
                raise
            written.append(region.id)

    def _routed(self, records: pa.Table) -> Routed:
        routed = route(self._snapshot.table_id, self._snapshot.config.region_spec, records)
        only = self._only
        others = [each for each in routed.regions if only is not None and each.id != only.id]
        if only is not None and others:
            raise InvalidInput(
                f"this writer writes the region with the values {only.values}, but there are rows of the region with "
                f"the values {others[0].values}. Nothing was written. Give those rows to the writer of their region",
                region=only.id,
            )
        return routed

    def _require_home(self) -> None:
        # This check comes before any lock, because the thread with the lock may exist only in the other process.
        self._home.require(f"the writer of {self._store.uri}", "open a writer in this process")

    def _writer(self, region: Region) -> RegionWriter:
        self._require_home()
        with self._lock:
            if self._closed:
                raise InvalidInput(f"the writer of {self._store.uri} is closed. Open a new writer")
            if region.id not in self._writers:
                self._writers[region.id] = RegionWriter.open(
                    self._store,
                    self._snapshot,
                    clock=self._clock,
                    ids=self._ids,
                    options=self._options,
                    region=region,
                    following=self._following,
                )
            return self._writers[region.id]

    def _claimed(self) -> Sequence[RegionWriter]:
        self._require_home()
        with self._lock:
            return [self._writers[each] for each in sorted(self._writers)]


TableWriter: TypeAlias = RegionWriter | RoutingWriter
"""The result of `Table.writer`.

`RegionWriter` and `RoutingWriter` have `put`, `patch`, `reset`, `delete`, `sync`, `flush`, `close`, `metrics`.
"""


def open_writer(
    log: TransactionLog,
    snapshot: Snapshot,
    *,
    region: Mapping[str, object] | str | None = None,
    options: WriterOptions | None = None,
) -> TableWriter:
    """Return a writer of a keyed table for the newest region spec of the table (see `Table.writer`).

    Raises:
        InvalidInput: the table is an append table, or the spec does not have the `region`. Or `region` is a name and
            the table has no manual regions.
    """
    if snapshot.config.kind != "keyed":
        raise InvalidInput(f"{log.store.uri}: a writer needs a keyed table. Use append", uri=log.store.uri)
    head = log.refresh(snapshot)
    if isinstance(region, str):
        by_hand = hand_region(head.table_id, region)
        if not head.config.regions_by_hand:
            raise InvalidInput(
                f"{log.store.uri}: region {region!r} is a manual region, which this table does not allow. Alter the "
                "table with regions_by_hand: true, or give a value for each region field",
                region=region,
            )
        return RegionWriter.open(log.store, head, clock=log.clock, ids=log.ids, options=options, region=by_hand)
    spec = head.config.region_spec
    only = None if region is None else region_of_values(head.table_id, spec, region)
    if spec.fields:
        return RoutingWriter(log.store, head, clock=log.clock, ids=log.ids, only=only, options=options)
    return RegionWriter.open(log.store, head, clock=log.clock, ids=log.ids, options=options)


def groups_of(routed: Routed) -> Iterator[tuple[Region, pa.Array]]:
    """Yield each region with the positions of its rows. The positions keep the order of the rows."""
    order = np.argsort(routed.positions, kind="stable")
    ends = np.cumsum(np.bincount(routed.positions, minlength=len(routed.regions)))
    for region, chosen in zip(routed.regions, np.split(order, ends[:-1]), strict=False):
        yield region, pa.array(chosen)


OFFSETS = "raw"
"""The prefix of the transactions that record a table's own offsets: `raw:<writer>`."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionClaim:
    """A claim of a region by a distributor: the epoch, the number of the next generation, and the last WAL entry.

    After the claim, all rows of the WAL are in generations.
    """

    region: str
    epoch: int
    generation: int
    last_entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRange:
    """A range of chunks of one writer of the raw log: the chunks after number `after`, up to `last`."""

    writer: str
    after: int
    last: int


def offsets(store: ObjectStore, region: str) -> Mapping[str, int]:
    """Return the number of the last chunk of each raw log writer in the region. About three requests."""
    manifest = read_latest(store, region)
    return {} if manifest is None else manifest.distributed


def claim_region(store: ObjectStore, snapshot: Snapshot, region: Region, *, clock: Clock, ids: Ids) -> RegionClaim:
    """Claim the region, and flush the acknowledged rows that its last writer did not flush.

    A new region is registered first. Raises the same errors as a claim and a flush.

    Cost:
        The requests of a claim, of a flush if there are unflushed rows, and about three more requests.
    """
    with RegionWriter.open(store, snapshot, clock=clock, ids=ids, region=region) as writer:
        writer.flush()
        manifest = check_epoch(store, writer.region_id, writer.epoch)
        return RegionClaim(
            region=writer.region_id,
            epoch=writer.epoch,
            generation=manifest.current_generation,
            last_entry=writer.last_entry,
        )


def write_distributed(
    store: ObjectStore,
    records: pa.Table,
    key: Sequence[str],
    *,
    turn: RegionClaim,
    clock: Clock,
    ids: Ids,
    context: SplitContext | None = None,
) -> Generation:
    """Write the records, in order, as the next generation of the claimed region.

    The generation is durable when the call returns, but no object refers to this generation yet. `records` has the
    columns of `rows.fold.record_schema`. Raises `CommitUnknown`. Three PUTs. With the `context` of the table and at
    least `SEGMENT_ROWS` records, the call makes one more PUT per maintained index.
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
    store: ObjectStore,
    turn: RegionClaim,
    path: str,
    stretches: Sequence[ChunkRange],
    *,
    clock: Clock,
    writer_id: str,
    passed: Collection[str] = (),
) -> None:
    """Add the generation in directory `path` to the region, and move the region's offsets, in one PUT.

    The call removes the offsets of the writers in `passed`, because the table's log contains these offsets.

    Raises:
        CommitConflict: an offset is not at the start of its range, because another distributor has moved it since the
            plan.
        WriterFenced: the region was claimed since the turn began. Nothing is written.
        CommitUnknown: the store did not report the outcome. The next plan reads the stored state.

    Cost:
        The requests of `generation.with_copies` and of `advance`.
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
            distributed={writer: last for writer, last in latest.distributed.items() if writer not in passed}
            | {each.writer: each.last for each in stretches},
        )

    advance(store, with_generation, clock=clock, writer_id=writer_id)
    _logger.info("region %s: distributed generation %d from %d writers", turn.region, turn.generation, len(stretches))


def _require_start(region: str, stretch: ChunkRange, recorded: int) -> None:
    if recorded != stretch.after:
        raise CommitConflict(
            f"region {region}: chunks of raw log writer {stretch.writer} are now distributed up to {recorded}. This "
            f"plan begins after {stretch.after}. Plan again",
            region=region,
            expected=stretch.after,
            found=recorded,
        )
