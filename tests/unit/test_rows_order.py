"""Sorting and ranking: the cases of lessons 62, 63 and 69."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.compact.kernel import merge_order
from storage_core.data.rows.keys import key_codes
from storage_core.data.rows.sort_order import OrderColumn, SortOrder, is_sorted, ranks, sort_indices


def _sorted(values: Sequence[object], type_: pa.DataType, *, descending: bool = False) -> list[object]:
    table = pa.table({"c": pa.array(values, type_)})
    order = SortOrder((OrderColumn("c", descending),), "")
    taken = table.take(pa.array(sort_indices(table, order)))
    assert is_sorted(taken, order)
    return list(taken.column("c").to_pylist())


def test_nan_is_above_infinity_and_null_is_last_in_both_directions() -> None:
    values = [math.nan, 1.0, None, math.inf, -math.inf]
    assert repr(_sorted(values, pa.float64())) == "[-inf, 1.0, inf, nan, None]"
    assert repr(_sorted(values, pa.float64(), descending=True)) == "[nan, inf, 1.0, -inf, None]"


def test_the_two_zeros_are_one_value() -> None:
    assert str(_sorted([0.0, -0.0, 0.0, -1.0], pa.float64())) == "[-1.0, 0.0, -0.0, 0.0]"
    assert ranks(pa.chunked_array([[0.0, -0.0, 5e-324, -5e-324]])).tolist() == [1, 1, 2, 0]


def test_every_nan_is_the_same_value() -> None:
    patterns = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001], np.uint64).view(np.float64)
    assert ranks(pa.chunked_array([patterns, [1.0]])).tolist() == [1, 1, 1, 0]


def test_strings_are_ordered_by_utf8_bytes_not_by_utf16_units() -> None:
    assert _sorted(["\U00010000", "\uffff", "é", "z", "", None], pa.string()) == [
        "",
        "z",
        "é",
        "\uffff",
        "\U00010000",
        None,
    ]


def test_binary_is_ordered_by_unsigned_bytes_and_prefixes_come_first() -> None:
    assert _sorted([b"\xff", b"\x7f", b"", b"\x7f\x00"], pa.binary()) == [b"", b"\x7f", b"\x7f\x00", b"\xff"]


def test_false_comes_before_true() -> None:
    assert _sorted([True, None, False], pa.bool_()) == [False, True, None]


def test_decimals_are_ordered_as_numbers() -> None:
    values = [Decimal("10.0"), Decimal("-2.5"), Decimal("9.9"), None, Decimal("-10.0")]
    assert _sorted(values, pa.decimal128(20, 1)) == [
        Decimal("-10.0"),
        Decimal("-2.5"),
        Decimal("9.9"),
        Decimal("10.0"),
        None,
    ]


def test_the_whole_range_of_64_bits_and_a_null_are_told_apart() -> None:
    values = [2**63 - 1, None, -(2**63), 0]
    assert _sorted(values, pa.int64()) == [-(2**63), 0, 2**63 - 1, None]
    assert _sorted(values, pa.int64(), descending=True) == [2**63 - 1, 0, -(2**63), None]
    # The possible values are null and all 64-bit integers except the smallest. Together, these values need 2**64 codes.
    almost = [2**63 - 1, None, 1 - 2**63, 0]
    assert _sorted(almost, pa.int64()) == [1 - 2**63, 0, 2**63 - 1, None]
    assert _sorted(almost, pa.int64(), descending=True) == [2**63 - 1, 0, 1 - 2**63, None]


def test_unsigned_values_above_the_signed_range_are_greatest() -> None:
    assert _sorted([2**64 - 1, 0, 2**63], pa.uint64()) == [0, 2**63, 2**64 - 1]


def test_a_column_of_nulls_keeps_its_rows_in_place() -> None:
    table = pa.table({"c": pa.nulls(3), "d": pa.nulls(3, pa.string())})
    order = SortOrder((OrderColumn("c", False), OrderColumn("d", True)), "")
    assert sort_indices(table, order).tolist() == [0, 1, 2]


def test_ties_keep_the_order_of_the_rows_when_descending_too() -> None:
    table = pa.table({"c": [1, 2, 1, 2, 1]})
    assert sort_indices(table, SortOrder((OrderColumn("c", True),), "")).tolist() == [1, 3, 0, 2, 4]


def test_an_order_without_columns_keeps_the_rows_and_holds_for_any() -> None:
    table = pa.table({"c": [2, 1]})
    assert sort_indices(table, SortOrder((), "")).tolist() == [0, 1]
    assert is_sorted(table, SortOrder((), ""))


def test_no_rows_are_sorted() -> None:
    table = pa.table({"c": pa.array([], pa.string()), "d": pa.chunked_array([], pa.int64())})
    order = SortOrder((OrderColumn("c", False), OrderColumn("d", False)), "")
    assert sort_indices(table, order).tolist() == []
    assert is_sorted(table, order)


def test_columns_too_wide_for_one_key_are_compared_in_turn() -> None:
    wide = [2**62, 0, 2**62, 0, -(2**62)]
    table = pa.table({"a": wide, "b": [3.5, -1.0, math.nan, -2.0, 0.0], "c": ["x", "y", "z", "x", "y"]})
    order = SortOrder((OrderColumn("a", False), OrderColumn("b", True), OrderColumn("c", False)), "")
    indices = sort_indices(table, order)
    assert indices.tolist() == [4, 1, 3, 2, 0]
    assert is_sorted(table.take(pa.array(indices)), order)
    assert not is_sorted(table, order)


def test_a_column_of_nulls_before_one_of_the_whole_range_of_a_word_is_no_hindrance() -> None:
    """The two columns together have 2**64 sort keys, one for each value of a 64-bit word.

    The number 2**64 is one more than the largest 64-bit word.
    """
    rows = pa.table({"a": pa.nulls(3, pa.int64()), "b": pa.array([2**64 - 2, 0, 5], pa.uint64())})
    order = SortOrder((OrderColumn("a", descending=False), OrderColumn("b", descending=False)), "a|b")
    assert sort_indices(rows, order).tolist() == [1, 2, 0]
    merged = merge_order([rows.take([1, 2]), rows.take([0])], order)
    assert merged.runs.count.tolist() == [2, 1]
    assert merged.begins.tolist() == [False, True, True]


def test_a_later_column_that_falls_is_no_disorder_where_an_earlier_one_rises() -> None:
    table = pa.table({"a": [0.0, 1.0, 1.0], "b": [9.0, 1.0, 2.0]})
    order = SortOrder((OrderColumn("a", False), OrderColumn("b", False)), "")
    assert is_sorted(table, order)
    assert not is_sorted(table, SortOrder((OrderColumn("a", False), OrderColumn("b", True)), ""))


def test_dictionaries_with_nulls_duplicates_unused_values_and_chunks_sort_like_plain_strings() -> None:
    first = pa.DictionaryArray.from_arrays(pa.array([3, 0, 1, None, 2], pa.int8()), pa.array(["b", None, "b", "a"]))
    second = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array(["c", "a", "unused"]))
    column = pa.chunked_array([first, second])
    plain = pa.chunked_array([column.cast(pa.string()).combine_chunks()])
    order = SortOrder((OrderColumn("c", False),), "")
    for descending in (False, True):
        assert ranks(column, descending).tolist() == ranks(plain, descending).tolist()
    assert sort_indices(pa.table({"c": column}), order).tolist() == [0, 5, 1, 4, 6, 2, 3]


def test_a_dictionary_of_floats_has_one_nan_and_one_zero() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, None]), pa.array([math.nan, -0.0, 0.0, math.nan]))
    assert ranks(pa.chunked_array([column])).tolist() == [1, 0, 0, 1, 2]


def test_ranks_are_dense_and_null_has_the_last_one() -> None:
    assert ranks(pa.chunked_array([[10**15, None, -5, 10**15]])).tolist() == [1, 2, 0, 1]
    assert ranks(pa.chunked_array([[10**15, None, -5, 10**15]]), True).tolist() == [0, 2, 1, 0]


@pytest.mark.parametrize("type_", [pa.list_(pa.int64()), pa.struct([("x", pa.int64())])])
def test_a_nested_column_has_no_order(type_: pa.DataType) -> None:
    table = pa.table({"c": pa.array([None], type_)})
    with pytest.raises(InvalidInput, match="no order"):
        sort_indices(table, SortOrder((OrderColumn("c", False),), ""))


def test_equal_keys_of_two_tables_have_equal_codes() -> None:
    left = pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode(), "b": [1, 1, 2]})
    right = pa.table({"b": [2, 1, 0], "a": ["x", "y", "x"]})
    first, second = key_codes([left, right], ["a", "b"])
    assert first.tolist() == [1, 3, 2]
    assert second.tolist() == [2, 3, 0]


@pytest.mark.parametrize(
    ("right", "why"),
    [
        (pa.table({"k": [1, None]}), "'k' is null in row 1"),
        (pa.table({"k": pa.DictionaryArray.from_arrays([0], pa.array([None], pa.int64()))}), "'k' is null in row 0"),
        (pa.table({"k": ["a"]}), "types"),
        (pa.table({"other": [1]}), "'k' is missing"),
    ],
)
def test_a_key_without_a_value_names_column_and_row(right: pa.Table, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        key_codes([pa.table({"k": [7, 8, 9]}), right], ["k"])


def test_nulls_are_first_where_the_order_says_so() -> None:
    table = pa.table({"c": pa.array([2, None, 1, None, 2**63 - 1, -(2**63)]), "d": ["a", None, None, "b", "", "z"]})
    first = SortOrder((OrderColumn("c", True, nulls_first=True), OrderColumn("d", False, nulls_first=True)), "")
    indices = sort_indices(table, first)
    assert indices.tolist() == [1, 3, 4, 0, 2, 5]
    assert is_sorted(table.take(pa.array(indices)), first)
    last = SortOrder(tuple(OrderColumn(each.name, each.descending) for each in first.columns), "")
    assert not is_sorted(table.take(pa.array(indices)), last)
