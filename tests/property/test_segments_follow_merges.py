"""Merges, sorts, compactions and catch-ups of a keyed table in any order: a search finds the rows of a dictionary."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.fsck.check import fsck
from storage_core.index import catch_up
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.memory import MemoryStore
from storage_core.read.search import search
from storage_core.region import sorting
from storage_core.region.options import WriterOptions
from storage_core.settings.index import IndexDefinition
from storage_core.settings.table import TableConfig
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled

TEXT = IndexDefinition("words", "fulltext", ("text",))
TAG = IndexDefinition("tags", "bitmap", ("tag",))
ID = pa.field("id", pa.int64(), nullable=False)
SCHEMA = pa.schema([ID, ("at", pa.timestamp("us", "UTC")), ("text", pa.string()), ("tag", pa.string())])
CONFIG = TableConfig(
    primary_key=("id",), time_column="at", window_seconds=3600, sort_schema="tag|timestamp/V2", indexes=(TEXT, TAG)
)
WORDS, TAGS = ("ebb", "flood"), ("x", "y")

texts = st.sampled_from([None, "ebb", "flood", "ebb flood"])
puts = st.tuples(st.just("put"), st.dictionaries(st.integers(0, 20), st.tuples(texts, st.sampled_from([None, *TAGS]))))
patches = st.tuples(st.just("patch"), st.dictionaries(st.integers(0, 20), texts, max_size=2))
deletes = st.tuples(st.just("delete"), st.sets(st.integers(0, 20), max_size=2))
upkeep = st.sampled_from([("flush",), ("merge",), ("merge",), ("sort",), ("compact",), ("catch up",)])
steps = st.lists(puts | patches | deletes | upkeep, min_size=4, max_size=16)

_names = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    """Sorted generations have segments, however small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "SEGMENT_ROWS", 1)
        yield


def row(key: int, text: str | None, tag: str | None) -> dict[str, object]:
    """A row whose place among those of the table has nothing to do with its key."""
    at = dt.datetime.fromtimestamp(3600 * (key % 2) + key * 7_919 % 1_000, dt.UTC)
    return {"id": key, "at": at, "text": text, "tag": tag}


def require_exact(table: KeyedTable, head: Snapshot) -> None:
    rows = table.base_rows(head)
    for index, column, values in (("words", "text", WORDS), ("tags", "tag", TAGS)):
        for value in values:
            found = search(table.store, head, value, index=index, limit=1_000).column("id").to_pylist()
            assert sorted(found) == sorted(
                int(str(each["id"])) for each in rows if value in str(each[column]).split()
            ), value


def index(table: KeyedTable) -> None:
    for each in (TEXT, TAG):
        snapshot = table.snapshot
        plan = catch_up.plan(snapshot, each.name)
        built = [catch_up.execute(table.store, work, ids=table.ids) for work in plan.work]
        if actions := plan.actions(built):
            table.log.commit(snapshot, actions, operation="CATCH UP")
        assert catch_up.watermark(table.snapshot, each.name) == table.snapshot.version


@settings(max_examples=scaled(40), deadline=None)
@given(taken=steps)
def test_a_search_finds_what_a_scan_finds_whatever_was_merged(taken: list[tuple[object, ...]]) -> None:
    table = KeyedTable(MemoryStore(f"followed-{next(_names)}")).create(SCHEMA, CONFIG)
    writer = table.writer(WriterOptions(segment_rows=1))
    for step in [*taken, ("flush",), ("merge",), ("compact",)]:
        match step:
            case ("put", dict(rows)):
                if rows:
                    writer.put([row(key, text, tag) for key, (text, tag) in rows.items()])
            case ("patch", dict(rows)):
                if rows:
                    writer.patch([{"id": key, "text": text} for key, text in rows.items()])
            case ("delete", set(keys)):
                if keys:
                    writer.delete(sorted(keys))
            case ("flush",):
                writer.flush()
            case ("merge",):
                table.merge()
                require_exact(table, table.snapshot)
            case ("sort",):
                table.sort()
            case ("compact",):
                before = {each.name: catch_up.watermark(table.snapshot, each.name) for each in (TEXT, TAG)}
                table.compact()
                require_exact(table, table.snapshot)
                assert all(catch_up.watermark(table.snapshot, name) >= mark for name, mark in before.items())
            case ("catch up",):
                index(table)
                require_exact(table, table.snapshot)
    index(table)
    require_exact(table, table.snapshot)
    assert fsck(table.store, clock=table.clock, deep=True).clean
