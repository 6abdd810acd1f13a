"""Many rows may tie with the last row of a page. A search returns the same rows as a sort of all rows with a limit."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.deleted_rows import delete_where
from tests.support.scale import scaled
from tests.support.upkeep import catch_up, merge
from tidemark import Table

FIELDS = {
    "ratio": pa.float64(),
    "name": pa.string(),
    "day": pa.date32(),
    "exact": pa.decimal128(9, 2),
    "at": pa.timestamp("us", "UTC"),
    "n": pa.int64(),
    "text": pa.string(),
}
ORDERS = [
    *((first, None) for first in ("ratio", "name", "day", "exact", "n")),
    ("n", "timestamp/V2"),
    ("n", "name|-timestamp/V2"),
]
"""The first value is the column that orders tied rows.

A time column comes before this column in the order. The second value is the sort schema of the splits.
"""
INDEXES = [
    {"name": "words", "kind": "fulltext", "columns": ["text"]},
    {"name": "texts", "kind": "bitmap", "columns": ["text"]},
]
EPOCH = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
NAMES = ("", "a", "a\0", "aaaaaaaa", "aaaaaaaab", "aaaaaaaac", "aaaaaaé", "aaaaaaaé", "é", "\uffff", "\U00010000", "z")
Row = Mapping[str, Any]
FILTERS: list[tuple[str | None, Callable[[Row], bool]]] = [
    (None, lambda _: True),
    ("n % 3 <> 1", lambda row: row["n"] % 3 != 1),
    ("name > 'a'", lambda row: row["name"] is not None and row["name"].encode() > b"a"),
]
_numbers = count()

seeds = st.integers(0, 2**32)


def _page(chance: Random) -> tuple[int, int, tuple[str | None, Callable[[Row], bool]]]:
    return chance.randint(1, 12), chance.choice([0, 0, 3, 9]), chance.choice(FILTERS)


def _batch(chance: Random) -> list[dict[str, Any]]:
    """Return rows.

    Most rows have the same score. A seeded random generator makes the rows, because Hypothesis would generate too few
    rows.
    """
    return [
        {
            "ratio": chance.choice([None, math.nan, -0.0, 0.0, -math.inf, math.inf, 1.5, -1.5, 5e-324]),
            "name": chance.choice([None, *NAMES]),
            "day": chance.choice([None, *(dt.date(1970, 1, 1) + dt.timedelta(each) for each in (-2, -1, 0, 1))]),
            "exact": chance.choice([None, Decimal("-1.50"), Decimal("0.00"), Decimal("0.25")]),
            "at": EPOCH + dt.timedelta(minutes=chance.randrange(240)),
            "n": None,
            "text": chance.choice(["ebb", "ebb", "ebb", "ebb", "ebb ebb", "ebb tide", "tide"]),
        }
        for _ in range(chance.randint(1, 80))
    ]


def _place(folder: str, *, is_local: bool) -> str:
    return f"{folder}/t" if is_local else f"memory://tied-{next(_numbers)}"


def _rank(value: Any) -> tuple[int, Any]:
    if value is None:
        return 2, 0
    if isinstance(value, float) and math.isnan(value):
        return 1, 0
    return 0, value.encode() if isinstance(value, str) else value


def _by(name: str, rows: list[dict[str, Any]], nulls: int = 2) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (nulls, 0) if row[name] is None else _rank(row[name]))


def _expected(found: pa.Table, order: list[str], meets: Callable[[Row], bool]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [row for row in found.to_pylist() if meets(row)]
    return sorted(rows, key=lambda row: (-row["score"], *(_rank(row[name]) for name in order)))


def _judge(table: Table, order: list[str], asked: list[Any], consistency: str = "snapshot") -> None:
    for query, index in (("ebb", "words"), ("NOT flood", "words"), ("ebb", "texts")):
        every = table.search(query, index=index, limit=1000, consistency=consistency)
        for limit, offset, (condition, meets) in asked:
            found = table.search(
                query, index=index, limit=limit, offset=offset, filter=condition, consistency=consistency
            )
            expected = _expected(every, order, meets)[offset : offset + limit]
            assert repr(found.to_pylist()) == repr(expected)  # in the text, NaN equals itself and -0.0 differs from 0.0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use eight pages per row group, and fetch objects that are not local files by ranges."""
    monkeypatch.setattr("storage_core.split.encode.ROWS_PER_PAGE", 2)
    monkeypatch.setattr("storage_core.split.metadata.ROWS_PER_GROUP", 16)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 1)
    monkeypatch.setattr("storage_core.read.search.base.WHOLE_SPLIT_BYTES", 1)


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(("first", "sort_schema"), ORDERS)
@pytest.mark.usefixtures("small")
@settings(max_examples=scaled(2), deadline=None)
@given(seeds)
def test_of_an_append_table(is_local: bool, first: str, sort_schema: str | None, seed: int) -> None:
    chance, numbers = Random(seed), count()
    names = [first, *(name for name in FIELDS if name != first)]
    schema = pa.schema([(name, FIELDS[name]) for name in names])
    time: dict[str, Any] = {"time_column": "at", "sort_schema": sort_schema, "window": "1h"} if sort_schema else {}
    with tempfile.TemporaryDirectory() as folder:
        table = Table.create(_place(folder, is_local=is_local), schema, indexes=INDEXES, **time)
        for number in range(chance.randint(1, 3)):
            rows = [{**row, "n": next(numbers)} for row in _batch(chance)]
            table.append(chance.choice([rows, _by(first, rows), _by(first, rows, nulls=-1)]))
            if not number:
                catch_up(table)
        delete_where(table.log, lambda row: row["n"] % 5 == 0)
        _judge(table.refresh(), ["at", *names] if time else names, [_page(chance) for _ in range(4)])


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.usefixtures("small")
@settings(max_examples=scaled(3), deadline=None)
@given(seeds, st.sampled_from([["name", "n"], ["n"], ["at", "n"]]))
def test_of_a_keyed_table_with_generations(is_local: bool, seed: int, key: list[str]) -> None:
    chance = Random(seed)
    schema = pa.schema([pa.field(name, each, nullable=name not in key) for name, each in FIELDS.items()])
    with tempfile.TemporaryDirectory() as folder:
        table = Table.create(_place(folder, is_local=is_local), schema, primary_key=key, indexes=INDEXES)
        for number in range(3):
            first = 30 * number  # each batch rewrites some rows of the previous batch
            rows = [{**row, "name": row["name"] or "", "n": n} for n, row in enumerate(_batch(chance), start=first)]
            with table.writer() as writer:
                writer.put(rows)
                writer.delete(tuple(rows[0][name] for name in key))
            if number < 2:
                merge(table)
                catch_up(table)
        _judge(table.refresh(), key, [_page(chance) for _ in range(4)], "committed")
