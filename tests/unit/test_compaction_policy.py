"""The compaction policy merges the right splits at the right time. Repeated runs finalize all windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from storage_core.compact import policy
from storage_core.compact.policy import FINALIZED, Rules, Splits
from storage_core.compact.work import Merge, Reason
from storage_core.data.settings.layout import MOST_RUN_INPUTS, CompactionSettings, Mode

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS
RULES = Rules(settings=CompactionSettings(), target_bytes=1000, now_ms=NOW_MS, mode=Mode.POLICY)
REQUESTED = replace(RULES, mode=Mode.FINALIZE)


def _splits(
    sizes: Sequence[int],
    *,
    merges: Sequence[int] | int = 0,
    groups: Sequence[int] | None = None,
    cold: bool = False,
    rows: int = 1,
) -> Splits:
    """Return splits of one group (or of `groups`), the oldest first, one second apart."""
    count = len(sizes)
    group = np.array(groups if groups is not None else [0] * count, np.int64)
    return Splits(
        group=group,
        merges=np.array([merges] * count if isinstance(merges, int) else merges, np.int64),
        bytes=np.array(sizes, np.int64),
        rows=np.full(count, rows, np.int64),
        added_ms=NOW_MS - 1000 * np.arange(count, 0, -1),
        high_delete_ratio=np.zeros(count, np.bool_),
        skipped=np.zeros(count, np.bool_),
        cold=np.full(len(set(group.tolist())), cold, np.bool_),
    )


def choose(splits: Splits, rules: Rules) -> list[Merge]:
    return policy.choose(splits, rules).records()


def _rows(merges: list[Merge]) -> list[tuple[int, ...]]:
    return [merge.rows for merge in merges]


def test_nothing_comes_of_nothing() -> None:
    assert choose(_splits([]), RULES) == []


def test_ten_splits_of_one_generation_are_merged_and_nine_wait() -> None:
    assert choose(_splits([10] * 9), RULES) == []
    assert choose(_splits([10] * 10), RULES) == [Merge(tuple(range(10)), 0, FINALIZED, Reason.COUNT)]
    assert choose(_splits([*[10] * 10, 600]), RULES) == [Merge(tuple(range(10)), 0, 1, Reason.COUNT)]


def test_a_merge_takes_twelve_at_most_and_the_oldest_first() -> None:
    assert _rows(choose(_splits([10] * 21), RULES)) == [tuple(range(12))]
    assert _rows(choose(_splits([10] * 22), RULES)) == [tuple(range(12)), tuple(range(12, 22))]


def test_two_splits_of_the_target_size_together_do_not_wait_for_ten() -> None:
    assert choose(_splits([400, 400]), RULES) == []
    assert choose(_splits([400, 400, 200]), RULES) == [Merge((0, 1, 2), 0, FINALIZED, Reason.SIZE)]


def test_a_split_of_half_the_target_size_is_mature() -> None:
    assert choose(_splits([500] * 30), RULES) == []
    assert _rows(choose(_splits([500, *[10] * 10, 600]), RULES)) == [tuple(range(1, 11))]


def test_generations_are_not_mixed_and_the_last_one_is_mature() -> None:
    merges = [0] * 9 + [1] * 10 + [3] * 10 + [4] * 20
    found = choose(_splits([1] * len(merges), merges=merges), RULES)
    assert [(merge.rows, merge.merges) for merge in found] == [
        (tuple(range(9, 19)), 2),
        (tuple(range(19, 29)), 4),
    ]


def test_groups_are_not_mixed() -> None:
    assert choose(_splits([1] * 18, groups=[0] * 9 + [1] * 9), RULES) == []
    found = choose(_splits([1] * 20, groups=[0] * 10 + [1] * 10), RULES)
    assert [(merge.group, merge.rows) for merge in found] == [(0, tuple(range(10))), (1, tuple(range(10, 20)))]


def test_a_split_that_waited_two_days_is_merged_with_its_like_only() -> None:
    waited = _splits([1] * 19)
    added = waited.added_ms.copy()
    added[:9] = NOW_MS - 48 * HOUR_MS
    assert _rows(choose(replace(waited, added_ms=added), RULES)) == [tuple(range(9, 19))]
    added[9] = NOW_MS - 48 * HOUR_MS
    assert _rows(choose(replace(waited, added_ms=added), RULES)) == [tuple(range(10))]
    added[9] += 1
    assert _rows(choose(replace(waited, added_ms=added), RULES)) == [tuple(range(9, 19))]


def test_a_window_is_finalized_when_it_is_cold() -> None:
    assert choose(_splits([10, 700, 20]), RULES) == []
    assert choose(_splits([10, 700, 20], cold=True), RULES) == [Merge((0, 1, 2), 0, FINALIZED, Reason.LATE)]
    assert choose(_splits([10], cold=True), RULES) == []


def test_a_finalized_window_is_finalized_again_when_more_than_a_tenth_is_late() -> None:
    run = [450, 450]
    assert choose(_splits([*run, 100], merges=[FINALIZED, FINALIZED, 0], cold=True), RULES) == []
    assert choose(_splits([*run, 101], merges=[FINALIZED, FINALIZED, 0], cold=True), RULES) == [
        Merge((0, 1, 2), 0, FINALIZED + 1, Reason.LATE)
    ]


def test_a_finalized_window_is_finalized_again_when_too_many_files_are_late() -> None:
    few = [FINALIZED, *[1] * 8, *[2] * 8, *[3] * 8]
    assert choose(_splits([5000, *[1] * 24], merges=few, cold=True), RULES) == []
    (merge,) = choose(_splits([5000, *[1] * 25], merges=[*few, 0], cold=True), RULES)
    assert (len(merge.rows), merge.reason) == (26, Reason.FILES)


def test_a_window_that_was_merged_as_a_whole_while_hot_is_not_rewritten_for_a_few_late_bytes() -> None:
    (merged,) = choose(_splits([10] * 10), RULES)
    assert choose(_splits([100, 10], merges=[merged.merges, 0], cold=True), RULES) == []
    assert choose(_splits([100, 12], merges=[merged.merges, 0], cold=True), RULES) != []


def test_late_splits_of_a_finalized_window_are_merged_among_themselves() -> None:
    late = _splits([5000, *[1] * 10], merges=[FINALIZED, *[0] * 10], cold=True)
    assert choose(late, RULES) == [Merge(tuple(range(1, 11)), 0, 1, Reason.COUNT)]


def test_a_window_with_too_many_splits_for_one_merge_gets_there_in_steps() -> None:
    count = MOST_RUN_INPUTS + 1
    found = choose(_splits([1] * count, cold=True), RULES)
    assert {len(rows) for rows in _rows(found)} <= {12, 10, 11}
    mature = choose(_splits([1] * count, merges=4, cold=True), RULES)
    assert [(len(merge.rows), merge.merges) for merge in mature] == [(MOST_RUN_INPUTS, 4)]
    assert [len(rows) for rows in _rows(choose(_splits([1] * (2 * count)), REQUESTED))] == [256, 256, 2]


def test_a_window_of_too_many_rows_for_one_task_becomes_one_run_all_the_same() -> None:
    few = replace(RULES, settings=CompactionSettings(run_rows=100))
    for rows in (33, 34):
        assert choose(_splits([10] * 3, rows=rows, cold=True), few) == [Merge((0, 1, 2), 0, FINALIZED, Reason.LATE)]
    assert choose(_splits([10] * 12, rows=50), few) == [], "half the rows of a merge are mature, and it is not cold"
    assert _rows(choose(_splits([10] * 12, rows=49), few)) == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    requested = replace(few, mode=Mode.FINALIZE)
    assert choose(_splits([10] * 5, rows=40), requested) == [Merge(tuple(range(5)), 0, FINALIZED, Reason.REQUESTED)]
    assert choose(_splits([10] * 5, rows=40, merges=FINALIZED), requested) == []


def test_late_splits_of_a_large_run_wait_for_a_tenth_of_it() -> None:
    few = replace(RULES, settings=CompactionSettings(run_rows=100))
    run = [FINALIZED] * 9
    assert choose(_splits([100] * 10, rows=60, merges=[*run, 0], cold=True), few) == []
    (merge,) = choose(_splits([*[100] * 9, 101], rows=60, merges=[*run, 0], cold=True), few)
    assert (len(merge.rows), merge.merges) == (10, FINALIZED + 1)


def test_of_more_runs_than_are_merged_at_once_the_oldest_become_runs_first() -> None:
    mature = _splits([600] * 300, cold=True)
    (first,) = choose(mature, RULES)
    assert (first.rows, first.merges) == (tuple(range(46)), FINALIZED)
    left = _splits([600] * 300, merges=[*[FINALIZED] * 46, *[0] * 254], cold=True)
    (second,) = choose(left, RULES)
    assert (len(second.rows), second.merges) == (300, FINALIZED + 1)
    many = choose(_splits([600] * 1000, cold=True), RULES)
    assert [(len(each.rows), each.merges) for each in many] == [
        (256, FINALIZED),
        (256, FINALIZED + 1),
        (238, FINALIZED + 2),
    ], "each has a number of its own"
    three = [*[FINALIZED] * 256, *[FINALIZED + 1] * 256, *[FINALIZED + 2] * 238, *[0] * 250]
    assert [len(each.rows) for each in choose(_splits([600] * 1000, merges=three, cold=True), RULES)] == [1000]
    assert choose(_splits([600] * 300), RULES) == [], "not before the window is cold"


def test_what_is_left_of_a_lane_waits_whatever_lane_comes_after_it() -> None:
    heavy = replace(_splits([10] * 14, merges=[0] * 11 + [1] * 3), rows=np.array([1] * 9 + [24] * 5))
    few = replace(RULES, settings=CompactionSettings(factor=3, most_inputs=9, run_rows=50))
    assert _rows(choose(heavy, few)) == [tuple(range(9)), (11, 12)]


def test_a_skipped_split_is_left_out_and_does_not_ask_for_the_same_work_again() -> None:
    three = _splits([100, 100, 100], merges=[0, FINALIZED, 0], cold=True)
    skipped = replace(three, skipped=np.array([False, True, False]))
    assert choose(skipped, RULES) == [Merge((0, 2), 0, FINALIZED + 1, Reason.LATE)]
    left = _splits([100, 200], merges=[FINALIZED, FINALIZED + 1], cold=True)
    for rules in (RULES, REQUESTED):
        assert choose(replace(left, skipped=np.array([True, False])), rules) == []
        assert choose(left, rules) != []


def test_a_worn_member_of_a_run_is_rewritten_alone_and_stays_in_it() -> None:
    high_delete_ratio = np.array([False, True, True])
    run = replace(_splits([600] * 3, merges=FINALIZED, cold=True), high_delete_ratio=high_delete_ratio)
    for rules in (RULES, REQUESTED):
        assert choose(run, rules) == [
            Merge((1,), 0, FINALIZED, Reason.HIGH_DELETE_RATIO),
            Merge((2,), 0, FINALIZED, Reason.HIGH_DELETE_RATIO),
        ]


def test_a_worn_split_that_is_rewritten_alone_keeps_its_number_whatever_it_is() -> None:
    high_delete_ratio = np.array([False, True, True])
    loose = replace(_splits([600] * 3, merges=[4, 2, 0]), high_delete_ratio=high_delete_ratio)
    assert choose(loose, RULES) == [
        Merge((1,), 0, 2, Reason.HIGH_DELETE_RATIO),
        Merge((2,), 0, 0, Reason.HIGH_DELETE_RATIO),
    ]
    older = replace(_splits([600] * 3, merges=[FINALIZED + 1, FINALIZED, 0]), high_delete_ratio=high_delete_ratio)
    assert choose(older, RULES) == [
        Merge((1,), 0, FINALIZED, Reason.HIGH_DELETE_RATIO),
        Merge((2,), 0, 0, Reason.HIGH_DELETE_RATIO),
    ]


def test_who_asks_gets_one_run_of_a_window_that_is_not_cold() -> None:
    assert choose(_splits([10, 700, 20]), REQUESTED) == [Merge((0, 1, 2), 0, FINALIZED, Reason.REQUESTED)]
    assert choose(_splits([100, 3], merges=[FINALIZED, 0]), REQUESTED) == [
        Merge((0, 1), 0, FINALIZED + 1, Reason.REQUESTED)
    ]


def test_no_split_is_in_two_merges_and_every_merge_stays_in_its_group() -> None:
    random = np.random.default_rng(5)
    for _ in range(200):
        count = int(random.integers(1, 400))
        groups = np.unique(np.sort(random.integers(0, 5, count)), return_inverse=True)[1]
        sizes, merges = random.integers(0, 700, count), random.choice([0, 1, 2, 3, 4, FINALIZED, FINALIZED + 1], count)
        splits = _splits(sizes.tolist(), merges=merges.tolist(), groups=groups.tolist(), cold=bool(count % 2))
        splits = replace(splits, high_delete_ratio=random.random(count) < 0.1, skipped=random.random(count) < 0.1)
        for rules in (RULES, REQUESTED):
            found = choose(splits, rules)
            rows = [row for merge in found for row in merge.rows]
            assert len(rows) == len(set(rows))
            assert not splits.skipped[rows].any()
            assert all(set(splits.group[list(merge.rows)]) == {merge.group} for merge in found)
            assert all(first < second for merge in found for first, second in pairwise(merge.rows))
            assert all(len(merge.rows) > 1 or splits.high_delete_ratio[merge.rows[0]] for merge in found)
