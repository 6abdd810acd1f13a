"""Fusion of rankings: numbers worked out by hand, and what may be asked for."""

from __future__ import annotations

import numpy as np
import pytest

from storage_core.errors import InvalidInput
from storage_core.read.fusion import Ranking, fuse, fusion_of, weights_of


def ranking(rows: list[int], scores: list[float]) -> Ranking:
    return Ranking(np.array(rows, np.int64), np.array(scores, np.float64))


TEXT = ranking([7, 3, 9], [12.0, 6.0, 2.0])
NEAREST = ranking([3, 5], [0.9, 0.4])


def test_reciprocal_ranks_are_added_by_weight() -> None:
    fused = fuse([TEXT, NEAREST], [1, 2], "rrf")
    assert fused.rows.tolist() == [3, 5, 7, 9]
    assert fused.scores.tolist() == pytest.approx([1 / 62 + 2 / 61, 2 / 62, 1 / 61, 1 / 63])
    assert fused.ranks.tolist() == [[2, 1], [0, 2], [1, 0], [3, 0]]


def test_scores_are_added_between_the_least_and_the_most_of_each_ranking() -> None:
    fused = fuse([TEXT, NEAREST], [1, 0.5], "linear")
    assert fused.scores.tolist() == pytest.approx([0.4 + 0.5, 0, 1, 0])


def test_equal_scores_count_as_the_most() -> None:
    assert fuse([ranking([1, 2], [4, 4])], [1], "linear").scores.tolist() == [1, 1]


def test_a_ranking_of_weight_zero_filters() -> None:
    fused = fuse([TEXT, NEAREST], [0, 1], "rrf")
    assert (fused.rows.tolist(), fused.scores.tolist()) == ([3], [1 / 61])
    assert fuse([TEXT, ranking([], [])], [1, 0], "linear").rows.tolist() == []


def test_a_ranking_that_found_nothing_adds_nothing() -> None:
    for fusion in ("rrf", "linear"):
        alone, both = (fuse(each, [1.0] * len(each), fusion) for each in ([TEXT], [TEXT, ranking([], [])]))
        assert (both.rows.tolist(), both.scores.tolist()) == (alone.rows.tolist(), alone.scores.tolist())


@pytest.mark.parametrize("given", ["RRF", None, 3, "sum"])
def test_another_way_of_fusing_is_refused(given: object) -> None:
    with pytest.raises(InvalidInput, match="ask for one of rrf, linear"):
        fusion_of(given)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"txt": 1}, "'txt'; this search asks text, v"),
        ({"text": -1}, "a number from 0 on"),
        ({"text": float("nan")}, "a number from 0 on"),
        ({"text": float("inf")}, "a number from 0 on"),
        ({"text": True}, "a number from 0 on"),
        ({"text": "2"}, "a number from 0 on"),
        ({"text": 0, "v": 0}, "every weight is 0"),
    ],
)
def test_a_weight_that_is_none_is_refused(given: dict[str, float], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        weights_of(given, ["text", "v"])


def test_weights_are_one_unless_given() -> None:
    assert weights_of({"v": 2}, ["text", "v"]) == [1.0, 2.0]
    assert weights_of(None, ["text"]) == [1.0]
