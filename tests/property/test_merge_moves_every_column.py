"""A merge moves columns of any type and writes their statistics correctly, as Python and DuckDB confirm.

See MC-1 to MC-4 and SS-5 of docs/architecture/compaction.md. `TIDEMARK_SCALE` tries more examples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.compact.execute import execute
from storage_core.compact.work import CompactionTask
from storage_core.data.rows.bound_text import bound_of_text
from storage_core.data.rows.statistics import mismatches
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add
from storage_core.split.read import read_split
from storage_core.split.writer import sort_and_write
from storage_core.store.memory import MemoryStore
from tests.support.events import context
from tests.support.ids import SeededIds
from tests.support.scale import scaled

EXAMPLES = scaled(25)
CONFIG = TableConfig(time_column="at", sort_schema="service|timestamp/V2")
ZERO = datetime(1970, 1, 1, tzinfo=UTC)
TEXTS = st.sampled_from(["", "a", "ab", "é", "\ue000", "\U0001f600", "\0", "long" * 20, "\U0010ffff" * 40])
SMALL = st.integers(-2, 2)
VALUES: Mapping[pa.DataType, st.SearchStrategy[object]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): SMALL,
    pa.int64(): st.sampled_from([-(2**63), 0, 2**63 - 1]),
    pa.float32(): st.sampled_from([0.0, -0.0, math.nan, math.inf, 0.5]),
    pa.float64(): st.sampled_from([0.0, -0.0, math.nan, -math.inf, 0.1]),
    pa.decimal128(38, 2): st.sampled_from([Decimal("-0.01"), Decimal(10**30), Decimal("9.90")]),
    pa.string(): TEXTS,
    pa.binary(): st.sampled_from([b"", b"\0", b"\xff", b"ab"]),
    pa.date32(): st.sampled_from([date(1, 1, 1), date(1969, 12, 31), date(2026, 2, 28)]),
    pa.timestamp("us", tz="UTC"): SMALL.map(lambda seconds: ZERO + timedelta(seconds=seconds)),
    pa.list_(pa.float64()): st.lists(st.none() | st.sampled_from([math.nan, 0.0, -0.0]), max_size=2),
    pa.struct([("x", pa.int64()), ("y", pa.string())]): st.fixed_dictionaries(
        {"x": st.none() | SMALL, "y": st.none() | TEXTS}
    ),
    pa.map_(pa.string(), pa.int64()): st.lists(
        st.tuples(TEXTS, st.none() | SMALL), max_size=2, unique_by=lambda e: e[0]
    ),
}

Row = Mapping[str, Any]


@st.composite
def _tables(draw: st.DrawFn) -> list[pa.Table]:
    """Draw inputs with the sort columns, a row number over all inputs, and up to five columns of any types."""
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5))
    tables, first = [], 0
    for _ in range(draw(st.integers(1, 4) | st.integers(1, 64))):
        rows = draw(st.integers(0, 4))
        given = [index for index in range(len(types)) if draw(st.booleans()) or draw(st.booleans())]
        arrays = {
            "at": _array(draw, st.none() | VALUES[pa.timestamp("us", tz="UTC")], rows, pa.timestamp("us", tz="UTC")),
            "service": _array(draw, st.none() | TEXTS, rows, pa.string()),
            "row": pa.array(range(first, first + rows), pa.int64()),
            **{f"c{index}": _array(draw, st.none() | VALUES[types[index]], rows, types[index]) for index in given},
        }
        tables.append(pa.table(arrays))
        first += rows
    return tables


def _array(draw: st.DrawFn, values: st.SearchStrategy[object], rows: int, type_: pa.DataType) -> pa.Array:
    return pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), type_)


def _sort_key(row: Row) -> tuple[Any, ...]:
    at, service = row["at"], row["service"]
    newest_first = 0 if at is None else -((at - ZERO) // timedelta(microseconds=1))
    return service is None, (service or "").encode(), at is None, newest_first


def _by_duckdb(inputs: Sequence[pa.Table]) -> list[int]:
    keys = pa.concat_tables([table.select(["service", "at", "row"]) for table in inputs])
    placed = keys.append_column("place", pa.array(range(keys.num_rows), pa.int64()))
    with duckdb.connect() as connection:
        connection.register("rows", placed)
        order = '"service" ASC NULLS LAST, "at" DESC NULLS LAST, place'
        found = connection.sql(f"SELECT row FROM rows ORDER BY {order}").fetchall()
    return [row for (row,) in found]


def _place(value: Any) -> tuple[bool, Any]:
    """Return the sort key of a value in the total order: NaN above all, strings by their bytes."""
    if isinstance(value, float) and math.isnan(value):
        return True, 0
    return False, value.encode() if isinstance(value, str) else value


def _require_true(add: Add, rows: Sequence[Row], schema: pa.Schema) -> None:
    """Assert that the action describes the rows: bounds hold, and null counts and row keys are exact."""
    assert add.numRecords == len(rows)
    assert (json.loads(add.minRowKey or "")[0], json.loads(add.maxRowKey or "")[0]) == (
        rows[0]["service"],
        rows[-1]["service"],
    )
    for field in schema:
        values = [row[field.name] for row in rows]
        assert (add.nullCounts or {})[field.name] == values.count(None)
        places = [_place(value) for value in values if value is not None]
        low, high = ((bounds or {}).get(field.name) for bounds in (add.minValues, add.maxValues))
        assert low is None or _place(bound_of_text(low, field.type)) <= min(places)
        assert high is None or max(places) <= _place(bound_of_text(high, field.type))


@settings(max_examples=EXAMPLES)
@given(_tables())
def test_a_merge_moves_every_column_with_its_rows_and_describes_them_truly(tables: list[pa.Table]) -> None:
    store, ids = MemoryStore("columns"), SeededIds(1)
    schema = pa.unify_schemas([table.schema for table in tables])
    where = context(schema, CONFIG)
    adds = [add for table in tables for add in sort_and_write(store, table, context=where, ids=ids, now_ms=1)]
    inputs = [read_split(store, add) for add in adds]
    written = [row for table in inputs for row in table.to_pylist()]
    assert sorted(row["row"] for row in written) == list(range(sum(table.num_rows for table in tables)))
    if not adds:
        return
    (merged,) = execute(store, CompactionTask(None, tuple(adds), where), ids=ids, now_ms=2).adds
    output = read_split(store, merged)
    assert set(output.column_names) == {name for table in inputs for name in table.column_names}
    assert all(output.schema.field(name).type == schema.field(name).type for name in output.column_names)
    found = output.to_pylist()
    expected = [{name: row.get(name) for name in output.column_names} for row in sorted(written, key=_sort_key)]
    assert repr(found) == repr(expected)
    assert [row["row"] for row in found] == _by_duckdb(inputs)
    _require_true(merged, found, output.schema)
    assert mismatches(output, merged.columnRegexes or {}) == []
