"""If a generation contains a wanted key or a key of a split, the generation's bounds never exclude this key."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.formats.region_manifest import Generation
from storage_core.data.rows.bound_text import bound_of_text
from storage_core.data.rows.statistics import compute
from storage_core.log.actions import Add
from storage_core.log.split_columns import table_of
from storage_core.store.memory import MemoryStore
from storage_core.write.region import captured_regions
from storage_core.write.region.generation import admitted, may_hold, may_overlap
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled

SCHEMA = pa.schema({"n": pa.int64(), "s": pa.string(), "f": pa.float64(), "d": pa.decimal128(9, 2)})
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.sampled_from([-1, 0, 9, 10, 2**53, 2**53 + 1]),
    "s": st.sampled_from(["", "10", "9", "a" * 33, "\uffff", "\U00010000", "\U0010ffff" * 33]),
    "f": st.sampled_from([-math.inf, -0.0, 0.0, 1.5, math.inf, math.nan]),
    "d": st.sampled_from([Decimal("-0.01"), Decimal("0.00"), Decimal("9.99")]),
}
KEYS = st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=3)


def split(low: dict[str, str] | None, high: dict[str, str] | None) -> Add:
    return Add(path="x", size=1, modificationTime=0, minValues=low, maxValues=high)


def generation(low: dict[str, str], high: dict[str, str]) -> Generation:
    return Generation(region="r", generation=1, path="g", entries=(1,), records=1, min_key=low, max_key=high)


def answers(splits: Sequence[Add], *generations: Generation, key: Sequence[str] = ("n",)) -> list[bool]:
    answer: list[bool] = may_overlap(table_of(splits), generations, key=key, schema=SCHEMA).to_pylist()
    return answer


def test_ranges_overlap_where_one_ends_as_the_other_begins_and_not_beyond() -> None:
    splits = [split({"n": str(low)}, {"n": str(low + 2)}) for low in range(8)]
    assert answers(splits, generation({"n": "5"}, {"n": "5"})) == [False] * 3 + [True] * 3 + [False] * 2


def test_numbers_compare_as_numbers() -> None:
    assert answers([split({"n": "9"}, {"n": "10"})], generation({"n": "100"}, {"n": "200"})) == [False]
    assert answers([split({"n": "9"}, {"n": "10"})], generation({"n": "2"}, {"n": "9"})) == [True]


def test_any_generation_and_every_key_column_must_leave_room() -> None:
    base = [split({"n": "1", "s": "a"}, {"n": "2", "s": "b"})]
    near, far = generation({"n": "1", "s": "b"}, {"n": "1", "s": "c"}), generation({"n": "1", "s": "c"}, {"n": "1"})
    assert answers(base, near, key=("n", "s")) == [True]
    assert answers(base, far, key=("n", "s")) == [False]
    assert answers(base, far, near, key=("n", "s")) == [True]
    assert answers(base) == [False]


@pytest.mark.parametrize(
    ("low", "high"), [(None, None), ({}, {}), ({"s": "a"}, {"s": "b"}), ({"n": "many"}, {"n": "1.5"}), ({"n": "1"}, {})]
)
def test_a_bound_that_is_missing_or_no_value_rules_nothing_out(
    low: dict[str, str] | None, high: dict[str, str] | None
) -> None:
    assert answers([split(low, high)], generation({"n": "7"}, {"n": "8"})) == [True]
    assert answers([split({"n": "7"}, {"n": "8"})], generation(low or {}, high or {})) == [True]


def test_no_splits_give_no_answers() -> None:
    assert answers([], generation({"n": "7"}, {"n": "8"})) == []


@settings(max_examples=scaled(60), deadline=None)
@given(st.lists(KEYS, max_size=4), st.lists(KEYS, min_size=1, max_size=2), st.permutations(SCHEMA.names))
def test_a_split_that_holds_a_key_of_a_generation_is_never_ruled_out(
    base: list[list[dict[str, Any]]], touched: list[list[dict[str, Any]]], order: list[str]
) -> None:
    key = order[:2]
    metrics = [compute(pa.Table.from_pylist(rows, schema=SCHEMA)) for rows in base]
    bounds = [compute(pa.Table.from_pylist(rows, schema=SCHEMA)) for rows in touched]
    found = answers(
        [split(each.min_values, each.max_values) for each in metrics],
        *(generation(each.min_values, each.max_values) for each in bounds),
        key=key,
    )
    wanted = {identity(row, key) for rows in touched for row in rows}
    for may, rows in zip(found, base, strict=True):
        assert may or not wanted & {identity(row, key) for row in rows}


@settings(max_examples=scaled(60), deadline=None)
@given(st.lists(KEYS, max_size=4), KEYS, st.permutations(SCHEMA.names))
def test_a_split_that_holds_a_wanted_key_is_never_ruled_out(
    base: list[list[dict[str, Any]]], requested: list[dict[str, Any]], order: list[str]
) -> None:
    key = order[:2]
    metrics = [compute(pa.Table.from_pylist(rows, schema=SCHEMA)) for rows in base]
    files = table_of([split(each.min_values, each.max_values) for each in metrics])
    found = may_hold(files, pa.Table.from_pylist(requested, schema=SCHEMA).select(key)).to_pylist()
    wanted = {identity(row, key) for row in requested}
    for may, rows in zip(found, base, strict=True):
        assert may or not wanted & {identity(row, key) for row in rows}


def test_wanted_keys_rule_out_the_splits_on_either_side_of_them() -> None:
    files = table_of([split({"n": str(low)}, {"n": str(low + 2)}) for low in range(8)])
    assert may_hold(files, pa.table({"n": [5, 6]})).to_pylist() == [False] * 3 + [True] * 4 + [False]


def identity(row: dict[str, Any], key: Sequence[str]) -> tuple[str, ...]:
    """Return a value that is equal for equal keys. All NaNs are one value, and so are both zeros."""
    return tuple(str(row[name] + 0.0) if name == "f" else str(row[name]) for name in key)


@settings(max_examples=scaled(60), deadline=None)
@given(KEYS, KEYS, st.permutations(SCHEMA.names), st.sets(st.sampled_from(SCHEMA.names)))
def test_a_key_is_admitted_exactly_when_each_of_its_columns_lies_within_the_bounds(
    held: list[dict[str, Any]], requested: list[dict[str, Any]], order: list[str], unbounded: set[str]
) -> None:
    key = order[:2]
    metrics = compute(pa.Table.from_pylist(held, schema=SCHEMA))
    low = {name: text for name, text in metrics.min_values.items() if name not in unbounded}
    wanted = pa.Table.from_pylist([*requested, *held], schema=SCHEMA).select(key)
    found = admitted(generation(low, metrics.max_values), wanted)
    assert found.tolist() == [within(row, low, metrics.max_values) for row in wanted.to_pylist()]
    assert found[len(requested) :].all(), "what is in the generation"


def within(row: dict[str, Any], low: dict[str, str], high: dict[str, str]) -> bool:
    """Compare one value after the other as Python does, with NaN above all other values."""
    return all(
        (name not in low or rank(bound_of_text(low[name], SCHEMA.field(name).type)) <= rank(value))
        and (name not in high or rank(value) <= rank(bound_of_text(high[name], SCHEMA.field(name).type)))
        for name, value in row.items()
    )


def rank(value: Any) -> tuple[bool, Any]:
    """Return a sort key: NaN above all other values, text by its UTF-8 bytes."""
    nan = isinstance(value, float) and math.isnan(value)
    return nan, 0 if nan else value.encode() if isinstance(value, str) else value


def test_many_keys_are_asked_of_many_generations_without_a_step_per_key() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as writer:
        for number in range(10):
            writer.put([{"tailnum": f"N{number}{row:04}", "seats": number} for row in range(100)])
            writer.flush()
    captured = captured_regions.capture(table.store, table.snapshot, include_wal=True)

    def find(count: int) -> pa.Table:
        names = [f"N{row % 10}{row // 10:04}" for row in range(count)]
        return captured.above(table.snapshot, keys=pa.Table.from_arrays([pa.array(names)], ["tailnum"]))

    assert [find(count).num_rows for count in (50, 1000)] == [50, 1000]
    assert python_calls(lambda: find(1000)) <= python_calls(lambda: find(50)) + 10


def python_calls(work: Callable[[], object]) -> int:
    """Return the number of calls of Python functions during `work`."""
    entered = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal entered
        entered += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return entered
