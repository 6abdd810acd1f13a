"""A keyed table for tests of its log, region writer and merger.

Tests use these three parts directly and read row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from storage_core.base.clock import Ids
from storage_core.compact.carry_over import CarryOver
from storage_core.compact.execute import execute
from storage_core.compact.work import OPERATION
from storage_core.data.rows import fold
from storage_core.data.rows.conform import conform
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.layout import Region
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Metadata
from storage_core.log.commit import CommitResult
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import context_of
from storage_core.split.read import conform_split, read_split
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import ObjectStore
from storage_core.write.region import captured_regions, generation_write, idle, merge
from storage_core.write.region.generation_write import SortingTerms
from storage_core.write.region.merge_work import MergeResult, MergeWork, naming_works
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.router import RoutingWriter
from storage_core.write.region.writer import RegionWriter
from tests.support import merge_plan
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds

Row = dict[str, object]

ALWAYS = SortingTerms(generations=0)
"""Thresholds that allow a sort even if only one generation waits."""

PLANES = pa.schema([pa.field("tailnum", pa.string(), nullable=False), ("seats", pa.int64()), ("model", pa.string())])


@dataclass(slots=True)
class KeyedTable:
    """One keyed table in `store`. `rows` reads base and unmerged records, and fails if a key occurs twice."""

    store: ObjectStore
    ids: Ids = field(default_factory=lambda: SeededIds(1))
    clock: ManualClock = field(default_factory=lambda: ManualClock(step_ms=1))

    @property
    def log(self) -> TransactionLog:
        """The transaction log of the table."""
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
        """Claim the region of a table with a single region."""
        return RegionWriter.open(self.store, self.snapshot, clock=self.clock, ids=self.ids, options=options)

    def routing_writer(self, only: Region | None = None) -> RoutingWriter:
        """Return a writer for a table with several regions. With `only`, the writer writes only to this region."""
        return RoutingWriter(self.store, self.snapshot, clock=self.clock, ids=self.ids, only=only)

    def execute(self, work: MergeWork) -> MergeResult:
        """Execute planned work from its JSON, as a task does."""
        return merge.execute(self.store, MergeWork.from_json(work.to_json()), ids=self.ids, now_ms=self.clock.now_ms())

    def commit(self, snapshot: Snapshot, work: MergeWork, result: MergeResult) -> CommitResult:
        """Commit an executed merge that was planned on `snapshot`."""
        return commit_merges(self.log, snapshot, [work], [result])

    def merge(self) -> CommitResult | None:
        """Plan and execute the necessary merges of all regions, and commit them together.

        Return None if no merge is necessary.
        """
        snapshot = self.snapshot
        works = merge.plan(self.store, snapshot)
        if not works:
            return None
        return commit_merges(self.log, snapshot, works, [self.execute(work) for work in works])

    def flush_idle(self) -> int:
        """Flush the records of silent writers.

        Return the number of regions with records. Raise an error if the log is damaged.
        """
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
        """Commit rows as new splits without a region, and return the snapshot after the commit."""
        snapshot = self.snapshot
        arrived = pa.Table.from_pylist(rows, schema=snapshot.schema)
        adds = sort_and_write(
            self.store, arrived, context=context_of(snapshot), ids=self.ids, now_ms=self.clock.now_ms()
        )
        return self.log.commit(snapshot, adds, operation="APPEND").snapshot

    def compact(self, meanwhile: Callable[[], object] = list) -> CommitResult | None:
        """Plan, execute and commit the necessary compactions. Return None if no compaction is necessary.

        `meanwhile` runs when all files are written and nothing is committed yet.
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
        """Sort the waiting generations, at most one run per region. Return True if a generation was waiting."""
        works = generation_write.plan_sort(self.store, self.snapshot, terms=terms)
        for work in works:
            done = generation_write.execute_sort(self.store, work, clock=self.clock, ids=self.ids)
            generation_write.finish(self.store, work, done, clock=self.clock, writer_id=self.ids.uuid())
        return bool(works)

    def base_rows(self, snapshot: Snapshot | None = None) -> list[Row]:
        """Return the rows of the base table, in no particular order."""
        rows: list[Row] = self._base(snapshot or self.snapshot).to_pylist()
        return rows

    def rows(self) -> dict[object, Row]:
        """Return the rows at level `latest` by key. A key is a value, or a tuple for several columns."""
        snapshot = self.snapshot
        key = snapshot.config.primary_key
        records = captured_regions.capture(self.store, snapshot, include_wal=True).above(snapshot)
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


def commit_merges(
    log: TransactionLog, snapshot: Snapshot, works: Sequence[MergeWork], results: Sequence[MergeResult]
) -> CommitResult:
    """Commit executed merges in one commit, as the merge step does. The merges were planned on `snapshot`."""
    actions = merge.actions_of(log.store, results, ids=log.ids, now_ms=log.clock.now_ms())
    requirements = [each for work in works for each in work.requirements]
    with naming_works(*works):
        return log.commit(snapshot, actions, operation="MERGE", requirements=requirements)


def seats(table: KeyedTable) -> dict[object, object]:
    """Return the seats of a table of `PLANES` at level `latest`, by key."""
    return {key: row["seats"] for key, row in table.rows().items()}


def base_seats(table: KeyedTable) -> dict[object, object]:
    """Return the seats of the merged rows in a table with schema `PLANES`, by key. Fail if a key occurs twice."""
    rows = table.base_rows()
    found = {row["tailnum"]: row["seats"] for row in rows}
    if len(found) != len(rows):
        raise AssertionError(f"{len(rows)} live rows of {len(found)} keys")
    return found
