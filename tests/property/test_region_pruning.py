"""A region that a predicate prunes has no row for which the predicate is true, for every kind of region."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.engine.session import session
from storage_core.read.lookup import matching_regions
from storage_core.read.sql_predicate import from_sql
from storage_core.write.region.spec import route
from tests.support.scale import scaled
from tidemark import Table

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("s", pa.string(), nullable=False),
        pa.field("ts", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("f", pa.float64(), nullable=False),
        pa.field("v", pa.int64()),
    ]
)
FIELDS: dict[str, list[dict[str, Any]]] = {
    "identity of an integer": [{"transform": "identity", "source": "k"}],
    "identity of a text": [{"transform": "identity", "source": "s"}],
    "identity of a day": [{"transform": "identity", "source": "day"}],
    "identity of an instant": [{"transform": "identity", "source": "ts"}],
    "identity of a float": [{"transform": "identity", "source": "f"}],
    "buckets": [{"transform": "bucket", "source": "k", "n": 5}],
    "buckets of instants": [{"transform": "bucket", "source": "ts", "n": 5}],
    "buckets of two columns": [{"transform": "multi_bucket", "sources": ["k", "s"], "n": 5}],
    "truncated integers": [{"transform": "truncate", "source": "k", "width": 3}],
    "truncated texts": [{"transform": "truncate", "source": "s", "width": 1}],
    "years": [{"transform": "year", "source": "ts"}],
    "months": [{"transform": "month", "source": "day"}],
    "hours": [{"transform": "hour", "source": "ts"}],
    "an expression": [{"expression": "col0 % 3", "source": "k"}],
    "two fields": [{"transform": "year", "source": "ts"}, {"transform": "bucket", "source": "k", "n": 3}],
    "two fields of one column": [
        {"transform": "truncate", "source": "k", "width": 5},
        {"transform": "bucket", "source": "k", "n": 2},
    ],
}
KEYS = [-7, -1, 0, 1, 2, 3, 5, 8, 2**62]
TEXTS = ["", "a", "ab", "b", "é", "z", "zz", "\U0001f600"]
INSTANTS = [
    dt.datetime.fromisoformat(text)
    for text in ("1969-12-31T23:59:59.999999Z", "2023-12-31T23:00:00Z", "2024-01-01T00:00:00Z", "2024-06-01T12:30:00Z")
]
FLOATS = [float("-inf"), -1.5, -0.0, 0.25, 3.0, float("nan")]
ROWS = pa.Table.from_pylist(
    [
        {"k": k, "s": s, "ts": ts, "day": ts.date(), "f": f, "v": number % 4}
        for number, (k, s, ts, f) in enumerate(
            itertools.islice(
                zip(*(itertools.cycle(each) for each in (KEYS, TEXTS, INSTANTS, FLOATS)), strict=False), 72
            )
        )
    ],
    schema=SCHEMA,
)
LITERALS: dict[str, Sequence[str]] = {
    "k": ["-7", "0", "1", "1.5", "2.0", "'3'", "5e0", "4611686018427387904", "1e300", "9223372036854775808", "true"],
    "s": ["''", "'a'", "'aa'", "'é'", "'zz'", "'😀'", "5"],
    "ts": [
        *("timestamptz '2024-01-01 00:00:00+00'", "timestamp '2023-12-31 23:00:00'", "date '2024-01-01'"),
        *("'2024-01-01 02:00:00+02'", "'2024-01-01'", "timestamptz '1969-12-31 23:59:59.9999999+00'"),
    ],
    "day": ["date '2024-01-01'", "'2023-12-31'", "timestamp '2024-01-01 12:00:00'", "'2024-06-01 00:00:01'"],
    "f": ["-1.5", "0", "3", "'nan'", "0.25e0", "1e300"],
    "v": ["0", "3"],
}
NUMBERS = itertools.count()
OPERATORS = ["=", "<>", "<", "<=", ">", ">="]


@st.composite
def _conditions(draw: st.DrawFn, depth: int = 0) -> str:
    kind = draw(
        st.sampled_from(["compare"] * 3 + ["in", "between", "null"] + (["and", "or", "not"] if depth < 2 else []))
    )
    if kind in ("and", "or"):
        return f"({draw(_conditions(depth + 1))} {kind} {draw(_conditions(depth + 1))})"
    if kind == "not":
        return f"not ({draw(_conditions(depth + 1))})"
    column = draw(st.sampled_from(list(LITERALS)))
    literal = st.sampled_from(LITERALS[column])
    match kind:
        case "in":
            return f"{column} in ({', '.join(draw(st.lists(literal, min_size=1, max_size=3)))})"
        case "between":
            return f"{column} between {draw(literal)} and {draw(literal)}"
        case "null":
            return f"{column} is {draw(st.sampled_from(['null', 'not null']))}"
        case _:
            return f"{column} {draw(st.sampled_from(OPERATORS))} {draw(literal)}"


@cache
def _table(name: str) -> Table:
    key = ["k", "s", "ts", "day", "f"]
    uri = f"memory://region-pruning-{list(FIELDS).index(name)}"
    table = Table.create(uri, SCHEMA, primary_key=key, regions=FIELDS[name])
    with table.writer() as writer:
        writer.put(ROWS)
    return table


def _regions(table: Table, condition: str) -> set[str] | None:
    found = matching_regions(table.store, table.snapshot, predicate=from_sql(condition).predicate)
    return None if found is None else {each.id for each in found}


@pytest.mark.parametrize("name", FIELDS)
@settings(max_examples=scaled(40), deadline=None)
@given(condition=_conditions())
def test_no_region_of_a_row_that_is_wanted_is_left_out(name: str, condition: str) -> None:
    table = _table(name)
    found = _regions(table, condition)
    if found is None:
        return
    with session() as connection:
        connection.from_arrow(ROWS).create_view("t")
        try:
            wanted = connection.sql(f"select * from t where {condition}").to_arrow_table()
        except duckdb.Error:  # for example, a text that is not a number, so there is no expected answer
            return
    spec = table.snapshot.config.region_spec
    assert {each.id for each in route(table.snapshot.table_id, spec, wanted.cast(SCHEMA)).regions} <= found


@pytest.mark.parametrize("transform", [{"transform": "identity"}, {"transform": "truncate", "width": 2}])
@pytest.mark.parametrize("condition", ["k = {}", "k in ({}, 1)", "k >= {}", "k <= {}", "k > {}", "k < {}", "k <> {}"])
def test_integers_that_a_double_rounds_to_itself_are_not_left_out(transform: dict[str, Any], condition: str) -> None:
    double = 2**60
    keys = [double - 1, double, double + 1, 2**61]
    _require_as_duckdb_finds(pa.array(keys), transform, condition.format(f"{double}e0"))


@pytest.mark.parametrize("condition", ["k = 0.1e0", "k <> 0.1e0", "k > 0.1e0", "k < 0.1e0", "k = 0.1", "k > 0.1"])
def test_single_floats_that_equal_no_double_are_not_left_out(condition: str) -> None:
    _require_as_duckdb_finds(pa.array([0.1, 0.5], pa.float32()), {"transform": "identity"}, condition)


def test_bytes_that_a_text_stands_for_are_not_left_out() -> None:
    _require_as_duckdb_finds(pa.array([b"\xaa", b"\\xAA"]), {"transform": "identity"}, r"k = '\xAA'")


def _require_as_duckdb_finds(keys: pa.Array, transform: dict[str, Any], condition: str) -> None:
    rows = pa.table({"k": keys})
    uri = f"memory://region-pruning-rounded-{next(NUMBERS)}"
    table = Table.create(uri, rows.schema, primary_key="k", regions=[transform | {"source": "k"}])
    table.append(rows)
    text = f"select k from t where {condition} order by k"
    with session() as connection:
        connection.from_arrow(rows).create_view("t")
        wanted = connection.sql(text).to_arrow_table()
    assert table.sql(text, consistency="latest").to_pylist() == wanted.to_pylist()


@pytest.mark.parametrize(
    ("name", "condition", "regions"),
    [
        ("identity of an integer", "k in (1, 2, 99)", 2),
        ("identity of an integer", "k = 1 or (k = 2 and v = 0)", 2),
        ("identity of an integer", "k > 2 and k < 8.5", 3),
        ("identity of an integer", "k > 8.5", 1),
        ("identity of an integer", "k between -1 and 0 or v = 1", 9),
        ("identity of a text", "s >= 'z'", 4),
        ("identity of a day", "day > date '2024-01-01'", 1),
        ("identity of an instant", "ts < timestamptz '2024-01-01 00:00:00+00'", 2),
        ("identity of a float", "f in (0.25e0, 3e0)", 2),
        ("identity of an integer", "k <> 5", 8),
        ("buckets", "k in (1, 2)", 2),
        ("truncated integers", "k >= 6 and k <= 8", 1),
        ("truncated texts", "s in ('ab', 'ax')", 1),
        ("years", "ts >= '2024-01-01'", 1),
        ("years", "ts = timestamptz '2023-12-31 23:00:00+00'", 1),
        ("an expression", "k in (1, 7)", 1),
        ("two fields", "ts < '1970-01-01' and k in (0, 1, 2, 3, 5, 8)", 3),
    ],
)
def test_regions_are_left_out(name: str, condition: str, regions: int) -> None:
    found = _regions(_table(name), condition)
    assert found is not None
    assert len(found) == regions


def test_a_query_reads_the_regions_that_its_condition_leaves() -> None:
    table = _table("identity of an integer")
    opened = Table.open(table.uri)

    def gets(text: str) -> int:
        before = opened.store.requests["get"]
        assert opened.sql(text, consistency="latest").num_rows > 0
        return opened.store.requests["get"] - before

    every, two = gets("select v from t"), gets("select v from t where k in (1, 2)")
    assert two < every / 3
    joined = "select t.v from t, u where t.k = 1 and u.k in (1, 2)"
    before = opened.store.requests["get"]
    assert opened.sql(joined, consistency="latest", tables={"u": opened}).num_rows > 0
    assert opened.store.requests["get"] - before < 2 * two
