"""A vector search returns the rows that brute force finds, also for rows that are not indexed or merged yet."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.rows.vectors import vector_type
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.log.snapshot import Snapshot
from storage_core.read.predicate import Filter
from storage_core.read.scan import wanted_filter
from storage_core.read.search.search_cache import SearchCache
from storage_core.store.memory import MemoryStore
from storage_core.write.region.captured_regions import Unmerged
from tests.support.brute_force import Row, nearest
from tests.support.indexed_table import IndexedTable
from tests.support.levels import Levels
from tests.support.scale import scaled
from tests.support.searching import search

METRICS = ("l2", "cosine", "dot")
DIMENSIONS = 3
INDEXES = (
    *(IndexDefinition(each, "vector", ("v",), {"metric": each, "quantization": "none"}) for each in METRICS),
    IndexDefinition("coded", "vector", ("v",)),
)
"""The encoded index is also exact, because with so few rows, all rows are candidates."""

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("id", pa.int64()), ("v", vector_type(DIMENSIONS))])
CONFIG = TableConfig(time_column="at", sort_schema="id|timestamp/V2", window_seconds=3600, indexes=INDEXES)

numbers = st.integers(-2, 2).map(float)
vectors = st.none() | st.lists(numbers, min_size=DIMENSIONS, max_size=DIMENSIONS)
queries = st.lists(numbers, min_size=DIMENSIONS, max_size=DIMENSIONS).filter(any)
appends = st.tuples(st.just("append"), st.lists(st.tuples(st.integers(0, 1), vectors), min_size=1, max_size=8))
others = st.sampled_from([("catch up",), ("compact",), ("compact alone",)])
deletes = st.tuples(st.just("delete"), st.integers(0, 100), st.integers(0, 100))
pages = st.tuples(st.integers(1, 12), st.integers(0, 6))

_names = itertools.count()


class VectorTable(IndexedTable):
    """A table of embeddings. All indexes have the same column."""

    def take(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("append", rows):
                self._append(rows)
            case ("catch up",):
                self.catch_up(*(each.name for each in INDEXES))
            case ("compact",):
                self.compact()
            case ("compact alone",):
                self.compact_alone()
            case (_, split, row):
                self._delete(split, row)

    def _append(self, rows: list[tuple[int, Any]]) -> None:
        made = []
        for hour, vector in rows:
            at = dt.datetime.fromtimestamp(hour * 3600 + self._next // 2, dt.UTC)  # two rows share one time
            made.append({"at": at, "id": self._next, "v": vector})
            self._next += 1
        self.add(pa.Table.from_pylist(made, schema=SCHEMA))

    def _delete(self, split: int, row: int) -> None:
        live = sorted(self.snapshot.splits.items())
        if live:
            path, add = live[split % len(live)]
            rows = add.numRecords or 0
            if add.visible_rows > 1:
                self.delete({path: [row % rows]})


def require_brute_force(
    found: pa.Table, rows: list[Row], query: list[float], metric: str, *, page: tuple[int, int], order: Any
) -> None:
    limit, offset = page
    expected = nearest(rows, query, metric, column="v", order=order)[offset : offset + limit]
    got = found.to_pylist()
    assert [row["id"] for row in got] == [row["id"] for _, row in expected]
    assert [row["distance"] for row in got] == [away for away, _ in expected]
    scores = [1 - away if metric == "cosine" else 0.0 - away for away, _ in expected]
    assert [row["score"] for row in got] == scores
    own = [{name: row[name] for name in row if name not in ("distance", "score")} for row in got]
    assert own == [row for _, row in expected]


def by_time(row: Row) -> Any:
    return row["at"], row["id"]


@pytest.mark.parametrize("limit_of_few", [0, 10_000])
@settings(max_examples=scaled(12), deadline=None)
@given(st.lists(appends | others | deletes, min_size=2, max_size=9), queries, pages, st.booleans())
def test_a_search_finds_what_brute_force_finds(
    limit_of_few: int, steps: list[tuple[Any, ...]], query: list[float], page: tuple[int, int], filtered: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage_core.read.search.vectors.FEW_ROWS", limit_of_few)
        patch.setattr("storage_core.read.search.vectors.FEW_SHARE", 0.0)
        patch.setattr("storage_core.read.search.vectors.BLOCK_BYTES", 4 * DIMENSIONS * 2)
        table = VectorTable(MemoryStore(f"vectors-{next(_names)}"), CONFIG, schema=SCHEMA)
        for step in steps:
            table.take(step)
        wanted = wanted_filter("id % 3 <> 1") if filtered else None
        kept = SearchCache()
        for _ in range(2):  # first without a cache, then with cached objects
            require_exact(table.store, table.snapshot, table.rows(table.snapshot), query, page, wanted, kept)


def require_exact(
    store: Any,
    snapshot: Snapshot,
    rows: list[Row],
    query: list[float],
    page: tuple[int, int],
    wanted: Filter | None,
    kept: SearchCache,
) -> None:
    live = [row for row in rows if wanted is None or row["id"] % 3 != 1]
    for index in INDEXES:
        limit, offset = page
        found = search(
            store, snapshot, vector=query, index=index.name, limit=limit, offset=offset, filter=wanted, kept=kept
        )
        metric = index.options.get("metric", "l2")
        require_brute_force(found, live, query, metric, page=page, order=by_time)


def coarsely(patch: pytest.MonkeyPatch) -> None:
    """Use small search windows, so that only the encoded values of the embeddings decide the order of the rows."""
    for name, value in (("FIRST_WINDOW", 2), ("FEW_ROWS", 0), ("FEW_SHARE", 0.0)):
        patch.setattr(f"storage_core.read.search.vectors.{name}", value)
    patch.setattr("storage_core.read.search.ranking.FIRST_WINDOW", 2)
    patch.setattr("storage_core.read.search.order.GROWTH", 2)
    patch.setattr("storage_core.index.vector.RANKED_PER_ROW", 1)
    for name in ("COARSE", "RANKED_PER_ROW"):
        patch.setattr(f"storage_core.index.vector.reader.{name}", 1)


def require_complete_pages(
    answer: Callable[[int, int], pa.Table], rows: Iterable[Mapping[str, Any]], limits: list[int]
) -> None:
    """Assert that pages of any sizes together contain each row once. The order must be the same for all page sizes."""
    whole = answer(1_000, 0).to_pylist()
    assert sorted(row["id"] for row in whole) == sorted(row["id"] for row in rows if row["v"] is not None)
    paged: list[dict[str, Any]] = []
    for limit in itertools.cycle(limits):
        page = answer(limit, len(paged)).to_pylist()
        assert len(page) == min(limit, len(whole) - len(paged))
        paged += page
        if not page:
            break
    assert paged == whole


limits = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@settings(max_examples=scaled(12), deadline=None)
@given(st.lists(appends | others | deletes, min_size=2, max_size=9), queries, limits, st.booleans())
def test_pages_of_coded_vectors_are_one_answer(
    steps: list[tuple[Any, ...]], query: list[float], limits: list[int], filtered: bool
) -> None:
    table = VectorTable(MemoryStore(f"paged-vectors-{next(_names)}"), CONFIG, schema=SCHEMA)
    for step in steps:
        table.take(step)
    wanted = wanted_filter("id % 3 <> 1") if filtered else None
    live = [row for row in table.rows(table.snapshot) if wanted is None or row["id"] % 3 != 1]

    def answer(limit: int, offset: int) -> pa.Table:
        return search(
            table.store, table.snapshot, vector=query, index="coded", limit=limit, offset=offset, filter=wanted
        )

    with pytest.MonkeyPatch.context() as patch:
        coarsely(patch)
        require_complete_pages(answer, live, limits)


KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", vector_type(DIMENSIONS))])
writes = st.tuples(
    st.sampled_from(["put", "patch", "reset", "delete"]),
    st.integers(0, 9),
    # A cosine index refuses the zero vector.
    st.fixed_dictionaries({"v": vectors.filter(lambda each: each is None or any(each))}),
)
keyed_steps = st.lists(writes | st.sampled_from([("flush",), ("merge",), ("catch up",)]), min_size=4, max_size=20)


def keyed(steps: list[tuple[Any, ...]]) -> Levels:
    """Return the table after the steps, and the rows of each level."""
    config = TableConfig(primary_key=("id",), indexes=INDEXES)
    levels = Levels(f"keyed-vectors-{next(_names)}", KEYED, config, segment_rows=1)
    for step in steps:
        levels.take(step)
    return levels


@settings(max_examples=scaled(8), deadline=None)
@given(keyed_steps, queries, limits)
def test_pages_with_rows_that_are_not_merged_are_one_answer(
    steps: list[tuple[Any, ...]], query: list[float], limits: list[int]
) -> None:
    levels = keyed(steps)
    table = levels.table
    for level, rows in levels.seen.items():
        parts = levels.unmerged(level)

        def answer(limit: int, offset: int, parts: Sequence[Unmerged] = parts) -> pa.Table:
            return search(
                table.store, table.snapshot, vector=query, index="coded", limit=limit, offset=offset, unmerged=parts
            )

        with pytest.MonkeyPatch.context() as patch:
            coarsely(patch)
            require_complete_pages(answer, rows.values(), limits)


@settings(max_examples=scaled(12), deadline=None)
@given(keyed_steps, queries, pages)
def test_rows_that_are_not_merged_are_found_at_each_level(
    steps: list[tuple[Any, ...]], query: list[float], page: tuple[int, int]
) -> None:
    levels = keyed(steps)
    table = levels.table
    for level, rows in levels.seen.items():
        snapshot, parts = table.snapshot, levels.unmerged(level)
        for index in INDEXES:
            limit, offset = page
            found = search(
                table.store, snapshot, vector=query, index=index.name, limit=limit, offset=offset, unmerged=parts
            )
            metric = index.options.get("metric", "l2")
            require_brute_force(found, [*rows.values()], query, metric, page=page, order=lambda row: row["id"])
