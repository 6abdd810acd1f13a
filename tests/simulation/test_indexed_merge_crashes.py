"""Kill a flush or merge of an indexed keyed table at each request, before or after the request takes effect.

After each kill, every search matches a scan. The next run completes the work, and the collector removes unreferenced
files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import pyarrow as pa
import pytest

from storage_core.data.rows.vectors import vector_type
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Kind
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.region.captured_regions import capture
from storage_core.write.region.records import WriterOptions
from tests.support.brute_force import nearest
from tests.support.clock import START_MS, ManualClock
from tests.support.crashes import at_both_ends, left_by_crashes
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.searching import search

INDEXES = (
    IndexDefinition("text", "fulltext", ("text",)),
    IndexDefinition("tags", "bitmap", ("tag",)),
    IndexDefinition("near", "vector", ("place",), {"quantization": "none"}),
)
ID, PLACE = pa.field("id", pa.int64(), nullable=False), pa.field("place", vector_type(2))
AT = pa.field("at", pa.timestamp("us", "UTC"))
SCHEMA = pa.schema([ID, AT, ("text", pa.string()), ("tag", pa.string()), PLACE])
CONFIG = TableConfig(
    primary_key=("id",),
    time_column="at",
    sort_schema="tag|timestamp/V2",
    indexes=INDEXES,
    version_retention_ms=0,
    gc_horizon_ms=0,
)
HERE = [1.5, 0.5]


def table_in(store: ObjectStore, seed: int) -> KeyedTable:
    return KeyedTable(store, ids=SeededIds(seed))


def row(number: int, text: str) -> dict[str, object]:
    place = None if number % 5 == 4 else [float(number % 3), float(number)]
    return {"id": number, "at": None, "text": f"{text} tide", "tag": "xy"[number % 2], "place": place}


def flush(table: KeyedTable) -> None:
    with table.writer(WriterOptions(segment_rows=1)) as writer:
        writer.flush()


def merge(table: KeyedTable) -> None:
    table.merge()


RUNS: Mapping[str, Callable[[KeyedTable], object]] = {"flush": flush, "merge": merge}


@cache
def start(name: str) -> MemoryStore:
    """Return a table with a merged generation, an unmerged generation, and a log that changes rows of both.

    For a merge, the log is flushed.
    """
    store = MemoryStore("indexed")
    table = table_in(store, 1).create(SCHEMA, CONFIG)
    with table.writer(WriterOptions(segment_rows=1)) as writer:
        writer.put([row(number, "ebb") for number in range(12)])
        writer.flush()
        table.merge()
        writer.put([row(number, "flood") for number in range(10, 30)])
        writer.flush()
        writer.put([row(number, "neap") for number in range(8, 12)])
        writer.delete([29])
        writer.patch({"id": 2, "text": "neap"})
        if name == "merge":
            writer.flush()
    return store


def require_exact(table: KeyedTable) -> None:
    head, rows = table.snapshot, [*table.rows().values()]
    waiting = capture(table.store, head, include_wal=True).parts(head)
    for index, query, column in (
        *(("text", word, "text") for word in ("ebb", "flood", "neap")),
        *(("tags", tag, "tag") for tag in "xy"),
    ):
        found = search(table.store, head, query, index=index, limit=100, unmerged=waiting).column("id").to_pylist()
        assert sorted(found) == sorted(int(str(each["id"])) for each in rows if query in str(each[column])), query
    near = search(table.store, head, vector=HERE, limit=100, unmerged=waiting)
    expected = nearest(rows, HERE, "l2", column="place", order=lambda each: each["id"])
    assert near.column("id").to_pylist() == [each["id"] for _, each in expected]


@pytest.mark.parametrize("name", RUNS)
def test_it_may_end_at_any_request(name: str) -> None:
    left = left_by_crashes(start(name), lambda store: RUNS[name](table_in(store, 2)))
    for each in at_both_ends(left, lambda store: store):
        _judge(each)
    assert len(left) >= 4, "nothing, each object, and what makes them count"


def _judge(left: ObjectStore) -> None:
    table = table_in(left, 3)
    require_exact(table)
    flush(table)
    table.merge_all()
    require_exact(table)
    for each in INDEXES:
        head = table.snapshot
        plan = catch_up.plan(head, each.name)
        built = [catch_up.execute(left, work, ids=table.ids) for work in plan.work]
        if actions := plan.actions(built):
            table.log.commit(head, actions, operation="CATCH UP")
        assert catch_up.plan(table.snapshot, each.name).empty
    table.log.checkpoint(table.snapshot)
    collect(left, table.log, clock=ManualClock(START_MS + 10**9, step_ms=1))
    head = table.snapshot
    assert {info.key for info in left.list("_indices/")} == {*head.segments, *head.translations}
    require_exact(table)
    findings = fsck(left, clock=ManualClock(START_MS + 10**10), deep=True).findings
    assert [each for each in findings if each.kind is not Kind.UNREFERENCED] == []
