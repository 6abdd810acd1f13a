"""Sorting, ranking and statistics, compared with plain Python for every ordered type (lessons 62-64, 68, 69)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from storage_core.data.rows.bound_text import bound_of_text
from storage_core.data.rows.keys import key_codes
from storage_core.data.rows.sort_order import OrderColumn, SortOrder, is_sorted, ranks, sort_indices
from storage_core.data.rows.statistics import compute

ODD_TEXT = st.sampled_from(["", "a", "ab", "\0", "é", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff" * 33])
TEXT = ODD_TEXT | st.text(max_size=40)
ODD_FLOATS = st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 5e-324, -5e-324, 1.5])
VALUES: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.sampled_from([-(2**63), 1 - 2**63, 2**63 - 2, 2**63 - 1, 0])
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(0, 3),
    pa.uint64(): st.sampled_from([0, 1, 2**63, 2**64 - 2, 2**64 - 1]) | st.integers(0, 2**64 - 1),
    pa.float32(): ODD_FLOATS.filter(lambda value: abs(value) != 5e-324) | st.floats(width=32),
    pa.float64(): ODD_FLOATS | st.floats(),
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.binary(): st.binary(max_size=4),
    pa.date32(): st.dates(),
    pa.timestamp("us", tz="UTC"): st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    pa.timestamp("us"): st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    pa.decimal128(12, 2): st.decimals(-(10**9), 10**9, places=2),
}


@dataclass(frozen=True)
class Column:
    """A column, and its values as integers, floats, text, bytes or decimals that Python can compare."""

    array: pa.ChunkedArray
    values: list[object]


def _rank(value: object) -> tuple[int, object]:
    """Return the rank of a value in the total order: nulls last, NaN after every number, text by its bytes."""
    match value:
        case None:
            return 2, 0
        case float() if math.isnan(value):
            return 1, 0
        case str():
            return 0, value.encode()
        case _:
            return 0, value


def _compare(left: object, right: object, *, descending: bool) -> int:
    a, b = _rank(left), _rank(right)
    if a == b:
        return 0
    if a[0] == 2 or b[0] == 2:
        return 1 if a[0] == 2 else -1
    return (1 if a > b else -1) * (-1 if descending else 1)


@st.composite
def _column(draw: st.DrawFn, rows: int) -> Column:
    type_ = draw(st.sampled_from(list(VALUES)))
    values = draw(st.lists(st.none() | VALUES[type_], min_size=rows, max_size=rows))
    plain = pa.array(values, type_)
    cuts = sorted(draw(st.lists(st.integers(0, rows), max_size=3)))
    pieces = [plain.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, rows], strict=True)]
    if draw(st.booleans()):
        pieces = [_untidy_dictionary(piece) for piece in pieces]
    comparable = plain.cast(pa.int64()) if pa.types.is_timestamp(type_) else plain
    return Column(pa.chunked_array(pieces), comparable.to_pylist())


def _untidy_dictionary(piece: pa.Array) -> pa.DictionaryArray:
    """Return a dictionary array with a repeated value per row, an unused value, and nulls in indices and values."""
    null_value = len(piece)
    dictionary = pa.concat_arrays([piece, pa.nulls(1, piece.type)])
    indices = [
        null_value if not value.is_valid and row % 2 else None if not value.is_valid else row
        for row, value in enumerate(piece)
    ]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), dictionary)


@st.composite
def _tables(draw: st.DrawFn) -> tuple[list[Column], list[bool]]:
    rows = draw(st.integers(0, 12))
    columns = draw(st.lists(_column(rows), min_size=1, max_size=4))
    return columns, draw(st.lists(st.booleans(), min_size=len(columns), max_size=len(columns)))


def _reference(columns: list[Column], descending: list[bool]) -> list[int]:
    def compare(left: int, right: int) -> int:
        for column, down in zip(columns, descending, strict=True):
            result = _compare(column.values[left], column.values[right], descending=down)
            if result:
                return result
        return 0

    return sorted(range(len(columns[0].values)), key=functools.cmp_to_key(compare))


@given(_tables())
def test_the_sort_order_is_that_of_a_plain_comparison_and_stable(given_: tuple[list[Column], list[bool]]) -> None:
    columns, descending = given_
    table = pa.table({f"c{i}": column.array for i, column in enumerate(columns)})
    order = SortOrder(tuple(OrderColumn(f"c{i}", down) for i, down in enumerate(descending)), "")
    indices = sort_indices(table, order)
    expected = _reference(columns, descending)
    assert indices.tolist() == expected
    assert is_sorted(table, order) == (expected == list(range(len(expected))))


@given(st.integers(0, 12).flatmap(_column), st.booleans())
def test_ranks_are_dense_and_compare_like_the_values(column: Column, descending: bool) -> None:
    found = ranks(column.array, descending).tolist()
    assert sorted(set(found)) == list(range(len(set(found))))
    for left, a in zip(column.values, found, strict=True):
        for right, b in zip(column.values, found, strict=True):
            assert (a > b) - (a < b) == _compare(left, right, descending=descending)


@given(_tables())
def test_key_codes_agree_across_tables_and_compare_like_the_keys(given_: tuple[list[Column], list[bool]]) -> None:
    columns, _ = given_
    full = [row for row in range(len(columns[0].values)) if all(each.values[row] is not None for each in columns)]
    every = pa.table({f"c{i}": column.array for i, column in enumerate(columns)})
    table = pa.concat_tables([every.slice(0, 0), *(every.slice(row, 1) for row in full)])
    tables = [table, table.slice(0, len(full) // 2), table.slice(len(full) // 2)]
    whole, first, second = key_codes(tables, table.column_names)
    assert whole.tolist() == [*first.tolist(), *second.tolist()]
    for row, code in zip(full, whole.tolist(), strict=True):
        for other, other_code in zip(full, whole.tolist(), strict=True):
            results = (_compare(each.values[row], each.values[other], descending=False) for each in columns)
            assert (code > other_code) - (code < other_code) == next(filter(None, results), 0)


def _comparable(value: object, type_: pa.DataType) -> object:
    """Return a decoded bound in the form of `Column.values`."""
    match value:
        case datetime():
            return pa.scalar(value, type_).cast(pa.int64()).as_py()
        case date() | Decimal() | int() | float() | str():
            return value
    raise AssertionError(value)


@given(st.integers(0, 12).flatmap(_column), st.integers(1, 4) | st.just(32))
def test_every_value_lies_between_the_bounds(column: Column, truncate_at: int) -> None:
    statistics = compute(pa.table({"c": column.array}), truncate_at)
    type_ = column.array.type.value_type if pa.types.is_dictionary(column.array.type) else column.array.type
    present = [value for value in column.values if value is not None]
    assert statistics.null_counts == {"c": len(column.values) - len(present)}
    if "c" in statistics.min_values:
        low = _comparable(bound_of_text(statistics.min_values["c"], type_), type_)
        assert present
        assert all(_compare(low, value, descending=False) <= 0 for value in present)
        assert not isinstance(low, str) or len(low) <= truncate_at
    if "c" in statistics.max_values:
        high = _comparable(bound_of_text(statistics.max_values["c"], type_), type_)
        assert present
        assert all(_compare(high, value, descending=False) >= 0 for value in present)
        assert not isinstance(high, str) or len(high) <= truncate_at


@given(st.lists(st.none() | TEXT.filter(lambda text: len(text) <= 32), min_size=1))
def test_bounds_of_short_strings_are_exact(values: list[str | None]) -> None:
    statistics = compute(pa.table({"c": pa.array(values, pa.string())}))
    present = sorted((value for value in values if value is not None), key=lambda text: text.encode())
    assert statistics.min_values == ({"c": present[0]} if present else {})
    assert statistics.max_values == ({"c": present[-1]} if present else {})
