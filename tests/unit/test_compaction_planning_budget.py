"""The cost of compaction planning grows with the number of planned merges, not with the number of splits.

The tests count steps, never seconds. A step is an executed line of Python, a call of a function (also of a C function),
or a created record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from storage_core.compact.pending_work import PendingCompaction, group_by_window
from storage_core.compact.planner import choose
from storage_core.compact.work import CompactionTask, Merge
from storage_core.data.settings.layout import Mode
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import FILES_SCHEMA
from tests.support.many_splits import snapshot_of_many, with_splits
from tests.support.merge_plan import plan
from tests.support.steps import steps_of

SPLITS = 40_000
FEW_INPUTS = 200
INPUTS = 10_000


def _per_split(snapshot_of: Callable[[int], Snapshot], work: Callable[[Snapshot], object]) -> float:
    """Return by how many steps the cost grows per split. A loop over splits takes at least 1 step per split."""
    few, many = (steps_of(partial(work, snapshot_of(count))).count for count in (SPLITS // 2, SPLITS))
    return (many - few) / (SPLITS // 2)


def _debts(snapshot: Snapshot, mode: Mode) -> list[PendingCompaction]:
    return group_by_window(choose(snapshot, mode=mode))


@pytest.mark.parametrize("windows", [1, 400])
@pytest.mark.parametrize("mode", list(Mode))
def test_debt_takes_no_step_per_split(windows: int, mode: Mode) -> None:
    # A merge has about twelve input splits. A loop over merges therefore takes less than half a step per split.
    assert _per_split(lambda count: snapshot_of_many(count, windows), partial(_debts, mode=mode)) < 1 / 2
    many = snapshot_of_many(SPLITS, windows)
    assert sum(each.splits for each in _debts(many, mode=mode)) >= SPLITS * 0.9
    steps = steps_of(lambda: _debts(many, mode=mode))
    assert (steps.made(Add), steps.made(Merge), steps.made(PendingCompaction)) == (0, 0, windows)


@pytest.mark.parametrize("windows", [1, 400])
@pytest.mark.parametrize("mode", list(Mode))
def test_a_plan_makes_records_only_of_what_it_replaces(windows: int, mode: Mode) -> None:
    planned = partial(plan, mode=mode, most_inputs=FEW_INPUTS)
    assert _per_split(lambda count: snapshot_of_many(count, windows), planned) < 1 / 2
    many = snapshot_of_many(SPLITS, windows)
    operations = planned(many)
    steps = steps_of(lambda: planned(many))
    assert steps.made(Add) == sum(len(each.inputs) for each in operations) <= FEW_INPUTS + 256
    assert steps.made(Merge) == steps.made(CompactionTask) == len(operations)


def test_windows_with_nothing_to_do_cost_nothing() -> None:
    assert _per_split(lambda count: snapshot_of_many(count, count), plan) < 1 / 100


def test_scopes_and_equal_ages_cost_no_step_per_split() -> None:
    assert _per_split(_of_many_sources, partial(_debts, mode=Mode.POLICY)) < 1 / 2


@pytest.mark.parametrize("mode", list(Mode))
def test_partitions_cost_no_step_per_split(mode: Mode) -> None:
    def of_partitions(splits: int) -> Snapshot:
        return snapshot_of_many(splits, 100, partitions=20)

    assert _per_split(of_partitions, partial(_debts, mode=mode)) < 1 / 2
    assert _per_split(of_partitions, partial(plan, mode=mode, most_inputs=FEW_INPUTS)) < 1 / 2


def test_ten_thousand_partitions_in_a_hundred_windows_take_steps_per_partition_and_not_per_split() -> None:
    """There are a million groups, a thousand of which have two splits to merge.

    One step per group would be a million steps.
    """
    groups = 10_000 * 100
    many = snapshot_of_many(groups + 1_000, 100, partitions=10_000)
    operations = plan(many, mode=Mode.FINALIZE)
    assert len(operations) == 1_000
    assert {len(each.inputs) for each in operations} == {2}
    assert all(len({add.partitionId for add in each.inputs}) == 1 for each in operations)
    steps = steps_of(lambda: plan(many, mode=Mode.FINALIZE, most_inputs=FEW_INPUTS))
    assert steps.made(Add) <= FEW_INPUTS + 256
    assert steps.count < 200 * 10_000


def _of_many_sources(splits: int) -> Snapshot:
    """Return splits of twenty sources, all added by one commit."""
    many = snapshot_of_many(splits, 1)
    files = many.splits.table()
    source = pa.array([f"source {number % 20}" for number in range(splits)])
    for name, values in (("sourceId", source), ("addedAtVersion", pa.array(np.ones(splits, np.int64)))):
        files = files.set_column(FILES_SCHEMA.get_field_index(name), FILES_SCHEMA.field(name), values)
    return with_splits(many, files)


@pytest.mark.parametrize("windows", [1, 400])
def test_a_plan_replaces_a_bounded_number_of_splits_and_begins_in_every_window(windows: int) -> None:
    many = snapshot_of_many(SPLITS, windows)
    for mode in Mode:
        operations = plan(many, mode=mode, most_inputs=INPUTS)
        inputs = sum(len(each.inputs) for each in operations)
        assert INPUTS <= inputs < INPUTS + 256 < SPLITS
        assert operations == plan(many, mode=mode, most_inputs=INPUTS)
    planned = plan(many, mode=Mode.POLICY, most_inputs=INPUTS)
    assert {each.window for each in planned} == {each.window_start for each in _debts(many, mode=Mode.POLICY)}


@pytest.mark.parametrize("manifests", [1, 7])
def test_the_plan_does_not_depend_on_where_the_state_lists_a_split(manifests: int) -> None:
    many = snapshot_of_many(2000, 3)
    files = many.splits.table()
    # The splits alternate between two scopes, and each commit adds several splits. Planning must therefore put the
    # scopes in a fixed order. Within a scope, planning must also put splits of the same commit in a fixed order.
    partition = pa.array(["b", "a"] * 1000)
    files = files.set_column(FILES_SCHEMA.get_field_index("partitionId"), FILES_SCHEMA.field("partitionId"), partition)
    shuffled = files.take(pa.array(np.random.default_rng(3).permutation(len(files))))
    step = len(files) // manifests + 1
    elsewhere = with_splits(many, *(shuffled.slice(at, step) for at in range(0, len(files), step)))
    listed = with_splits(many, files)
    for mode in Mode:
        assert plan(elsewhere, mode=mode) == plan(listed, mode=mode)
        assert _debts(elsewhere, mode=mode) == _debts(listed, mode=mode)
    planned = plan(listed, mode=Mode.POLICY)
    assert {add.partitionId for each in planned for add in each.inputs[:1]} == {"a", "b"}
