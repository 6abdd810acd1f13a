"""The window of a time equals the result of Python's floor division (lessons 29 and 65)."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from storage_core.data.rows.windows import (
    COARSE_WINDOW_SECONDS,
    WINDOW_SECONDS,
    split_by_window,
    window_starts,
)

DURATIONS = st.sampled_from(sorted(WINDOW_SECONDS | COARSE_WINDOW_SECONDS))
MICROSECONDS = st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**10), 10**10)


@given(st.lists(st.none() | MICROSECONDS), DURATIONS, st.sampled_from([None, "UTC", "Europe/Berlin"]))
def test_window_starts_are_floor_division_for_every_64_bit_instant(
    values: list[int | None], duration: int, zone: str | None
) -> None:
    stamps = pa.array(values, pa.timestamp("us", tz=zone))
    chunked = pa.chunked_array([stamps.slice(0, len(values) // 2), stamps.slice(len(values) // 2)])
    expected = [None if value is None else value // (duration * 10**6) * duration for value in values]
    assert window_starts(chunked, duration).to_pylist() == expected


@given(st.lists(st.none() | st.integers(-(10**10), 10**10)), DURATIONS)
def test_splitting_loses_no_row_keeps_arrival_order_and_mixes_no_windows(
    values: list[int | None], duration: int
) -> None:
    table = pa.table({"at": pa.array(values, pa.timestamp("us", tz="UTC")), "row": pa.array(range(len(values)))})
    parts = split_by_window(table, "at", duration)
    expected: dict[int | None, list[int]] = {}
    for row, value in enumerate(values):
        start = None if value is None else value // (duration * 10**6) * duration
        expected.setdefault(start, []).append(row)
    starts = sorted(start for start in expected if start is not None) + [None] * (None in expected)
    assert [start for start, _ in parts] == starts
    assert {start: part.column("row").to_pylist() for start, part in parts} == expected
