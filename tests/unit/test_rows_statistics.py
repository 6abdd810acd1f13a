"""Statistics in text form: the table in `storage_core.data.rows.codes`, lessons 62, 64 and 66."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt
from storage_core.data.rows.bound_text import bound_of_text, decode_column
from storage_core.data.rows.statistics import compute

LAST_BEFORE_EPOCH = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC).replace(tzinfo=None)
INSTANT = pa.timestamp("us", tz="UTC")
CASES: list[tuple[list[object], pa.DataType, str, str]] = [
    ([True, False, None], pa.bool_(), "false", "true"),
    ([10, 9, None, -1], pa.int32(), "-1", "10"),
    ([2**64 - 1, 0], pa.uint64(), "0", "18446744073709551615"),
    ([1.5, -0.1], pa.float64(), "-0.1", "1.5"),
    ([-0.0], pa.float64(), "0.0", "0.0"),
    ([1.0, math.nan], pa.float64(), "1.0", "NaN"),
    ([math.nan, None], pa.float64(), "NaN", "NaN"),
    ([math.inf, -math.inf], pa.float64(), "-Infinity", "Infinity"),
    ([1.100000023841858], pa.float32(), "1.100000023841858", "1.100000023841858"),
    (["10", "9", "100"], pa.string(), "10", "9"),
    ([""], pa.string(), "", ""),
    (["\uffff", "\U00010000"], pa.string(), "\uffff", "\U00010000"),
    ([Decimal("-1.50"), Decimal("10.00")], pa.decimal128(38, 2), "-1.50", "10.00"),
    ([Decimal("0.0000001")], pa.decimal128(9, 7), "0.0000001", "0.0000001"),
    ([date(2015, 5, 17), date(1969, 12, 31)], pa.date32(), "1969-12-31", "2015-05-17"),
    (
        [datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC), None],
        INSTANT,
        "2015-05-17T10:05:03.000000Z",
        "2015-05-17T10:05:03.000000Z",
    ),
    (
        [LAST_BEFORE_EPOCH, datetime(9999, 12, 31, tzinfo=UTC).replace(tzinfo=None)],
        pa.timestamp("us"),
        "1969-12-31T23:59:59.999999",
        "9999-12-31T00:00:00.000000",
    ),
]


@pytest.mark.parametrize(("values", "type_", "low", "high"), CASES)
def test_bounds_have_one_text_form_per_type_and_read_back(
    values: Sequence[object], type_: pa.DataType, low: str, high: str
) -> None:
    statistics = compute(pa.table({"c": pa.array(values, type_)}))
    assert statistics.min_values == {"c": low}
    assert statistics.max_values == {"c": high}
    assert statistics.null_counts == {"c": values.count(None)}
    again = compute(pa.table({"c": pa.array([bound_of_text(low, type_), bound_of_text(high, type_)], type_)}))
    assert (again.min_values, again.max_values) == ({"c": low}, {"c": high})


def test_a_long_string_is_cut_and_a_cut_maximum_rounded_up() -> None:
    statistics = compute(pa.table({"c": ["a" * 40, "b" * 33, "b" * 31]}))
    assert statistics.min_values == {"c": "a" * 32}
    assert statistics.max_values == {"c": "b" * 31 + "c"}


@pytest.mark.parametrize(
    ("maximum", "bound"),
    [
        ("abc", "abc"),
        ("abcd", "abd"),
        ("ab\U0010ffffd", "ac"),
        ("ab\ud7ffx", "ab\ue000"),
        ("é\U0010ffff\U0010ffffx", "ê"),
        ("\U0010ffff\U0010ffff\U0010ffffx", None),
    ],
)
def test_rounding_up_carries_over_the_last_character_skips_surrogates_and_may_give_up(
    maximum: str, bound: str | None
) -> None:
    statistics = compute(pa.table({"c": [maximum]}), truncate_at=3)
    assert statistics.max_values.get("c") == bound
    assert statistics.min_values == {"c": maximum[:3]}


@pytest.mark.parametrize("type_", [pa.binary(), pa.list_(pa.int64()), pa.struct([("x", pa.int64())]), pa.null()])
def test_a_type_without_bounds_still_counts_nulls(type_: pa.DataType) -> None:
    statistics = compute(pa.table({"c": pa.array([None, None], type_)}))
    assert statistics.min_values == statistics.max_values == {}
    assert statistics.null_counts == {"c": 2}


@pytest.mark.parametrize("type_", [pa.int64(), pa.float64(), pa.string(), INSTANT, pa.decimal128(5, 2)])
@pytest.mark.parametrize("values", [[], [None]])
def test_a_column_without_values_has_no_bounds(type_: pa.DataType, values: list[None]) -> None:
    statistics = compute(pa.table({"c": pa.array(values, type_)}))
    assert statistics.min_values == statistics.max_values == {}
    assert statistics.null_counts == {"c": len(values)}


def test_an_instant_that_the_calendar_cannot_write_leaves_its_side_open() -> None:
    year_10000, year_0 = 253_402_300_800_000_000, -62_135_596_800_000_001
    for zone in (None, "UTC"):
        statistics = compute(pa.table({"c": pa.array([0, year_10000], pa.timestamp("us", tz=zone))}))
        assert list(statistics.min_values) == ["c"]
        assert statistics.max_values == {}
        statistics = compute(pa.table({"c": pa.array([0, year_0], pa.timestamp("us", tz=zone))}))
        assert statistics.min_values == {}
        assert list(statistics.max_values) == ["c"]


def test_instants_are_written_in_utc_whatever_their_zone() -> None:
    column = pa.array([0], pa.timestamp("us", tz="Asia/Tokyo"))
    assert compute(pa.table({"c": column})).min_values == {"c": "1970-01-01T00:00:00.000000Z"}


def test_only_dictionary_values_that_occur_count_and_null_values_are_nulls() -> None:
    first = pa.DictionaryArray.from_arrays(pa.array([1, 2, None]), pa.array(["zz", "m", None, "a"]))
    second = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array(["n", "n"]))
    statistics = compute(pa.table({"c": pa.chunked_array([first, second])}))
    assert statistics.min_values == {"c": "m"}
    assert statistics.max_values == {"c": "n"}
    assert statistics.null_counts == {"c": 2}


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("yes", pa.bool_()),
        ("1.5", pa.int64()),
        ("one", pa.float64()),
        ("x", pa.decimal128(5, 2)),
        ("2015-13-01", pa.date32()),
        ("2015-05-17T10:05:03", INSTANT),
        ("2015-05-17T10:05:03Z", pa.timestamp("us")),
    ],
)
def test_text_that_the_type_never_produces_is_corrupt(text: str, type_: pa.DataType) -> None:
    with pytest.raises(Corrupt, match="statistic"):
        bound_of_text(text, type_)


@pytest.mark.parametrize(("type_", "low", "high"), [case[1:] for case in CASES])
def test_many_bounds_decode_to_what_each_decodes_to(type_: pa.DataType, low: str, high: str) -> None:
    decoded = decode_column(pa.array([low, None, high]), type_).to_pylist()
    expected = [bound_of_text(low, type_), None, None if high == str(2**64 - 1) else bound_of_text(high, type_)]
    assert repr(decoded) == repr(expected) if "NaN" in (low, high) else decoded == expected


@pytest.mark.parametrize(
    ("type_", "good", "text"),
    [
        *((pa.int64(), "-1", text) for text in ("", "1.5", " ", "9223372036854775808", "---")),
        *((pa.float64(), "1e300", text) for text in ("", "one", "1,5")),
        *((pa.decimal128(9, 2), "1.05", text) for text in ("", "NaN", "Infinity", "1" * 39, "1e-39", "1e999999999")),
        *((pa.date32(), "1969-12-31", text) for text in ("2015-02-29", "17 May 2015", "")),
        *((INSTANT, "2015-05-17T10:05:03.000000Z", text) for text in ("2015-05-17T10:05:03.000000", "16572", "Z")),
        *((pa.timestamp("us"), "2015-05-17T10:05:03.000000", text) for text in ("2015-05-17T10:05:03.000000Z", "")),
        *((pa.bool_(), "true", text) for text in ("", "yes")),
    ],
)
def test_a_bound_that_is_no_value_is_null_and_its_neighbours_are_not(type_: pa.DataType, good: str, text: str) -> None:
    decoded = decode_column(pa.array([good, text, None, good]), type_).to_pylist()
    assert decoded == [bound_of_text(good, type_), None, None, bound_of_text(good, type_)]


@pytest.mark.parametrize(
    "text", ["1.0050", "-0.00000000000000000000000000000000000001", "9" * 38, "1e3", "1." + "9" * 38]
)
def test_decimals_of_another_scale_or_width_decode_exactly(text: str) -> None:
    assert decode_column(pa.array(["0.10", text]), pa.decimal128(9, 2)).to_pylist() == [Decimal("0.10"), Decimal(text)]


def test_types_without_bounds_decode_to_nothing() -> None:
    assert decode_column(pa.array(["a", None]), pa.binary()).to_pylist() == [None, None]
