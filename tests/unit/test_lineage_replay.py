"""A repair finds the live splits without the log, for all cases of rewrites and replaced files that remain."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

from storage_core.log.actions import Add
from storage_core.maintain.recovered_splits import Choice, Evidence, FoundSplit, choose
from storage_core.split.metadata import FileOrigin, Lineage, MergedRange, Operation

REGION = "00112233-4455-6677-8899-aabbccddeeff"


def found(name: str, rows: int = 1, *, lineage: Lineage | None = None, planned: int = 0) -> FoundSplit:
    origin = FileOrigin(
        table_id="t", table_schema="{}", configuration={}, planned_version=planned, lineage=lineage or Lineage()
    )
    return FoundSplit(add=Add(path=name, size=1, modificationTime=1, numRecords=rows), origin=origin)


def rewritten(
    name: str, rows: int, operation: str, replaces: Mapping[str, int], *, merged: tuple[int, int] | None = None
) -> FoundSplit:
    kind: Operation = "compact" if merged is None else "merge"
    taken = None if merged is None else MergedRange(region=REGION, after=merged[0], generation=merged[1])
    return found(name, rows, lineage=Lineage(operation=kind, operation_id=operation, replaces=replaces, merged=taken))


def live(*splits: FoundSplit, evidence: Evidence | None = None) -> set[str]:
    """Return the live splits, and check that they do not depend on the order of the files."""
    chosen: list[Choice] = [choose(order, evidence or Evidence()) for order in permutations(splits)]
    assert all(each.live.keys() == chosen[0].live.keys() for each in chosen)
    return set(chosen[0].live)


def at_hand(*generations: int) -> Evidence:
    return Evidence(generations={REGION: frozenset(generations)})


def test_what_a_compaction_replaced_is_not_live() -> None:
    assert live(found("a"), found("b"), rewritten("ab", 2, "1", {"a": 1, "b": 1})) == {"ab"}


def test_what_was_replaced_twice_over_is_not_live() -> None:
    splits = (
        found("a"),
        found("b"),
        found("c"),
        rewritten("ab", 2, "1", {"a": 1, "b": 1}),
        rewritten("abc", 3, "2", {"ab": 2, "c": 1}),
    )
    assert live(*splits) == {"abc"}


def test_a_compaction_that_was_killed_half_way_does_not_count_while_its_inputs_are_there() -> None:
    assert live(found("a", 3), found("b", 3), rewritten("first half", 3, "1", {"a": 3, "b": 3})) == {"a", "b"}


def test_half_a_compaction_is_better_than_nothing_when_its_inputs_are_gone() -> None:
    assert live(rewritten("first half", 3, "1", {"a": 3, "b": 3})) == {"first half"}


def test_of_two_runs_of_one_compaction_one_counts() -> None:
    twins = (rewritten("x", 2, "1", {"a": 1, "b": 1}), rewritten("y", 2, "2", {"a": 1, "b": 1}))
    assert len(live(found("a"), found("b"), *twins)) == 1


def test_of_two_runs_the_one_that_others_built_on_counts() -> None:
    splits = (
        rewritten("killed", 2, "1", {"a": 1, "b": 1}),
        rewritten("second", 2, "2", {"a": 1, "b": 1}),
        rewritten("later", 3, "3", {"second": 2, "c": 1}),
    )
    assert live(found("a"), found("b"), found("c"), *splits) == {"later"}


def test_a_merge_whose_generations_are_there_is_put_off_and_merged_again() -> None:
    merge = rewritten("m", 3, "1", {"a": 2}, merged=(0, 1))
    assert live(found("a", 2), merge, evidence=at_hand(1)) == {"a"}
    assert choose([found("a", 2), merge], at_hand(1)).merged == {}


def test_a_merge_whose_generations_are_gone_counts() -> None:
    merge = rewritten("m", 3, "1", {"a": 2}, merged=(0, 1))
    assert live(found("a", 2), merge) == {"m"}
    assert choose([found("a", 2), merge], Evidence()).merged == {REGION: 1}


def test_a_merge_below_one_that_counts_is_not_put_off() -> None:
    """Merge progress is only the last generation. Without this rule, no merge would read the first generations."""
    first = rewritten("new keys", 2, "1", {}, merged=(0, 1))
    second = rewritten("more keys", 2, "2", {}, merged=(1, 2))
    assert live(first, second, evidence=at_hand(1)) == {"new keys", "more keys"}


def test_two_runs_of_one_merge_never_count_both() -> None:
    assert len(live(rewritten("x", 2, "1", {}, merged=(0, 1)), rewritten("y", 2, "2", {}, merged=(0, 1)))) == 1


def test_a_split_that_was_deleted_whole_is_named_by_another_output() -> None:
    assert live(found("a"), found("b"), rewritten("m", 1, "1", {"a": 1, "b": 1}, merged=(0, 1))) == {"m"}


def test_the_outputs_of_one_operation_count_together() -> None:
    outputs = (rewritten("x", 2, "1", {"a": 4}), rewritten("y", 2, "1", {"a": 4}))
    assert live(found("a", 4), *outputs) == {"x", "y"}


def test_a_split_that_the_log_removed_stays_removed_and_what_it_replaced_too() -> None:
    evidence = Evidence(live=frozenset({"a", "b"}), deleted=frozenset({"ab"}))
    choice = choose([rewritten("ab", 2, "1", {"a": 1, "b": 1})], evidence)
    assert choice.live == {}
    assert choice.replaced == {"a", "b"}


def test_a_run_that_lost_against_a_known_removal_does_not_count() -> None:
    evidence = Evidence(live=frozenset({"winner"}), deleted=frozenset({"a", "b"}))
    assert live(rewritten("loser", 2, "1", {"a": 1, "b": 1}), evidence=evidence) == set()


def test_a_merge_of_generations_that_a_readable_commit_merged_does_not_count() -> None:
    taken = (MergedRange(region=REGION, after=0, generation=2),)
    killed = rewritten("killed", 2, "1", {}, merged=(0, 1))
    next_one = rewritten("next", 2, "2", {}, merged=(2, 3))
    assert live(killed, next_one, evidence=Evidence(merged={REGION: 2}, ranges=taken)) == {"next"}


def test_splits_that_nothing_vouches_for_are_named() -> None:
    choice = choose([found("a"), found("b"), found("c"), rewritten("ab", 2, "1", {"a": 1, "b": 1})], Evidence())
    assert choice.unproven == ("c", "ab")
    assert choice.left_out == {"a": "another split replaced this split", "b": "another split replaced this split"}


def test_operations_that_replace_each_other_end_nowhere_but_end() -> None:
    assert live(rewritten("x", 1, "1", {"y": 1}), rewritten("y", 1, "2", {"x": 1})) <= {"x", "y"}


def test_what_was_restored_after_a_compaction_is_live_though_the_compaction_replaced_it() -> None:
    compacted = rewritten("ab", 2, "1", {"a": 1, "b": 1})
    undone = Evidence(live=frozenset({"a"}), deleted=frozenset({"ab", "b"}), added_at={"a": 3})
    assert choose([compacted], undone).replaced == frozenset()
    before = Evidence(live=frozenset({"a"}), deleted=frozenset({"ab", "b"}), added_at={"a": 0})
    assert choose([compacted], before).replaced == {"a"}
