"""A writer over the regions of a spec with fields: each row goes where its key belongs (docs/architecture/ingestion.md,
"Regions").
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from storage_core.arguments import checked
from storage_core.clock import Clock
from storage_core.errors import InvalidInput, TidemarkError
from storage_core.ids import Ids
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.process import HomeProcess
from storage_core.region.following import Following, Known
from storage_core.region.options import WriterOptions
from storage_core.region.records import Keys, RecordBuilder
from storage_core.region.spec import Routed, hand_region, region_of_values, route
from storage_core.region.writer import RegionWriter, close_after
from storage_core.rows.earlier_records import conformed
from storage_core.rows.incoming import Rows
from storage_core.rows.late import LateMetrics
from storage_core.settings.region_fields import Region

T = TypeVar("T")


class RoutingWriter:
    """Writes to every region of a keyed table, or to one of them; use it from any thread of one process.

    A call groups its rows by region and makes one WAL entry per region, one region after the other. All rows of a call
    are checked before the first is written. What is atomic is the part of a call that falls into one region: it
    becomes durable together. When a region refuses its part (fenced, unknown, unavailable), the parts of the regions
    before it are durable, those behind it are not written; the error says which were (`context["written"]`), and
    giving the call again is safe, since records are absolute. Order holds per key, because a key is in one region.

    A region is claimed by the first row that falls into it, which fences its earlier writer, and no other.
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
        """Write by the schema, key and region spec of the snapshot; with `only`, rows of other regions are refused.

        The metrics of `options` are those of each region.
        """
        self._options = options
        self._store, self._snapshot, self._clock, self._ids = store, snapshot, clock, ids
        self._only = only
        self._following = Following(store, clock, Known.of(snapshot))
        self._writers: dict[str, RegionWriter] = {}
        self._home = HomeProcess()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def _builder(self) -> RecordBuilder:
        return self._following.known.builder

    @property
    def metrics(self) -> LateMetrics:
        """What became of the late rows that this writer was given, over all regions."""
        return sum((each.metrics for each in self._claimed()), LateMetrics())

    @property
    def regions(self) -> list[str]:
        """The ids of the regions that this writer has claimed, sorted."""
        with self._lock:
            return sorted(self._writers)

    @checked
    def put(self, rows: Rows, *, durable: bool | None = None) -> None:
        """Write whole rows, newest wins per key; durable when this returns. One PUT per region.

        Raises `InvalidInput` when a row does not fit the table or the region (nothing is written then), and per region
        what `RegionWriter.put` raises, and `RegionClosed` when the table's region spec was changed.
        """
        self._each(self._builder.puts(rows), durable)

    @checked
    def patch(self, rows: Rows, *, durable: bool | None = None) -> None:
        """Write some fields of rows, the others keep their value; durable when this returns. One PUT per region."""
        self._each(self._builder.patches(rows), durable)

    @checked
    def reset(self, rows: Rows, *, durable: bool | None = None) -> None:
        """Delete rows and write them whole; durable when this returns. One PUT per region."""
        self._each(self._builder.resets(rows), durable)

    @checked
    def delete(self, keys: Keys, *, durable: bool | None = None) -> None:
        """Delete rows by key; durable when this returns. One PUT per region."""
        self._each(self._builder.deletes(keys), durable)

    def sync(self) -> None:
        """Return when everything that was given to any region is durable. Raises as `close` does."""
        self._every(RegionWriter.sync)

    def flush(self) -> dict[str, int]:
        """Make a generation per claimed region of what was written to it, and return their numbers by region id."""
        numbers = self._every(RegionWriter.flush)
        return {region: number for region, number in numbers.items() if number is not None}

    def unflushed(self) -> pa.Table:
        """Return the records of the claimed regions that are in no generation yet, in order per region. No request."""
        schema = self._following.known.schema
        parts = (conformed(each.unflushed(), schema) for each in self._claimed())
        return pa.concat_tables([schema.empty_table(), *parts])

    def close(self) -> None:
        """Close the writer of every claimed region, also behind one that fails.

        Raises the first failure; `lost_rows` of its context counts the rows of all regions, `failed` the regions.
        """
        self._require_home()
        with self._lock:
            self._closed = True
        self._every(RegionWriter.close)

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the writer. An error that is on its way stays the one that is raised; what closing adds is its note."""
        close_after(error, self.close)

    def _every(self, act: Callable[[RegionWriter], T]) -> dict[str, T]:
        """What every claimed region makes of it; one that fails keeps none of the others from it."""
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
        """Write the records, to each region its own."""
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
                f"this writer holds the region with the values {only.values}, there are rows of the region with the "
                f"values {others[0].values}; nothing was written, give those rows to the writer of their region",
                region=only.id,
            )
        return routed

    def _require_home(self) -> None:
        # Before any lock: the thread that holds it may be in the other process only.
        self._home.require(f"the writer of {self._store.uri}", "open a writer of this process")

    def _writer(self, region: Region) -> RegionWriter:
        self._require_home()
        with self._lock:
            if self._closed:
                raise InvalidInput(f"the writer of {self._store.uri} is closed; open a new one")
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
"""What `Table.writer` returns: both have `put`, `patch`, `reset`, `delete`, `sync`, `flush`, `close` and `metrics`."""


def open_writer(
    log: TransactionLog,
    snapshot: Snapshot,
    *,
    region: Mapping[str, object] | str | None = None,
    options: WriterOptions | None = None,
) -> TableWriter:
    """Return a writer of a keyed table by the region spec that is newest; see `Table.writer`.

    Raises `InvalidInput` on an append table, for a `region` that the spec does not have, and for the name of one where
    the table has none by hand.
    """
    if snapshot.config.kind != "keyed":
        raise InvalidInput(f"{log.store.uri}: a writer needs a keyed table; use append", uri=log.store.uri)
    head = log.refresh(snapshot)
    if isinstance(region, str):
        by_hand = hand_region(head.table_id, region)
        if not head.config.regions_by_hand:
            raise InvalidInput(
                f"{log.store.uri}: region {region!r} is named by hand, and this table has only those of its region "
                "spec; alter it first with regions_by_hand: true, or name the region by a value per field",
                region=region,
            )
        return RegionWriter.open(log.store, head, clock=log.clock, ids=log.ids, options=options, region=by_hand)
    spec = head.config.region_spec
    only = None if region is None else region_of_values(head.table_id, spec, region)
    if spec.fields:
        return RoutingWriter(log.store, head, clock=log.clock, ids=log.ids, only=only, options=options)
    return RegionWriter.open(log.store, head, clock=log.clock, ids=log.ids, options=options)


def groups_of(routed: Routed) -> Iterator[tuple[Region, pa.Array]]:
    """Yield each region and the positions of its rows, in the order of the rows."""
    order = np.argsort(routed.positions, kind="stable")
    ends = np.cumsum(np.bincount(routed.positions, minlength=len(routed.regions)))
    for region, chosen in zip(routed.regions, np.split(order, ends[:-1]), strict=False):
        yield region, pa.array(chosen)
