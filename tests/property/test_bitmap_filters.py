"""Reads with bitmap indexes return what DuckDB returns for the plain rows, with any lag of the indexes."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.engine.session import session
from storage_core.index.segments import compute_coverage, covering_segments
from storage_core.read import bitmap
from storage_core.split import metadata
from tests.support.deleted_rows import delete_where
from tests.support.scale import scaled
from tests.support.upkeep import catch_up, compact
from tidemark import Table, col

NOON = dt.datetime(2024, 5, 17, 12, tzinfo=dt.UTC)
DAYS = [NOON + dt.timedelta(days=each) for each in (-1, 0, 1)]
VALUES: Mapping[str, list[Any]] = {
    "n": [-1, 0, 1, 2, 2**62],
    "s": ["", "a", "ab", "b", "ä"],
    "done": [True, False],
    "day": [each.date() for each in DAYS],
    "moment": DAYS,
    "price": [Decimal("-0.50"), Decimal("0.00"), Decimal("1.25")],
}
LITERALS: Mapping[str, list[str]] = {
    "n": ["-1", "0", "1", "1.5", "2", "9e3", "4611686018427387904"],
    "s": ["''", "'a'", "'ab'", "'aa'", "'z'", "'ä'"],
    "done": ["true", "false"],
    "day": ["'2024-05-17'", "date '2024-05-18'", "'2020-01-01'"],
    "moment": ["timestamptz '2024-05-17 12:00:00+00'", "'2024-05-18 12:00:00+00'", "timestamptz '2030-01-01'"],
    "price": ["-0.5", "1.25", "1", "0.125"],
}
SCHEMA = pa.schema([
    ("id", pa.int64()),
    ("text", pa.string()),
    ("n", pa.int64()),
    ("s", pa.string()),
    ("done", pa.bool_()),
    ("day", pa.date32()),
    ("moment", pa.timestamp("us", "UTC")),
    ("price", pa.decimal128(9, 2)),
    ("f", pa.float64()),
])  # fmt: skip
INDEXES = [
    {"name": "words", "kind": "fulltext", "columns": ["text"]},
    {"name": "first", "kind": "bitmap", "columns": ["n", "s", "done"]},
    {"name": "others", "kind": "bitmap", "columns": ["day", "moment", "price"]},
]
SPARSE = {name: st.sampled_from([*values, None]) for name, values in VALUES.items()}
ROWS = st.lists(
    st.fixed_dictionaries({**SPARSE, "text": st.sampled_from(["tide", "ebb", "tide ebb"]), "f": st.floats(0, 2)}),
    min_size=1,
    max_size=9,
)
STEPS = st.tuples(
    ROWS, st.lists(st.one_of(ROWS, st.sampled_from(["catch up", "compact", 2, 3])), min_size=2, max_size=5)
)
COLUMN = st.sampled_from([*VALUES])
OPERATOR = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


@pytest.fixture(autouse=True, scope="module")
def asked_always() -> Iterator[None]:
    """Use an index even for splits of a few kilobytes. The splits get several row groups and are read by ranges."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bitmap, "REQUEST_COST_BYTES", 0)
        patch.setattr(bitmap, "PAYS", 0.001)
        patch.setattr(bitmap, "LOCAL_BYTES", 0)
        patch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 1)
        patch.setattr(metadata, "ROWS_PER_GROUP", 4)
        yield


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["compare", "in", "between", "null", "other", *(["and", "or", "not"] * (depth > 0))]))
    column = draw(COLUMN)
    literal = st.sampled_from(LITERALS[column])
    match kind:
        case "compare":
            return f"{column} {draw(OPERATOR)} {draw(literal)}"
        case "in":
            listed = ", ".join(draw(st.lists(literal, min_size=1, max_size=4)))
            return f"{column} {draw(st.sampled_from(['in', 'not in']))} ({listed})"
        case "between":
            return f"{column} between {draw(literal)} and {draw(literal)}"
        case "null":
            return f"{column} is {draw(st.sampled_from(['null', 'not null']))}"
        case "other":
            return draw(st.sampled_from(["length(s) = 1", "n % 2 = 0", "f > 1", "s like 'a%'", "coalesce(n, 5) > 1"]))
        case "not":
            return f"not ({draw(conditions(depth=depth - 1))})"
        case _:
            return f"({draw(conditions(depth=depth - 1))}) {kind} ({draw(conditions(depth=depth - 1))})"


