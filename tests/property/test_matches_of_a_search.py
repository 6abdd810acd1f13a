"""Counts, facets, orders and snippets of a search match the rows of a scan. Some rows are not indexed or merged yet."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.settings.table import TableConfig
from storage_core.read.predicate import Filter, col
from storage_core.read.search.matches import Searched
from storage_core.read.search.ranking import Order, search_ordered
from tests.support.indexed_table import SCHEMA, TAG_VALUES, TAGS, TEXT, WORDS, IndexedTable
from tests.support.levels import Levels
from tests.support.matches import Row, in_order, judge, judge_snippets
from tests.support.scale import scaled

_names = itertools.count()
TIES = ("at", "id", "tag", "words")
FILTERS: list[tuple[Filter | None, Any]] = [
    (None, lambda _: True),
    (col("id") < 6, lambda row: row["id"] < 6),
    (col("tag") == "x", lambda row: row["tag"] == "x"),
    ((col("tag").is_null()) | (col("id") >= 4), lambda row: row["tag"] is None or row["id"] >= 4),
    (col("id") < 0, lambda _: False),
]
QUERIES: list[tuple[str, str, Any, tuple[str, ...]]] = [
    ("text", "ebb tide", lambda row: {"ebb", "tide"} & words_of(row), ("ebb", "tide")),
    ("text", "NOT flood", lambda row: "flood" not in words_of(row), ()),
    ("text", "fl* OR tida~1", lambda row: {"flood", "tide"} & words_of(row), ("flood", "tide")),
    ("text", '"ebb flood"', lambda row: "ebb flood" in (row["words"] or ""), ("ebb", "flood")),
    ("tags", "x,y", lambda row: row["tag"] in ("x", "y"), ()),
    ("tags", '{"tag": {"is null": true}}', lambda row: row["tag"] is None, ()),
]
two_queries = st.sets(st.sampled_from(range(len(QUERIES))), min_size=2, max_size=2)
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join) | st.none()
added = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(TAG_VALUES), texts), min_size=1, max_size=6)
steps = st.lists(
    st.tuples(st.just("append"), added)
    | st.tuples(st.just("delete"), st.integers(2, 4))
    | st.tuples(st.just("catch up"), st.sampled_from([("text",), ("tags",), ("text", "tags")]))
    | st.tuples(st.sampled_from(["compact", "compact alone"]), st.none()),
    min_size=1,
    max_size=7,
)


def words_of(row: Row) -> set[str]:
    return {*(row["words"] or "").split()}


def _append(table: IndexedTable, given: Any, numbers: Iterator[int]) -> None:
    """Add rows. Many rows have the same time as other rows, also in other splits."""
    made = []
    for hour, tag, words in given:
        number = next(numbers)
        at = dt.datetime.fromtimestamp(3600 * hour + number % 2, dt.UTC)
        made.append({"at": at, "id": number % 9, "tag": tag, "words": words})
    table.add(pa.Table.from_pylist(made, schema=SCHEMA))


def _take(table: IndexedTable, step: str, given: Any, numbers: Iterator[int]) -> None:
    match step:
        case "append":
            _append(table, given, numbers)
        case "delete":
            if live := {path: range(0, add.numRecords or 0, given) for path, add in table.snapshot.splits.items()}:
                table.delete(live)
        case "catch up":
            table.catch_up(*given)
        case "compact":
            table.compact()
        case _:
            table.compact_alone()


@settings(max_examples=scaled(6), deadline=None)
@given(
    first=added,
    taken=steps,
    filters=st.sampled_from(FILTERS),
    queries=two_queries,
)
def test_of_rows_that_move_and_are_indexed_and_deleted(
    first: Any, taken: list[tuple[str, Any]], filters: Any, queries: set[int]
) -> None:
    table, numbers = IndexedTable(), itertools.count()
    _append(table, first, numbers)
    for step, given_value in taken:
        _take(table, step, given_value, numbers)
    condition, meets = filters
    searched = Searched(store=table.store, snapshot=table.snapshot, filter=condition)
    rows = [row for row in table.rows(table.snapshot) if meets(row)]
    for index, query, matches, words in (QUERIES[each] for each in sorted(queries)):
        judge(searched, rows, query=query, index=index, matches=matches, facet="tag", ties=TIES)
        if index == "text":
            judge_snippets(searched, "words", query, words, index=index)


overlapping = st.lists(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.sampled_from("xxy")), min_size=1, max_size=4),
    min_size=3,
    max_size=7,
)


@settings(max_examples=scaled(12), deadline=None)
@given(batches=overlapping, indexed=st.integers(0, 7), limit=st.integers(1, 5), offset=st.integers(0, 3))
def test_of_splits_whose_values_overlap_the_first_rows_are_found(
    batches: list[list[tuple[int, int, str]]], indexed: int, limit: int, offset: int
) -> None:
    table, numbers = IndexedTable(), itertools.count()
    for place, batch in enumerate(batches):
        times = [dt.datetime.fromtimestamp(seconds, dt.UTC) for seconds, _, _ in batch]
        ids = [each * 100 + next(numbers) % 2 for _, each, _ in batch]
        tags = [tag for _, _, tag in batch]
        table.add(pa.table([times, ids, tags, ["ebb" for _ in batch]], schema=SCHEMA))
        if place == indexed:
            table.catch_up()
    searched = Searched(store=table.store, snapshot=table.snapshot)
    rows = [row for row in table.rows(table.snapshot) if row["tag"] == "x"]
    for column in ("at", "id"):
        for descending in (True, False):
            expected = in_order(rows, column, TIES, descending=descending)[offset : offset + limit]
            order = Order(column, descending)
            found = search_ordered(searched, "x", order, index="tags", limit=limit, offset=offset)
            assert found.to_pylist() == expected


KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False)] + [(name, pa.string()) for name in ("tag", "words")])
CONFIG = TableConfig(primary_key=("id",), indexes=(TEXT, TAGS))
fields = st.fixed_dictionaries({}, optional={"tag": st.sampled_from(TAG_VALUES), "words": texts})
written = st.lists(
    st.tuples(st.sampled_from(["put", "patch", "reset", "delete"]), st.integers(0, 5), fields)
    | st.sampled_from([("flush",), ("merge",), ("catch up",)]),
    min_size=4,
    max_size=14,
)


@pytest.mark.parametrize("level", ["snapshot", "committed", "latest"])
@settings(max_examples=scaled(5), deadline=None)
@given(taken=written, filters=st.sampled_from(FILTERS), queries=two_queries)
def test_of_rows_that_are_written_over_and_merged(
    level: str, taken: list[tuple[Any, ...]], filters: Any, queries: set[int]
) -> None:
    levels = Levels(f"matches-{next(_names)}", KEYED, CONFIG, segment_rows=3)
    for step in taken:
        levels.take(step)
    condition, meets = filters
    table, parts = levels.table, levels.unmerged(level)
    searched = Searched(store=table.store, snapshot=table.snapshot, unmerged=parts, filter=condition)
    rows = [row for row in levels.seen[level].values() if meets(row)]
    for index, query, matches, words in (QUERIES[each] for each in sorted(queries)):
        judge(searched, rows, query=query, index=index, matches=matches, facet="tag", ties=("id",))
        if index == "text":
            judge_snippets(searched, "words", query, words, index=index)
