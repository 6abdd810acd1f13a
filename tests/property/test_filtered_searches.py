"""A search may have a filter, columns and an offset.

The search returns the rows that remain after filtering, sorting and cutting all rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.read.predicate import Filter
from tests.support.deleted_rows import delete_where
from tests.support.scale import scaled
from tests.support.upkeep import catch_up
from tidemark import Table, col

SCHEMA = pa.schema([
    pa.field("id", pa.int64(), nullable=False),
    ("text", pa.string()),
    ("tag", pa.string()),
    ("size", pa.float64()),
    ("parts", pa.list_(pa.int64())),
])  # fmt: skip
INDEXES = [
    {"name": "words", "kind": "fulltext", "columns": ["text"]},
    {"name": "tags", "kind": "bitmap", "columns": ["tag"]},
]
WORDS = ("ebb", "tide", "flood")
Row = Mapping[str, Any]
FILTERS: list[tuple[Filter | str, Callable[[Row], bool]]] = [
    ("size >= 3", lambda row: row["size"] is not None and (row["size"] >= 3 or row["size"] != row["size"])),
    (col("id") < 9, lambda row: row["id"] < 9),
    ((col("tag") == "x") | col("size").is_null(), lambda row: row["tag"] == "x" or row["size"] is None),
    ("tag is null and size < 4", lambda row: row["tag"] is None and row["size"] is not None and row["size"] < 4),
    ("id % 3 = 1 or upper(tag) = 'Y'", lambda row: row["id"] % 3 == 1 or row["tag"] == "y"),
    ("len(parts) = 2", lambda row: row["parts"] is not None and len(row["parts"]) == 2),
    ("1 = 1", lambda _: True),
    ("id = -5", lambda _: False),
]
rows = st.fixed_dictionaries({
    "text": st.none() | st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join),
    "tag": st.sampled_from([None, "x", "y"]),
    "size": st.sampled_from([None, 1.0, 3.0, 5.0, float("nan")]),
    "parts": st.none() | st.lists(st.integers(0, 3), max_size=3),
})  # fmt: skip
batches = st.lists(st.lists(rows, min_size=1, max_size=12), min_size=1, max_size=3)
pages = st.tuples(st.integers(1, 8), st.integers(0, 6), st.sampled_from(FILTERS))
columns = st.none() | st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True)


def _numbered(batches: list[list[Row]]) -> list[list[dict[str, Any]]]:
    numbers = iter(range(1000))
    return [[{"id": next(numbers), **row} for row in batch] for batch in batches]


def _shown(found: pa.Table) -> str:
    return repr(found.to_pylist())  # in the text, NaN equals itself


def _judge(table: Table, consistency: str, page: tuple[int, int, Any], names: list[str] | None) -> None:
    limit, offset, (condition, meets) = page
    for query, index in (("ebb tide", "words"), ("NOT flood", "words"), ("x,y", "tags")):
        every = table.search(query, index=index, limit=1000, consistency=consistency)
        places = [place for place, row in enumerate(every.to_pylist()) if meets(row)][offset : offset + limit]
        expected = every.take(pa.array(places, pa.int64()))
        found = table.search(
            query,
            index=index,
            limit=limit,
            offset=offset,
            columns=names,
            filter=condition,
            consistency=consistency,
        )
        assert found.column_names == [*(SCHEMA.names if names is None else names), "score"]
        assert _shown(found) == _shown(expected.select(found.column_names))


@settings(max_examples=scaled(8), deadline=None)
@given(batches, pages, columns, st.booleans())
def test_of_an_append_table(
    batches: list[list[Row]], page: tuple[int, int, Any], names: list[str] | None, is_indexed: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Table.create(f"{folder}/t", SCHEMA, indexes=INDEXES)
        for number, batch in enumerate(_numbered(batches)):
            table.append(batch)
            if is_indexed and not number:
                catch_up(table)
        delete_where(table.log, lambda row: row["id"] % 5 == 0)
        _judge(table.refresh(), "snapshot", page, names)


@settings(max_examples=scaled(8), deadline=None)
@given(batches, pages, columns, st.sampled_from(["committed", "latest"]))
def test_of_a_keyed_table_at_levels_above_the_base(
    batches: list[list[Row]], page: tuple[int, int, Any], names: list[str] | None, consistency: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Table.create(f"{folder}/t", SCHEMA, primary_key="id", indexes=INDEXES)
        with table.writer() as writer:
            for batch in _numbered(batches):
                for row in batch:
                    writer.put(row)
                writer.flush()
            writer.patch({"id": 0, "text": "ebb ebb", "size": 5.0})
            writer.delete((1,))
            _judge(table, consistency, page, names)
