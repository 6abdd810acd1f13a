"""A search by text and embedding fuses two rankings of all rows. Rows and indexes may have any state."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.rows.vectors import vector_type
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.log.snapshot import Snapshot
from storage_core.read.scan import wanted_filter
from storage_core.read.search.search_cache import SearchCache
from storage_core.store.memory import MemoryStore
from storage_core.write.region.captured_regions import Unmerged
from tests.support.brute_fusion import by_prefixes, by_vector, fused
from tests.support.indexed_table import IndexedTable
from tests.support.levels import Levels
from tests.support.scale import scaled
from tests.support.searching import search

Row = Mapping[str, Any]
PREFIXES = ("eb", "tid")
QUERY = "eb* tid*"
"""Prefixes that match several words.

Each match scores 1, so a test can compute the scores, and many scores are equal.
"""

DIMENSIONS = 3
INDEXES = (
    IndexDefinition("words", "fulltext", ("text",)),
    IndexDefinition("near", "vector", ("v",), {"metric": "cosine"}),
    IndexDefinition("tags", "bitmap", ("tag",)),
)
SCHEMA = pa.schema([
    pa.field("at", pa.timestamp("us", "UTC")),
    pa.field("id", pa.int64(), nullable=False),
    ("text", pa.string()),
    ("tag", pa.string()),
    ("v", vector_type(DIMENSIONS)),
])  # fmt: skip
CONFIG = TableConfig(time_column="at", sort_schema="id|timestamp/V2", window_seconds=3600, indexes=INDEXES)
FILTERS: dict[str | None, Callable[[Row], bool]] = {
    None: lambda _: True,
    "id % 3 <> 1": lambda row: row["id"] % 3 != 1,
    "tag = 'x'": lambda row: row["tag"] == "x",
    "tag = 'x' and id < 9": lambda row: row["tag"] == "x" and row["id"] < 9,
}

numbers = st.integers(-2, 2).map(float)
vectors = st.none() | st.lists(numbers, min_size=DIMENSIONS, max_size=DIMENSIONS).filter(any)
queries = st.lists(numbers, min_size=DIMENSIONS, max_size=DIMENSIONS).filter(any)
texts = st.none() | st.lists(st.sampled_from(["ebb", "tide", "tidal", "flood"]), max_size=3).map(" ".join)
fields = st.fixed_dictionaries({"text": texts, "tag": st.sampled_from(["x", "y", None]), "v": vectors})
appends = st.tuples(st.just("append"), st.lists(st.tuples(st.integers(0, 1), fields), min_size=1, max_size=8))
upkeep = st.sampled_from([("catch up", "words"), ("catch up", "near"), ("catch up", "tags"), ("compact",), ("alone",)])
deletes = st.tuples(st.just("delete"), st.integers(0, 100), st.integers(0, 100))

_names = itertools.count()


@dataclass(frozen=True)
class Asked:
    """One search, with the page size of its answer and the sizes of the search windows."""

    vector: Sequence[float]
    fusion: str
    weights: Mapping[str, float]
    condition: str | None
    rows_per_page: int
    window: int
    growth: int


questions = st.builds(
    Asked,
    vector=queries,
    fusion=st.sampled_from(["rrf", "linear"]),
    weights=st.sampled_from([{}, {"words": 2.0}, {"words": 0.3, "near": 1.7}, {"words": 0}]),
    condition=st.sampled_from([*FILTERS]),
    rows_per_page=st.integers(1, 7),
    window=st.sampled_from([1, 2, 5, 100]),
    growth=st.sampled_from([2, 4]),
)


class HybridTable(IndexedTable):
    """A table of texts and embeddings."""

    def take(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("append", rows):
                made = []
                for hour, own in rows:
                    at = dt.datetime.fromtimestamp(hour * 3600 + self._next // 2, dt.UTC)  # two rows share one time
                    made.append({"at": at, "id": self._next, **own})
                    self._next += 1
                self.add(pa.Table.from_pylist(made, schema=SCHEMA))
            case ("catch up", index):
                self.catch_up(index)
            case ("compact",):
                self.compact()
            case ("alone",):
                self.compact_alone()
            case (_, split, row):
                live = sorted(self.snapshot.splits.items())
                if live:
                    path, add = live[split % len(live)]
                    if add.visible_rows > 1:
                        self.delete({path: [row % (add.numRecords or 0)]})


def require_fusion(
    store: Any, snapshot: Snapshot, rows: Iterable[Row], asked: Asked, order: Any, unmerged: Sequence[Unmerged] = ()
) -> None:
    live = [row for row in rows if FILTERS[asked.condition](row)]
    text = by_prefixes(live, PREFIXES, column="text", order=order)
    weights = {"words": 1.0, "near": 1.0, **asked.weights}
    if not weights["words"]:
        matched = {row["id"] for _, row in text}
        live = [row for row in live if row["id"] in matched]
    near = by_vector(live, asked.vector, "cosine", column="v", order=order)
    rankings = {"words": text, "near": near} if weights["words"] else {"near": near}
    expected = fused(rankings, weights, asked.fusion, order=order, window=asked.window, growth=asked.growth)

    kept = SearchCache()

    def page(limit: int, offset: int = 0) -> list[dict[str, Any]]:
        found = search(
            store,
            snapshot,
            QUERY,
            vector=asked.vector,
            fusion=asked.fusion,
            weights=asked.weights,
            filter=wanted_filter(asked.condition),
            limit=limit,
            offset=offset,
            unmerged=unmerged,
            kept=kept,
        )
        rows: list[dict[str, Any]] = found.to_pylist()
        for row in rows:
            distance = row.pop("distance")
            assert row["near_score"] == (None if distance is None else 1 - distance)
        return rows

    found = page(1000)
    assert found == expected
    size = asked.rows_per_page
    assert [row for offset in range(0, len(found) + size, size) for row in page(size, offset)] == found


@settings(max_examples=scaled(25), deadline=None)
@given(st.lists(appends | upkeep | deletes, min_size=2, max_size=9), questions)
def test_an_answer_is_the_fusion_of_two_rankings_of_all_rows(steps: list[tuple[Any, ...]], asked: Asked) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage_core.read.search.hybrid.FIRST_WINDOW", asked.window)
        patch.setattr("storage_core.read.search.order.GROWTH", asked.growth)
        table = HybridTable(MemoryStore(f"hybrid-{next(_names)}"), CONFIG, schema=SCHEMA)
        for step in steps:
            table.take(step)
        require_fusion(
            table.store, table.snapshot, table.rows(table.snapshot), asked, lambda row: (row["at"], row["id"])
        )


KEYED = SCHEMA.remove(0)
writes = st.tuples(st.sampled_from(["put", "patch", "reset", "delete"]), st.integers(0, 12), fields)
keyed_steps = st.lists(
    writes | st.sampled_from([("flush",), ("merge",), ("catch up", "words"), ("catch up", "near")]),
    min_size=4,
    max_size=24,
)


@settings(max_examples=scaled(25), deadline=None)
@given(keyed_steps, questions)
def test_rows_that_are_not_merged_take_part_at_each_level(steps: list[tuple[Any, ...]], asked: Asked) -> None:
    config = TableConfig(primary_key=("id",), indexes=INDEXES)
    levels = Levels(f"keyed-hybrid-{next(_names)}", KEYED, config, segment_rows=1)
    for step in steps:
        levels.take(step)
    store, snapshot = levels.table.store, levels.table.snapshot
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage_core.read.search.hybrid.FIRST_WINDOW", asked.window)
        patch.setattr("storage_core.read.search.order.GROWTH", asked.growth)
        for level, rows in levels.seen.items():
            require_fusion(store, snapshot, rows.values(), asked, lambda row: row["id"], levels.unmerged(level))