@st.composite
def asked(draw: st.DrawFn, columns: tuple[str, ...] = ("n", "s", "done")) -> dict[str, Any]:
    """Return the conditions of a bitmap search, by column."""
    found: dict[str, Any] = {}
    for column in draw(st.lists(st.sampled_from(columns), min_size=1, unique=True)):
        value = st.sampled_from(VALUES[column])
        listed = st.lists(value, min_size=1, max_size=4)
        found[column] = draw(
            st.one_of(
                value,
                listed,
                st.dictionaries(OPERATOR, value, min_size=1, max_size=2),
                st.fixed_dictionaries({}, optional={"in": listed, "not in": listed}).filter(bool),
                st.fixed_dictionaries({"between": st.tuples(value, value)}),
                st.fixed_dictionaries({"is null": st.booleans()}),
            )
        )
    return found


def _sql(query: Mapping[str, Any]) -> str:
    def one(column: str, name: str, value: Any) -> str:
        match name:
            case "in" | "not in":
                return f"{column} {name} ({', '.join(map(_literal, value))})"
            case "between":
                return f"{column} between {_literal(value[0])} and {_literal(value[1])}"
            case "is null":
                return f"({column} is null) = {value}"
            case _:
                return f"{column} {name} {_literal(value)}"

    parts = []
    for column, wanted in query.items():
        given = wanted if isinstance(wanted, dict) else {"in": wanted if isinstance(wanted, list) else [wanted]}
        parts += [one(column, name, value) for name, value in given.items()]
    return " and ".join(f"({part})" for part in parts)


def _literal(value: Any) -> str:
    return str(duckdb.ConstantExpression(value))


def _after(uri: str, steps: list[Any]) -> tuple[Table, list[dict[str, Any]]]:
    """Return the table and its rows after these steps.

    A step that is a list appends its rows to the table. A step that is a number n deletes the rows whose ID is a
    multiple of n.
    """
    table, rows = Table.create(uri, SCHEMA, indexes=INDEXES), list[dict[str, Any]]()
    count = 0
    for step in steps:
        if isinstance(step, list):
            batch = [{**row, "id": count + place} for place, row in enumerate(step)]
            count += len(batch)
            table.append(batch)
            rows += batch
        elif isinstance(step, int) and any(row["id"] % step == 0 for row in rows):
            delete_where(table.log, partial(_is_divided, step))
            rows = [row for row in rows if row["id"] % step]
        elif step == "compact":
            compact(table)
        elif step == "catch up":
            catch_up(table)
        table.refresh()
    return table, rows


def _is_divided(number: int, row: Mapping[str, Any]) -> bool:
    return bool(row["id"] % number == 0)


def _ids(found: pa.Table) -> list[int]:
    return sorted(found.column("id").to_pylist())


@pytest.mark.parametrize("kind", ["local", "memory"])
@settings(max_examples=scaled(10), deadline=None)
@given(steps=STEPS, wanted=st.lists(conditions(), min_size=3, max_size=5), query=asked())
def test_every_read_with_bitmaps_equals_duckdb_over_plain_rows(
    kind: str, steps: tuple[list[Any], list[Any]], wanted: list[str], query: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder, session() as connection:
        table, rows = _after(f"{folder}/t" if kind == "local" else f"memory://{uuid4()}", [steps[0], *steps[1]])
        connection.from_arrow(pa.Table.from_pylist(rows, schema=SCHEMA)).create("t")
        for definition in table.snapshot.config.indexes:
            covered, answering_of = (
                compute_coverage(table.snapshot, definition),
                covering_segments(table.snapshot, definition),
            )
            told = {path: answering_of(add) for path, add in table.snapshot.splits.items()}
            paths = {path: tuple(each.path for each in found.segments) for path, found in told.items() if found}
            assert paths == covered.answers

        def expected(condition: str) -> list[int]:
            return _ids(connection.sql(f"select id from t where {condition}").to_arrow_table())

        for condition in wanted:
            found = expected(condition)
            assert _ids(table.sql(f"select id from t where {condition}").to_arrow()) == found, condition
            assert _ids(table.scan(["id"], filter=condition).to_arrow()) == found, condition
            hits = table.search("tide", index="words", filter=condition, limit=100)
            assert _ids(hits) == expected(f"({condition}) and text like '%tide%'"), condition
            matches = table.search(query, index="first", filter=condition, limit=100)
            assert _ids(matches) == expected(f"({condition}) and {_sql(query)}"), (condition, query)
        for column, values in VALUES.items():
            found = expected(f"{column} in ({', '.join(map(_literal, values[:2]))})")
            assert _ids(table.scan(["id"], filter=col(column).isin(values[:2])).to_arrow()) == found
        assert _ids(table.search(json.dumps(query), index="first", limit=100)) == expected(_sql(query)), query
