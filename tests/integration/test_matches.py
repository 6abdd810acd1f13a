"""Tests of counts and orders of search matches: the fetched data, damaged files and refused calls."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput, NotFound
from storage_core.read.search.matches import Query, Searched, search_facets
from storage_core.read.search.ranking import Order, search_ordered
from storage_core.store.contract import Overwrite
from storage_core.store.meter import MeteredStore
from tests.support.deleted_rows import delete_where
from tests.support.indexed_table import IndexedTable
from tests.support.upkeep import catch_up
from tidemark import Table

HOURS, ROWS = 12, 40
SCHEMA = pa.schema([
    ("ts", pa.timestamp("us", "UTC")),
    ("id", pa.int64()),
    ("level", pa.string()),
    ("text", pa.string()),
    ("near", pa.list_(pa.float32(), 2)),
])  # fmt: skip
INDEXES = [
    {"name": "words", "kind": "fulltext", "columns": ["text"]},
    {"name": "levels", "kind": "bitmap", "columns": ["level"]},
    {"name": "near", "kind": "vector", "columns": ["near"], "metric": "l2"},
]
LEVELS = ("info", "info", "warn", None)


def lines(hour: int) -> list[dict[str, Any]]:
    start = dt.datetime(2026, 5, 1, tzinfo=dt.UTC) + dt.timedelta(hours=hour)
    return [
        {
            "ts": start + dt.timedelta(minutes=row),
            "id": hour * ROWS + row,
            "level": LEVELS[row % 4],
            "text": "ebb tide" if row % 2 else "flood",
            "near": [1.0, float(row)],
        }
        for row in range(ROWS)
    ]


@pytest.fixture
def table() -> Table:
    """Make a table with one indexed split per hour."""
    made = Table.create(f"memory://{uuid4()}", SCHEMA, time_column="ts", window="1h", indexes=INDEXES)
    for hour in range(HOURS):
        made.append(lines(hour))
    catch_up(made)
    return Table.open(made.uri)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Record the keys of the objects that were read."""
    keys = set[str]()

    def noting(name: str) -> None:
        read: Callable[..., Any] = getattr(MeteredStore, name)

        def noted(self: MeteredStore, key: str, *rest: int) -> Any:
            keys.add(key)
            return read(self, key, *rest)

        monkeypatch.setattr(MeteredStore, name, noted)

    noting("get")
    noting("get_range")
    return keys


def segments(table: Table, index: str, paths: set[str]) -> set[str]:
    return {path for path in paths if path in table.snapshot.segments and table.snapshot.segments[path].index == index}


def splits(table: Table, paths: set[str]) -> set[str]:
    return {path for path in paths if path in table.snapshot.splits}


@pytest.mark.parametrize(("descending", "first"), [(True, HOURS * ROWS - 1), (False, 1)])
def test_the_newest_rows_are_searched_for_in_the_newest_splits(
    table: Table, fetched: set[str], descending: bool, first: int
) -> None:
    step = -2 if descending else 2
    for _ in range(2):
        found = table.search("tide", index="words", order_by="ts", descending=descending, limit=5)
        assert found.column("id").to_pylist() == [first + step * number for number in range(5)]
        assert found.column_names == SCHEMA.names
    assert len(segments(table, "words", fetched)) == len(splits(table, fetched)) == 1
    deeper = table.search(
        "tide", index="words", order_by="ts", descending=descending, limit=5, offset=ROWS, columns=["id"]
    )
    assert deeper.column("id").to_pylist() == [first + step * (ROWS + number) for number in range(5)]
    # these rows need more than two splits, so the search reads one split, then two, then four
    assert len(segments(table, "words", fetched)) <= 7


def test_rows_that_are_not_indexed_yet_do_not_have_others_read(table: Table, fetched: set[str]) -> None:
    table.append(lines(HOURS))
    fetched.clear()
    found = table.search("tide", index="words", order_by="ts", limit=3)
    assert found.column("id").to_pylist() == [(HOURS + 1) * ROWS - 1 - 2 * number for number in range(3)]
    assert len(splits(table, fetched)) == 1
    assert not segments(table, "words", fetched)


