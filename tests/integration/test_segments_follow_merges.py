"""Index segments of generations become segments of the base: a merge and a later catch-up index no row again."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from storage_core.data.formats.bundle import TranslationMap
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up
from storage_core.index.segments import compute_coverage
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.write.region import captured_regions, generation_write, merge
from storage_core.write.region.records import WriterOptions
from tests.support.clock import ManualClock
from tests.support.keyed_table import KeyedTable
from tests.support.searching import search

ID = pa.field("id", pa.string(), nullable=False)
SCHEMA = pa.schema([ID, ("at", pa.timestamp("us", "UTC")), ("text", pa.string()), ("n", pa.int64())])
TEXT = IndexDefinition("text", "fulltext", ("text",))
NUMBERS = IndexDefinition("numbers", "bitmap", ("n",))
CONFIG = TableConfig(
    primary_key=("id",),
    time_column="at",
    window_seconds=3600,
    sort_schema="n|timestamp/V2",
    indexes=(TEXT, NUMBERS),
    version_retention_ms=1_000,
    gc_horizon_ms=1_000,
)


def row(number: int) -> dict[str, object]:
    at = dt.datetime.fromtimestamp(3600 * (number % 2) + number * 7_919 % 1_000, dt.UTC)
    return {"id": f"k{number * 7_919 % 10_007:05}", "at": at, "text": f"word{number % 5} tide", "n": number % 3}


def written(*numbers: range, config: TableConfig = CONFIG) -> KeyedTable:
    """Write one generation per range of rows, without a merge."""
    clock = ManualClock(step_ms=1)
    table = KeyedTable(MemoryStore("followed", clock=clock), clock=clock).create(SCHEMA, config)
    for each in numbers:
        put(table, each)
    return table


def put(table: KeyedTable, numbers: range) -> None:
    with table.writer(WriterOptions(segment_rows=1)) as writer:
        writer.put([row(number) for number in numbers])
        writer.flush()


def require_exact(table: KeyedTable, head: Snapshot) -> None:
    """Check that every search of the base returns the same result as a search of a newly built index."""
    rows = table.base_rows(head)
    for index, query, wanted in (
        ("text", "word1", [each["id"] for each in rows if "word1" in str(each["text"])]),
        ("text", "tide", [each["id"] for each in rows if "tide" in str(each["text"])]),
        ("numbers", 2, [each["id"] for each in rows if each["n"] == 2]),
    ):
        found = search(table.store, head, query, index=index, limit=10_000)
        assert sorted(found.column("id").to_pylist()) == sorted(map(str, wanted)), (index, query)


def built_by_catch_ups(table: KeyedTable, *indexes: IndexDefinition) -> int:
    """Catch up these indexes, or all, and return the number of rows that were indexed."""
    count = 0
    for index in indexes or (TEXT, NUMBERS):
        snapshot = table.snapshot
        plan = catch_up.plan(snapshot, index.name)
        built = [catch_up.execute(table.store, work, ids=table.ids) for work in plan.work]
        count += sum(each.numRecords for each in built)
        if actions := plan.actions(built):
            table.log.commit(snapshot, actions, operation="CATCH UP")
        assert catch_up.watermark(table.snapshot, index.name) == table.snapshot.version
    return count


def test_a_merge_leaves_nothing_to_index() -> None:
    table = written(range(100), range(100, 250))
    table.merge()
    head = table.snapshot
    assert {catch_up.watermark(head, each.name) for each in (TEXT, NUMBERS)} == {head.version}
    assert len(head.segments) == 4
    assert built_by_catch_ups(table) == 0
    require_exact(table, head)
    for query in ("word1", "word2 tide"):
        answers = [
            search(table.store, each, query, index="text", limit=1_000) for each in (head, replace(head, segments={}))
        ]
        assert answers[0].equals(answers[1])


def test_rows_are_followed_through_merges_and_compactions() -> None:
    table = written(range(100), range(100, 200))
    table.merge()
    put(table, range(200, 300))
    table.merge()
    assert table.compact() is not None
    head = table.snapshot
    assert {catch_up.watermark(head, each.name) for each in (TEXT, NUMBERS)} == {head.version}
    require_exact(table, head)
    assert built_by_catch_ups(table) == 0


def test_rows_that_a_merge_made_anew_are_indexed_and_no_others() -> None:
    table = written(range(100))
    table.merge()
    with table.writer(WriterOptions(segment_rows=1)) as writer:
        writer.put([row(number) for number in range(100, 160)])
        writer.patch([{"id": row(number)["id"], "text": "word1 patched"} for number in range(5)])
        writer.delete([str(row(number)["id"]) for number in range(5, 9)])
        writer.flush()
    table.merge()
    head = table.snapshot
    assert compute_coverage(head, TEXT).missing
    require_exact(table, head)
    assert built_by_catch_ups(table) == 2 * 5
    require_exact(table, table.snapshot)


def test_of_rows_that_a_later_generation_changes_the_later_segment_answers() -> None:
    table = written(range(100))
    with table.writer(WriterOptions(segment_rows=1)) as writer:
        writer.put([{**row(number), "text": "word1 newer"} for number in range(10)])
        writer.patch([{"id": row(number)["id"], "n": 2} for number in range(10, 15)])
        writer.flush()
    table.merge()
    require_exact(table, table.snapshot)
    assert built_by_catch_ups(table) == 2 * 5


def test_a_generation_that_was_mostly_superseded_is_not_followed() -> None:
    table = written(range(100), range(90))
    table.merge()
    require_exact(table, table.snapshot)
    assert {each.numRecords for each in table.snapshot.segments.values()} == {90}
    assert built_by_catch_ups(table) == 2 * 10


@pytest.mark.parametrize("indexes", [(TEXT, NUMBERS), (TEXT,)])
def test_a_part_keeps_the_translations_by_which_its_origins_are_known(indexes: tuple[IndexDefinition, ...]) -> None:
    table = written(range(20), config=replace(CONFIG, indexes=indexes))
    table.merge()
    put(table, range(10))
    table.merge()
    table.compact()
    # Half of the first generation's rows are gone, so its segments are rebuilt.
    assert built_by_catch_ups(table, *indexes) == 10 * len(indexes)
    assert all(catch_up.plan(table.snapshot, each.name).empty for each in indexes)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_sorted_generation_is_followed_and_a_damaged_segment_is_not(
    damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_write, "SEGMENT_ROWS", 1)
    table = written(range(50), range(50, 120))
    assert table.sort()
    if damaged:
        table.store.delete([info.key for info in table.store.list("_indices/")])
    table.merge()
    require_exact(table, table.snapshot)
    assert built_by_catch_ups(table) == (2 * 120 if damaged else 0)


def test_what_a_merge_moved_outlives_the_generations_that_it_came_from() -> None:
    table = written(range(100), range(100, 200))
    table.merge()
    for _ in range(3):
        table.clock.now += 10_000
        table.log.checkpoint(table.snapshot)
        collect(table.store, table.log, clock=table.clock)
    assert not [info for info in table.store.list("_mem_wal/") if "_gen_" in info.key]
    require_exact(table, table.snapshot)
    assert fsck(table.store, clock=table.clock, deep=True).clean


def test_a_merge_of_many_rows_indexes_none_and_writes_next_to_nothing_for_indexes() -> None:
    rows, vector = 50_000, IndexDefinition("near", "vector", ("place",))
    schema = SCHEMA.append(pa.field("place", pa.list_(pa.float32(), 8)))
    clock, random = ManualClock(step_ms=1), np.random.default_rng(7)
    store = MeteredStore(MemoryStore("followed", clock=clock))
    table = KeyedTable(store, clock=clock).create(schema, replace(CONFIG, indexes=(TEXT, NUMBERS, vector)))
    keys = random.permutation(2 * rows)
    with table.writer() as writer:
        for part in range(2):
            words, places = random.integers(0, 20_000, (rows, 6)), random.normal(size=8 * rows).astype(np.float32)
            columns = {
                "id": pa.array([f"{key:08}" for key in keys[part * rows : (part + 1) * rows]]),
                "at": pa.array(random.integers(0, 7_200_000_000, rows), pa.timestamp("us", "UTC")),
                "text": pa.array([" ".join(map("w{}".format, each)) for each in words.tolist()]),
                "n": pa.array(random.integers(0, 50, rows)),
                "place": pa.FixedSizeListArray.from_arrays(places, 8),
            }
            writer.put(pa.table(columns, schema=schema))
            writer.flush()
    flushed = {info.key: info.size for info in store.list("_indices/")}
    assert len(flushed) == 6
    table.merge()
    head = table.snapshot
    written = {info.key: info.size for info in store.list("_indices/") if info.key not in flushed}
    assert (set(head.segments), set(head.translations)) == (set(flushed), set(written))
    assert sum(written.values()) <= 0.01 * sum(flushed.values())
    assert all(catch_up.plan(head, each.name).empty for each in (TEXT, NUMBERS, vector))
    assert {catch_up.watermark(head, each.name) for each in (TEXT, NUMBERS, vector)} == {head.version}
    without = replace(head, segments={}, translations={})
    for query in ({"query": "w17 w4711", "index": "text"}, {"query": 3, "index": "numbers"}, {"vector": [0.5] * 8}):
        followed, scanned = (search(store, each, limit=30, **query) for each in (head, without))
        assert followed.num_rows == 30
        assert followed.equals(scanned), query


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("of", ["order", "dropped"])
def test_a_merge_does_not_store_a_translation_that_is_off_by_one(
    by: int, of: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = written(range(100), range(95, 200))

    def wrong(**parts: Any) -> TranslationMap:
        if of == "order":
            return TranslationMap(**{**parts, "order": np.roll(parts["order"], by)})
        moved = [
            BitMap((row + by) % rows for row in gone)
            for gone, rows in zip(parts["dropped"], parts["input_rows"], strict=True)
        ]
        return TranslationMap(**{**parts, "dropped": tuple(moved)})

    monkeypatch.setattr(f"{merge.__name__}.TranslationMap", wrong)
    table.merge()
    head = table.snapshot
    assert (head.translations, head.segments) == ({}, {})
    assert "are not carried over" in caplog.text
    require_exact(table, head)
    assert built_by_catch_ups(table) == 2 * 200


def test_of_rows_of_a_generation_that_newer_records_change_only_the_newer_are_found() -> None:
    table = written(range(100))
    with table.writer() as writer:
        writer.put([{**row(number), "n": 7, "text": "word9"} for number in range(10)])
        writer.delete([str(row(number)["id"]) for number in range(10, 15)])
        writer.patch([{"id": row(number)["id"], "text": "word8"} for number in range(15, 20)])
    head, rows = table.snapshot, table.rows().values()
    waiting = captured_regions.capture(table.store, head, include_wal=True).parts(head)
    assert len(rows) == 95
    for index, query, column in (
        *(("text", f"word{number}", "text") for number in range(10)),
        *(("numbers", number, "n") for number in (0, 1, 2, 7)),
    ):
        found = search(table.store, head, query, index=index, limit=1_000, unmerged=waiting).column("id").to_pylist()
        wanted = [str(each["id"]) for each in rows if str(query) in str(each[column])]
        assert sorted(found) == sorted(wanted), (index, query)


def test_a_segment_in_another_order_than_that_of_the_table_is_neither_searched_nor_followed() -> None:
    table = written(range(100))
    snapshot = table.snapshot
    config = replace(snapshot.config, sort_schema="timestamp/V2")
    table.log.commit(
        snapshot, [replace(snapshot.metadata, configuration=config.to_configuration())], operation="CONFIGURE"
    )
    put(table, range(100, 150))
    head = table.snapshot
    waiting = captured_regions.capture(table.store, head, include_wal=True).parts(head)
    found = search(table.store, head, 2, index="numbers", limit=1_000, unmerged=waiting).column("n").to_pylist()
    assert found == [2] * 50
    table.merge()
    require_exact(table, table.snapshot)
    assert {each.numRecords for each in table.snapshot.segments.values()} == {50}
    assert built_by_catch_ups(table) == 2 * 100


def test_a_table_without_indexes_merges_as_before() -> None:
    table = written(range(20), config=replace(CONFIG, indexes=()))
    table.merge()
    assert (table.snapshot.translations, table.snapshot.segments) == ({}, {})
    assert not list(table.store.list("_indices/"))
