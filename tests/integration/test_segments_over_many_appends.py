"""Test searches and index segments over a hundred appends, each followed by a catch-up of the indexes."""

from __future__ import annotations

from dataclasses import replace

from storage_core.index.segment_merge import FACTOR
from storage_core.index.segments import compute_coverage
from storage_core.log.coverage import OUTLIVED_MOVES
from storage_core.split.deletion_vectors import removal
from tests.support.indexed_table import TAG_VALUES, TAGS, TEXT, IndexedTable
from tests.support.searching import search

WORDS = ("ebb", "flood", "tide", "neap", "spring tide", None)


def test_a_search_asks_a_bounded_number_of_segments_over_a_hundred_appends() -> None:
    table, most, written = IndexedTable(), 0, 0
    for number in range(100):
        table.append([(0, TAG_VALUES[number % 4], WORDS[number % 6]) for _ in range(4)])
        known = set(table.snapshot.segments)
        done = table.index("text")
        table.commit_index(done)
        written += sum(each.segment.numRecords for each in done.merged)
        assert len(known - set(table.snapshot.segments)) in (
            0,
            *range(FACTOR, 2 * FACTOR + 1),
        )
        most = max(most, len(compute_coverage(table.snapshot, TEXT).segments))
        if number % 20 == 19:
            table.compact()
    assert most <= 2 * FACTOR
    assert table.retokenised == 400  # the catch-ups tokenized each row exactly once
    assert written <= 3 * 400  # merges of segments write a row once per tier
    head = table.snapshot
    assert len(head.splits.values()) == 1  # from now on the log's manifests are in memory
    for query in ("tide", "ebb flood", '"spring tide"'):
        before = table.store.requests["get"]
        found = search(table.store, head, query, index="text", limit=1_000)
        assert table.store.requests["get"] - before <= 2 * FACTOR + len(head.translations) + len(head.splits)
        assert found.num_rows
        assert found.equals(search(table.store, replace(head, segments={}), query, index="text", limit=1_000))
    # Merged segments cover the current rows. An index without a segment still needs the translations of the last
    # compactions.
    assert len(head.translations) <= 2
    table.require_exact(head)


def test_translations_of_an_index_that_is_never_caught_up_do_not_grow_with_compactions() -> None:
    table = IndexedTable()
    for number in range(12):
        table.append([(0, TAG_VALUES[number % 4], WORDS[number % 6])])
        table.compact()
        assert len(table.snapshot.translations) <= OUTLIVED_MOVES
    table.catch_up()
    table.require_exact(table.snapshot)


def test_a_translation_stays_while_a_segment_is_behind_it() -> None:
    table = IndexedTable()
    table.append([(0, "x", "tide"), (0, "y", "ebb")])
    table.catch_up("tags")
    for _ in range(2 * OUTLIVED_MOVES):
        table.compact_alone()
    assert len(table.snapshot.translations) == 2 * OUTLIVED_MOVES
    assert not compute_coverage(table.snapshot, TAGS).missing
    table.require_exact(table.snapshot)


def test_translations_go_with_the_splits_that_leave_a_table() -> None:
    table = IndexedTable()
    table.append([(0, "x", "tide"), (0, "y", "ebb")])
    for _ in range(OUTLIVED_MOVES):
        table.compact_alone()
    head = table.snapshot
    (add,) = head.splits.values()
    left = table.log.commit(head, [removal(add, table.clock.now_ms(), changes_rows=True)], operation="EXPIRE").snapshot
    assert not left.translations
