"""Planning looks at columns: what it costs grows with the merges it makes, not with the splits that there are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from storage_core.compaction.planner import MOST_INPUTS, debt, plan
from storage_core.compaction.policy import Mode
from storage_core.testkit.many_splits import snapshot_of_many

SPLITS = 40_000


def _calls(work: Callable[[], object]) -> int:
    """Python functions called, generators resumed included."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("windows", [1, 400])
@pytest.mark.parametrize("mode", list(Mode))
def test_debt_calls_no_function_per_split(windows: int, mode: Mode) -> None:
    many = snapshot_of_many(SPLITS, windows)
    assert sum(each.splits for each in debt(many, mode=mode)) >= SPLITS * 0.9
    assert _calls(lambda: debt(many, mode=mode)) < SPLITS


def test_windows_with_nothing_to_do_cost_nothing() -> None:
    alone = snapshot_of_many(SPLITS, SPLITS)
    assert _calls(lambda: plan(alone)) < SPLITS / 20


@pytest.mark.parametrize("windows", [1, 400])
def test_a_plan_replaces_a_bounded_number_of_splits_and_begins_in_every_window(windows: int) -> None:
    many = snapshot_of_many(SPLITS, windows)
    for mode in Mode:
        operations = plan(many, mode=mode)
        inputs = sum(len(each.inputs) for each in operations)
        assert MOST_INPUTS <= inputs < MOST_INPUTS + 256
        assert operations == plan(many, mode=mode)
    planned = plan(many, mode=Mode.POLICY)
    assert {each.window for each in planned} == {each.window_start for each in debt(many, mode=Mode.POLICY)}
