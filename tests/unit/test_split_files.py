"""Written splits are self-describing, in one window, sorted, and about the target size.

See docs/architecture/compaction.md.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from storage_core.base.errors import CommitConflict, CommitUnknown, InvalidInput
from storage_core.compact.invariants import scope_of
from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.settings.table import TableConfig
from storage_core.maintain.audit import audit
from storage_core.split.context import SplitContext, context_of
from storage_core.split.metadata import differences
from storage_core.split.read import open_split, read_split
from storage_core.split.writer import sort_and_write, write_split
from storage_core.store.memory import MemoryStore
from tests.support.events import CONFIG, HOUR_SECONDS, SCHEMA, context, events, snapshot
from tests.support.fault_store import FaultStore, PutFault
from tests.support.ids import SeededIds

NOW_MS = 1_700_000_000_000
ROWS = [
    {"at": 7201, "service": "web", "host": "b", "count": 1, "value": 0.5},
    {"at": 7200, "service": "api", "host": None, "count": 2, "value": float("nan")},
    {"at": 7300, "service": "api", "host": "a", "count": None, "value": -0.0},
    {"at": 7400, "service": "api", "host": "a", "count": 4, "value": None},
]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("splits")


def test_rows_are_stored_in_the_order_of_the_sort_schema(store: MemoryStore) -> None:
    (add,) = sort_and_write(store, events(ROWS), context=context(), ids=SeededIds(1), now_ms=NOW_MS)
    stored = read_split(store, add)
    assert stored.schema.equals(SCHEMA)
    assert [(row["service"], row["host"], row["count"]) for row in stored.to_pylist()] == [
        ("api", "a", 4),
        ("api", "a", None),
        ("api", None, 2),
        ("web", "b", 1),
    ]


def test_the_file_and_its_action_say_the_same(store: MemoryStore) -> None:
    (add,) = sort_and_write(store, events(ROWS), context=context(), ids=SeededIds(1), now_ms=NOW_MS)
    metadata = open_split(store, add, whole=False).metadata
    assert differences(metadata, add) == []
    assert metadata["tidemark.sort_schema"] == add.sortSchema == "service|host|timestamp/V2"
    assert metadata["tidemark.window_start"] == "7200"
    assert metadata["tidemark.window_seconds"] == "3600"
    assert metadata["tidemark.path"] == add.path
    assert metadata["tidemark.nulls"] == "last"
    assert json.loads(metadata["tidemark.null_counts"]) == add.nullCounts
    assert (
        json.loads(metadata["tidemark.column_regexes"])
        == add.columnRegexes
        == {"service": "^(api|web)$", "host": "^(a|b)$"}
    )


def test_columns_behind_the_cutoff_are_described_and_do_not_order(store: MemoryStore) -> None:
    config = replace(CONFIG, sort_schema="service|&host|timestamp/V2")
    where = context(config=config)
    assert SplitContext.from_json(where.to_json()) == where
    (add,) = sort_and_write(store, events(ROWS), context=where, ids=SeededIds(1), now_ms=NOW_MS)
    assert [row["count"] for row in read_split(store, add).to_pylist()] == [4, None, 2, 1]
    assert json.loads(add.minRowKey or "") == ["api", "1970-01-01T02:03:20.000000Z"]
    assert add.columnRegexes == {"service": "^(api|web)$", "host": "^(a|b)$"}


def test_a_split_records_that_its_nulls_are_first(store: MemoryStore) -> None:
    config = replace(CONFIG, sort_schema="service|host:-|timestamp/V2 nulls first")
    where = context(config=config)
    assert SplitContext.from_json(where.to_json()) == where
    (add,) = sort_and_write(store, events(ROWS), context=where, ids=SeededIds(1), now_ms=NOW_MS)
    assert read_split(store, add, ["host"]).column(0).to_pylist() == [None, "a", "a", "b"]
    split = open_split(store, add, whole=False)
    assert add.sortSchema == "service|host:-|timestamp/V2 nulls first"
    assert split.metadata["tidemark.nulls"] == "first"
    assert split.native_sorting() == list(where.order.columns)
    assert audit(store, snapshot([add], config=config)).violations == ()
    assert scope_of("t", add) != scope_of("t", replace(add, sortSchema="service|host:-|timestamp/V2"))


def test_a_field_that_differs_from_the_action_is_named(store: MemoryStore) -> None:
    (add,) = sort_and_write(store, events(ROWS), context=context(), ids=SeededIds(1), now_ms=NOW_MS)
    metadata = open_split(store, add, whole=False).metadata
    assert differences(metadata, replace(add, windowStart=10800)) == [
        "tidemark.window_start: the log has '10800', the file has '7200'"
    ]


def test_the_action_describes_rows_and_bytes(store: MemoryStore) -> None:
    (add,) = sort_and_write(store, events(ROWS), context=context(), ids=SeededIds(1), now_ms=NOW_MS)
    data = store.get(add.path).data
    parsed = parse(add.path)
    assert parsed is not None
    assert parsed.kind is KeyKind.SPLIT
    assert add.path.startswith("splits/7200/")
    assert (add.size, add.xxh3) == (len(data), xxhash.xxh3_64_hexdigest(data))
    assert (add.numRecords, add.numMergeOps, add.modificationTime) == (4, 0, NOW_MS)
    assert add.nullCounts == {"at": 0, "service": 0, "host": 1, "count": 1, "value": 1}
    assert json.loads(add.minRowKey or "") == ["api", "a", "1970-01-01T02:03:20.000000Z"]
    assert json.loads(add.maxRowKey or "") == ["web", "b", "1970-01-01T02:00:01.000000Z"]
    assert add.footerStartOffset is not None
    assert pq.read_metadata(io.BytesIO(data)).serialized_size == len(data) - 8 - add.footerStartOffset


def test_parquet_itself_records_the_sort_order_and_bounds(store: MemoryStore) -> None:
    (add,) = sort_and_write(store, events(ROWS), context=context(), ids=SeededIds(1), now_ms=NOW_MS)
    group = pq.read_metadata(io.BytesIO(store.get(add.path).data)).row_group(0)
    ordering, nulls = pq.SortingColumn.to_ordering(SCHEMA, group.sorting_columns)
    assert ordering == (("service", "ascending"), ("host", "ascending"), ("at", "descending"))
    assert nulls == "at_end"
    bounds = group.column(1).statistics
    assert (bounds.min, bounds.max, bounds.null_count) == ("api", "web", 0)
    assert group.column(0).compression == "ZSTD"


def test_a_batch_that_straddles_windows_is_split_before_writing(store: MemoryStore) -> None:
    """Lesson 29: the window of the first row is not the window of the batch."""
    seconds = [3599.999999, 3600, -1, 0, None, 7199]
    rows = events({"at": at, "service": "s", "host": "h", "count": i, "value": 1.0} for i, at in enumerate(seconds))
    adds = sort_and_write(store, rows, context=context(), ids=SeededIds(1), now_ms=NOW_MS)
    assert [(add.windowStart, add.numRecords) for add in adds] == [(-3600, 1), (0, 2), (3600, 2), (None, 1)]
    for add in adds:
        for row in read_split(store, add, ["at"]).to_pylist():
            start = None if row["at"] is None else int(row["at"].timestamp() // HOUR_SECONDS) * HOUR_SECONDS
            assert start == add.windowStart
    assert [add.path.split("/")[1] for add in adds] == ["-3600", "0", "3600", "null"]


def test_rows_outside_the_window_are_refused(store: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="1 of 2 rows lie outside the window 7200"):
        write_split(
            store,
            events([{"at": 7200}, {"at": 10800}]),
            context=context(),
            window=7200,
            num_merge_ops=0,
            split_id="a",
            now_ms=NOW_MS,
        )
    assert list(store.list("")) == []


def test_a_null_timestamp_belongs_to_no_numbered_window(store: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="1 of 2 rows"):
        write_split(
            store,
            events([{"at": 7200}, {"at": None}]),
            context=context(),
            window=7200,
            num_merge_ops=0,
            split_id="a",
            now_ms=NOW_MS,
        )


def test_large_batches_are_cut_at_the_target_size_where_the_key_changes(store: MemoryStore) -> None:
    names = [f"service-{i % 50:02d}" for i in range(60_000)]
    rows = events(
        {"at": 7200 + i % 7 / 10, "service": name, "host": "h", "count": i * 7919 % 99_991, "value": i / 3}
        for i, name in enumerate(names)
    )
    small = replace(context(), target_bytes=30_000)
    adds = sort_and_write(store, rows, context=small, ids=SeededIds(1), now_ms=NOW_MS)
    assert len(adds) > 3
    assert all(20_000 < add.size < 60_000 for add in adds)
    assert sum(add.numRecords or 0 for add in adds) == 60_000
    keys = [(row["service"], row["host"], row["at"]) for row in read_split(store, adds[0]).to_pylist()]
    for add in adds[1:]:
        following = [(row["service"], row["host"], row["at"]) for row in read_split(store, add).to_pylist()]
        assert keys[-1] != following[0]
        keys = following
    bounds = [(json.loads(add.minRowKey or ""), json.loads(add.maxRowKey or "")) for add in adds]
    assert all(last[:2] <= first[:2] for (_, last), (first, _) in pairwise(bounds))


def test_a_run_of_equal_keys_is_never_cut(store: MemoryStore) -> None:
    rows = events({"at": 7200, "service": "s", "host": "h", "count": i * 7919, "value": i / 3} for i in range(20_000))
    adds = sort_and_write(store, rows, context=replace(context(), target_bytes=10_000), ids=SeededIds(1), now_ms=NOW_MS)
    assert [add.numRecords for add in adds] == [20_000]


def test_no_rows_make_no_split(store: MemoryStore) -> None:
    assert sort_and_write(store, events([]), context=context(), ids=SeededIds(1), now_ms=NOW_MS) == []
    with pytest.raises(InvalidInput, match="has no rows"):
        write_split(store, events([]), context=context(), window=0, num_merge_ops=0, split_id="a", now_ms=NOW_MS)


def test_a_table_without_windows_keeps_its_splits_in_one_folder(store: MemoryStore) -> None:
    config = TableConfig(primary_key=("service", "host"))
    rows = events([{"service": "b", "host": "x"}, {"service": "a", "host": "y"}])
    (add,) = sort_and_write(store, rows, context=context(config=config), ids=SeededIds(1), now_ms=NOW_MS)
    assert add.path.startswith("splits/all/")
    assert (add.windowStart, add.windowSeconds, add.sortSchema) == (None, None, "key(service,host)")
    assert json.loads(add.minRowKey or "") == ["a", "y"]


def test_a_table_without_any_order_keeps_the_order_of_arrival(store: MemoryStore) -> None:
    (add,) = sort_and_write(store, events(ROWS), context=context(config=TableConfig()), ids=SeededIds(1), now_ms=NOW_MS)
    assert read_split(store, add).column("count").to_pylist() == [1, 2, None, 4]
    assert (add.sortSchema, add.minRowKey) == ("", "[]")


def test_dictionary_columns_are_stored_as_their_values(store: MemoryStore) -> None:
    rows = events(ROWS).sort_by([("service", "ascending"), ("at", "descending")])
    coded = rows.set_column(1, "service", rows.column("service").dictionary_encode())
    plain, from_codes = (
        write_split(store, table, context=context(), window=7200, num_merge_ops=0, split_id=split_id, now_ms=NOW_MS)
        for split_id, table in (("plain", rows), ("coded", coded))
    )
    assert read_split(store, from_codes).drop_columns("value").equals(read_split(store, plain).drop_columns("value"))
    codes, values = (
        replace(each, path="", size=0, xxh3=None, footerXxh3=None, footerStartOffset=0, footerEndOffset=0)
        for each in (from_codes, plain)
    )
    assert codes == values


def test_nested_columns_and_required_columns_come_back_as_they_were(store: MemoryStore) -> None:
    schema = pa.schema(
        [
            pa.field("tags", pa.map_(pa.string(), pa.string())),
            pa.field("points", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.float32())]))),
            pa.field("id", pa.int64(), nullable=False),
            pa.field("price", pa.decimal128(9, 2)),
            pa.field("raw", pa.binary()),
            pa.field("day", pa.date32()),
            pa.field("local", pa.timestamp("us")),
        ]
    )
    rows = pa.Table.from_pylist(
        [{"tags": [("a", "b")], "points": [{"x": 1, "y": 0.5}], "id": 1, "raw": b"\xff"}, {"id": 2}], schema=schema
    )
    where = context(schema, TableConfig(primary_key=("id",)))
    (add,) = sort_and_write(store, rows, context=where, ids=SeededIds(1), now_ms=NOW_MS)
    stored = read_split(store, add)
    assert stored.schema.equals(schema)
    assert stored.equals(rows)


def test_writing_the_same_split_again_succeeds_and_another_one_conflicts(store: MemoryStore) -> None:
    def write(count: int) -> object:
        return write_split(
            store,
            events([{"at": 7200, "count": count}]),
            context=context(),
            window=7200,
            num_merge_ops=0,
            split_id="one",
            now_ms=NOW_MS,
        )

    assert write(1) == write(1)
    with pytest.raises(CommitConflict, match=r"splits/7200/one\.parquet: another object has this id"):
        write(2)


def test_a_lost_reply_is_resolved_by_reading_back() -> None:
    """Lesson 01: a put that took effect is a success, whatever the reply was."""
    store = FaultStore(MemoryStore("splits"))
    store.on_put("splits/", PutFault.APPLIED_THEN_UNKNOWN)
    (add,) = sort_and_write(store, events(ROWS), context=context(), ids=SeededIds(1), now_ms=NOW_MS)
    assert read_split(store, add).num_rows == 4


def test_a_split_that_is_not_there_after_a_lost_reply_is_unknown() -> None:
    store = FaultStore(MemoryStore("splits"))
    store.on_put("splits/", PutFault.DROPPED_THEN_UNKNOWN)
    with pytest.raises(CommitUnknown, match="did not say whether it kept the object"):
        sort_and_write(store, events(ROWS), context=context(), ids=SeededIds(1), now_ms=NOW_MS)


def test_a_context_travels_as_json() -> None:
    for each in (context(), context(config=TableConfig(primary_key=("service",))), context(config=TableConfig())):
        assert SplitContext.from_json(each.to_json()) == each


def test_new_splits_are_written_as_the_table_says() -> None:
    assert context_of(snapshot([])) == context(SCHEMA, CONFIG)
