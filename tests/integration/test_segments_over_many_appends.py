"""A hundred appends, each caught up: how many segments a search asks, and how often a row is written."""

from __future__ import annotations

from dataclasses import replace

from storage_core.index.coverage import coverage
from storage_core.index.segment_merge_work import FACTOR
from tests.support.indexed_table import TAG_VALUES, TEXT, IndexedTable
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
        most = max(most, len(coverage(table.snapshot, TEXT).segments))
        if number % 20 == 19:
            table.compact()
    assert most <= 2 * FACTOR
    assert table.retokenised == 400  # each row once
    assert written <= 3 * 400  # a row is written once per tier
    head = table.snapshot
    assert len(head.splits.values()) == 1  # from now on the manifests of the log are in memory
    for query in ("tide", "ebb flood", '"spring tide"'):
        before = table.store.requests["get"]
        found = search(table.store, head, query, index="text", limit=1_000)
        assert table.store.requests["get"] - before <= 2 * FACTOR + len(head.translations) + len(head.splits)
        assert found.num_rows
        assert found.equals(search(table.store, replace(head, segments={}), query, index="text", limit=1_000))
    # Merged segments are where the rows are. Those of the compactions stay for an index that has no segment yet.
    assert len(head.translations) <= 5
    table.require_exact(head)