def test_an_order_by_a_column_without_bounds_is_complete(table: Table) -> None:
    expected = [row for hour in range(HOURS) for row in lines(hour) if row["text"] == "ebb tide"]
    expected.sort(key=lambda row: (row["level"] is None, row["level"] or "", row["ts"]))
    found = table.search("tide", index="words", order_by="level", descending=False, limit=1_000, columns=["id"])
    assert found.column("id").to_pylist() == [row["id"] for row in expected]


KINDS: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "small": (pa.int8(), [-3, 0, 7, None]),
    "large": (pa.int64(), [2**62, 5, -(2**63)]),
    "price": (pa.decimal128(12, 2), [Decimal("-3.10"), Decimal("10.00"), Decimal("9.99"), None]),
    "name": (pa.string(), ["", "a", "é", "🙂", "Z", None]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(2026, 2, 28), None]),
    "when": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1969, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None],
    ),
    "share": (pa.float64(), [float("nan"), float("inf"), -1.5, 2.5, None]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_kind_are_ordered_and_counted(kind: str) -> None:
    type_, values = KINDS[kind]
    has_bitmaps = kind != "share"
    indexes = [INDEXES[0], *([{"name": "b", "kind": "bitmap", "columns": [kind]}] if has_bitmaps else [])]
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), (kind, type_)])
    table = Table.create(f"memory://{uuid4()}", schema, indexes=indexes)
    rows = [{"id": each, "text": "ebb", kind: values[each * each % len(values)]} for each in range(24)]
    for start in range(0, 24, 8):
        table.append(rows[start : start + 8])
        if not start:
            catch_up(table)
            table.refresh()
    greatest = [row["id"] for row in rows if row[kind] != row[kind]]  # NaN sorts above all values
    known = [row for row in rows if row[kind] is not None and row[kind] == row[kind]]
    nulls = [row["id"] for row in rows if row[kind] is None]
    for descending in (True, False):
        own = [row["id"] for row in sorted(known, key=lambda row: row[kind], reverse=descending)]
        expected = [*(greatest if descending else []), *own, *([] if descending else greatest), *nulls]
        for limit in (5, 24):
            found = table.search("ebb", index="words", order_by=kind, descending=descending, limit=limit)
            assert found.column("id").to_pylist() == expected[:limit]
    if has_bitmaps:
        counted = Counter(row[kind] for row in rows)
        ordered = sorted(
            counted.items(), key=lambda each: (-each[1], each[0] is None, 0 if each[0] is None else each[0])
        )
        found = table.search_facets("ebb", kind, index="words", limit=9)
        assert found.to_pylist() == [{"value": value, "count": count} for value, count in ordered]
        assert found.schema.field("value").type == type_


def test_matches_are_counted_without_reading_a_row(table: Table, fetched: set[str]) -> None:
    assert table.search_count("tide", index="words") == HOURS * ROWS / 2
    assert table.search_count("info", index=["levels"]) == HOURS * ROWS / 2
    assert table.search_count("flood", index="words", filter="level = 'info'") == HOURS * ROWS / 4
    assert not splits(table, fetched)
    delete_where(table.log, lambda row: row["id"] % 4 == 1)
    assert Table.open(table.uri).search_count("tide", index="words") == HOURS * ROWS / 4
    assert table.search_count("tide", index="words") == HOURS * ROWS / 2  # at the version of the opened table


