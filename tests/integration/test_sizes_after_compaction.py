"""Compacted splits of small windows are not larger than files in arrival order with default encodings."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from benchmarks.compaction_sizes import Data, datasets, small_windows

ROWS = 1_500


@pytest.fixture(scope="module")
def by_name() -> dict[str, Data]:
    """Return the data sets, cut to their first rows. All windows except one are complete."""
    return {each.name: replace(each, rows=each.rows.slice(0, ROWS)) for each in datasets()}


@pytest.mark.parametrize("name", ["weather", "access log"])
def test_compaction_does_not_enlarge_rows_in_small_windows(name: str, by_name: dict[str, Data]) -> None:
    files, _, bare, _ = islice(small_windows(by_name[name]), 4)  # the first four results are those of packed splits
    assert (files.name, bare.name) == (
        f"{name} by window, packed, to arrival order, default encodings",
        f"{name} by window, packed, to arrival order, default encodings, bare",
    )
    assert files.holds
    assert bare.holds
