"""After any sequence of changes to a keyed table, a search finds the rows that a scan of its level finds."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import NotFound, SnapshotExpired
from storage_core.data.rows import fold
from storage_core.data.rows.vectors import vector_type
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.history import restore
from storage_core.read.search.search_cache import SearchCache
from storage_core.read.view import snapshot_at
from storage_core.store.memory import MemoryStore
from storage_core.write.region import generation_write
from storage_core.write.region.captured_regions import capture
from storage_core.write.region.records import WriterOptions
from tests.support.brute_force import nearest
from tests.support.clock import ManualClock
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled
from tests.support.searching import search

TEXT = IndexDefinition("words", "fulltext", ("text",))
TAG = IndexDefinition("tags", "bitmap", ("tag",))
NEAR = IndexDefinition("near", "vector", ("place",), {"quantization": "none"})
INDEXES = (TEXT, TAG, NEAR)
ID = pa.field("id", pa.int64(), nullable=False)
PLACE = pa.field("place", vector_type(2))
SCHEMA = pa.schema([ID, ("at", pa.timestamp("us", "UTC")), ("text", pa.string()), ("tag", pa.string()), PLACE])
CONFIG = TableConfig(
    primary_key=("id",),
    time_column="at",
    window_seconds=3600,
    sort_schema="tag|timestamp/V2",
    indexes=INDEXES,
    version_retention_ms=1_000,
    gc_horizon_ms=1_000,
)
HERE = [1.2, 0.4]
WORDS, TAGS = ("ebb", "flood"), ("x", "y")

texts = st.sampled_from([None, "ebb", "flood", "ebb flood"])
rows = st.dictionaries(st.integers(0, 20), st.tuples(texts, st.sampled_from([None, *TAGS])), min_size=4, max_size=14)
puts = st.tuples(st.just("put"), rows)
patches = st.tuples(st.just("patch"), st.dictionaries(st.integers(0, 20), texts, max_size=2))
deletes = st.tuples(st.just("delete"), st.sets(st.integers(0, 20), max_size=2))
upkeep = st.sampled_from(
    [
        ("flush",),
        ("flush",),
        ("merge",),
        ("sort",),
        ("compact",),
        ("catch up",),
        ("collect",),
        ("restore", 1),
        ("restore", 4),
    ]
)
rounds = st.lists(st.tuples(puts, patches | deletes, upkeep, st.just(("search",))), min_size=2, max_size=6)

_names = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    """Give segments to sorted generations of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation_write, "SEGMENT_ROWS", 1)
        yield


def row(key: int, text: str | None, tag: str | None) -> dict[str, object]:
    """Return a row whose position in the table does not depend on its key."""
    at = dt.datetime.fromtimestamp(3600 * (key % 2) + key * 7_919 % 1_000, dt.UTC)
    place = None if len(text or "") == 3 and tag is None else [float(key % 5), float(len(text or ""))]
    return {"id": key, "at": at, "text": text, "tag": tag, "place": place}


def require_exact(table: KeyedTable, head: Snapshot, kept: SearchCache) -> None:
    """Assert that every search matches a scan.

    Check the base, and check all durable records. `kept` is the search cache.
    """
    waiting = capture(table.store, head, include_wal=True)
    records = fold.fold(waiting.above(head), ("id",))
    base = pa.Table.from_pylist(table.base_rows(head), schema=head.schema)
    for unmerged, rows in ((), base), (waiting.parts(head), fold.apply(base, records, ("id",))):
        asked = partial(search, table.store, head, limit=1_000, unmerged=unmerged, kept=kept)
        for index, column, values in (("words", "text", WORDS), ("tags", "tag", TAGS)):
            for value in values:
                expected = [row["id"] for row in rows.to_pylist() if value in (row[column] or "").split()]
                assert sorted(asked(value, index=index).column("id").to_pylist()) == sorted(expected), value
        expected_near = nearest(rows.to_pylist(), HERE, "l2", column="place", order=lambda row: row["id"])
        near = asked(vector=HERE)
        assert near.column("id").to_pylist() == [row["id"] for _, row in expected_near]
        assert near.column("distance").to_pylist() == [each for each, _ in expected_near]


def index(table: KeyedTable) -> None:
    for each in INDEXES:
        snapshot = table.snapshot
        plan = catch_up.plan(snapshot, each.name)
        built = [catch_up.execute(table.store, work, ids=table.ids) for work in plan.work]
        if actions := plan.actions(built):
            table.log.commit(snapshot, actions, operation="CATCH UP")
        assert catch_up.watermark(table.snapshot, each.name) == table.snapshot.version


@settings(max_examples=scaled(10), deadline=None)
@given(taken=rounds)
def test_a_search_finds_what_a_scan_finds_whatever_was_merged(taken: list[tuple[tuple[object, ...], ...]]) -> None:
    clock, kept = ManualClock(step_ms=1), SearchCache()
    table = KeyedTable(MemoryStore(f"followed-{next(_names)}", clock=clock), clock=clock).create(SCHEMA, CONFIG)
    writer = table.writer(WriterOptions(segment_rows=1))
    for step in [*itertools.chain.from_iterable(taken), ("flush",), ("merge",), ("compact",)]:
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
                require_exact(table, table.snapshot, kept)
            case ("sort",):
                table.sort()
            case ("compact",):
                before = {each.name: catch_up.watermark(table.snapshot, each.name) for each in INDEXES}
                table.compact()
                require_exact(table, table.snapshot, kept)
                assert all(catch_up.watermark(table.snapshot, name) >= mark for name, mark in before.items())
            case ("catch up",):
                index(table)
                require_exact(table, table.snapshot, kept)
            case ("search",):
                require_exact(table, table.snapshot, kept)
            case ("collect",):
                clock.now += 2_000
                collect(table.store, table.log, clock=clock)
                require_exact(table, table.snapshot, kept)
            case ("restore", int(back)):
                try:
                    restore(table.log, snapshot_at(table.log, max(0, table.snapshot.version - back)))
                except (NotFound, SnapshotExpired):
                    continue
                require_exact(table, table.snapshot, kept)
    index(table)
    require_exact(table, table.snapshot, kept)
    assert fsck(table.store, clock=table.clock, deep=True).clean
