"""An audit has no findings for valid tables after any sequence of operations."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from storage_core.compact.carry_over import CarryOver
from storage_core.compact.execute import execute
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add
from storage_core.maintain.audit import Selection, audit
from storage_core.split.deletion_vectors import removal
from storage_core.store.memory import MemoryStore
from tests.support.deleted_rows import delete_where
from tests.support.events import CONFIG, SCHEMA
from tests.support.keyed_table import KeyedTable
from tests.support.merge_plan import plan
from tests.unit.audited_events import FIRST, LATER, SECOND, Events


@pytest.fixture
def table() -> Events:
    return Events()


@pytest.fixture
def two(table: Events) -> list[Add]:
    return table.append_two()


def test_a_sound_table_has_no_violation_whatever_it_went_through() -> None:
    table = Events(config=replace(CONFIG, window_seconds=7200, coarse_window=True))
    table.append([*FIRST, {"at": None, "service": "lost", "host": None, "count": None, "value": float("inf")}])
    table.append([*SECOND, {"at": None, "service": None, "host": "x", "count": 7, "value": 0.0}])
    table.append([{**row, "at": row["at"] + 7200} for row in (*FIRST, *SECOND)])
    delete_where(table.log, lambda row: row["count"] == 2)
    table.compact()
    table.settle(schema=SCHEMA.append(pa.field("zone", pa.string())))
    table.append([{**FIRST[0], "zone": "eu"}])
    table.compact()
    table.settle(config=replace(table.config, sort_schema="zone:-|&host|timestamp/V2 nulls first"))
    table.append([{**SECOND[0], "zone": None}, {**SECOND[1], "zone": "us"}])
    table.append([{**FIRST[1], "zone": "eu"}])
    table.compact()
    delete_where(table.log, lambda row: row["service"] == "")

    report = table.audit()

    assert report.violations == ()
    assert report.unchecked == ()
    assert (report.splits, report.merges) == (len(table.live), 4)
    assert report.clean


@pytest.mark.parametrize("config", [TableConfig(), TableConfig(primary_key=("host", "service"))])
def test_tables_without_windows_are_audited_too(config: TableConfig) -> None:
    table = Events(config=config)
    table.append(FIRST)
    table.append(LATER)
    table.compact()
    report = table.audit()
    assert (report.violations, report.unchecked, report.merges) == ((), (), 1)


@pytest.mark.parametrize(
    ("put", "deleted"),
    [("", "c"), ("ab", "c"), ("acde", "b"), ("", "abcdf")],
    ids=["one", "a split", "most", "nearly all"],
)
def test_a_compaction_that_carried_deletes_over_is_sound(put: str, deleted: str) -> None:
    table = KeyedTable(MemoryStore("planes")).create()

    def write(names: str, seats: int, deleted: str = "") -> None:
        with table.writer() as writer:
            if names:
                writer.put([{"tailnum": name, "seats": seats} for name in names])
            if deleted:
                writer.delete(list(deleted))
            writer.flush()
        assert table.merge() is not None

    for names in ("ab", "cd", "ef"):
        write(names, 1)
    assert table.compact(lambda: write(put, 2, deleted)) is not None
    report = audit(table.store, table.snapshot)
    assert (report.violations, report.unchecked, report.merges) == ((), (), 1)


@pytest.mark.usefixtures("two")
def test_a_merge_of_deleted_rows_only_leaves_nothing_and_is_sound(table: Events) -> None:
    delete_where(table.log, lambda _row: True)
    table.compact()
    assert table.live == []
    report = table.audit()
    assert (report.violations, report.unchecked, report.merges) == ((), (), 1)


@pytest.mark.parametrize("meanwhile", [False, True])
@pytest.mark.parametrize("left", [0, 1])
def test_one_commit_that_ends_several_windows_without_an_output_is_sound(left: int, *, meanwhile: bool) -> None:
    table = Events()
    for scope in ("a", "b"):
        for _ in range(2):
            rows = [{**FIRST[0], "at": hour * 3600} for hour in range(3)]
            table.append(rows, replace(table.context, source_id=scope))

    def lose_windows() -> None:
        delete_where(table.log, lambda row: row["at"].timestamp() >= left * 3600)

    if not meanwhile:
        lose_windows()
    planned = table.head
    operations = plan(planned)
    done = [(each, execute(table.store, each, ids=table.ids, now_ms=2)) for each in operations]
    if meanwhile:
        lose_windows()
    actions = [action for _, result in done for action in result.actions]
    carried = CarryOver(table.store, done, ids=table.ids)
    table.log.commit(planned, actions, operation="COMPACT", rebase=carried)

    assert len(table.live) == 2 * left
    report = table.audit()
    assert (report.violations, report.unchecked, report.merges) == ((), (), len(operations))


@pytest.mark.parametrize("which", [Selection(), Selection(since=4), Selection(commits=2), Selection(commits=1)])
@pytest.mark.parametrize("compactions", [1, 2])
def test_a_split_that_a_delete_ended_beside_a_compaction_may_come_back_and_leave_again(
    two: list[Add], table: Events, which: Selection, compactions: int
) -> None:
    table.append([{**FIRST[0], "count": 9}])
    before = table.live
    (operation,) = plan(planned := table.head)
    done = [(operation, execute(table.store, operation, ids=table.ids, now_ms=2))]
    table.log.commit(table.head, [removal(two[0], 3)], operation="DELETE")
    carried = CarryOver(table.store, done, ids=table.ids)
    table.log.commit(planned, done[0][1].actions, operation="COMPACT", rebase=carried)
    table.log.commit(table.head, [*(removal(each, 3) for each in table.live), *before], operation="RESTORE")
    for _ in range(compactions - 1):
        table.compact()
    report = table.audit(which)
    assert (report.violations, report.unchecked) == ((), ())
    assert report.merges == min(which.commits or 2, compactions)


def test_a_window_that_a_commit_dropped_beside_emptied_ones_is_found(table: Events) -> None:
    for hour in range(3):
        table.append([{**FIRST[0], "at": hour * 3600}])
    delete_where(table.log, lambda row: row["at"].timestamp() != 3600)
    table.replace(table.live, [])
    (found,) = table.audit().violations
    assert found.invariant == "MC-1"
    assert "read 1 rows and wrote 0" in found.message
