"""Restore, changes and tags through `Table`, on append and keyed tables."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitConflict, InvalidInput
from storage_core.index import catch_up
from storage_core.maintain.history import restore
from storage_core.store.memory import MemoryStore
from storage_core.write.region import merge
from tests.support.keyed_table import KeyedTable, seats
from tidemark import IndexDefinition, Table

PEOPLE = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def ids(table: Table, at: int | str | dt.datetime | None = None) -> list[int]:
    return sorted(table.scan(at=at).to_arrow().column("id").to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(
        str(tmp_path / "people"), PEOPLE, indexes=[IndexDefinition("names", "fulltext", ("name",))], window=None
    )
    for number in (1, 2, 3):
        made.append([{"id": number, "name": f"name {number}"}])
    return made


def test_a_restored_table_reads_searches_and_goes_on_like_any_other(table: Table) -> None:
    for work in catch_up.plan(table.snapshot, "names").work:
        segment = catch_up.execute(table.store, work, ids=table.log.ids)
        table.log.commit(table.refresh().snapshot, [segment], operation="CATCH UP")
    done = table.restore(2)
    assert (table.version, done.splits_removed) == (7, 1)
    assert ids(table) == ids(table, at=2) == [1, 2]
    assert table.search("name", index="names").num_rows == 2
    assert ids(table, at=3) == [1, 2, 3]
    table.append([{"id": 4, "name": "name 4"}])
    assert ids(Table.open(table.uri)) == [1, 2, 4]


def test_a_table_that_was_opened_at_a_version_is_not_restored(table: Table) -> None:
    with pytest.raises(InvalidInput, match=r"opened at version 1\. Open the table without `at`"):
        Table.open(table.uri, at=1).restore(2)


def test_a_tag_is_read_like_a_version(table: Table) -> None:
    made = table.tag("first", 1, expires=dt.timedelta(days=1))
    assert made.expires_at_ms == made.created_at_ms + 86_400_000
    assert ids(table, at="first") == [1]
    assert Table.open(table.uri, at="first").version == 1
    assert table.tags() == [made]
    assert table.tag("now").version == 3
    table.untag("first")
    assert [each.name for each in table.tags()] == ["now"]


def test_changes_end_at_the_version_of_the_table(table: Table) -> None:
    assert table.changes(1).read_all().column("id").to_pylist() == [2, 3]
    assert table.changes(1, 2).read_all().column("id").to_pylist() == [2]
    assert Table.open(table.uri, at=2).changes(0).read_all().num_rows == 2


# Tests of keyed tables. A restore removes merged rows, and a later merge does not apply the same records again.


@pytest.fixture
def planes() -> KeyedTable:
    """Make a table of planes. Version 1 has the keys a and b. Version 2 no longer has b, and also has c."""
    table = KeyedTable(MemoryStore("planes")).create()
    put(table, {"tailnum": "a", "seats": 1}, {"tailnum": "b", "seats": 1})
    table.merge()
    with table.writer() as writer:
        writer.delete("b")
        writer.put({"tailnum": "c", "seats": 1})
        writer.flush()
    table.merge()
    return table


def put(table: KeyedTable, *rows: dict[str, object]) -> None:
    with table.writer() as writer:
        writer.put(list(rows))
        writer.flush()


def test_what_was_merged_since_is_undone_and_not_merged_again(planes: KeyedTable) -> None:
    merged = planes.snapshot.merged_generations
    restore(planes.log, planes.log.snapshot(version=1))
    assert seats(planes) == {"a": 1, "b": 1}
    assert planes.snapshot.merged_generations == merged
    assert planes.merge() is None
    put(planes, {"tailnum": "b", "seats": 9}, {"tailnum": "d", "seats": 1})
    planes.merge()
    assert seats(planes) == {"a": 1, "b": 9, "d": 1}


def test_what_is_acknowledged_and_not_merged_stays_and_is_merged_next(planes: KeyedTable) -> None:
    put(planes, {"tailnum": "b", "seats": 7})
    restore(planes.log, planes.log.snapshot(version=1))
    assert seats(planes) == {"a": 1, "b": 7}
    planes.merge()
    assert seats(planes) == {"a": 1, "b": 7}
    assert len(planes.base_rows()) == 2


def test_a_merge_that_ran_while_the_table_was_restored_leaves_no_key_twice(planes: KeyedTable) -> None:
    """The merge is planned while key b is deleted, and the merge rewrites nothing.

    Before the merge commits, a restore brings back the row with key b.
    """
    put(planes, {"tailnum": "b", "seats": 7})
    before = planes.snapshot
    (work,) = merge.plan(planes.store, before)
    result = planes.execute(work)
    restore(planes.log, planes.log.snapshot(version=1))
    with pytest.raises(CommitConflict, match="restored the table after this merge was planned"):
        planes.commit(before, work, result)
    planes.merge()
    assert seats(planes) == {"a": 1, "b": 7}
    assert len(planes.base_rows()) == 2
