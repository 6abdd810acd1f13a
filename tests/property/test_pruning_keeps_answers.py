"""Pruning on and pruning off give the same rows, for every type, comparison and way to write the condition."""

from __future__ import annotations

import datetime as dt
import math
import operator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.clock import SystemClock
from storage_core.config import TableConfig
from storage_core.ids import SeededIds
from storage_core.log.actions import Add
from storage_core.objectstore.memory import MemoryStore
from storage_core.read.predicate import Filter, col
from storage_core.read.pruning import prune
from storage_core.read.relation import session
from storage_core.read.sql_predicate import from_sql, parse_select, where_of
from storage_core.rows.sort_order import bind
from storage_core.split.read import conform_split, read_split
from storage_core.split.write import SplitContext, sort_and_write

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("f", pa.float64()),
        pa.field("g", pa.float32()),
        pa.field("s", pa.string()),
        pa.field("d", pa.decimal128(9, 2)),
        pa.field("day", pa.date32()),
        pa.field("moment", pa.timestamp("us", "UTC")),
        pa.field("b", pa.bool_()),
    ]
)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.sampled_from([-(2**53) - 1, -3, -1, 0, 1, 2, 2**53, 2**53 + 1, 2**63 - 1]),
    "f": st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 0.1, 1.5, 1e300, math.inf, math.nan]),
    "g": st.sampled_from([-1.5, -0.0, 0.0, 0.10000000149011612, 1.5, 16777216.0, math.nan]),
    "s": st.one_of(
        st.text(max_size=3),
        st.sampled_from(["a" * 40, "a" * 33 + "b", "￿", "\U00010000", "\U0010ffff" * 34, "10", "9"]),
    ),
    "d": st.sampled_from([Decimal("-1.10"), Decimal("0.00"), Decimal("1.05"), Decimal("9999999.99")]),
    "day": st.dates(dt.date(1969, 12, 30), dt.date(1970, 1, 3)),
    "moment": st.integers(-3_700_000_000, 3_700_000_000).map(lambda us: EPOCH + dt.timedelta(microseconds=us)),
    "b": st.booleans(),
}
ROW = st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()})
COMPARISON = st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"])


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> Filter:
    kind = draw(st.sampled_from(["compare", "in", "null", "and", "or", "not"] if depth else ["compare", "in", "null"]))
    if kind in ("and", "or"):
        left, right = draw(conditions(depth=depth - 1)), draw(conditions(depth=depth - 1))
        return left & right if kind == "and" else left | right
    if kind == "not":
        return ~draw(conditions(depth=depth - 1))
    name = draw(st.sampled_from(list(VALUES)))
    if kind == "null":
        return draw(st.sampled_from([col(name).is_null(), col(name).is_not_null()]))
    if kind == "in":
        return col(name).isin(draw(st.lists(VALUES[name], max_size=3)))
    value = draw(VALUES[name] | VALUES["f"] if name == "n" else VALUES[name])
    compare = getattr(operator, draw(COMPARISON))
    compared: Filter = compare(col(name), value)
    return compared


def written(groups: list[list[dict[str, object]]]) -> tuple[MemoryStore, list[Add]]:
    store, ids = MemoryStore("pruning"), SeededIds(1)
    config = TableConfig(time_column="moment", window_seconds=3600)
    context = SplitContext(
        table_id="t", schema=SCHEMA, order=bind(config, SCHEMA), time_column="moment", window_seconds=3600
    )
    now = SystemClock().now_ms()
    tables = [pa.Table.from_pylist(group, schema=SCHEMA) for group in groups]
    return store, [add for each in tables for add in sort_and_write(store, each, context=context, ids=ids, now_ms=now)]


def matching(store: MemoryStore, splits: list[Add], condition: duckdb.Expression) -> list[str]:
    rows = [conform_split(read_split(store, add), SCHEMA) for add in splits]
    table = pa.concat_tables(rows) if rows else SCHEMA.empty_table()
    return sorted(str(row) for row in session().from_arrow(table).filter(condition).fetchall())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=4), conditions())
def test_a_pruned_read_returns_the_rows_of_a_full_read(groups: list[list[dict[str, object]]], wanted: Filter) -> None:
    store, splits = written(groups)
    pruned = prune(splits, wanted.predicate, schema=SCHEMA, time_column="moment")
    assert matching(store, list(pruned.splits), wanted.expression) == matching(store, splits, wanted.expression)
    assert sum(step.splits for step in pruned.steps) == len(splits) - len(pruned.splits)


@pytest.mark.parametrize(
    "text",
    [
        "n > 1",
        "1 < n and f is not null",
        "moment >= timestamp '1970-01-01 00:30:00' and moment < '1970-01-01T01:00:00Z'",
        "day between date '1970-01-01' and date '1970-01-02'",
        "day = '1970-01-01 12:00:00'",
        "s in ('10', '9') or not (d > 1.05)",
        "n not in (0, 1)",
        "n = 9007199254740992e0",
        "g = 0.1",
        "lower(s) = 'a' and n > 0",
        "s like '1%' or b",
        "n is distinct from 3",
        "t.n >= 2",
    ],
)
@settings(max_examples=10, deadline=None)
@given(groups=st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_sql_condition_prunes_only_what_it_cannot_match(text: str, groups: list[list[dict[str, object]]]) -> None:
    store, splits = written(groups)
    wanted = from_sql(text)
    found = prune(splits, wanted.predicate, schema=SCHEMA, time_column="moment").splits
    everything = pa.concat_tables([conform_split(read_split(store, add), SCHEMA) for add in splits])
    part = pa.concat_tables([SCHEMA.empty_table(), *(conform_split(read_split(store, add), SCHEMA) for add in found)])
    answers = []
    for rows in (everything, part):
        connection = session()
        connection.from_arrow(rows).create_view("t")
        answers.append(sorted(map(str, connection.sql(f"select * from t where {text}").fetchall())))
    assert answers[0] == answers[1]
    assert where_of(parse_select(f"select count(*) from t where {text}"), "t") == wanted.predicate
