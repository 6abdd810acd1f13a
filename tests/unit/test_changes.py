from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput, SnapshotExpired
from storage_core.data.formats.keys import version_key
from storage_core.data.rows.schema import to_schema_string
from storage_core.log.actions import Metadata, Remove
from storage_core.log.deletion_vector import inline
from storage_core.log.log import TransactionLog
from storage_core.maintain.history import restore
from storage_core.read.changes import BATCH_ROWS, changes
from storage_core.split.context import context_of
from storage_core.split.writer import sort_and_write
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.clock import ManualClock
from tests.support.events import CONFIG, SCHEMA, TABLE_ID, events
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

Row = Mapping[str, object]


class Events:
    """The events table on a memory store."""

    def __init__(self, schema: pa.Schema = SCHEMA) -> None:
        self.store = MeteredStore(MemoryStore("changes"))
        self.ids = SeededIds(3)
        self.log = TransactionLog(self.store, clock=ManualClock(step_ms=1), ids=self.ids)
        self.log.create(
            Metadata(id=TABLE_ID, schemaString=to_schema_string(schema), configuration=CONFIG.to_configuration())
        )

    def append(self, *rows: Row) -> int:
        snapshot = self.log.snapshot()
        table = events(rows, snapshot.schema)
        adds = sort_and_write(self.store, table, context=context_of(snapshot), ids=self.ids, now_ms=0)
        return self.log.commit(snapshot, adds, operation="APPEND").version

    def read(self, start: int, end: int | None = None) -> pa.Table:
        return self.reader(start, end).read_all()

    def reader(self, start: int, end: int | None = None) -> pa.RecordBatchReader:
        last = self.log.snapshot() if end is None else self.log.snapshot(version=end)
        return changes(self.store, self.log.snapshot(version=start), last)


