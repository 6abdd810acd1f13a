"""Several spans of equal length are copied at once, with the same result as slices, and not beyond the end."""

from __future__ import annotations

import numpy as np
import pytest

from storage_core.data.rows.keys import spans_of


def test_spans_are_the_slices_of_their_starts() -> None:
    data = np.arange(200, dtype=np.uint8)
    starts = np.array([0, 7, 190, 3, 7])
    assert spans_of(data, starts, 10).tolist() == [data[start : start + 10].tolist() for start in starts.tolist()]
    assert spans_of(data, np.zeros(0, np.int64), 10).shape == (0, 10)


@pytest.mark.parametrize("start", [191, 10_000])
def test_a_span_beyond_the_end_is_refused(start: int) -> None:
    with pytest.raises(IndexError):
        spans_of(np.zeros(200, np.uint8), np.array([start]), 10)
