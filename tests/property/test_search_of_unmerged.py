"""Searches of unmerged records find the rows of a plain dictionary, at each level of consistency."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.read.search.search_cache import SearchCache
from storage_core.write.region import generation_write
from storage_core.write.region.generation_write import SortingTerms
from tests.support.keyed_table import KeyedTable
from tests.support.levels import Key, Levels, Row
from tests.support.scale import scaled
from tests.support.searching import search

EXAMPLES = scaled(10)
SCHEMA = pa.schema(
    [pa.field("lot", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False)]
    + [pa.field(name, pa.string()) for name in ("text", "tag")]
)
TEXT = IndexDefinition("words", "fulltext", ("text",), {"tokenizer": "cjk"})
TAG = IndexDefinition("tags", "bitmap", ("tag",))
CONFIG = TableConfig(primary_key=("lot", "name"), indexes=(TEXT, TAG))
LONG = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
WORDS = ("harbour", LONG, "東京都", "हिन्दी")

keys = st.tuples(st.sampled_from([-1, 7]), st.sampled_from(["a", "å"]))
fields = st.fixed_dictionaries(
    {},
    optional={
        "text": st.none() | st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join),
        "tag": st.none() | st.sampled_from(["x", "y"]),
    },
)
writes = st.tuples(st.sampled_from(["put", "patch", "reset", "delete"]), keys, fields)
upkeep = st.sampled_from([("flush",), ("merge",), ("sort",), ("search",)])
steps = st.lists(writes | upkeep, min_size=4, max_size=14)

_names = itertools.count()


def _sort(table: KeyedTable) -> None:
    for work in generation_write.plan_sort(table.store, table.snapshot, terms=SortingTerms(generations=1)):
        result = generation_write.execute_sort(table.store, work, clock=table.clock, ids=table.ids)
        generation_write.finish(table.store, work, result, clock=table.clock, writer_id=table.ids.uuid())


@dataclass(slots=True)
class Searched:
    """The searches at each consistency level, with a cache of earlier searches."""

    levels: Levels
    cache: Path
    kept: SearchCache = field(default_factory=SearchCache)

    def search(self, level: str, query: str, index: str) -> list[Row]:
        table, parts = self.levels.table, self.levels.unmerged(level)
        asked = partial(search, table.store, table.snapshot, query, index=index, limit=1000, unmerged=parts)
        found = asked(cache_dir=self.cache, kept=self.kept)
        if index == "words":
            assert found.equals(asked()), "scores depend on what was searched before"
        rows: list[Row] = found.to_pylist()
        assert rows == sorted(rows, key=lambda row: (-row["score"], row["lot"], row["name"]))
        return rows


def _by_key(rows: list[Row]) -> dict[Key, Row]:
    plain = [{name: value for name, value in row.items() if name != "score"} for row in rows]
    found: dict[Key, Row] = {(row["lot"], row["name"]): row for row in plain}
    assert len(found) == len(rows), "a key was found twice"
    return found


def _check(searched: Searched, level: str) -> None:
    seen = searched.levels.seen[level]
    for word in WORDS:
        expected = {key: row for key, row in seen.items() if word in (row["text"] or "").split()}
        assert _by_key(searched.search(level, word.upper(), "words")) == expected
    beginning = {key: row for key, row in seen.items() if LONG in (row["text"] or "").split()}
    assert _by_key(searched.search(level, f"{LONG[:41]}*", "words")) == beginning
    others = {key: row for key, row in seen.items() if WORDS[0] not in (row["text"] or "").split()}
    assert _by_key(searched.search(level, f"NOT {WORDS[0]}", "words")) == others
    tagged = {key: row for key, row in seen.items() if row["tag"] == "x"}
    assert _by_key(searched.search(level, "x", "tags")) == tagged


@pytest.mark.parametrize("level", ["committed", "latest"])
@settings(max_examples=EXAMPLES)
@given(taken=steps, segment_rows=st.sampled_from([1, 3, 10_000]))
def test_a_search_finds_the_rows_that_a_dictionary_of_its_level_has(
    tmp_path_factory: pytest.TempPathFactory, level: str, taken: list[tuple[Any, ...]], segment_rows: int
) -> None:
    levels = Levels(f"searched-{next(_names)}", SCHEMA, CONFIG, segment_rows=segment_rows)
    searched = Searched(levels, tmp_path_factory.mktemp("cache"))
    for step in [*taken, ("search",)]:
        if step == ("search",):
            _check(searched, level)
        elif step == ("sort",):
            _sort(levels.table)
        else:
            levels.take(step)
