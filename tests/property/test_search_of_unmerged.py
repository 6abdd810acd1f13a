"""Searches of what is not merged yet: the rows of a dictionary, at each level of consistency."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.objectstore.memory import MemoryStore
from storage_core.region import sorting
from storage_core.region.options import WriterOptions
from storage_core.region.sorting import SortingTerms
from storage_core.region.unmerged import Unmerged, capture
from storage_core.search.kept import Kept
from storage_core.settings.index import IndexDefinition
from storage_core.settings.table import TableConfig
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled
from tests.support.searching import search

EXAMPLES = scaled(10)
SCHEMA = pa.schema(
    [pa.field("lot", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False)]
    + [pa.field(name, pa.string()) for name in ("text", "tag")]
)
TEXT = IndexDefinition("words", "fulltext", ("text",))
TAG = IndexDefinition("tags", "bitmap", ("tag",))
CONFIG = TableConfig(primary_key=("lot", "name"), indexes=(TEXT, TAG))
WORDS = ("harbour", "Ebbe", "flood")
EMPTY: dict[str, object] = {"text": None, "tag": None}

Key = tuple[int, str]
Rows = dict[Key, dict[str, Any]]

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


class Searched:
    """A keyed table beside dictionaries of what each level has to see."""

    def __init__(self, segment_rows: int) -> None:
        self.table = KeyedTable(MemoryStore(f"searched-{next(_names)}")).create(SCHEMA, CONFIG)
        self.writer = self.table.writer(WriterOptions(segment_rows=segment_rows))
        self.kept = Kept()
        self.seen: dict[str, Rows] = {"snapshot": {}, "committed": {}, "latest": {}}

    def take(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("flush",):
                self.writer.flush()
                self.seen["committed"] = dict(self.seen["latest"])
            case ("merge",):
                self.table.merge()
                self.seen["snapshot"] = dict(self.seen["committed"])
            case ("sort",):
                self._sort()
            case (operation, key, given_fields):
                self._write(operation, key, given_fields)

    def _sort(self) -> None:
        table = self.table
        for work in sorting.plan(table.store, table.snapshot, terms=SortingTerms(generations=1)):
            result = sorting.execute(table.store, work, clock=table.clock, ids=table.ids)
            sorting.finish(table.store, work, result, clock=table.clock, writer_id=table.ids.uuid())

    def _write(self, operation: str, key: Key, given_fields: dict[str, Any]) -> None:
        latest, row = self.seen["latest"], dict(zip(("lot", "name"), key, strict=True))
        if operation == "delete":
            self.writer.delete(key)
            latest.pop(key, None)
            return
        getattr(self.writer, operation)({**row, **given_fields})
        before = latest.get(key, {}) if operation == "patch" else {}
        latest[key] = {**row, **EMPTY, **before, **given_fields}

    def search(self, level: str, query: str, index: str, cache: Path | None = None) -> list[dict[str, Any]]:
        snapshot = self.table.snapshot
        parts: list[Unmerged] = []
        if level != "snapshot":
            captured = capture(self.table.store, snapshot, include_wal=level == "latest")
            parts = captured.parts(snapshot)
        asked = partial(search, self.table.store, snapshot, query, index=index, limit=1000, unmerged=parts)
        found = asked(cache_dir=cache, kept=self.kept)
        if index == "words":
            assert found.equals(asked()), "scores depend on what was searched before"
        rows: list[dict[str, Any]] = found.to_pylist()
        assert rows == sorted(rows, key=lambda row: (-row["score"], row["lot"], row["name"]))
        return rows


def _by_key(rows: list[dict[str, Any]]) -> Rows:
    found = {(row["lot"], row["name"]): {name: value for name, value in row.items() if name != "score"} for row in rows}
    assert len(found) == len(rows), "a key was found twice"
    return found


def _check(searched: Searched, level: str, cache: Path) -> None:
    seen = searched.seen[level]
    for word in WORDS:
        expected = {key: row for key, row in seen.items() if word in (row["text"] or "").split()}
        assert _by_key(searched.search(level, word.upper(), "words", cache)) == expected
    others = {key: row for key, row in seen.items() if WORDS[0] not in (row["text"] or "").split()}
    assert _by_key(searched.search(level, f"NOT {WORDS[0]}", "words", cache)) == others
    tagged = {key: row for key, row in seen.items() if row["tag"] == "x"}
    assert _by_key(searched.search(level, "x", "tags", cache)) == tagged


@pytest.mark.parametrize("level", ["committed", "latest"])
@settings(max_examples=EXAMPLES)
@given(taken=steps, segment_rows=st.sampled_from([1, 3, 10_000]))
def test_a_search_finds_the_rows_that_a_dictionary_of_its_level_has(
    tmp_path_factory: pytest.TempPathFactory, level: str, taken: list[tuple[Any, ...]], segment_rows: int
) -> None:
    searched, cache = Searched(segment_rows), tmp_path_factory.mktemp("cache")
    for step in [*taken, ("search",)]:
        if step == ("search",):
            _check(searched, level, cache)
        else:
            searched.take(step)
