"""A merge gives the same rows as a stable sort of its concatenated inputs, checked against plain Python and DuckDB.

See lessons 62, 63, 68 and 69 of docs/architecture/lessons.md. `TIDEMARK_SCALE` tries more examples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.compact.kernel import (
    MergeOrder,
    common_type,
    concatenated,
    merge_order,
    route,
    same_values,
    take_column,
)
from storage_core.data.rows.sort_order import OrderColumn, SortOrder
from tests.support.scale import scaled

EXAMPLES = scaled(25)
FLOATS = st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5, -1.5])
TEXTS = st.sampled_from(["", "a", "ab", "A", "10", "9", "\u00e9", "\ue000", "\U0001f600", "\0"])
VALUES: Mapping[pa.DataType, st.SearchStrategy[object]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.sampled_from([-128, -1, 0, 1, 127]),
    pa.int64(): st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]),
    pa.float32(): FLOATS,
    pa.float64(): FLOATS,
    pa.decimal128(12, 2): st.sampled_from([Decimal("-0.01"), Decimal("0.00"), Decimal("9.90"), Decimal("10.00")]),
    pa.string(): TEXTS,
    pa.dictionary(pa.int32(), pa.string()): TEXTS,
    pa.binary(): st.sampled_from([b"", b"\0", b"\x7f", b"\xff"]),
    pa.date32(): st.dates(),
    pa.timestamp("us", tz="UTC"): st.sampled_from([-(2**40), -1, 0, 1, 2**40]),
    pa.timestamp("us"): st.sampled_from([-(2**40), -1, 0, 1, 2**40]),
}

Cell = tuple[int, object]
Case = tuple[list[pa.Table], SortOrder]


def _place(value: object) -> Cell:
    """Return the sort key of a value in the total order: NaN after every number, null after everything."""
    if value is None:
        return 2, 0
    if isinstance(value, float) and math.isnan(value):
        return 1, 0
    return 0, value.encode() if isinstance(value, str) else value


def _compare(left: Sequence[Cell], right: Sequence[Cell], order: SortOrder) -> int:
    for each, a, b in zip(order.columns, left, right, strict=True):
        if a == b:
            continue
        if a[0] == 2 or b[0] == 2:
            return 1 if a[0] == 2 else -1
        return (1 if a > b else -1) * (-1 if each.descending else 1)
    return 0


def _cells(table: pa.Table, order: SortOrder) -> list[tuple[Cell, ...]]:
    columns = []
    for each in order.columns:
        column = table.column(each.name) if each.name in table.column_names else pa.nulls(table.num_rows)
        values = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        columns.append([_place(value) for value in values.to_pylist()])
    return list(zip(*columns, strict=True))


def _by_python(inputs: Sequence[pa.Table], order: SortOrder) -> list[int]:
    cells = [cell for table in inputs for cell in _cells(table, order)]

    def compare(a: int, b: int) -> int:
        return _compare(cells[a], cells[b], order)

    return sorted(range(len(cells)), key=functools.cmp_to_key(compare))


def _by_duckdb(inputs: Sequence[pa.Table], order: SortOrder) -> list[int]:
    """Return DuckDB's order. Rows with equal keys stay in the order of the concatenation, as in any stable sort."""
    names = [each.name for each in order.columns if any(each.name in table.column_names for table in inputs)]
    together = pa.concat_tables([_plain(table) for table in inputs], promote_options="default")
    together = together.append_column("place", pa.array(range(together.num_rows), pa.int64()))
    terms = [f'"{each.name}" {"DESC" if each.descending else "ASC"} NULLS LAST' for each in order.columns]
    chosen = [term for term, each in zip(terms, order.columns, strict=True) if each.name in names]
    with duckdb.connect() as connection:
        connection.register("rows", together)
        found = connection.sql(f"SELECT place FROM rows ORDER BY {', '.join([*chosen, 'place'])}").fetchall()
    return [place for (place,) in found]


def _plain(table: pa.Table) -> pa.Table:
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    names = [f"c{index}" for index in range(len(types))]
    columns = tuple(OrderColumn(name, draw(st.booleans())) for name in names)
    order = SortOrder(columns, "|".join(names))
    inputs = []
    for _ in range(draw(st.integers(1, 64) | st.integers(1, 4))):
        rows = draw(st.integers(0, 6))
        absent = draw(st.sets(st.sampled_from(names), max_size=1)) if draw(st.booleans()) else set()
        arrays = {
            name: pa.array(draw(st.lists(st.none() | VALUES[type_], min_size=rows, max_size=rows)), type_)
            for name, type_ in zip(names, types, strict=True)
            if name not in absent
        }
        table = pa.table({**arrays, "row": pa.nulls(rows, pa.int8())})
        inputs.append(_sorted(table, order) if draw(st.booleans()) else table)
    return inputs, order


def _sorted(table: pa.Table, order: SortOrder) -> pa.Table:
    return table.take(pa.array(_by_python([table], order), pa.int64()))


def _positions(inputs: Sequence[pa.Table], merged: MergeOrder) -> list[int]:
    return [int(position) for position in merged.runs.positions([table.num_rows for table in inputs])]


@settings(max_examples=EXAMPLES)
@given(_cases())
def test_a_merge_is_the_stable_sort_of_the_concatenation(case: Case) -> None:
    inputs, order = case
    merged = merge_order(inputs, order)
    expected = _by_python(inputs, order)
    assert _positions(inputs, merged) == expected
    assert _by_duckdb(inputs, order) == expected
    cells = [cell for table in inputs for cell in _cells(table, order)]
    changes = [_compare(cells[a], cells[b], order) != 0 for a, b in pairwise(expected)]
    assert merged.begins.tolist() == [False, *changes][: len(expected)]


@settings(max_examples=EXAMPLES)
@given(_cases())
def test_every_column_follows_the_order(case: Case) -> None:
    inputs, order = case
    merged = merge_order(inputs, order)
    input_rows = [table.num_rows for table in inputs]
    for each in order.columns:
        columns = [table.column(each.name) if each.name in table.column_names else None for table in inputs]
        if all(column is None for column in columns):
            continue
        chunks = concatenated(columns, input_rows, common_type(columns)).chunks
        way = route(merged.runs.positions(input_rows), sum(input_rows))
        taken = take_column(chunks, way, common_type(columns))
        assert same_values(chunks, way, taken)
        one = SortOrder((each,), each.name)
        together = [cell for table in inputs for cell in _cells(table, one)]
        assert _cells(pa.table({each.name: taken}), one) == [together[place] for place in _by_python(inputs, order)]


def test_keys_that_do_not_fit_one_word_are_merged_too() -> None:
    order = SortOrder((OrderColumn("a", descending=True), OrderColumn("b", descending=False)), "a|b")
    halves = [[2**62, -(2**62), 5], [2**62, 7, -(2**62)]]
    tables = [pa.table({"a": half, "b": [2**62, -(2**62), 0]}) for half in halves]
    inputs = [_sorted(table, order) for table in tables]
    assert _positions(inputs, merge_order(inputs, order)) == _by_python(inputs, order)
