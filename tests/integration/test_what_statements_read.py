"""Deletes and updates in splits of many row groups.

The tests cover the data that is read, the engine, and the changed rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from uuid import uuid4

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tidemark as tm
from storage_core.change import row_finder
from storage_core.read import row_filter
from storage_core.split import metadata as row_groups
from storage_core.split.encode import Encoding, recorded
from storage_core.split.read import OpenSplit, Piece, open_split
from tests.support.split_places import column_places

ROWS = 30_000
SCHEMA = pa.schema([("n", pa.int64()), ("kind", pa.int32()), ("x", pa.float64()), ("word", pa.string())])
EXACT, JUDGED = "kind = 3 or (word = 'w1' and n < 9000)", "kind % 20 = 3 or (word = 'w1' and n < 9000)"


def _rows(first: int = 0, count: int = ROWS) -> pa.Table:
    chance = np.random.default_rng(first)
    numbers = np.arange(first, first + count)
    kinds = pa.array(chance.integers(0, 20, count), pa.int32(), mask=numbers % 7 == 0)
    words = pa.array([f"w{each}" for each in range(4)]).take(pa.array(chance.integers(0, 4, count)))
    return pa.table([numbers, kinds, chance.random(count), words], schema=SCHEMA)


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "ROWS_PER_GROUP", 1_000)
    monkeypatch.setattr(row_finder, "TOGETHER_BYTES", 200_000)  # several row groups, and several batches of them


@pytest.fixture(params=["local", "memory"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tm.Table:
    made = tm.Table.create(str(tmp_path / "t") if request.param == "local" else f"memory://{uuid4()}", SCHEMA)
    for first in range(0, ROWS, ROWS // 3):
        made.append(_rows(first, ROWS // 3))
    return made


def _meeting(rows: pa.Table, condition: str) -> pa.ChunkedArray:
    found = duckdb.from_arrow(rows).filter(condition).select("n").to_arrow_table().column(0)
    return pc.is_in(rows.column("n"), value_set=found.combine_chunks())


@pytest.mark.parametrize("condition", [EXACT, JUDGED, "kind = 3", "word = 'w2' and kind = 3 and kind < 9"])
def test_rows_of_many_row_groups_go_and_change_as_their_condition_says(table: tm.Table, condition: str) -> None:
    rows = pa.concat_tables([_rows(first, ROWS // 3) for first in range(0, ROWS, ROWS // 3)])
    table.delete("n % 5 = 1")
    rows = rows.filter(pc.not_equal(pa.array(rows.column("n").to_numpy() % 5), 1))
    met = _meeting(rows, condition)
    done = table.update({"x": tm.expr("x + 1"), "word": "new"}, condition)
    assert done.rows == done.rows_added == pc.sum(met).as_py() > 200
    changed = rows.filter(met)
    changed = changed.set_column(2, SCHEMA.field("x"), pc.add(changed.column("x"), 1.0))
    changed = changed.set_column(3, SCHEMA.field("word"), pa.array(["new"] * len(changed)))
    expected = pa.concat_tables([changed, rows.filter(pc.invert(met))]).sort_by("n")
    assert table.scan().to_arrow().sort_by("n").equals(expected)
    assert table.delete(condition).rows == pc.sum(_meeting(changed, condition)).as_py()
    left = expected.filter(pc.invert(_meeting(expected, condition)))
    assert table.scan().to_arrow().sort_by("n").equals(left)


def test_no_process_judges_what_needs_no_cast(table: tm.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare() -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(row_filter, "prepare", prepare)
    assert table.delete(EXACT).rows > 1_000
    assert table.delete(tm.col("kind").is_null() & (tm.col("n") >= 7)).rows > 1_000
    with pytest.raises(AssertionError, match="a process was started"):
        table.delete(JUDGED)


def test_a_delete_reads_footers_and_the_columns_of_its_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**10)
    table = tm.Table.create(f"memory://{uuid4()}", SCHEMA)
    table.append(_rows())
    table = tm.Table.open(table.uri)
    (add,) = table.snapshot.splits.values()
    places = column_places(table, add)[:, 1]
    before = table.store.bytes_read
    table.delete("kind = 3")
    footer = (add.footerEndOffset or 0) - (add.footerStartOffset or 0)
    chunks = int((places[:, 1] - places[:, 0]).sum())
    assert chunks + footer <= table.store.bytes_read - before < chunks + footer + 2_000 < add.size / 4


@pytest.mark.parametrize(
    ("given", "condition", "read"),
    [
        ({"word": "new"}, "kind = 3", ["kind", "n x"]),
        ({"x": 1.0, "n": tm.expr("n + 1")}, "kind % 20 = 4", ["kind", "n kind word"]),
        ({"x": tm.expr("n / 2")}, "kind = 5 and word = 'w1'", ["kind word", "n"]),
        ({"n": 1, "x": 2.0, "word": "all"}, "kind = 6", ["kind", "n"]),  # needed for the number of rows
    ],
)
def test_an_update_reads_no_column_that_it_sets_or_knows(
    given: dict[str, object], condition: str, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tm.Table.create(f"memory://{uuid4()}", SCHEMA)
    table.append(_rows())
    found, pieces = [], OpenSplit.pieces

    def noted(split: OpenSplit, columns: Collection[str] | None, groups: Sequence[int] | None = None) -> list[Piece]:
        found.append(" ".join(columns or ()))
        return pieces(split, columns, groups)

    monkeypatch.setattr(OpenSplit, "pieces", noted)
    assert table.update(given, condition).rows > 50
    assert found == read


def test_a_split_of_its_own_file_keeps_dictionaries_as_they_are(table: tm.Table) -> None:
    add = next(iter(table.snapshot.splits.values()))
    split = open_split(table.store, add, whole=False, as_dictionary=True)
    assert split.dictionaries() == split.reopen().dictionaries() == {"word"}


def test_updated_rows_are_written_in_the_encodings_of_the_rows_they_were(
    table: tm.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_core.split.writer.LEAST_ROWS", 1_000)
    monkeypatch.setattr("storage_core.split.encode.LEAST_ROWS", 1_000)
    rows = _rows(ROWS, ROWS)
    table.append(rows)
    before = {*table.snapshot.splits}

    def choose(*_: object) -> None:
        raise AssertionError("encodings were measured")

    monkeypatch.setattr("storage_core.split.writer.choose", choose)
    table.update({"x": tm.expr("x * 2")}, f"kind = 3 and n >= {ROWS}")
    (new,) = {*table.snapshot.splits} - before
    metadata = pq.read_metadata(pa.BufferReader(table.store.get(new).data)).metadata
    found = recorded({key.decode(): value.decode() for key, value in metadata.items()})
    assert found["n"] is Encoding.DELTA_BINARY_PACKED
    assert {*found} == {*SCHEMA.names}
