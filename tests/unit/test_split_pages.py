"""Rows that are read by position from decoded pages equal the rows of the whole row group."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage_core.log.actions import Add
from storage_core.split import pages
from storage_core.split.read import open_split
from storage_core.store.contract import ObjectStore
from storage_core.store.pieces import KeptValues
from tidemark import Table

ROWS = 150_000
SCHEMA = pa.schema([
    pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
    ("number", pa.int64()),
    ("few", pa.string()),
    ("long", pa.string()),
    ("huge", pa.string()),
    ("flag", pa.bool_()),
    ("ratio", pa.float64()),
    ("exact", pa.decimal128(20, 3)),
    ("day", pa.date32()),
    ("bytes", pa.binary()),
    ("nothing", pa.string()),
    ("a.b", pa.int32()),
    ("a", pa.int32()),
    ("tags", pa.list_(pa.string())),
    ("pair", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ("vector", pa.list_(pa.float32(), 5)),
    ("some vectors", pa.list_(pa.float32(), 2)),
    ("single", pa.list_(pa.float32(), 1)),
])  # fmt: skip


def rows_of(count: int) -> pa.Table:
    chance = np.random.default_rng(3)
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    numbers = chance.integers(0, 2**60, count)

    def some(values: list[object]) -> list[object]:
        return [None if each % 7 == 0 else value for each, value in zip(numbers.tolist(), values, strict=True)]

    listed = numbers.tolist()
    columns = {
        "time": [start + dt.timedelta(milliseconds=each) for each in range(count)],
        "number": some(listed),
        "few": some([f"value {each % 11}" for each in listed]),
        "long": some([f"{each} and {each + 1}" for each in listed]),
        "huge": ["x" * 20_000 if row % 4096 < 200 and row < 9_000 else "y" for row in range(count)],
        "flag": some([each % 2 == 0 for each in listed]),
        "ratio": some([each / 3 for each in listed]),
        "exact": some([Decimal(each % 10**9) / 1000 for each in listed]),
        "day": some([dt.date(2020, 1, 1 + each % 28) for each in listed]),
        "bytes": some([str(each).encode() for each in listed]),
        "nothing": [None] * count,
        "a.b": some([each % 100 for each in listed]),
        "a": some([each % 1000 for each in listed]),
        "tags": [[str(each % 5)] * (each % 4) for each in listed],
        "pair": some([{"x": each, "y": str(each)} for each in listed]),
        "vector": chance.standard_normal((count, 5)).tolist(),
        "some vectors": some(chance.standard_normal((count, 2)).tolist()),
        "single": some(chance.standard_normal((count, 1)).tolist()),
    }
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[ObjectStore, Add, Path, pa.Table]:
    table = Table.create(str(tmp_path_factory.mktemp("pages") / "t"), SCHEMA)
    table.append(rows_of(ROWS))
    (add,) = table.snapshot.splits.values()
    store = table.store
    path = store.local_path(add.path)
    assert path is not None
    return store, add, path, open_split(store, add).read()


@pytest.mark.parametrize("most_bytes", [0, 2**20, 2**30])
def test_rows_by_page_are_those_of_the_file(split: tuple[ObjectStore, Add, Path, pa.Table], most_bytes: int) -> None:
    store, add, path, whole = split
    kept, chance = KeptValues(most_bytes), np.random.default_rng(9)
    edges = [0, 1, 4095, 4096, 8191, 8192, 65_535, 65_536, 131_071, 131_072, ROWS - 1]
    for count in (1, 2, 10, 300):
        places = np.unique([*chance.integers(0, ROWS, count), *chance.choice(edges, 3)])
        for columns in (
            None,
            ["long"],
            ["few", "huge", "a.b"],
            ["a", "tags"],
            ["pair", "nothing", "elsewhere"],
            ["vector", "some vectors", "single"],
        ):
            found = pages.take(store, add, path, places, columns=columns, kept=kept)
            names = whole.column_names if columns is None else [each for each in whole.column_names if each in columns]
            assert found.equals(whole.select(names).take(pa.array(places)))
            found.validate(full=True)


def test_no_row_has_the_columns_and_no_rows(split: tuple[ObjectStore, Add, Path, pa.Table]) -> None:
    store, add, path, whole = split
    found = pages.take(store, add, path, np.array([], np.int64), columns=["long", "tags"], kept=KeptValues())
    assert found.equals(whole.select(["long", "tags"]).slice(0, 0))


def test_of_vectors_without_null_only_the_pages_are_decoded_that_hold_a_row(
    split: tuple[ObjectStore, Add, Path, pa.Table],
) -> None:
    store, add, path, whole = split
    kept = KeptValues()
    before = pa.total_allocated_bytes()
    found = pages.take(store, add, path, np.array([5, 70_000], np.int64), columns=["vector"], kept=kept)
    assert found.equals(whole.select(["vector"]).take(pa.array([5, 70_000])))
    assert pa.total_allocated_bytes() - before < 2 * 2 * 4096 * 5 * 4 < 65_536 * 5 * 4


def test_what_is_kept_is_bounded_and_the_last_used_stays() -> None:
    kept = KeptValues(100)
    for number in range(10):
        kept.keep((number,), number, 30)
        assert kept.get((0,)) == 0
    assert [number for number in range(10) if kept.get((number,)) is not None] == [0, 8, 9]
    kept.keep(("large",), "large", 101)
    assert [kept.get((each,)) for each in ("large", 0, 8, 9)] == [None, 0, 8, 9]
