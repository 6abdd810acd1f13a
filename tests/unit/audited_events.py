"""A table in memory for tests of the audit, with files and commits that really violate its invariants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.compact.execute import execute
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.rows.sort_order import SortOrder
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, Metadata, Remove
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.audit import AuditReport, Selection, audit
from storage_core.split.context import SplitContext, context_of
from storage_core.split.metadata import APPENDED, FileOrigin, Lineage, describe, with_checksum, write_origin
from storage_core.split.read import read_split
from storage_core.split.writer import sort_and_write, with_file_metrics, write_split
from storage_core.store.contract import IfAbsent
from storage_core.store.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.events import CONFIG, SCHEMA, TABLE_ID, events
from tests.support.ids import SeededIds
from tests.support.merge_plan import plan

Row = Mapping[str, Any]

FIRST: Sequence[Row] = [
    {"at": 10, "service": "api", "host": "a", "count": 1, "value": 0.5},
    {"at": 20, "service": "web", "host": "b", "count": 2, "value": None},
]
SECOND: Sequence[Row] = [
    {"at": 30, "service": "api", "host": "a", "count": 3, "value": float("nan")},
    {"at": 40, "service": "", "host": None, "count": None, "value": -0.0},
]
LATER: Sequence[Row] = [{"at": 3700, "service": "api", "host": "a", "count": 5, "value": 1.0}]
OTHER_ORDER = "host|timestamp/V2"
LAST = "1970-01-01T00:00:20.000000Z"


@dataclass
class Events:
    """A table in memory with correct and incorrect operations."""

    config: TableConfig = CONFIG
    schema: pa.Schema = SCHEMA
    store: MemoryStore = field(default_factory=lambda: MemoryStore("audit"))

    def __post_init__(self) -> None:
        self.ids = SeededIds(7)
        self.log = TransactionLog(self.store, clock=ManualClock(step_ms=1), ids=self.ids)
        self.log.create(self.metadata())

    def metadata(self) -> Metadata:
        return Metadata(
            id=TABLE_ID, schemaString=to_schema_string(self.schema), configuration=self.config.to_configuration()
        )

    def settle(self, *, config: TableConfig | None = None, schema: pa.Schema | None = None) -> None:
        self.config, self.schema = config or self.config, schema or self.schema
        self.log.commit(self.head, [self.metadata()], operation="CONFIGURE")

    @property
    def head(self) -> Snapshot:
        return self.log.snapshot()

    @property
    def context(self) -> SplitContext:
        return context_of(self.head)

    @property
    def live(self) -> list[Add]:
        return sorted(self.head.splits.values(), key=lambda add: self.head.splits.added_at(add.path))

    def append(self, rows: Iterable[Row], where: SplitContext | None = None) -> list[Add]:
        adds = sort_and_write(
            self.store, events(rows, self.schema), context=where or self.context, ids=self.ids, now_ms=1
        )
        self.log.commit(self.head, adds, operation="WRITE")
        return adds

    def append_two(self) -> list[Add]:
        """Append two splits of one window."""
        self.append(FIRST)
        self.append(SECOND)
        return self.live

    def compact(self) -> None:
        for operation in plan(self.head):
            result = execute(self.store, operation, ids=self.ids, now_ms=2)
            self.log.commit(self.head, result.actions, operation="COMPACT")

    def add(self, *adds: Add) -> None:
        self.log.commit(self.head, adds, operation="WRITE")

    def merged(self, inputs: Sequence[Add]) -> pa.Table:
        """Return the rows of the inputs in the order of a correct merge."""
        rows = pa.concat_tables([read_split(self.store, add) for add in inputs])
        return sorted_rows(rows, self.context)

    def output(
        self, rows: pa.Table, inputs: Sequence[Add], where: SplitContext | None = None, window: int | None = 0
    ) -> Add:
        """Write one split with any rows. The metadata of the split claims that the split replaces the inputs."""
        replaces = {each.path: each.numRecords or 0 for each in inputs}
        lineage = Lineage(operation="compact", operation_id="made-by-hand", replaces=replaces)
        return self.write(rows, where=where, window=window, lineage=lineage)

    def write(
        self,
        rows: pa.Table,
        *,
        where: SplitContext | None = None,
        window: int | None = 0,
        lineage: Lineage = APPENDED,
    ) -> Add:
        return write_split(
            self.store,
            rows,
            context=where or self.context,
            window=window,
            num_merge_ops=0,
            split_id=self.ids.uuid(),
            now_ms=1,
            lineage=lineage,
        )

    def replace(self, inputs: Sequence[Add], outputs: Sequence[Add], run: str | None = None) -> None:
        removes = [Remove(path=add.path, dataChange=False) for add in inputs]
        self.log.commit(self.head, [*removes, *outputs], operation="COMPACT", job_run_id=run)

    def audit(self, which: Selection | None = None) -> AuditReport:
        return audit(self.store, self.head, which)

    def broken(self) -> set[str]:
        return {each.invariant for each in self.audit().violations}


def sorted_rows(rows: pa.Table, where: SplitContext) -> pa.Table:
    scratch = MemoryStore("scratch")
    everything = replace(where, window_seconds=None)
    lineage = Lineage(operation="compact")
    adds = sort_and_write(scratch, rows, context=everything, ids=SeededIds(3), now_ms=1, lineage=lineage)
    return pa.concat_tables([read_split(scratch, add) for add in adds])


def lying(table: Events, rows: pa.Table, native: SortOrder | None = None, **lies: Any) -> Add:
    """Write a split whose file and action are consistent. Only the values in `lies` of the action are wrong."""
    where = table.context
    unwindowed = replace(where, window_seconds=None)
    true = write_split(
        MemoryStore("scratch"), rows, context=unwindowed, window=None, num_merge_ops=0, split_id="x", now_ms=1
    )
    path = f"splits/0/{table.ids.uuid()}.parquet"
    add = replace(true, **{"path": path, "windowStart": 0, "windowSeconds": where.window_seconds, **lies})
    origin = FileOrigin(
        table_id=where.table_id,
        table_schema=to_schema_string(where.schema),
        configuration=where.configuration,
        planned_version=where.planned_version,
        lineage=APPENDED,
    )
    metadata = describe(add, table_id=where.table_id, schema_string=to_schema_string(rows.schema))
    sink = pa.BufferOutputStream()
    keys = [
        (each.name, "descending" if each.descending else "ascending")
        for each in (native or where.order).columns
        if each.name in rows.column_names
    ]
    order = pq.SortingColumn.from_ordering(rows.schema, keys, "at_end")
    with pq.ParquetWriter(sink, rows.schema, store_schema=False, sorting_columns=list(order)) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(with_checksum({**metadata, **write_origin(origin)}))
    data = sink.getvalue()
    table.store.put(path, data.to_pybytes(), IfAbsent())
    return with_file_metrics(add, data)
