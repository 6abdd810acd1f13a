"""Planning of compaction: permitted merges (CS-1 to CS-3), worthwhile merges, and the pending work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from storage_core.compact import planner
from storage_core.compact.execute import is_too_large
from storage_core.compact.invariants import scope_of
from storage_core.compact.pending_work import PendingCompaction, group_by_window
from storage_core.compact.planner import choose
from storage_core.compact.policy import FINALIZED
from storage_core.compact.work import MOST_RUN_TARGETS, CompactionTask, Reason
from storage_core.data.settings.layout import CompactionSettings, Mode
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, MergeSkip
from storage_core.log.deletion_vector import inline
from tests.support.events import CONFIG, TABLE_ID, context, snapshot
from tests.support.merge_plan import plan


def _add(name: str, window: int | None = 0, *, size: int = 1000) -> Add:
    return Add(
        path=f"splits/{'null' if window is None else window}/{name}.parquet",
        size=size,
        modificationTime=1,
        numRecords=10,
        numMergeOps=0,
        windowStart=window,
        windowSeconds=3600,
        sortSchema="service|host|timestamp/V2",
        xxh3="0" * 16,
    )


def _paths(operations: list[CompactionTask]) -> list[list[str]]:
    return [[add.path for add in operation.inputs] for operation in operations]


def test_splits_of_one_window_are_merged_and_a_lone_split_is_left_alone() -> None:
    adds = [_add("a", 3600), _add("b", 0), _add("c", 3600), _add("d", None), _add("e", None)]
    operations = plan(snapshot(adds))
    assert _paths(operations) == [
        ["splits/3600/a.parquet", "splits/3600/c.parquet"],
        ["splits/null/d.parquet", "splits/null/e.parquet"],
    ]
    assert [operation.window for operation in operations] == [3600, None]


@pytest.mark.parametrize(
    "other",
    [
        {"sourceId": "s2"},
        {"partitionId": "p2"},
        {"docMappingRef": "abcdefghijklmnop"},
        {"sortSchema": "service|timestamp/V2"},
        {"sortSchema": None},
        {"windowSeconds": 900},
        {"windowStart": 3600},
    ],
    ids="-".join,
)
def test_splits_that_differ_in_scope_or_window_are_not_merged(other: dict[str, object]) -> None:
    assert plan(snapshot([_add("a"), replace(_add("b"), **other)])) == []  # type: ignore[arg-type]  # one field each


def test_the_name_of_a_sort_schema_does_not_separate() -> None:
    named = replace(_add("b"), sortSchema="old=service|host|timestamp/V2")
    assert scope_of(TABLE_ID, named) == scope_of(TABLE_ID, _add("a"))
    assert len(plan(snapshot([_add("a"), named]))) == 1


def test_the_inputs_are_in_the_order_of_their_commits() -> None:
    assert _paths(plan(snapshot([_add("z"), _add("m"), _add("a")]))) == [
        ["splits/0/z.parquet", "splits/0/m.parquet", "splits/0/a.parquet"]
    ]


def test_only_the_windows_asked_for_are_planned() -> None:
    adds = [_add("a", 0), _add("b", 0), _add("c", 3600), _add("d", 3600), _add("e", None), _add("f", None)]
    assert [operation.window for operation in plan(snapshot(adds), windows=[3600, None])] == [3600, None]
    assert plan(snapshot(adds), windows=[]) == []


def test_a_window_becomes_one_run_and_a_run_is_left_alone_by_little_that_is_late() -> None:
    config = replace(CONFIG, target_split_bytes=2000)
    adds = [_add("big", size=1000), _add("a", size=999), _add("b", size=500)]
    (finalizing,) = plan(snapshot(adds, config=config))
    assert ([add.path for add in finalizing.inputs], finalizing.merge_ops) == ([add.path for add in adds], FINALIZED)
    run = [replace(_add(name, size=1500), numMergeOps=FINALIZED) for name in ("run1", "run2")]
    assert plan(snapshot(run, config=config)) == []
    assert plan(snapshot([*run, _add("late", size=300)], config=config)) == []
    again = plan(snapshot([*run, _add("late", size=400)], config=config))
    assert [(len(each.inputs), each.merge_ops) for each in again] == [(3, FINALIZED + 1)]


def test_late_splits_of_a_finalized_window_are_merged_among_themselves() -> None:
    config = replace(CONFIG, target_split_bytes=2000)
    run = replace(_add("run", size=1500), numMergeOps=FINALIZED)
    (late,) = plan(snapshot([run, _add("a", size=70), _add("b", size=70)], config=config))
    assert ([add.path for add in late.inputs], late.merge_ops) == (["splits/0/a.parquet", "splits/0/b.parquet"], 1)


def test_a_window_of_many_targets_is_one_merge_in_parts() -> None:
    config = replace(CONFIG, target_split_bytes=100)
    adds = [_add(f"big{number}", size=100) for number in range(MOST_RUN_TARGETS)]
    (fitting,) = plan(snapshot(adds, config=config))
    assert (len(fitting.inputs), is_too_large(fitting)) == (MOST_RUN_TARGETS, False)
    (larger,) = plan(snapshot([*adds, _add("late", size=100)], config=config))
    assert (len(larger.inputs), is_too_large(larger)) == (MOST_RUN_TARGETS + 1, True)


def test_a_split_with_a_deletion_vector_is_planned_with_it_and_its_rows_are_not_counted() -> None:
    inputs = snapshot([replace(_add("a"), numRecords=5), replace(_add("b"), numRecords=5, deletionVector=inline([0]))])
    (operation,) = plan(inputs)
    assert CompactionTask.from_json(operation.to_json()).inputs[1].deletionVector == inline([0])
    (owed,) = group_by_window(choose(inputs))
    assert owed.rows == 9


def _high_delete_ratio(name: str, deleted: int, size: int = 100) -> Add:
    return replace(_add(name, size=size), numRecords=30, deletionVector=inline(range(deleted)))


def test_a_split_of_which_more_than_a_third_is_deleted_is_rewritten_alone_and_whatever_its_size() -> None:
    config = replace(CONFIG, target_split_bytes=2000)
    assert plan(snapshot([_high_delete_ratio("a", 10)], config=config)) == []
    assert _paths(plan(snapshot([_high_delete_ratio("a", 11)], config=config))) == [["splits/0/a.parquet"]]
    assert _paths(plan(snapshot([_high_delete_ratio("a", 11, size=5000)], config=config))) == [["splits/0/a.parquet"]]
    assert plan(snapshot([_high_delete_ratio("a", 10, size=5000)], config=config)) == []


def test_a_split_is_as_large_as_its_visible_rows() -> None:
    config = replace(CONFIG, target_split_bytes=2000)
    run = [replace(_add("a", size=1500), numMergeOps=FINALIZED), replace(_add("b", size=1500), numMergeOps=FINALIZED)]
    assert plan(snapshot([*run, _high_delete_ratio("c", 9, size=420)], config=config)) == []
    assert len(plan(snapshot([*run, _high_delete_ratio("c", 9, size=520)], config=config))) == 1


def test_an_active_mergeskip_keeps_a_split_out_until_it_runs_out() -> None:
    skip = MergeSkip(path=_add("a").path, skipTimestamp=0, reason="r", operation="compact", retryAfter=5000)
    adds = [_add("a"), _add("b")]
    assert plan(snapshot(adds, mergeskips=[skip], timestamp=4999)) == []
    assert plan(snapshot(adds, mergeskips=[skip], timestamp=4999), now_ms=5000) != []
    assert plan(snapshot(adds, mergeskips=[replace(skip, retryAfter=None)]), now_ms=10**15) == []
    assert plan(snapshot(adds, mergeskips=[replace(skip, operation="index")], timestamp=0)) != []


def test_splits_keep_the_sort_schema_and_window_they_were_written_with() -> None:
    changed = replace(CONFIG, sort_schema="host|timestamp/V2", window_seconds=900)
    (operation,) = plan(snapshot([_add("a"), _add("b")], config=changed))
    assert operation.context.order == context().order
    assert operation.context.window_seconds == 3600


def test_splits_whose_sort_schema_no_longer_fits_are_left_alone() -> None:
    foreign = [replace(_add(name), sortSchema="gone|timestamp/V2") for name in ("a", "b")]
    assert plan(snapshot(foreign)) == []


def test_debt_counts_only_what_a_compaction_would_read() -> None:
    adds = [_add("a", 0), _add("b", 0), _add("c", 3600), _add("d", None), _add("e", None, size=7)]
    assert group_by_window(choose(snapshot(adds))) == [
        PendingCompaction(0, 2, 20, 2000, 2000, 1, 1, (Reason.REQUESTED,)),
        PendingCompaction(None, 2, 20, 1007, 1007, 1, 1, (Reason.REQUESTED,)),
    ]
    assert group_by_window(choose(snapshot([_add("a", 0), _add("b", 3600)]))) == []


def test_a_table_without_windows_is_one_group() -> None:
    config = TableConfig(primary_key=("service",))
    adds = [replace(_add(name, None), windowSeconds=None, sortSchema="key(service)") for name in ("a", "b")]
    (operation,) = plan(snapshot(adds, config=config))
    assert (operation.window, operation.context.order.text) == (None, "key(service)")


def test_a_plan_comes_in_parts_of_whole_windows_unless_one_is_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "PART_INPUTS", 6)
    config = replace(CONFIG, compaction=CompactionSettings(factor=2, most_inputs=2, generations=1))
    counts = {0: 2, 3600: 4, 7200: 14, 10800: 2, None: 2}
    adds = [_add(f"{number:02}", window) for window, count in counts.items() for number in range(count)]
    chosen = choose(snapshot(adds, config=config), now_ms=0, mode=Mode.POLICY)
    parts = list(chosen.parts())
    assert [task for part in parts for task in part] == chosen.tasks()
    assert [[operation.window for operation in part] for part in parts] == [
        [0, 3600, 3600],
        [7200, 7200, 7200],
        [7200, 7200, 7200],
        [7200, 10800, None],
    ]
    assert list(replace(chosen, merges=chosen.merges.take(np.arange(0))).parts()) == []


def test_an_operation_travels_as_json() -> None:
    (operation,) = plan(snapshot([_add("a"), replace(_add("b"), minValues={"service": "é"}, nullCounts={"host": 1})]))
    assert CompactionTask.from_json(operation.to_json()) == operation
