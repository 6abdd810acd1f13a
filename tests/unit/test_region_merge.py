"""A merge applies records exactly once and in order, and leaves one live row per key (lessons 20 to 28)."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitConflict, Corrupt
from storage_core.compact import execute as compaction
from storage_core.data.formats import keys
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, Add, MergedGenerations, Remove
from storage_core.log.deletion_vector import inline
from storage_core.log.snapshot import Snapshot
from storage_core.split.writer import Rewrite
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.region import captured_regions, merge
from storage_core.write.region.merge_work import MergeResult, MergeWork
from storage_core.write.region.spec import list_regions
from tests.support import merge_plan
from tests.support.keyed_table import PLANES, KeyedTable, Row


def waiting(store: ObjectStore, snapshot: Snapshot, *, include_wal: bool) -> pa.Table:
    """Return the durable records that the snapshot has not merged."""
    return captured_regions.capture(store, snapshot, include_wal=include_wal).above(snapshot)


def _table() -> KeyedTable:
    return KeyedTable(MemoryStore("planes")).create()


def _put(table: KeyedTable, *rows: Row) -> None:
    with table.writer() as planes:
        planes.put(list(rows))
        planes.flush()


def _plane(tailnum: str, seats: int = 0) -> Row:
    return {"tailnum": tailnum, "seats": seats, "model": None}


def test_merged_rows_are_in_the_base_and_a_second_plan_is_empty() -> None:
    table = _table()
    _put(table, _plane("b"), _plane("a"))
    result = table.merge()
    assert result is not None
    assert result.snapshot.merged_generations == {list_regions(table.store, table.snapshot)[0].region_id: 1}
    assert table.base_rows() == [_plane("a"), _plane("b")]
    assert merge.plan(table.store, table.snapshot) == []
    assert waiting(table.store, table.snapshot, include_wal=True).num_rows == 0
    assert table.merge() is None


def test_a_table_that_nobody_wrote_to_has_nothing_to_merge() -> None:
    table = _table()
    assert merge.plan(table.store, table.snapshot) == []
    assert list_regions(table.store, table.snapshot) == []
    append = KeyedTable(MemoryStore("append")).create(PLANES, TableConfig())
    assert merge.plan(append.store, append.snapshot) == []


def test_rows_that_are_not_flushed_are_not_merged() -> None:
    table = _table()
    with table.writer() as planes:
        planes.put(_plane("a"))
    assert table.merge() is None
    assert set(table.rows()) == {"a"}


def test_several_generations_merge_in_one_commit_and_the_newest_row_wins() -> None:
    table = _table()
    for seats in range(1, 4):
        _put(table, _plane("a", seats), _plane(f"only {seats}", seats))
    version = table.snapshot.version
    assert table.merge() is not None
    assert table.snapshot.version == version + 1
    assert {row["tailnum"]: row["seats"] for row in table.base_rows()} == {
        "a": 3,
        "only 1": 1,
        "only 2": 2,
        "only 3": 3,
    }


def test_generations_that_are_too_many_for_one_merge_are_taken_oldest_first() -> None:
    table = _table()
    for seats in range(1, 4):
        _put(table, _plane("a", seats), _plane("b", seats))
    (work,) = merge.plan(table.store, table.snapshot, max_records=4)
    assert [each.generation for each in work.generations] == [1, 2]
    (smallest,) = merge.plan(table.store, table.snapshot, max_records=1)
    assert [each.generation for each in smallest.generations] == [1]


def test_only_splits_that_hold_a_touched_key_get_a_vector_and_none_is_rewritten() -> None:
    table = _table()
    for low in ("a", "f", "p"):
        _put(table, _plane(f"{low}1"), _plane(f"{low}9"))
        table.merge()
    before = {add.minValues["tailnum"]: add for add in table.snapshot.splits.values() if add.minValues}
    # The key f5 is within the bounds of the middle split, but no row of this split has the key f5. The first split
    # contains the key a1.
    _put(table, _plane("a1", 7), _plane("f5", 7))
    result = table.merge()
    assert result is not None
    after = result.snapshot.splits
    assert after[before["a1"].path].deletionVector == inline([0])
    assert [after[before[name].path] for name in ("f1", "p1")] == [before["f1"], before["p1"]]
    assert len(after) == 4
    assert {row["tailnum"]: row["seats"] for row in table.base_rows()} == {
        "a1": 7, "a9": 0, "f1": 0, "f5": 7, "f9": 0, "p1": 0, "p9": 0,
    }  # fmt: skip


def test_a_vector_grows_until_no_row_is_left_and_the_split_goes() -> None:
    table = _table()
    _put(table, *[_plane(name) for name in "abcd"])
    table.merge()
    (path,) = table.snapshot.splits
    grown = []
    for name in "cadb":
        with table.writer() as planes:
            planes.delete(name)
            planes.flush()
        table.merge()
        add = table.snapshot.splits.get(path)
        grown.append(None if add is None else add.deletionVector)
    assert grown == [inline([2]), inline([0, 2]), inline([0, 2, 3]), None]
    assert table.base_rows() == []


def test_a_key_that_comes_back_is_a_new_row_and_the_old_one_stays_hidden() -> None:
    table = _table()
    _put(table, _plane("a", 1), _plane("b", 1), _plane("c", 1))
    table.merge()
    with table.writer() as planes:
        planes.delete("b")
        planes.flush()
    table.merge()
    for seats in (2, 3):
        _put(table, _plane("b", seats))
        table.merge()
    rows = sorted((row["tailnum"], row["seats"]) for row in table.base_rows())
    assert rows == [("a", 1), ("b", 3), ("c", 1)]


def test_a_patch_reads_only_the_rows_it_hits_and_a_put_reads_none() -> None:
    table = _table()
    _put(table, *[{"tailnum": f"t{n:03}", "seats": n, "model": f"m{n}"} for n in range(100)])
    table.merge()
    with table.writer() as planes:
        planes.put([_plane("t001", 500), _plane("t002", 500)])
        planes.patch({"tailnum": "t003", "seats": 600})
        planes.delete("t004")
        planes.flush()
    (work,) = merge.plan(table.store, table.snapshot)
    result = table.execute(work)
    assert (result.rewrite.rows_in, result.rewrite.rows_out) == (4 + 1, 3)
    table.commit(table.snapshot, work, result)
    rows = {row["tailnum"]: (row["seats"], row["model"]) for row in table.base_rows()}
    assert {name: rows.get(name) for name in ("t001", "t003", "t004", "t005")} == {
        "t001": (500, None), "t003": (600, "m3"), "t004": None, "t005": (5, "m5"),
    }  # fmt: skip


def test_results_of_two_regions_that_hide_rows_of_one_split_hide_the_rows_of_both() -> None:
    table = _table()
    _put(table, *[_plane(name) for name in "abcd"])
    table.merge()
    (add,) = table.snapshot.splits.values()
    results = [
        _region_result(replace(add, deletionVector=inline(rows)), region) for region, rows in ((1, [0]), (2, [2]))
    ]
    actions = merge.actions_of(table.store, results, ids=table.ids, now_ms=1)
    assert [action for action in actions if isinstance(action, Add)] == [replace(add, deletionVector=inline([0, 2]))]
    rest = _region_result(replace(add, deletionVector=inline([1, 3])), 3)
    whole = merge.actions_of(table.store, [*results, rest], ids=table.ids, now_ms=1)
    assert [action.path for action in whole if isinstance(action, Remove)] == [add.path]
    assert not any(isinstance(action, Add) for action in whole)
    assert len([action for action in whole if isinstance(action, MergedGenerations)]) == 3


def _region_result(mark: Add, region: int) -> MergeResult:
    merged = MergedGenerations(region=f"0000000{region}-0000-4000-8000-000000000000", generation=1)
    return MergeResult(rewrite=Rewrite(adds=(), removes=(), rows_in=0), marks=(mark,), merged=merged)


def test_a_patch_and_a_delete_reach_the_row_in_the_base() -> None:
    table = _table()
    _put(table, {"tailnum": "a", "seats": 1, "model": "A"}, _plane("b"))
    table.merge()
    with table.writer() as planes:
        planes.patch({"tailnum": "a", "seats": 2})
        planes.delete("b")
        planes.flush()
    table.merge()
    assert table.base_rows() == [{"tailnum": "a", "seats": 2, "model": "A"}]


def test_deleting_every_row_of_a_split_leaves_no_empty_split() -> None:
    table = _table()
    _put(table, _plane("a"))
    table.merge()
    with table.writer() as planes:
        planes.delete("a")
        planes.flush()
    table.merge()
    assert table.snapshot.splits == {}


def test_a_lone_delete_writes_nothing_but_the_progress() -> None:
    table = _table()
    _put(table, _plane("a"))
    table.merge()
    before = dict(table.snapshot.splits)
    with table.writer() as planes:
        planes.delete("nobody")
        planes.delete("a0")
        planes.flush()
    result = table.merge()
    assert result is not None
    assert dict(result.snapshot.splits) == before
    assert list(result.snapshot.merged_generations.values()) == [2]


def test_a_delete_followed_by_a_patch_is_a_new_row_of_those_fields_only() -> None:
    table = _table()
    _put(table, {"tailnum": "a", "seats": 1, "model": "A"})
    table.merge()
    with table.writer() as planes:
        planes.delete("a")
        planes.patch({"tailnum": "a", "seats": 2})
        planes.flush()
    table.merge()
    assert table.base_rows() == [_plane("a", 2)]


def test_an_older_merge_never_lands_under_a_newer_progress() -> None:
    table = _table()
    _put(table, _plane("a", 1))
    early = table.snapshot
    (first,) = merge.plan(table.store, early)
    _put(table, _plane("a", 2))
    (both,) = merge.plan(table.store, early)
    slow = table.execute(first)
    table.commit(early, both, table.execute(both))
    with pytest.raises(CommitConflict):
        table.commit(early, first, slow)
    (skipping,) = [MergeWork.from_json(both.to_json())]
    with pytest.raises(CommitConflict):
        table.commit(table.snapshot, skipping, table.execute(skipping))
    assert table.base_rows() == [_plane("a", 2)]


def _compact(table: KeyedTable, snapshot: Snapshot) -> list[Action]:
    (operation,) = merge_plan.plan(snapshot)
    return compaction.execute(table.store, operation, ids=table.ids, now_ms=1).actions


def _two_splits(table: KeyedTable) -> None:
    for name in "ab":
        _put(table, _plane(f"{name}1"), _plane(f"{name}2"), _plane(f"{name}3"))
        table.merge()


def test_a_compaction_of_an_input_makes_the_merge_plan_again() -> None:
    table = _table()
    _two_splits(table)
    _put(table, _plane("a1", 2))
    snapshot = table.snapshot
    (work,) = merge.plan(table.store, snapshot)
    result = table.execute(work)
    table.log.commit(snapshot, _compact(table, snapshot), operation="COMPACT")
    with pytest.raises(CommitConflict, match="Plan the deletion vector of the split again"):
        table.commit(snapshot, work, result)
    assert result.rewrite.adds[0].path not in table.snapshot.splits
    table.merge()
    rows = sorted((row["tailnum"], row["seats"]) for row in table.base_rows())
    assert rows == [("a1", 2), ("a2", 0), ("a3", 0), ("b1", 0), ("b2", 0), ("b3", 0)]


@pytest.mark.parametrize("marked_before", [False, True])
def test_a_delete_that_lands_during_a_compaction_is_never_undone(marked_before: bool) -> None:
    table = _table()
    _two_splits(table)
    if marked_before:
        with table.writer() as planes:
            planes.delete("a1")
            planes.flush()
        table.merge()
    snapshot = table.snapshot
    compacted = _compact(table, snapshot)
    with table.writer() as planes:
        planes.delete("a2")
        planes.flush()
    table.merge()
    with pytest.raises(CommitConflict, match="rows of it were deleted"):
        table.log.commit(snapshot, compacted, operation="COMPACT")
    after = table.snapshot
    table.log.commit(after, _compact(table, after), operation="COMPACT")
    left = {"a1", "a3", "b1", "b2", "b3"} - ({"a1"} if marked_before else set())
    assert {row["tailnum"] for row in table.base_rows()} == left
    assert table.snapshot.rows == len(left)
    assert len(table.snapshot.splits) == 1


def test_merged_generations_never_outrank_the_base_whatever_was_captured_when() -> None:
    table = _table()
    with table.writer() as planes:
        planes.put(_plane("a", 1))
        old = table.snapshot
        captured = captured_regions.capture(table.store, old, include_wal=True)
        planes.put(_plane("a", 2))
        planes.flush()
    table.merge()
    assert captured.above(table.snapshot).num_rows == 0
    assert captured.above(old).column("seats").to_pylist() == [1]
    assert waiting(table.store, old, include_wal=False).column("seats").to_pylist() == [1, 2]


def test_a_flush_between_capture_and_snapshot_neither_hides_nor_doubles_a_row() -> None:
    table = _table()
    with table.writer() as planes:
        planes.put(_plane("a", 1))
        captured = captured_regions.capture(table.store, table.snapshot, include_wal=True)
        planes.flush()
        assert captured.above(table.snapshot).column("seats").to_pylist() == [1]


def test_without_the_wal_only_flushed_records_are_seen() -> None:
    table = _table()
    with table.writer() as planes:
        planes.put(_plane("a"))
        planes.flush()
        planes.put(_plane("b"))
    assert waiting(table.store, table.snapshot, include_wal=False).column("tailnum").to_pylist() == ["a"]
    assert waiting(table.store, table.snapshot, include_wal=True).column("tailnum").to_pylist() == ["a", "b"]


def test_a_gap_between_progress_and_generations_stops_the_merge() -> None:
    table = _table()
    for _ in range(2):
        _put(table, _plane("a"))
    snapshot = table.snapshot
    (work,) = merge.plan(table.store, snapshot)
    region = work.region
    with pytest.raises(Corrupt, match=r"expected \[3, 4\] after"):
        merge._require_consecutive(region, 2, [*work.generations])


def test_a_missing_entry_of_a_generation_stops_the_merge_and_is_named() -> None:
    table = _table()
    _put(table, _plane("a"))
    (work,) = merge.plan(table.store, table.snapshot)
    key = keys.wal_entry_key(work.region, 2)
    table.store.delete([key])
    with pytest.raises(Corrupt, match=key):
        table.execute(work)


def test_work_travels_as_json() -> None:
    table = _table()
    _put(table, _plane("a"))
    table.merge()
    _put(table, _plane("a", 2))
    (work,) = merge.plan(table.store, table.snapshot)
    assert MergeWork.from_json(work.to_json()) == work
    assert len(work.base) == 1


def test_a_result_travels_as_json() -> None:
    table = _table()
    _put(table, _plane("a"))
    table.merge()
    _put(table, _plane("b"), _plane("c"))
    table.merge()
    _put(table, _plane("a", 2), _plane("b", 2))
    (work,) = merge.plan(table.store, table.snapshot)
    result = table.execute(work)
    assert (len(result.rewrite.adds), len(result.marks), len(result.rewrite.removes)) == (1, 1, 1)
    assert MergeResult.from_json(result.to_json()) == result


def test_a_keyed_table_with_windows_gets_every_row_into_its_window() -> None:
    schema = pa.schema(
        [
            pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("host", pa.string(), nullable=False),
            ("load", pa.float64()),
        ]
    )
    config = TableConfig(time_column="at", window_seconds=900, primary_key=("host", "at"))
    table = KeyedTable(MemoryStore("t")).create(schema, config)
    noon = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    times = [noon + dt.timedelta(minutes=minutes) for minutes in (-1, 0, 14, 15)]
    with table.writer() as rows:
        rows.put([{"at": at, "host": "a", "load": 1.0} for at in times])
        rows.flush()
        table.merge()
        rows.patch({"at": times[1], "host": "a", "load": 2.0})
        rows.delete(("a", times[2]))
        rows.flush()
    result = table.merge()
    assert result is not None
    windows = sorted((add.windowStart or 0, add.numRecords) for add in table.snapshot.splits.values())
    start = int(noon.timestamp())
    assert windows == [(start - 900, 1), (start, 1), (start + 900, 1)]
    assert {row["at"]: row["load"] for row in table.base_rows()} == {times[0]: 1.0, times[1]: 2.0, times[3]: 1.0}


def test_three_documents_in_any_raw_order_keep_one_record_each_with_the_newest_values() -> None:
    table = _table()
    order = random.Random(5)
    newest: dict[str, int] = {}
    with table.writer() as planes:
        for seats, name in enumerate(["a", "c", "a", "b", "a", "c", *order.choices("abc", k=30)]):
            planes.put(_plane(name, seats))
            newest[name] = seats
            if seats % 7 == 6:
                planes.flush()
                table.merge()
        planes.flush()
    table.merge()
    assert {row["tailnum"]: row["seats"] for row in table.base_rows()} == newest
