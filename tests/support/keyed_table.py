"""A keyed table driven through its log, region writer and merger, and read back row by row: for tests of all three."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from storage_core.compaction.carry_over import CarryOver
from storage_core.compaction.execute import execute
from storage_core.compaction.work import OPERATION
from storage_core.ids import Ids
from storage_core.log.actions import Metadata
from storage_core.log.commit import CommitResult
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import idle, merge, sorting, unmerged
from storage_core.region.merge_work import MergeResult, MergeWork
from storage_core.region.options import WriterOptions
from storage_core.region.router import RoutingWriter
from storage_core.region.sorting import SortingTerms
from storage_core.region.writer import RegionWriter
from storage_core.rows import fold
from storage_core.rows.schema import conform, to_schema_string
from storage_core.settings.region_fields import Region
from storage_core.settings.table import TableConfig
from storage_core.split.conform import conform_split
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.split.write import sort_and_write
from tests.support import merge_plan
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds

Row = dict[str, object]

ALWAYS = SortingTerms(generations=0)
"""Sort also where a single generation waits."""

PLANES = pa.schema([pa.field("tailnum", pa.string(), nullable=False), ("seats", pa.int64()), ("model", pa.string())])


@dataclass(slots=True)
class KeyedTable:
    """One keyed table in `store`. `rows` reads base and unmerged records and refuses a key that occurs twice."""

    store: ObjectStore
    ids: Ids = field(default_factory=lambda: SeededIds(1))
    clock: ManualClock = field(default_factory=lambda: ManualClock(step_ms=1))

    @property
    def log(self) -> TransactionLog:
        """The table's transaction log."""
        return TransactionLog(self.store, clock=self.clock, ids=self.ids)

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        return self.log.snapshot()

    def create(self, schema: pa.Schema = PLANES, config: TableConfig | None = None) -> KeyedTable:
        """Create the table and return it."""
        chosen = config or TableConfig(primary_key=("tailnum",))
        metadata = Metadata(
            id=self.ids.uuid(),
            schemaString=to_schema_string(schema),
            partitionColumns=chosen.partition_columns,
            configuration=chosen.to_configuration(),
        )
        self.log.create(metadata)
        return self

    def writer(self, options: WriterOptions | None = None) -> RegionWriter:
        """Claim the region of a table that has one."""
        return RegionWriter.open(self.store, self.snapshot, clock=self.clock, ids=self.ids, options=options)

    def routing_writer(self, only: Region | None = None) -> RoutingWriter:
        """Write to all regions of a table that has several, or to one of them."""
        return RoutingWriter(self.store, self.snapshot, clock=self.clock, ids=self.ids, only=only)

    def execute(self, work: MergeWork) -> MergeResult:
        """Execute planned work as a task does: from its JSON."""
        return merge.execute(self.store, MergeWork.from_json(work.to_json()), ids=self.ids, now_ms=self.clock.now_ms())

    def commit(self, snapshot: Snapshot, work: MergeWork, result: MergeResult) -> CommitResult:
        """Commit an executed merge that was planned on `snapshot`."""
        return merge.commit(self.log, snapshot, [work], [result])

    def merge(self) -> CommitResult | None:
        """Plan, execute and commit what there is to merge, all regions at once; None when there is nothing."""
        snapshot = self.snapshot
        works = merge.plan(self.store, snapshot)
        if not works:
            return None
        return merge.commit(self.log, snapshot, works, [self.execute(work) for work in works])

    def flush_idle(self) -> int:
        """Flush what silent writers left, and return in how many regions some was found. Raises for a damaged log."""
        snapshot = self.snapshot
        found = idle.merge_due(self.store, snapshot).idle
        for error in idle.flush_idle(self.store, snapshot, found, clock=self.clock, ids=self.ids):
            raise error
        return len(found)

    def merge_all(self) -> None:
        """Merge until nothing is left to merge."""
        while self.merge() is not None:
            pass

    def append(self, rows: Sequence[Row]) -> Snapshot:
        """Commit rows as splits of their own, without a region, and return the snapshot after it."""
        snapshot = self.snapshot
        arrived = pa.Table.from_pylist(rows, schema=snapshot.schema)
        adds = sort_and_write(
            self.store, arrived, context=context_of(snapshot), ids=self.ids, now_ms=self.clock.now_ms()
        )
        return self.log.commit(snapshot, adds, operation="APPEND").snapshot

    def compact(self, meanwhile: Callable[[], object] = list) -> CommitResult | None:
        """Plan, execute and commit what there is to compact; None when there is nothing.

        `meanwhile` acts when everything is written and nothing committed.
        """
        snapshot = self.snapshot
        planned = merge_plan.plan(snapshot)
        operations = [part for each in planned for part in merge_plan.in_parts(self.store, each, ids=self.ids)]
        results = [execute(self.store, each, ids=self.ids, now_ms=self.clock.now_ms()) for each in operations]
        if not results:
            return None
        meanwhile()
        carry = CarryOver(self.store, list(zip(operations, results, strict=True)), ids=self.ids)
        actions = [action for each in results for action in each.actions]
        return self.log.commit(snapshot, actions, operation=OPERATION, rebase=carry)

    def sort(self, terms: SortingTerms = ALWAYS) -> bool:
        """Sort the generations that wait, of each region what one run takes, and tell whether there were any."""
        works = sorting.plan(self.store, self.snapshot, terms=terms)
        for work in works:
            done = sorting.execute(self.store, work, clock=self.clock, ids=self.ids)
            sorting.finish(self.store, work, done, clock=self.clock, writer_id=self.ids.uuid())
        return bool(works)

    def base_rows(self, snapshot: Snapshot | None = None) -> list[Row]:
        """Return the rows of the base table, in no particular order."""
        rows: list[Row] = self._base(snapshot or self.snapshot).to_pylist()
        return rows

    def rows(self) -> dict[object, Row]:
        """Return what a `latest` reader sees, by key (a value, or a tuple for several columns)."""
        snapshot = self.snapshot
        key = snapshot.config.primary_key
        records = unmerged.capture(self.store, snapshot, include_wal=True).above(snapshot)
        rows = fold.apply(self._base(snapshot), fold.fold(records, key), key).to_pylist()
        found: dict[object, Row] = {}
        for row in rows:
            name = row[key[0]] if len(key) == 1 else tuple(row[column] for column in key)
            if name in found:
                raise AssertionError(f"two live rows of key {name!r}")
            found[name] = row
        return found

    def _base(self, snapshot: Snapshot) -> pa.Table:
        splits = (read_split(self.store, add) for add in snapshot.splits.values())
        rows = [conform(conform_split(split, snapshot.schema), snapshot.schema) for split in splits]
        return pa.concat_tables([snapshot.schema.empty_table(), *rows])


def seats(table: KeyedTable) -> dict[object, object]:
    """Return the seats that a `latest` reader sees in a table of `PLANES`, by key."""
    return {key: row["seats"] for key, row in table.rows().items()}


def base_seats(table: KeyedTable) -> dict[object, object]:
    """Return the seats in the base of a table of `PLANES`, by key; refuses a key that occurs twice."""
    rows = table.base_rows()
    found = {row["tailnum"]: row["seats"] for row in rows}
    if len(found) != len(rows):
        raise AssertionError(f"{len(rows)} live rows of {len(found)} keys")
    return found
