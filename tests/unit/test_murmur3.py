from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.hashes import murmur3
from tests.support.steps import steps_of

NTZ = pa.timestamp("us")
TIMES = [*map(dt.datetime.fromisoformat, ("1970-01-01T00:00:01", "2024-02-29", "1969-12-31"))]

HASHES = [
    (pa.int64(), 123, 823512154),
    (pa.string(), "a", 721651713),
    (pa.string(), "b", -829116891),
    (pa.string(), "iceberg", 1172751604),
    (pa.date32(), dt.date(1970, 1, 2), -68075478),  # a date is hashed as its number of days
]

# Results of the transform `bucket(8)` from docs/architecture/reference-values.md.
BUCKETS = [
    (pa.int64(), [1, 5, 123, -1], [4, 7, 2, 0]),
    (pa.string(), ["a", "b", "hello!"], [1, 5, 7]),
    (pa.bool_(), [True, False], [2, 6]),
    (pa.float64(), [1.25, -0.0, float("nan"), 2.5], [0, 4, 5, 4]),
    (pa.date32(), [dt.date(1970, 1, 2), dt.date(2024, 2, 29), dt.date(1969, 12, 31)], [2, 4, 0]),
    (NTZ, TIMES, [6, 6, 7]),
    (pa.int64(), [None], [0]),
]


def buckets(array: pa.Array, count: int = 8) -> list[int]:
    return [int(each) for each in (murmur3([array]) & 0x7FFFFFFF) % count]


@pytest.mark.parametrize(("type_", "value", "expected"), HASHES)
def test_raw_hashes_are_those_of_spark(type_: pa.DataType, value: object, expected: int) -> None:
    assert murmur3([pa.array([value], type_)]).tolist() == [expected]


@pytest.mark.parametrize(("type_", "values", "expected"), BUCKETS)
def test_buckets_are_those_of_the_protocol(type_: pa.DataType, values: list[object], expected: list[int]) -> None:
    assert buckets(pa.array(values, type_)) == expected


def test_a_promotion_keeps_the_hash() -> None:
    numbers = [1, -7, None, 127]
    wide = murmur3([pa.array(numbers, pa.int64())]).tolist()
    for narrow in (pa.int8(), pa.int16(), pa.int32()):
        assert murmur3([pa.array(numbers, narrow)]).tolist() == wide
    floats = pa.array([1.5, -0.0, float("nan")], pa.float32())
    assert murmur3([floats]).tolist() == murmur3([floats.cast(pa.float64())]).tolist()
    money = pa.array([Decimal("1.50"), Decimal("-99.99"), None], pa.decimal128(10, 2))
    assert murmur3([money]).tolist() == murmur3([money.cast(pa.decimal128(30, 2))]).tolist()


def test_both_zeros_and_every_nan_have_one_hash() -> None:
    assert len(set(murmur3([pa.array([0.0, -0.0])]).tolist())) == 1
    other_nan = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    assert len({*murmur3([pa.array(other_nan, from_pandas=False)]).tolist()}) == 1


def test_text_of_any_layout_and_any_slice_hashes_as_its_bytes() -> None:
    texts = ["", "a", "ab", "abc", "abcd", "abcde", "é", None, "xyz" * 50]
    plain = murmur3([pa.array(texts)]).tolist()
    assert murmur3([pa.array(texts, pa.large_string())]).tolist() == plain
    assert murmur3([pa.array(texts).dictionary_encode()]).tolist() == plain
    assert murmur3([pa.array(texts).cast(pa.binary())]).tolist() == plain
    assert murmur3([pa.array(["zz", *texts, "zz"]).slice(1, len(texts))]).tolist() == plain
    assert murmur3([pa.chunked_array([texts[:3], texts[3:]])]).tolist() == plain
    assert murmur3([pa.array(texts[1:2])]).tolist() == plain[1:2]


def test_a_long_text_costs_steps_by_its_length_and_not_by_its_words() -> None:
    """One pass over all columns for each 4-byte word of a text needed two minutes for a text of 17 MB."""
    text = pa.array(["é" * 50_000])
    assert steps_of(lambda: murmur3([text])).count < 10 * 100_000 / 4
    many = pa.array(["é" * 50_000, *["a"] * 100, "xyz" * 70_000])
    assert murmur3([many])[[0, -1]].tolist() == [*murmur3([text]), *murmur3([many.slice(101)])]


def test_a_text_of_many_words_hashes_as_spark_does() -> None:
    """The expected hash is computed word by word, as defined."""
    for text in (b"0123456789" * 30_000, b"\xff\x80" * 3 + b"x" * 70_001, b"", b"abc"):
        found = 0
        whole = len(text) // 4 * 4
        for word in [*struct.iter_unpack("<I", text[:whole]), *((byte - (byte >> 7 << 8),) for byte in text[whole:])]:
            mixed = (word[0] & 0xFFFFFFFF) * 0xCC9E2D51 & 0xFFFFFFFF
            found ^= (mixed << 15 | mixed >> 17) * 0x1B873593 & 0xFFFFFFFF
            found = ((found << 13 | found >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
        found ^= len(text)
        found = (found ^ found >> 16) * 0x85EBCA6B & 0xFFFFFFFF
        found = (found ^ found >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
        expected = found ^ found >> 16
        assert murmur3([pa.array([text])]).view(np.uint32).tolist() == [expected]


def test_a_null_leaves_the_hash_of_the_columns_before_it() -> None:
    left, right = pa.array([1, None, 1, None]), pa.array(["a", "a", None, None])
    both = murmur3([left, right]).tolist()
    assert both[1] == murmur3([pa.array(["a"])]).tolist()[0]
    assert both[2] == murmur3([pa.array([1])]).tolist()[0]
    assert both[3] == 0
    assert both[0] not in both[1:]


def test_large_decimals_hash_as_the_bytes_of_their_unscaled_value() -> None:
    wide = pa.array(
        [Decimal(2**63), Decimal(-(2**63) - 1), Decimal(2**63 - 1), Decimal(-(2**63))], pa.decimal128(38, 0)
    )
    as_bytes = [(2**63).to_bytes(9, "big"), (-(2**63) - 1).to_bytes(9, "big", signed=True)]
    expected = murmur3([pa.array(as_bytes, pa.binary())]).tolist()
    expected += murmur3([pa.array([2**63 - 1, -(2**63)])]).tolist()
    assert murmur3([wide]).tolist() == expected


def test_no_rows_have_no_hashes() -> None:
    for kind in (pa.int64(), pa.string(), pa.decimal128(20, 2), pa.float32()):
        assert murmur3([pa.array([], kind)]).tolist() == []


def test_a_type_without_a_hash_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no hash"):
        murmur3([pa.array([[1]])])
