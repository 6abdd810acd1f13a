"""Fusion returns the sums of its formulas, and refuses weights whose sum is 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput
from storage_core.read.search.search_request import Fusion, Ranking, fuse, fusion_of, weights_of

ROWS = 12
scores = st.lists(st.integers(-3, 3).map(float), max_size=ROWS).map(lambda each: sorted(each, reverse=True))
rankings = st.lists(st.tuples(st.permutations(range(ROWS)), scores), min_size=1, max_size=3)
weights = st.lists(st.floats(0.01, 100), min_size=3, max_size=3)


def made(given: list[tuple[list[int], list[float]]]) -> list[Ranking]:
    return [Ranking(np.array(rows[: len(own)], np.int64), np.array(own, np.float64)) for rows, own in given]


@given(rankings, weights)
def test_reciprocal_rank_is_the_sum_of_weights_by_sixty_and_the_rank(given: Any, weights: list[float]) -> None:
    weights = weights[: len(given)]
    expected = np.zeros(ROWS)
    for (rows, own), weight in zip(given, weights, strict=True):
        for rank, row in enumerate(rows[: len(own)], start=1):
            expected[row] += weight / (60 + rank)
    np.testing.assert_allclose(fuse(made(given), weights, "rrf", ROWS), expected, rtol=1e-14)


@given(rankings, weights)
def test_linear_fusion_is_the_sum_of_weighted_scores_from_nought_to_one(given: Any, weights: list[float]) -> None:
    weights = weights[: len(given)]
    expected = np.zeros(ROWS)
    for (rows, own), weight in zip(given, weights, strict=True):
        for row, score in zip(rows, own, strict=False):
            width = max(own) - min(own)
            expected[row] += weight * ((score - min(own)) / width if width else 1.0)
    np.testing.assert_allclose(fuse(made(given), weights, "linear", ROWS), expected, rtol=1e-14)


@pytest.mark.parametrize("fusion", ["rrf", "linear"])
def test_rankings_without_rows_add_nothing(fusion: Fusion) -> None:
    assert fuse(made([([], []), ([1], [5.0])]), [1, 2], fusion, 2)[0] == 0
    assert len(fuse(made([([], [])]), [1], fusion, 0)) == 0


def test_a_weight_is_one_unless_given_and_may_be_any_kind_of_number() -> None:
    assert weights_of(None, ["a", "b"]) == [1.0, 1.0]
    assert weights_of({"b": 0}, ["a", "b"]) == [1.0, 0.0]
    assert weights_of({"b": np.float32(0.5), "a": np.int8(3)}, ["a", "b"]) == [3.0, 0.5]


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({"a": -1}, "the weight of 'a' is -1. Give a number from 0"),
        ({"a": float("nan")}, "the weight of 'a' is nan"),
        ({"a": float("inf")}, "the weight of 'a' is inf"),
        ({"a": 10**400}, "the weight of 'a' is a whole number of 1329 bits"),
        ({"a": 1e308}, "to 1e.300"),
        ({"a": True}, "the weight of 'a' is True"),
        ({"a": "2"}, "the weight of 'a' is '2'"),
        ({"a": None}, "the weight of 'a' is None"),
        ({"c": 1}, "given for 'c', but this search uses a, b"),
        ({1: 1}, "given for 1, but this search uses a, b"),
        ({"a": 0, "b": 0.0}, "every weight is 0"),
        ([1, 2], "weights is a list of 2 values"),
        ("a", "Give a mapping from names of indexes to numbers"),
    ],
)
def test_a_weight_that_makes_no_sense_is_refused(weights: object, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        weights_of(weights, ["a", "b"])


@pytest.mark.parametrize("given", ["RRF", "", None, 1, ["rrf"], "max"])
def test_a_fusion_of_another_name_is_refused(given: object) -> None:
    with pytest.raises(InvalidInput, match="Give rrf or linear"):
        fusion_of(given)
