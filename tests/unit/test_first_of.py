"""The selection of the first rows. The tests check the kept rows and the point at which the search stops."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from storage_core.data.rows.keys import Positions
from storage_core.read.search import order
from storage_core.read.search.order import FirstRows, in_turns

SCHEMA = pa.schema([("n", pa.int64())])


def ascending(rows: pa.Table) -> Positions:
    return np.argsort(rows.column("n").to_numpy(), kind="stable")


def test_the_first_rows_are_held_however_many_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_SPARE_ROWS", 4)
    numbers = np.random.default_rng(1).permutation(200)
    held = FirstRows(SCHEMA, 3, ascending)
    for part in np.split(numbers, 40):
        held.add(pa.table([part], schema=SCHEMA))
    assert held.is_full
    assert held.rows().column("n").to_pylist() == [0, 1, 2]
    assert held.last().to_pylist() == [{"n": 2}]


def test_no_rows_are_no_rows() -> None:
    held = FirstRows(SCHEMA, 3, ascending)
    assert not held.is_full
    assert held.rows().num_rows == 0


def test_more_and_more_is_searched_until_the_next_is_behind() -> None:
    sizes = [len(group) for group in in_turns(range(20), lambda _: False, lambda: 4)]
    assert sizes == [1, 2, 4, 4, 4, 4, 1]
    most = iter([4, 4, 1, 1, 1])
    found = [[*group] for group in in_turns(range(20), lambda each: each > 8, lambda: next(most))]
    assert found == [[0], [1, 2], [3, 4, 5, 6], [7], [8]]
    assert list(in_turns([3], lambda _: True, lambda: 4)) == []