def shown(changed: pa.Table, column: str = "host") -> list[tuple[object, ...]]:
    rows = changed.select(["_commit_version", "_change_type", column]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


@pytest.fixture
def table() -> Events:
    return Events()


def test_an_append_inserts_with_the_version_and_time_of_its_commit(table: Events) -> None:
    version = table.append({"at": 1, "host": "a"}, {"at": 5000, "host": "b"})
    changed = table.read(0)
    assert shown(changed) == [(1, "insert", "a"), (1, "insert", "b")]
    assert changed.schema.names == [*SCHEMA.names, "_change_type", "_commit_version", "_commit_timestamp"]
    instant = changed.column("_commit_timestamp").cast(pa.int64()).to_pylist()
    assert set(instant) == {table.log.snapshot(version=version).timestamp}


def test_the_first_version_is_left_out_and_the_last_is_in(table: Events) -> None:
    for host in "abc":
        table.append({"at": 1, "host": host})
    assert shown(table.read(1, 2)) == [(2, "insert", "b")]
    assert shown(table.read(3, 3)) == []


def test_a_split_that_appears_and_vanishes_counts_in_both_commits(table: Events) -> None:
    table.append({"at": 1, "host": "a"})
    snapshot = table.log.snapshot()
    table.log.commit(snapshot, [Remove(path=path) for path in snapshot.splits], operation="DELETE")
    assert shown(table.read(0)) == [(1, "insert", "a"), (2, "delete", "a")]


def test_a_compaction_is_not_even_looked_into(table: Events) -> None:
    table.append({"at": 1, "host": "a"})
    snapshot = table.log.snapshot()
    add = next(iter(snapshot.splits.values()))
    moved = replace(add, path="splits/0/compacted.parquet", dataChange=False)
    table.log.commit(snapshot, [Remove(path=add.path, dataChange=False), moved], operation="COMPACT")
    before = table.log.snapshot(version=1)
    after = table.log.snapshot()
    gets = table.store.requests["get"]
    assert changes(table.store, before, after).read_all().num_rows == 0
    assert table.store.requests["get"] - gets == 2  # the version file: one probe and one read


def test_a_merge_shows_the_rows_it_changed_and_not_those_it_rewrote() -> None:
    planes = KeyedTable(MemoryStore("planes")).create()
    with planes.writer() as writer:
        writer.put([{"tailnum": "a", "seats": 1}, {"tailnum": "b", "seats": 2}, {"tailnum": "c", "seats": 3}])
        writer.flush()
    planes.merge()
    first = planes.snapshot
    with planes.writer() as writer:
        writer.put({"tailnum": "a", "seats": 9})
        writer.delete("b")
        writer.flush()
    planes.merge()
    changed = changes(planes.store, first, planes.snapshot).read_all()
    assert shown(changed, "seats") == [(2, "delete", 1), (2, "delete", 2), (2, "insert", 9)]


def test_a_restore_shows_what_it_took_back(table: Events) -> None:
    table.append({"at": 1, "host": "a"})
    old = table.log.snapshot()
    table.append({"at": 1, "host": "b"})
    restore(table.log, old)
    assert shown(table.read(2)) == [(3, "delete", "b")]


def test_a_row_that_occurs_more_often_changes_by_the_difference(table: Events) -> None:
    table.append(*[{"at": 1, "host": "a"}] * 3)
    snapshot = table.log.snapshot()
    rows = events([{"at": 1, "host": "a"}] * 5 + [{"at": 1, "host": "b"}])
    adds = sort_and_write(table.store, rows, context=context_of(snapshot), ids=table.ids, now_ms=0)
    removes = [Remove(path=path) for path in snapshot.splits]
    table.log.commit(snapshot, [*removes, *adds], operation="MERGE")
    assert shown(table.read(1)) == [(2, "insert", "a"), (2, "insert", "a"), (2, "insert", "b")]


def test_a_column_that_came_later_is_null_in_older_rows(table: Events) -> None:
    table.append({"at": 1, "host": "a"})
    snapshot = table.log.snapshot()
    wider = SCHEMA.append(pa.field("late", pa.string()))
    table.log.commit(
        snapshot, [replace(snapshot.metadata, schemaString=to_schema_string(wider))], operation="ALTER TABLE"
    )
    table.append({"at": 1, "host": "b", "late": "x"})
    assert shown(table.read(0), "late")[1] == (3, "insert", "x")
    assert table.read(0).column("late").null_count == 1


def test_batches_are_bounded(table: Events) -> None:
    table.append(*({"at": 1, "count": number} for number in range(BATCH_ROWS + 1)))
    assert [batch.num_rows for batch in table.reader(0)] == [BATCH_ROWS, 1]


# Errors.


def test_changes_backwards_are_refused(table: Events) -> None:
    table.append({"at": 1})
    with pytest.raises(InvalidInput, match=r"version 0 is older than version 1, .* Swap the two"):
        table.read(1, 0)


def test_a_column_with_one_of_our_names_is_refused() -> None:
    table = Events(SCHEMA.append(pa.field("_change_type", pa.string())))
    with pytest.raises(InvalidInput, match="'_change_type'"):
        table.read(0)


def test_a_collected_commit_says_from_where_on_there_are_changes(table: Events) -> None:
    table.append({"at": 1, "host": "a"})
    table.append({"at": 1, "host": "b"})
    before, after = table.log.snapshot(version=0), table.log.snapshot()
    table.store.delete([version_key(1)])
    with pytest.raises(SnapshotExpired, match="Read changes from version 1 or a later one") as caught:
        changes(table.store, before, after)
    assert caught.value.context["version"] == 1
    assert shown(changes(table.store, replace(before, version=1), after).read_all()) == [(2, "insert", "b")]


def test_a_collected_split_says_from_where_on_there_are_changes(table: Events) -> None:
    table.append({"at": 1, "host": "a"})
    deleted = next(iter(table.log.snapshot().splits))
    table.append({"at": 1, "host": "b"})
    table.store.delete([deleted])
    reader = table.reader(0)
    with pytest.raises(SnapshotExpired, match=r"version 1 changed its rows. Read changes from version 1 or a later"):
        reader.read_all()
    assert shown(table.read(1)) == [(2, "insert", "b")]


def test_a_vector_of_no_rows_hides_none(table: Events) -> None:
    """If a restore reverts a deletion, the deletion vector remains, but without rows."""
    table.append({"at": 1, "host": "a"})
    snapshot = table.log.snapshot()
    add = next(iter(snapshot.splits.values()))
    table.log.commit(snapshot, [replace(add, deletionVector=inline(()))], operation="RESTORE")
    assert shown(table.read(0)) == [(1, "insert", "a")]