def test_the_values_of_matches_are_counted_by_bitmaps(table: Table, fetched: set[str]) -> None:
    quarter = HOURS * ROWS // 4
    expected = [{"value": "info", "count": quarter}, {"value": None, "count": quarter}]
    assert table.search_facets("tide", "level", index="words").to_pylist() == expected
    assert table.search_facets("*", by="level", index="words", limit=2).to_pylist() == [
        {"value": "info", "count": 2 * quarter},
        {"value": "warn", "count": quarter},
    ]
    assert not splits(table, fetched)
    assert 1 <= len(segments(table, "levels", fetched)) <= HOURS
    table.append(lines(HOURS))
    found = table.search_facets("tide", "level", index="words", filter="level is not null")
    assert found.to_pylist() == [{"value": "info", "count": quarter + ROWS // 4}]


def test_a_split_may_have_none_of_the_rows_of_a_segment_that_could_answer_for_it() -> None:
    table = IndexedTable()
    for tag in ("x", "z"):
        table.append([(0, tag, "ebb")] * 40)
    table.catch_up()
    [whole] = table.compact().splits  # rows are sorted by tag, so each merged split has rows of only one segment
    snapshot = table.commit_merge(table.merge([[whole]], target_bytes=400))
    assert len(snapshot.splits) > 1
    searched = Searched(store=table.store, snapshot=snapshot)
    found = search_facets(searched, Query.of(snapshot, "ebb", index="text"), "tag", 10)
    assert found.to_pylist() == [{"value": "x", "count": 40}, {"value": "z", "count": 40}]
    newest = search_ordered(searched, "ebb", Order("id"), index="text", limit=3)
    assert newest.column("id").to_pylist() == [79, 78, 77]


def test_values_are_read_where_there_are_more_of_them_than_matches() -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    indexes = [INDEXES[0], {"name": "ids", "kind": "bitmap", "columns": ["id"]}]
    table = Table.create(f"memory://{uuid4()}", schema, indexes=indexes)
    table.append([{"id": each, "text": "ebb" if each == 7 else "tide"} for each in range(100)])
    catch_up(table)
    table.refresh()
    assert table.search_facets("ebb", "id", index="words").to_pylist() == [{"value": 7, "count": 1}]
    assert table.search_facets("*", "id", index="words", limit=3).column("value").to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("index", ["words", "levels"])
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_damaged_segments_are_those_that_are_not_there(
    table: Table, caplog: pytest.LogCaptureFixture, index: str, damage: str
) -> None:
    def answers(table: Table) -> list[Any]:
        return [
            table.search_count("tide", index="words"),
            table.search_facets("tide", "level", index="words").to_pylist(),
            table.search_facets("info", "level", index="levels").to_pylist(),
            table.search("tide", index="words", order_by="ts", limit=30, snippets=True).to_pylist(),
        ]

    expected = answers(table)
    for path in sorted(segments(table, index, set(table.snapshot.segments)))[::2]:
        data = table.store.get(path).data
        table.store.delete([path])
        if damage == "cut":
            table.store.put(path, data[: len(data) // 2], Overwrite())
    assert answers(Table.open(table.uri)) == expected
    assert "not usable" in caplog.text


def test_snippets_are_beside_the_rows_they_are_of(table: Table) -> None:
    [row] = table.search("tide", index="words", limit=1, columns=["id"], snippets=True).to_pylist()
    assert row == {"id": 1, "score": row["score"], "snippets": {"text": "ebb <b>tide</b>"}}
    assert table.search("nowhere", index="words", snippets=True).column("snippets").to_pylist() == []


def test_a_column_of_the_table_keeps_its_name_beside_snippets() -> None:
    schema = pa.schema([("snippets", pa.string()), ("score", pa.int64()), ("_snippets", pa.int64())])
    indexes = [{"name": "words", "kind": "fulltext", "columns": ["snippets"]}]
    table = Table.create(f"memory://{uuid4()}", schema, indexes=indexes)
    table.append([{"snippets": "ebb", "score": 3, "_snippets": 4}])
    [row] = table.search("ebb", snippets=True).to_pylist()
    assert (row["snippets"], row["score"], row["_snippets"]) == ("ebb", 3, 4)
    assert row["__snippets"] == {"snippets": "<b>ebb</b>"}


REFUSED: Mapping[str, tuple[Callable[[Table], object], str]] = {
    "no column": (lambda t: t.search("tide", index="words", order_by="when"), "order_by: unknown column 'when'"),
    "no name": (lambda t: t.search("tide", index="words", order_by=3), "order_by is 3"),  # type: ignore[arg-type]
    "no order": (lambda t: t.search("tide", index="words", order_by="near"), "have no order"),
    "a direction alone": (lambda t: t.search("tide", index="words", descending=False), "order_by is None"),
    "no direction": (
        lambda t: t.search("tide", index="words", order_by="ts", descending="up"),  # type: ignore[arg-type]
        "descending is 'up'",
    ),
    "an order of neighbours": (lambda t: t.search(vector=[1, 2], order_by="ts"), "cannot be combined with vector"),
    "an order with boosts": (
        lambda t: t.search("tide", index="words", order_by="ts", boosts={"text": 2}),
        "cannot be combined with boosts",
    ),
    "snippets of values": (
        lambda t: t.search("info", index="levels", snippets=True),
        "snippets need a full-text index",
    ),
    "snippets of neighbours": (lambda t: t.search(vector=[1, 2], snippets=True), "snippets need a full-text index"),
    "snippets of something": (
        lambda t: t.search("tide", index="words", snippets="b"),  # type: ignore[arg-type]
        "snippets is 'b'",
    ),
    "a count of neighbours": (lambda t: t.search_count([1, 2], index="near"), "takes a vector"),
    "a count of no query": (lambda t: t.search_count("", index="words", syntax="strict"), "it is empty"),
    "a count of which index": (
        lambda t: t.search_count("tide"),
        "has the full-text or bitmap indexes levels, words. Name one",
    ),
    "a count of two indexes": (
        lambda t: t.search_count("tide", index=["words", "near"]),
        "a count or a facet needs one index",
    ),
    "an order of two": (lambda t: t.search("tide", index=["words", "near"], order_by="ts"), "order_by needs one index"),
    "facets of a column without bitmaps": (lambda t: t.search_facets("tide", "text", index="words"), "bitmap index"),
    "facets of no column": (
        lambda t: t.search_facets("tide", None, index="words"),  # type: ignore[arg-type]
        "by is None. Give a text",
    ),
    "no facets": (lambda t: t.search_facets("tide", "level", index="words", limit=0), "limit is 0"),
    "a filter that is none": (
        lambda t: t.search_count("nowhere", index="words", filter="upper(id)"),
        "no function upper takes BIGINT",
    ),
}


@pytest.fixture(scope="module")
def small() -> Table:
    """Append a split that is not indexed."""
    made = Table.create(f"memory://{uuid4()}", SCHEMA, time_column="ts", window="1h", indexes=INDEXES)
    made.append(lines(0))
    return made


@pytest.mark.parametrize("name", REFUSED)
def test_nonsense_is_refused_by_name(small: Table, name: str) -> None:
    ask, message = REFUSED[name]
    with pytest.raises(InvalidInput) as refused:
        ask(small)
    assert message in str(refused.value)


def test_an_index_that_is_not_there_is_not_found(small: Table) -> None:
    with pytest.raises(NotFound):
        small.search_count("tide", index="nowhere")


def test_a_local_table_counts_and_orders_as_one_in_memory(table: Table, tmp_path: Path) -> None:
    local = Table.create(str(tmp_path / "t"), SCHEMA, time_column="ts", window="1h", indexes=INDEXES)
    for hour in range(HOURS):
        local.append(lines(hour))
    catch_up(local)
    local.refresh()
    for asked in (table, local):
        assert asked.search_count("tide", index="words") == HOURS * ROWS / 2
    newest = [each.search("tide", index="words", order_by="ts", limit=50).to_pylist() for each in (table, local)]
    assert newest[0] == newest[1]
    facets = [each.search_facets("tide", "level", index="words").to_pylist() for each in (table, local)]
    assert facets[0] == facets[1]
