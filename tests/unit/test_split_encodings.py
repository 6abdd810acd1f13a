"""The smallest encoding is chosen per column, recorded in the split, and kept by merges."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_core.compact.execute import execute
from storage_core.log.actions import Add
from storage_core.split.encode import LEAST_ROWS, Encoding, candidates, choose, inherited, record, recorded
from storage_core.split.metadata import differences
from storage_core.split.read import open_split, read_split
from storage_core.split.writer import sort_and_write
from storage_core.store.memory import MemoryStore
from tests.support.events import CONFIG, SCHEMA, context, events, snapshot
from tests.support.ids import SeededIds
from tests.support.merge_plan import plan

ROWS = 40_000
TYPES = (pa.bool_(), pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32())
DELTA = {Encoding.DELTA_BINARY_PACKED, Encoding.DELTA_BYTE_ARRAY, Encoding.DELTA_LENGTH_BYTE_ARRAY}


def _columns() -> pa.Table:
    chance = np.random.default_rng(7)
    return pa.table(
        {
            "counter": pa.array(np.cumsum(chance.integers(900, 1100, ROWS))),
            "level": pa.array(chance.choice(["debug", "information", "warning"], ROWS)),
            "path": pa.array([f"/srv/data/2026/partition-{row:07d}/part" for row in range(ROWS)]),
            "noise": pa.array(chance.random(ROWS)),
            "half": pa.array(chance.integers(0, 4, ROWS) / 2),
            "flag": pa.array(chance.random(ROWS) < 0.5),
            "tags": pa.array([[1, 2]] * ROWS, pa.list_(pa.int64())),
        }
    )


def _native(store: MemoryStore, add: Add) -> Mapping[str, set[str]]:
    footer = pq.read_metadata(io.BytesIO(store.get(add.path).data))
    columns = [footer.row_group(group).column(i) for group in range(footer.num_row_groups) for i in range(5)]
    return {each.path_in_schema: set(each.encodings) for each in columns}


def _events(rows: int, *, first: int = 0) -> pa.Table:
    """Return one series with a row per second, growing counters, and values that never repeat."""
    times = pa.array(np.arange(first, first + rows, dtype=np.int64) * 50_000).cast(SCHEMA.field("at").type)
    names = pa.array([f"service-{row % 3}" for row in range(rows)])
    hosts = pa.array([f"host-{row % 50:04d}" for row in range(rows)])
    counts = pa.array(np.arange(rows, dtype=np.int64) * 1009)
    return pa.table([times, names, hosts, counts, pa.array(np.random.default_rng(first).random(rows))], schema=SCHEMA)


def test_what_is_smallest_is_chosen_for_each_kind_of_column() -> None:
    assert choose(_columns(), ROWS) == {
        "counter": Encoding.DELTA_BINARY_PACKED,
        "level": Encoding.DICTIONARY,
        "path": Encoding.DELTA_BYTE_ARRAY,
        "noise": Encoding.PLAIN,
        "half": Encoding.DICTIONARY,
    }


def test_a_dictionary_is_charged_for_all_rows_and_not_for_the_sample() -> None:
    """A sample of 16,384 random rows has nearly all 8,000 names, so further rows hardly add to the dictionary."""
    names = [f"{name * 7919 % 99_991:032x}" for name in range(8000)]
    drawn = pa.table({"name": pa.array(np.random.default_rng(1).choice(names, 200_000))})
    assert choose(drawn, 200_000) == {"name": Encoding.DICTIONARY}


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_a_dictionary_column_has_the_candidates_of_its_values(type_: pa.DataType) -> None:
    assert candidates(pa.dictionary(pa.int32(), type_)) == candidates(type_)


def test_a_large_split_is_written_as_chosen_and_says_so() -> None:
    store = MemoryStore("encodings")
    rows = _events(LEAST_ROWS)
    (add,) = sort_and_write(store, rows, context=context(), ids=SeededIds(1), now_ms=1)
    split = open_split(store, add)
    chosen = recorded(split.metadata)
    assert chosen["count"] is Encoding.DELTA_BINARY_PACKED
    assert chosen["value"] is Encoding.PLAIN
    native = _native(store, add)
    for name, encoding in chosen.items():
        assert ("RLE_DICTIONARY" in native[name]) == (encoding is Encoding.DICTIONARY)
        assert native[name] & DELTA == {encoding} & DELTA
    assert differences(split.metadata, add) == []
    key = [("service", "ascending"), ("host", "ascending"), ("at", "descending")]
    assert read_split(store, add).equals(rows.sort_by(key))


def test_a_small_split_is_written_without_a_choice() -> None:
    store = MemoryStore("encodings")
    (add,) = sort_and_write(store, _events(LEAST_ROWS - 1), context=context(), ids=SeededIds(1), now_ms=1)
    assert recorded(open_split(store, add).metadata) == {}


def test_a_merge_takes_the_choice_of_most_rows_over() -> None:
    store, ids = MemoryStore("encodings"), SeededIds(1)
    large = replace(context(), window_seconds=None)
    tables = [_events(LEAST_ROWS), _events(LEAST_ROWS, first=LEAST_ROWS), _events(9, first=2 * LEAST_ROWS)]
    adds = [add for rows in tables for add in sort_and_write(store, rows, context=large, ids=ids, now_ms=1)]
    (operation,) = plan(snapshot(adds, config=replace(CONFIG, window_seconds=None)))
    (merged,) = execute(store, operation, ids=ids, now_ms=2).adds
    assert recorded(open_split(store, merged).metadata) == recorded(open_split(store, adds[0]).metadata)
    assert read_split(store, merged).num_rows == 2 * LEAST_ROWS + 9


def test_a_merge_of_small_splits_chooses_on_its_own_rows() -> None:
    store, ids = MemoryStore("encodings"), SeededIds(1)
    where = replace(context(), window_seconds=None)
    parts = [_events(LEAST_ROWS // 4, first=part * LEAST_ROWS) for part in range(4)]
    adds = [add for rows in parts for add in sort_and_write(store, rows, context=where, ids=ids, now_ms=1)]
    (operation,) = plan(snapshot(adds, config=replace(CONFIG, window_seconds=None)))
    (merged,) = execute(store, operation, ids=ids, now_ms=2).adds
    assert recorded(open_split(store, merged).metadata)["count"] is Encoding.DELTA_BINARY_PACKED


def test_a_choice_is_inherited_from_more_than_half_of_the_rows_only() -> None:
    schema = pa.schema([("n", pa.int64()), ("flag", pa.bool_())])
    delta, plain = (record({"n": each}, LEAST_ROWS) for each in (Encoding.DELTA_BINARY_PACKED, Encoding.PLAIN))
    most, half = LEAST_ROWS + 1, LEAST_ROWS
    assert inherited([(most, delta), (half, {})], schema) == {"n": Encoding.DELTA_BINARY_PACKED}
    assert inherited([(half, delta), (half, {})], schema) is None
    assert inherited([(half, delta), (most, plain)], schema) == {"n": Encoding.PLAIN}
    assert inherited([(most, delta)], schema.append(pa.field("m", pa.int64()))) is None
    assert inherited([(most, {"tidemark.encodings": '{"n":"RICE"}'})], schema) is None


def test_what_a_small_merge_chose_is_no_choice_for_a_larger_one() -> None:
    assert record({"n": Encoding.DELTA_BINARY_PACKED}, LEAST_ROWS - 1) == {}
    delta = record({"n": Encoding.DELTA_BINARY_PACKED}, LEAST_ROWS)
    assert inherited([(LEAST_ROWS - 1, delta)] * 12, pa.schema([("n", pa.int64())])) is None


def test_a_merge_chooses_however_few_rows_it_has() -> None:
    store, ids = MemoryStore("encodings"), SeededIds(1)
    parts = [_events(900, first=part * 900) for part in range(2)]
    adds = [add for rows in parts for add in sort_and_write(store, rows, context=context(), ids=ids, now_ms=1)]
    (operation, *_) = plan(snapshot(adds))
    merged = execute(store, operation, ids=ids, now_ms=2).adds
    assert "DELTA_BINARY_PACKED" in _native(store, merged[0])["count"]
    assert recorded(open_split(store, merged[0]).metadata) == {}


def test_splits_of_all_encodings_merge_into_the_same_rows() -> None:
    """The inputs of one merge may have different encodings, for example plain and dictionary."""
    store, ids = MemoryStore("encodings"), SeededIds(1)
    where = replace(context(), window_seconds=None)
    unlike = events(
        [{"at": 1, "service": f"s{row:06d}", "host": f"h{row * 7919:09d}", "count": row} for row in range(ROWS)]
    )
    adds = [
        add
        for rows in (_events(LEAST_ROWS), unlike, events([{"at": 2, "service": None, "host": "", "value": -0.0}]))
        for add in sort_and_write(store, rows, context=where, ids=ids, now_ms=1)
    ]
    coded, plain = (recorded(open_split(store, add).metadata)["host"] for add in adds[:2])
    assert coded is Encoding.DICTIONARY
    assert plain in DELTA
    (operation,) = plan(snapshot(adds, config=replace(CONFIG, window_seconds=None)))
    (merged,) = execute(store, operation, ids=ids, now_ms=2).adds
    together = pa.concat_tables([read_split(store, add) for add in adds])
    key = [("service", "ascending"), ("host", "ascending"), ("at", "descending")]
    assert read_split(store, merged).equals(together.sort_by(key).combine_chunks())
