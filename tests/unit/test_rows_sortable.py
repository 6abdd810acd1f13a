"""Sort keys have the same order as the values: one definition for every type (docs/architecture/compaction.md)."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from storage_core.data.rows.codes import bound_keys, float_keys, has_leading_keys, leading_keys, sortable

DAY = dt.datetime(2015, 5, 17, 10, 5, 3)  # noqa: DTZ001  # a column without a zone
ASCENDING = {
    "boolean": pa.array([False, True]),
    "integer": pa.array([-(2**63), -1, 0, 1, 2**63 - 1]),
    "small integer": pa.array([-128, 0, 127], pa.int8()),
    "double": pa.array([-math.inf, -1e308, -1.0, -5e-324, 0.0, 5e-324, 1.0, math.inf, math.nan]),
    "float": pa.array([-math.inf, -1.5, 0.0, 1e-45, 1.5, math.inf, math.nan], pa.float32()),
    "decimal": pa.array([Decimal("-1.10"), Decimal("0.00"), Decimal("1.05")], pa.decimal128(9, 2)),
    "text": pa.array(["", "10", "9", "a", "é", "\ue000", "\uffff", "\U00010000", "\U0010ffff"]),
    "date": pa.array([dt.date.min, dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date.max]),
    "timestamp": pa.array([dt.datetime(1, 1, 1), DAY, dt.datetime(9999, 12, 31)], pa.timestamp("us")),  # noqa: DTZ001
    "seconds": pa.array([-1, 0, 1], pa.int64()).cast(pa.timestamp("s", "UTC")),
}


@pytest.mark.parametrize("values", ASCENDING.values(), ids=ASCENDING)
def test_keys_ascend_with_the_values(values: pa.Array) -> None:
    keys = sortable(values).to_pylist()
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("values", ASCENDING.values(), ids=ASCENDING)
def test_the_key_of_null_is_null_and_changes_no_other(values: pa.Array) -> None:
    holed = pa.concat_arrays([pa.nulls(1, values.type), values])
    assert sortable(holed).to_pylist() == [None, *sortable(values).to_pylist()]


def test_zero_has_one_key_and_so_has_nan_whatever_its_bits() -> None:
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000], dtype=np.uint64).view(np.float64)
    assert len(set(float_keys(np.array([0.0, -0.0])).tolist())) == 1
    assert len({*float_keys(odd).tolist(), *float_keys(np.array([math.nan])).tolist()}) == 1


def test_dates_and_timestamps_of_every_unit_and_zone_are_microseconds_in_utc() -> None:
    there = pa.timestamp("ms", "America/New_York")
    assert sortable(pa.array([1], pa.int64()).cast(there)).to_pylist() == [1000]
    assert sortable(pa.array([1], pa.int32()).cast(pa.date32())).to_pylist() == [86_400_000_000]


def test_a_type_without_an_order_has_no_keys() -> None:
    assert sortable(pa.array([b"a"])).to_pylist() == [None]
    assert bound_keys(pa.array(["a"]), pa.list_(pa.int64())).to_pylist() == [None]


@pytest.mark.parametrize("values", ASCENDING.values(), ids=ASCENDING)
def test_no_greater_value_has_a_smaller_leading_key_and_null_has_the_greatest(values: pa.Array) -> None:
    if not has_leading_keys(values.type):
        assert pa.types.is_decimal(values.type)
        return
    keys = leading_keys(pa.concat_arrays([values, pa.nulls(1, values.type)]).slice(1))
    assert keys.dtype == np.uint64
    assert (keys[1:] >= keys[:-1]).all()
    assert keys[-1] == 2**64 - 1
    if pa.types.is_int64(sortable(values).type):
        assert leading_keys(sortable(values)).tolist() == leading_keys(values).tolist()


def test_the_leading_key_of_a_text_is_that_of_its_first_eight_bytes() -> None:
    texts = pa.array(["", "a", "a\0", "aaaaaaaa", "aaaaaaaab", "b", "éééé", "éééééé"])
    keys = leading_keys(texts).tolist()
    assert keys == [int.from_bytes(each.encode()[:8].ljust(8, b"\0")) for each in texts.to_pylist()]
    assert leading_keys(pa.array([None, "", None], pa.string())).tolist() == [2**64 - 1, 0, 2**64 - 1]


def test_days_that_no_timestamp_holds_have_the_key_of_the_last_that_one_does() -> None:
    days = pa.array([-(2**31), -106_751_991, 0, 106_751_991, 2**31 - 1], pa.int32()).view(pa.date32())
    keys = leading_keys(days).tolist()
    assert keys == sorted(keys)
