"""Windows of times are computed as docs/architecture/reference-values.md and lessons 29 and 65 prescribe."""

from __future__ import annotations

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.rows import windows
from storage_core.data.settings import setting

MINUTE_DURATIONS = [60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)]
COARSE_DURATIONS = [3600 * hours for hours in (2, 3, 4, 6, 8, 12, 24)]
GOLDEN_STARTS = [
    (900, -1, -900),
    (900, 0, 0),
    (900, 899, 0),
    (900, 900, 900),
    (3600, -3601, -7200),
    (60, 1700000042, 1700000040),
]


@pytest.mark.parametrize(("duration", "seconds", "start"), GOLDEN_STARTS)
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_a_window_starts_at_the_multiple_not_above_the_time(
    duration: int, seconds: int, start: int, unit: str, zone: str | None
) -> None:
    column = pa.array([seconds, None], pa.timestamp("s", tz=zone)).cast(pa.timestamp(unit, tz=zone))
    assert windows.window_starts(column, duration).to_pylist() == [start, None]


def test_one_microsecond_before_a_boundary_belongs_to_the_earlier_window() -> None:
    column = pa.array([-1, 899_999_999, 900_000_000], pa.timestamp("us", tz="UTC"))
    assert windows.window_starts(column, 900).to_pylist() == [-900, 0, 900]


def test_window_starts_of_a_column_without_chunks_are_empty() -> None:
    assert windows.window_starts(pa.chunked_array([], pa.timestamp("us")), 900).to_pylist() == []


def test_a_column_that_holds_no_instants_has_no_windows() -> None:
    with pytest.raises(InvalidInput, match="timestamp column, found int64"):
        windows.window_starts(pa.array([1]), 900)


@pytest.mark.parametrize("seconds", [0, 7, 11, 13, 17, 700, 1000, 1500, 2000, 2400, 7200, -900])
def test_a_duration_that_does_not_divide_the_hour_is_refused(seconds: int) -> None:
    with pytest.raises(InvalidInput, match=f"window is {setting.duration_text(seconds)}[.,] "):
        windows.validate_duration(seconds)


@pytest.mark.parametrize("seconds", MINUTE_DURATIONS)
def test_the_durations_of_the_design_are_accepted(seconds: int) -> None:
    assert windows.validate_duration(seconds) == seconds


def test_windows_are_sorted_by_their_start_and_null_time_stamps_come_last() -> None:
    assert sorted([900, None, -900, 0], key=windows.by_start) == [-900, 0, 900, None]


@pytest.mark.parametrize("seconds", COARSE_DURATIONS)
def test_a_coarse_duration_needs_to_be_asked_for(seconds: int) -> None:
    assert windows.validate_duration(seconds, coarse=True) == seconds
    with pytest.raises(InvalidInput, match="coarse"):
        windows.validate_duration(seconds)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("1h", 3600), ("90s", 90), ("900", 900), (900, 900), (" 24h ", 86400), ("1d", 86400), ("2000ms", 2)],
)
def test_a_duration_is_read_from_text_or_seconds(text: str | int, seconds: int) -> None:
    assert setting.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "1w", "100000d", "-15m", "1.5h", "15 m", "fifteen", True, None])
def test_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a duration"):
        setting.parse_duration(text)


def test_milliseconds_are_a_duration_but_no_whole_seconds() -> None:
    assert setting.parse_milliseconds("1500ms") == 1500
    with pytest.raises(InvalidInput, match="whole number of seconds"):
        setting.parse_duration("1500ms")


def _events(seconds: list[int | None]) -> pa.Table:
    stamps = pa.array(seconds, pa.timestamp("s", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"at": stamps, "row": range(len(seconds))})


def test_a_straddling_batch_is_split_with_the_bucket_of_nulls_last() -> None:
    parts = windows.split_by_window(_events([900, None, -1, 901, 0, None, -2]), "at", 900)
    assert [(start, part.column("row").to_pylist()) for start, part in parts] == [
        (-900, [2, 6]),
        (0, [4]),
        (900, [0, 3]),
        (None, [1, 5]),
    ]


def test_the_bucket_of_nulls_is_not_the_window_of_the_epoch() -> None:
    parts = windows.split_by_window(_events([0, None]), "at", 900)
    assert [start for start, _ in parts] == [0, None]


def test_rows_of_one_window_come_back_as_they_are() -> None:
    table = _events([1, 5, 3])
    ((start, part),) = windows.split_by_window(table, "at", 900)
    assert start == 0
    assert part.equals(table)


def test_no_rows_have_no_windows() -> None:
    assert windows.split_by_window(_events([]), "at", 900) == []
