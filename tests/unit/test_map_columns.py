"""Lookups in map columns return the same as a loop over Python dictionaries, for every layout of the rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from storage_core.data.rows.keys import map_column

TEXTS = pa.map_(pa.string(), pa.string())
Rows = list[dict[str, str] | None]

LAYOUTS: dict[str, Rows] = {
    "no rows": [],
    "equal keys": [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}, {"a": "5", "b": "6"}],
    "other order": [{"a": "1", "b": "2"}, {"b": "3", "a": "4"}],
    "other keys of equal number": [{"a": "1", "b": "2"}, {"a": "3", "c": "4"}, {"c": "5", "b": "6"}],
    "missing keys": [{"a": "1"}, {}, {"b": "2"}, {"a": "3", "b": "4"}],
    "nulls": [None, {"a": "1", "b": "2"}, None, {"a": "3", "b": "4"}],
    "empty": [{}, {}],
    "all null": [None, None],
    "the last row lacks it": [{"a": "1"}, {"a": "2"}, {}],
}


@pytest.mark.parametrize("rows", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("key", ["a", "b", "absent"])
def test_a_lookup_gives_the_value_of_each_row_or_null(rows: Rows, key: str) -> None:
    array = pa.array(rows, TEXTS)
    assert map_column(array).lookup(key).to_pylist() == [(row or {}).get(key) for row in rows]


@pytest.mark.parametrize("rows", LAYOUTS.values(), ids=LAYOUTS)
def test_a_slice_looks_up_in_its_own_rows(rows: Rows) -> None:
    array = pa.array([{"a": "before"}, *rows, {"a": "after", "b": "after"}], TEXTS).slice(1, len(rows))
    assert map_column(array).lookup("b").to_pylist() == [(row or {}).get("b") for row in rows]


def test_a_null_row_owns_no_entries_though_its_offsets_span_some() -> None:
    whole = pa.array([{"a": "1"}, {"a": "2"}], TEXTS)
    hidden = pa.MapArray.from_arrays(whole.offsets, whole.keys, whole.items, mask=pa.array([True, False]))
    assert map_column(hidden).lookup("a").to_pylist() == [None, "2"]


def test_rows_of_equal_keys_are_recognised_and_others_are_not() -> None:
    assert map_column(pa.array(LAYOUTS["equal keys"], TEXTS)).width == 2
    assert map_column(pa.array(LAYOUTS["other order"], TEXTS)).width is None
