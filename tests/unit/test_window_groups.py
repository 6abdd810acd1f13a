"""Windows are grouped into tasks. The driver executes the tasks concurrently and measures their total time."""

from __future__ import annotations

import threading
from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest

from jobs.spark import spark
from jobs.spark.spark import Stopwatch
from storage_core.base.errors import Unavailable
from storage_core.compact.steps import GroupLimits, bundled, grouped
from storage_core.compact.work import CompactionTask
from storage_core.log.actions import Add
from storage_core.log.job_run import as_completed
from tests.support.events import context


def merge(window: int | None, size: int) -> CompactionTask:
    add = Add(path=f"splits/{window}-{size}.parquet", size=size, modificationTime=1)
    return CompactionTask(window, (add,), context())


def test_the_largest_windows_come_first_and_each_window_is_in_one_group() -> None:
    sizes = [(0, 10), (3600, 70), (0, 20), (None, 40), (7200, 5), (10800, 5)]
    operations = [merge(*each) for each in sizes]
    groups = grouped(operations, GroupLimits(windows=2, bytes=60, parts=32))
    found = [[(each.window, each.inputs[0].size) for each in group] for group in groups]
    assert found == [[(3600, 70)], [(None, 40), (0, 20), (0, 10)], [(7200, 5), (10800, 5)]]


def test_small_runs_are_one_group_and_large_ones_few() -> None:
    windows = [merge(3600 * number, 1000) for number in range(200)]
    assert len(grouped(windows)) == 1
    assert [len(group) for group in grouped(windows, GroupLimits(bytes=1, parts=4))] == [50, 50, 50, 50]
    assert [len(group) for group in grouped(windows, GroupLimits(windows=64))] == [64, 64, 64, 8]
    assert grouped([]) == []


def test_small_merges_share_a_task_and_a_large_one_has_its_own() -> None:
    group = [merge(0, size) for size in (90, 40, 30, 20, 10, 0, 0, 0)]
    found = bundled(group, GroupLimits(task_merges=3, task_bytes=80))
    assert [[each.inputs[0].size for each in bundle] for bundle in found] == [[90], [40, 30], [20, 10, 0], [0, 0]]
    assert bundled([merge(0, 0)]) == [[merge(0, 0)]]
    assert bundled([]) == []


def test_what_has_ended_is_there_while_another_call_still_runs_and_an_error_stops_nobody() -> None:
    last = threading.Event()

    def slow() -> str:
        assert last.wait(120)
        return "slow"

    def bad() -> str:
        raise Unavailable("bytes")

    found: list[str] = []
    for number, outcome in as_completed([slow, bad, lambda: "quick"], at_once=2):
        found.append(f"{number} {outcome}")
        if len(found) == 2:
            last.set()
    assert (sorted(found[:2]), found[2:]) == (["1 bytes", "2 quick"], ["0 slow"])


def test_calls_that_were_not_begun_are_not_made_when_the_caller_stops() -> None:
    begun, goes_on = list[int](), threading.Event()

    def call(number: int) -> None:
        begun.append(number)
        assert number == 0 or goes_on.wait(120)

    running = as_completed([partial(call, number) for number in range(50)], at_once=1)
    next(running)
    running.close()
    goes_on.set()
    assert len(begun) <= 2


def test_time_that_several_threads_spend_at_once_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count()
    monkeypatch.setattr(spark, "time", SimpleNamespace(perf_counter=lambda: next(looks)))
    watch = Stopwatch()
    with watch:
        with watch:
            pass
        assert watch.seconds == 0
    assert watch.seconds == 1
    with watch:
        pass
    assert watch.seconds == 2
