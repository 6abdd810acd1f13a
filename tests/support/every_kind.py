"""A table that contains every kind of object, and the answers of its readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from unittest.mock import patch

import pyarrow as pa

from storage_core.base.errors import TidemarkError
from storage_core.compact import execute as compaction
from storage_core.compact.work import OPERATION
from storage_core.data.formats.documents import LeaseRecord, encode_lease
from storage_core.data.formats.keys import lock_key, probe_key
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.layout import Region
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up, segment_merge
from storage_core.index.segment_merge import MergedSegments
from storage_core.interop.delta_mirror import EVERY as DELTA_EVERY
from storage_core.log.actions import Action, RemoveTxn, Txn
from storage_core.log.checkpoint import write_json_checkpoint
from storage_core.log.conflicts import pruning
from storage_core.log.log import TransactionLog
from storage_core.maintain.collect import collect
from storage_core.maintain.history import set_tag
from storage_core.store.contract import IfAbsent, ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.ingest.convert import RejectedLine, write_quarantine
from storage_core.write.region import merge
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.spec import hand_region, register
from tests.support.clock import ManualClock
from tests.support.keyed_table import KeyedTable, commit_merges
from tests.support.merge_plan import plan as plan_compaction

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), ("status", pa.int32()), ("text", pa.string())])
INDEX = IndexDefinition("by_status", "bitmap", ("status",))
KEYS = IndexDefinition("keys", "primary_key", ("id",))
CONFIG = TableConfig(
    primary_key=("id",), checkpoint_interval=3, indexes=(INDEX, KEYS), version_retention_ms=1_000, gc_horizon_ms=1_000
)
FOREIGN = "notes.txt"

Answer = object
Ask = Callable[[Table], Answer]


@dataclass(frozen=True, slots=True)
class EveryKind:
    """The store of the table, its clock, and a readable version from before the last compaction."""

    store: MemoryStore
    clock: ManualClock
    older: int


def every_kind(config: TableConfig = CONFIG) -> EveryKind:
    """Return a table with collected, merged, compacted, indexed, tagged, flushed and unflushed data."""
    clock = ManualClock(step_ms=1)
    store = MemoryStore("every-kind", clock=clock)
    table = KeyedTable(store, clock=clock).create(SCHEMA, config)
    head = table.snapshot
    for start in (0, 20):  # enough transactions that a state stores them in a separate object
        landed = [Txn(appId=f"landed:{each}", version=each, lastUpdated=each) for each in range(start, start + 20)]
        head = table.log.commit(head, landed, operation="INGEST").snapshot
    pruned: list[Action] = [RemoveTxn(appId="landed:0"), pruning(head)]
    table.log.commit(head, pruned, operation="PRUNE FILES")
    for number in range(6):
        _write(table, f"old-{number}")
        table.merge()
    for _ in range(2):  # the first run notes the objects, the second run deletes them
        clock.now += 10_000
        collect(store, table.log, clock=clock)
    for number in range(2):
        _write(table, f"new-{number}")
        table.merge()
    older = table.snapshot
    _catch_up(table)
    _compact(table)
    for name in ("last", "very-last"):
        _write(table, name)
        table.merge()
    _catch_up(table)
    with patch.object(segment_merge, "FACTOR", 2):
        _catch_up(table)
    for snapshot in (older, table.snapshot):
        write_json_checkpoint(store, snapshot, in_parts=True)
    set_tag(table.log, "before", older)
    _delete_many(table)
    _write(table, "more")
    table.merge()
    for number in range(2):
        _write(table, f"flushed-{number}")
    with table.writer() as writer:
        writer.put([{"id": "tail-0", "status": 9, "text": "not flushed"}])
        writer.put([{"id": "tail-1", "status": 9, "text": "not flushed"}])
        writer.delete(["old-0-0"])
    for number in range(2):
        write_quarantine(store, f"file-{number}", 10, [RejectedLine(f"file-{number}", 1, "no row", "x")])
        store.put(lock_key(f"resource {number}"), encode_lease(_lease(f"resource {number}")), IfAbsent())
        store.put(probe_key(table.ids.uuid()), b'{"probe": %d}' % number, IfAbsent())
    # A writer registered this region and died before it claimed the region.
    register(store, Region(id=table.ids.uuid(), spec_id=2, values=(0,)), clock=clock, ids=table.ids)
    store.put(FOREIGN, b"not ours", IfAbsent())
    collect(store, table.log, clock=clock)
    return EveryKind(store, clock, older.version)


def _lease(resource: str) -> LeaseRecord:
    return LeaseRecord(
        resource=resource, holder="a job", fencing_token=1, acquired_at_ms=0, expires_at_ms=1, nonce="an acquisition.0"
    )


def partitioned() -> EveryKind:
    """Return a table of every kind, partitioned by a prefix of the keys and by their hash."""
    return every_kind(replace(CONFIG, partition_by=("truncate[1](id)", "bucket[2](id)")))


def changed_columns() -> EveryKind:
    """Return a table with objects of every kind, after changes of its columns.

    The splits, generations and log of the table contain data of the old and the new schema.
    """
    found = every_kind()
    table = open_copy(found.store, found.clock)
    table.rename_column("text", "words").add_column("text", "double", default=0.5).widen_column("status", "long")
    keyed = KeyedTable(found.store, clock=found.clock)
    with keyed.writer(WriterOptions(segment_rows=1)) as writer:
        writer.put({"id": "wide-new", "status": 2**40, "words": "new", "text": 1.5})
        writer.patch({"id": "old-3-1", "words": "patched"})
        writer.flush()
        keyed.merge()
        writer.put({"id": "flushed-new", "status": 3})
        writer.flush()
        writer.patch({"id": "tail-0", "text": 2.5})
    return found


def with_regions_by_hand() -> EveryKind:
    """Return a table of every kind with two manual regions.

    One region is merged, and the other has a generation and a log.
    """
    found = every_kind()
    table = open_copy(found.store, found.clock).alter({"regions_by_hand": True})
    for name, each in (("merged", "hand-0"), ("import-2026", "hand-1")):
        with table.writer(region=name) as writer:
            writer.put({"id": each, "status": 1, "text": name})
            writer.patch({"id": "old-3-1" if name == "merged" else "new-1-0", "text": name})
            writer.flush()
    keyed = KeyedTable(found.store, clock=found.clock)
    works = merge.plan(keyed.store, keyed.snapshot, regions=[hand_region(table.snapshot.table_id, "merged").id])
    commit_merges(keyed.log, keyed.snapshot, works, [keyed.execute(work) for work in works])
    with table.writer(region="import-2026") as writer:
        writer.put({"id": "hand-2", "status": 1, "text": "not flushed"})
        writer.delete("hand-1")
    return found


def open_copy(store: ObjectStore, clock: ManualClock) -> Table:
    """Open the table in a store that has no URI. Raise the same errors as `Table.open`."""
    metered = MeteredStore(store)
    log = TransactionLog(metered, clock=clock)
    return Table(metered, log, log.snapshot())


def questions(older: int) -> Mapping[str, Ask]:
    """Return the queries of a reader by name. Tables with equal content give equal answers."""
    return {
        "scan": lambda table: _rows(table.scan().to_arrow()),
        "latest": lambda table: _rows(table.scan(consistency="latest").to_arrow()),
        "get": lambda table: [
            table.get(key) for key in ("old-0-0", "old-3-1", "new-1-0", "flushed-1-1", "tail-0", "no")
        ],
        "search": lambda table: _rows(table.search("1", index=INDEX.name, limit=100)),
        "search latest": lambda table: _rows(table.search("1", index=INDEX.name, limit=100, consistency="latest")),
        "older": lambda table: _rows(table.scan(at=older).to_arrow()),
        "tag": lambda table: _rows(table.scan(at="before").to_arrow()),
    }


def answers(store: ObjectStore, clock: ManualClock, older: int) -> dict[str, Answer]:
    """Return every answer, or the typed error that a query raised. Raise every exception that is not a typed error."""
    found: dict[str, Answer] = {}
    for name, ask in questions(older).items():
        try:
            found[name] = ask(open_copy(store, clock))
        except TidemarkError as error:
            found[name] = error
    return found


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def published() -> EveryKind:
    """Return a table of every kind that is published as Delta, with enough commits for a checkpoint."""
    found = every_kind()
    keyed = KeyedTable(found.store, clock=found.clock)
    for number in range(DELTA_EVERY + 1):
        _write(keyed, f"shown-{number}")
        keyed.merge()
        open_copy(found.store, found.clock).publish("delta")
    return found


def _write(table: KeyedTable, name: str) -> None:
    """Write two WAL entries and flush them.

    The first entry inserts three rows. The second entry changes a row that every batch changes.
    """
    with table.writer(WriterOptions(segment_rows=1)) as writer:
        writer.put([{"id": f"{name}-{each}", "status": each, "text": name} for each in range(3)])
        writer.put([{"id": "shared", "status": 1, "text": name}])
        writer.flush()


def _delete_many(table: KeyedTable) -> None:
    """Delete many scattered rows of one split, so that its deletion vector is an object."""
    names = [f"wide-{each:04}" for each in range(1_100)]
    with table.writer() as writer:
        writer.put([{"id": name, "status": 5, "text": "wide"} for name in names])
        writer.flush()
        table.merge()
        for part in (names[:1_030:2], names[1_030::2]):
            writer.delete(part)
            writer.flush()
            table.merge()


def _compact(table: KeyedTable) -> None:
    snapshot = table.snapshot
    operations = plan_compaction(snapshot)
    done = [compaction.execute(table.store, each, ids=table.ids, now_ms=table.clock.now_ms()) for each in operations]
    table.log.commit(snapshot, [action for each in done for action in each.actions], operation=OPERATION)


def _catch_up(table: KeyedTable) -> None:
    for index in (INDEX, KEYS):
        snapshot = table.snapshot
        planned = catch_up.plan(snapshot, index.name)
        built = [catch_up.execute(table.store, work, ids=table.ids) for work in planned.work]
        merged = [
            MergedSegments(work, segment_merge.execute(table.store, work, ids=table.ids)) for work in planned.merges
        ]
        if actions := planned.actions(built, merged):
            table.log.commit(snapshot, actions, operation="CATCH UP")
