"""A merge reads each input once from start to end, and keeps one output piece in memory (decision 0016)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt
from storage_core.compact import execute as executing
from storage_core.compact.execute import execute, merge
from storage_core.compact.kernel import merge_order, output_schema, piece_rows, pieces
from storage_core.compact.work import CompactionTask
from storage_core.data.rows import statistics
from storage_core.log.actions import Add
from storage_core.split import metadata
from storage_core.split.read import OpenSplit, open_split, read_split
from storage_core.split.writer import sort_and_write, write_split
from storage_core.store.contract import ObjectStore
from storage_core.store.local import LocalStore
from storage_core.store.memory import MemoryStore
from tests.support.events import SCHEMA, context, events, snapshot
from tests.support.ids import SeededIds
from tests.support.merge_plan import plan

ORDER = context().order
NAN = float("nan")


def _rows(part: int, rows: int) -> pa.Table:
    return events(
        {
            "at": (row * 7 + part) % 3600,
            "service": None if row % 11 == 0 else f"s{row % 5}",
            "host": f"h{(row + part) % 3}",
            "count": row * 1009 + part,
            "value": NAN if row % 13 == 0 and part == 1 else row / 7,
        }
        for row in range(rows)
    )


def _write(store: ObjectStore) -> list[Add]:
    sizes = (500, 700, 1, 400)
    return [
        add
        for part, rows in enumerate(sizes)
        for add in sort_and_write(store, _rows(part, rows), context=context(), ids=SeededIds(part), now_ms=1)
    ]


def _opened(store: ObjectStore, adds: list[Add], spool: Path | None = None) -> list[OpenSplit]:
    return [open_split(store, add, as_dictionary=True, spool=spool) for add in adds]


@pytest.mark.parametrize("rows", [7, 400, 1600, 1601, 5000])
def test_pieces_of_any_size_make_the_same_output(rows: int) -> None:
    store = MemoryStore("streaming")
    splits = _opened(store, _write(store))
    runs = merge_order([split.read() for split in splits], ORDER).runs
    made = list(pieces(splits, runs, output_schema(splits, SCHEMA, {}), rows))
    assert [piece.num_rows for piece in made] == [min(rows, 1601 - start) for start in range(0, 1601, rows)]
    whole = pa.concat_tables([split.read() for split in splits])
    assert statistics.fingerprint_of(whole) == statistics.fingerprint_of(pa.concat_tables(made))
    keys = [("service", "ascending"), ("host", "ascending"), ("at", "descending")]
    expected = whole.cast(SCHEMA).sort_by(keys).drop_columns("value")
    assert pa.concat_tables(made).cast(SCHEMA).drop_columns("value").equals(expected)


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_inputs_on_disk_merge_as_inputs_in_memory_do(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: ObjectStore = LocalStore(tmp_path) if kind == "local" else MemoryStore("streaming")
    (operation,) = plan(snapshot(_write(store)))
    (in_memory,) = execute(store, operation, ids=SeededIds(9), now_ms=2).adds
    monkeypatch.setattr(executing, "_IN_MEMORY_BYTES", 0)
    (on_disk,) = execute(store, operation, ids=SeededIds(9), now_ms=2).adds
    assert on_disk == in_memory


def test_nothing_of_a_merge_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executing, "_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = MemoryStore("streaming")
    (operation,) = plan(snapshot(_write(store)))
    execute(store, operation, ids=SeededIds(9), now_ms=2)
    assert list(tmp_path.iterdir()) == []


def test_an_input_that_is_not_sorted_as_it_says_is_refused_by_name() -> None:
    store = MemoryStore("streaming")
    backwards = _rows(0, 50).sort_by([("service", "descending")])
    wrong = write_split(store, backwards, context=context(), window=0, num_merge_ops=0, split_id="wrong", now_ms=1)
    adds = [*_write(store), wrong]
    splits = _opened(store, adds)
    runs = merge_order([split.read() for split in splits], ORDER).runs
    with pytest.raises(Corrupt, match=r"SS-1: .*wrong\.parquet is not sorted"):
        list(pieces(splits, runs, output_schema(splits, SCHEMA, {}), 100))


def test_rows_without_a_place_in_the_order_are_noticed() -> None:
    store = MemoryStore("streaming")
    splits = _opened(store, _write(store))
    runs = merge_order([split.read().slice(0, split.rows - 1) for split in splits], ORDER).runs
    with pytest.raises(Corrupt, match=r"MC-1: 1 rows of .* are missing in the output"):
        list(pieces(splits, runs, output_schema(splits, SCHEMA, {}), 100))


def test_the_wider_the_rows_the_fewer_are_in_a_piece() -> None:
    store = MemoryStore("streaming")
    splits = _opened(store, _write(store))
    wide = pa.schema([pa.field(f"c{index}", pa.float64()) for index in range(100 * len(SCHEMA))])
    assert piece_rows(splits, SCHEMA) == metadata.ROWS_PER_GROUP
    narrow, wider = (piece_rows(splits, wide, piece_bytes) for piece_bytes in (2**26, 2**24))
    assert 1024 < wider * 3 < narrow < metadata.ROWS_PER_GROUP / 7
    assert piece_rows(splits, wide, 1) == 1024


def test_a_float_without_nan_keeps_its_bounds_and_one_with_nan_has_none() -> None:
    store = MemoryStore("streaming")
    adds = _write(store)
    assert [sorted(split.may_hold_nan()) for split in _opened(store, adds)] == [[], ["value"], [], []]
    operation = CompactionTask(0, (adds[0], adds[2]), context())
    (clean,) = execute(store, operation, ids=SeededIds(9), now_ms=2).adds
    assert open_split(store, clean).may_hold_nan() == frozenset()
    (operation,) = plan(snapshot(adds))
    (mixed,) = execute(store, operation, ids=SeededIds(8), now_ms=2).adds
    assert open_split(store, mixed).may_hold_nan() == frozenset({"value"})
    assert (mixed.maxValues or {})["value"] == "NaN"


def test_an_output_of_many_pieces_is_one_split_that_says_what_its_rows_say(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore("streaming")
    (operation,) = plan(snapshot(_write(store)))
    (whole,) = execute(store, operation, ids=SeededIds(9), now_ms=2).adds
    monkeypatch.setattr(executing, "piece_rows", lambda _splits, _schema: 70)
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 100)
    (pieced,) = execute(store, operation, ids=SeededIds(8), now_ms=2).adds
    assert open_split(store, pieced).row_groups == 17
    described = ("numRecords", "minValues", "maxValues", "nullCounts", "minRowKey", "maxRowKey")
    assert [getattr(pieced, name) for name in described] == [getattr(whole, name) for name in described]
    rows = [read_split(store, add).drop_columns("value") for add in (pieced, whole)]
    assert rows[0].equals(rows[1])


def test_a_merge_says_how_its_output_is_stored() -> None:
    store = MemoryStore("streaming")
    merged = merge(_opened(store, _write(store)), SCHEMA, ORDER)
    assert (merged.encodings, merged.order.runs.rows) == (None, 1601)
