from __future__ import annotations

from collections.abc import Callable

import pytest

from storage_core.base.errors import InvalidInput
from storage_core.read.predicate import And, Compare, Comparison, Or, col
from storage_core.read.sql_predicate import from_sql

N, K = col("n"), col("k")


@pytest.mark.parametrize(
    "written",
    [
        lambda: (K == "a") and (N > 1),
        lambda: (K == "a") or (N > 1),
        lambda: not (K == "a"),  # noqa: SIM201  # as a person writes it
        lambda: 1 < N < 9,
        lambda: 1 if N > 1 else 0,
        lambda: any([N > 1, N < 0]),
        lambda: all([N > 1, N < 0]),
        lambda: N in [1, 2],
        lambda: not N,
        lambda: bool((N > 1) & (K == "a")),
    ],
)
def test_a_filter_that_python_would_cut_short_is_refused_and_told_how_to_write_it(
    written: Callable[[], object],
) -> None:
    with pytest.raises(InvalidInput, match=r"& for `and`, \| for `or`, ~ for `not`"):
        written()


def test_the_refusal_is_a_value_error_as_that_of_arrow_is() -> None:
    with pytest.raises(ValueError, match="a filter cannot be used as true or false"):
        bool(N > 1)


def test_filters_combine_by_operators() -> None:
    both = (K == "a") & (N > 1)
    assert both.predicate == And((Compare("k", Comparison.EQ, "a"), Compare("n", Comparison.GT, 1)))


@pytest.mark.parametrize(
    "combine",
    [
        lambda: (col("n") == 1) & True,  # type: ignore[operator]
        lambda: (col("n") == 1) | col("done"),  # type: ignore[operator]
        lambda: col("done") & (col("n") == 1),
        lambda: col("done") | (col("n") == 1),
        lambda: ~col("done"),
        lambda: (col("n") == 1) & "n = 2",  # type: ignore[operator]
    ],
)
def test_only_filters_are_combined(combine: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput, match=r"&, \| and ~ need filters, but one operand is .*. Compare a column"):
        combine()


def test_true_and_false_say_the_same_of_every_row() -> None:
    assert (from_sql("true").predicate, from_sql("false").predicate) == (And(()), Or(()))
    assert from_sql("not true and n = 1").predicate == And((Or(()), Compare("n", Comparison.EQ, 1)))
