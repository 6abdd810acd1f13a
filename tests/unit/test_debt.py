"""Pending work per window: reason, bytes, the next run's cost, and the excluded work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.compact import pending_work as next_run
from storage_core.compact.pending_work import NextRun, PendingWindow, Skipped, Task, find_pending_windows
from storage_core.compact.work import MOST_INPUTS
from storage_core.data.settings.layout import Mode
from storage_core.log.actions import Add, MergeSkip
from storage_core.log.deletion_vector import inline
from tests.support.events import CONFIG, HOUR_SECONDS, snapshot
from tests.support.many_splits import SPLIT_BYTES, snapshot_of_many
from tests.support.merge_plan import plan

RETENTION_MS = 10 * HOUR_MS
KEEPING = replace(CONFIG, retention_ms=RETENTION_MS)


def _add(name: str, window: int | None, *, size: int = 1000) -> Add:
    return Add(
        path=f"splits/{'null' if window is None else window}/{name}.parquet",
        size=size,
        modificationTime=1,
        numRecords=10,
        numMergeOps=0,
        windowStart=window,
        windowSeconds=HOUR_SECONDS,
        sortSchema=CONFIG.sort_schema,
    )


def _skip(add: Add, *, until: int | None = 5000, count: int = 2) -> MergeSkip:
    return MergeSkip(
        path=add.path, skipTimestamp=0, reason="it is torn", operation="compact", retryAfter=until, skipCount=count
    )


def _tasks(found: Sequence[PendingWindow]) -> list[tuple[int | None, Task, int]]:
    return [(each.window_start, each.task, each.splits) for each in found]


def test_a_window_to_compact_says_why_and_what_the_next_run_reads_and_writes() -> None:
    high_delete_ratio = replace(_add("b", 0, size=600), deletionVector=inline(range(5)))
    assert find_pending_windows(snapshot([_add("a", 0), high_delete_ratio, _add("alone", 3600)]), now_ms=0) == [
        PendingWindow(
            window_start=0,
            task=Task.COMPACT,
            reasons=("requested",),
            splits=2,
            rows=15,
            bytes=1600,
            merges=1,
            outputs=1,
            next_run=NextRun(splits=2, outputs=1, read_bytes=1600, written_bytes=1300),
        )
    ]


def test_a_window_that_has_left_is_to_expire_and_not_to_compact_and_costs_no_request_but_the_commit() -> None:
    adds = [_add(name, window) for window in (0, HOUR_SECONDS) for name in ("a", "b")]
    held = snapshot(adds, config=KEEPING)
    assert _tasks(find_pending_windows(held, now_ms=HOUR_MS + RETENTION_MS - 1)) == [
        (0, Task.COMPACT, 2),
        (HOUR_SECONDS, Task.COMPACT, 2),
    ]
    found = find_pending_windows(held, now_ms=HOUR_MS + RETENTION_MS)
    assert _tasks(found) == [(0, Task.EXPIRE, 2), (HOUR_SECONDS, Task.COMPACT, 2)]
    assert found[0] == PendingWindow(
        window_start=0, task=Task.EXPIRE, reasons=("retention",), splits=2, rows=20, bytes=2000, next_run=NextRun()
    )


def test_a_window_whose_splits_are_skipped_waits_and_says_why_how_often_and_until_when() -> None:
    adds = [_add("a", 0), _add("b", 0), _add("c", None), _add("d", None), _add("e", None)]
    skips = [_skip(adds[0]), _skip(adds[2], until=None, count=7)]
    held = snapshot(adds, mergeskips=skips)
    waiting, compacting = find_pending_windows(held, now_ms=4999)
    assert waiting == PendingWindow(
        window_start=0,
        task=Task.WAIT,
        reasons=("skipped",),
        splits=1,
        rows=10,
        bytes=1000,
        skipped=(Skipped(path=adds[0].path, reason="it is torn", count=2, until=5000),),
    )
    assert (compacting.window_start, compacting.task, compacting.splits) == (None, Task.COMPACT, 2)
    assert compacting.skipped == (Skipped(path=adds[2].path, reason="it is torn", count=7, until=None),)
    assert _tasks(find_pending_windows(held, now_ms=5000)) == [(0, Task.COMPACT, 2), (None, Task.COMPACT, 2)]


def test_skips_of_windows_that_leave_and_of_splits_that_are_gone_hold_up_nothing() -> None:
    adds = [_add("a", 0), _add("b", 0)]
    deleted = _add("gone", 7200)
    held = snapshot(adds, config=KEEPING, mergeskips=[_skip(adds[0], until=None), _skip(deleted, until=None)])
    assert _tasks(find_pending_windows(held, now_ms=HOUR_MS + RETENTION_MS)) == [(0, Task.EXPIRE, 2)]


def test_debt_of_very_many_splits_says_what_the_next_run_takes_of_it() -> None:
    many = snapshot_of_many(MOST_INPUTS * 5 // 4, 3)
    found = find_pending_windows(many, now_ms=10**13, mode=Mode.POLICY)
    planned = plan(many, now_ms=10**13, mode=Mode.POLICY)
    assert sum(each.splits for each in found) > MOST_INPUTS * 6 // 5
    assert MOST_INPUTS <= sum(len(each.inputs) for each in planned) < MOST_INPUTS + 256
    assert sum(each.next_run.splits for each in found) == sum(len(each.inputs) for each in planned)
    assert all(each.next_run.read_bytes == each.next_run.splits * SPLIT_BYTES for each in found)
    assert all(0 < each.next_run.splits < each.splits for each in found)


DAY_SECONDS = 24 * HOUR_SECONDS
JOINING = replace(CONFIG, compaction=replace(CONFIG.compaction, coarsen_to=DAY_SECONDS, coarsen_after_ms=0))


def test_cold_windows_that_a_scheduled_run_joins_say_so_and_what_the_next_run_reads_and_writes() -> None:
    adds = [_add("a", 0), _add("b", 0), _add("c", HOUR_SECONDS), _add("torn", 2 * HOUR_SECONDS)]
    fresh = [_add("d", DAY_SECONDS), _add("e", DAY_SECONDS)]
    held = snapshot([*adds, *fresh], config=JOINING, mergeskips=[_skip(adds[-1], until=None)])
    found = find_pending_windows(held, now_ms=DAY_SECONDS * 1000, mode=Mode.POLICY)
    assert found == [
        PendingWindow(
            window_start=start,
            task=Task.COMPACT,
            reasons=("coarsen",),
            splits=splits,
            rows=10 * splits,
            bytes=1000 * splits,
            outputs=outputs,
            next_run=NextRun(splits=splits, outputs=outputs, read_bytes=1000 * splits, written_bytes=1000 * splits),
        )
        for start, splits, outputs in ((0, 2, 1), (HOUR_SECONDS, 1, 0))
    ] + [found[-1]]
    assert _tasks(found[-1:]) == [(2 * HOUR_SECONDS, Task.WAIT, 1)]
    for early in (
        find_pending_windows(held, now_ms=DAY_SECONDS * 1000 - 1, mode=Mode.POLICY),
        find_pending_windows(held, now_ms=DAY_SECONDS * 1000),
    ):
        assert "coarsen" not in {reason for each in early for reason in each.reasons}, "nor one that was not scheduled"
    all_of_them = find_pending_windows(held, now_ms=DAY_SECONDS * 1000, mode=Mode.REWINDOW)
    assert [(each.reasons, each.splits) for each in all_of_them] == [(("coarsen",), splits) for splits in (2, 1, 1)]


def test_debt_of_very_many_cold_windows_says_what_the_next_run_joins() -> None:
    adds = [_add(str(number), number * HOUR_SECONDS) for number in range(60)]
    held = snapshot(adds, config=replace(JOINING, target_split_bytes=5_000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(next_run, "MOST_INPUTS", 12)
        found = find_pending_windows(held, now_ms=10**13, mode=Mode.POLICY)
    assert sum(each.splits for each in found) == 60
    assert sum(each.next_run.splits for each in found) == 10, "two tasks of five splits"
    assert sum(each.next_run.outputs for each in found) == 2


def test_without_anything_to_do_there_is_no_debt() -> None:
    assert find_pending_windows(snapshot([_add("a", 0), _add("b", 3600)], config=KEEPING), now_ms=0) == []
