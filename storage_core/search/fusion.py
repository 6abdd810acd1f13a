"""Fusion of rankings: one score for rows that several indexes ranked (Cormack, Clarke and Büttcher, SIGIR 2009).

Reciprocal rank adds `weight / (60 + rank)` per ranking, rank counted from 1. Linear fusion adds
`weight * (score - least) / (most - least)` of what each ranking holds; where all scores are equal each counts 1. A row
that a ranking lacks gets nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.rows.keys import Positions

Fusion = Literal["rrf", "linear"]

RANK_OFFSET: Final = 60

_MOST_WEIGHT: Final = 1e300  # so that sums stay finite

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rows by their numbers, best first, each once, with scores that never rise."""

    rows: Positions
    scores: _Floats


def fuse(rankings: Sequence[Ranking], weights: Sequence[float], fusion: Fusion, rows: int) -> _Floats:
    """Return the score of each of so many rows, whose numbers count from 0."""
    scores = np.zeros(rows)
    for ranking, weight in zip(rankings, weights, strict=True):
        scores[ranking.rows] += weight * (_reciprocal(ranking) if fusion == "rrf" else _normalised(ranking))
    return scores


def fusion_of(given: object) -> Fusion:
    """Return how rankings are fused. Raises `InvalidInput`."""
    if not isinstance(given, str) or given not in get_args(Fusion):
        raise InvalidInput(f"fusion is {quoted(given)}; ask for one of {', '.join(get_args(Fusion))}")
    return cast("Fusion", given)


def weights_of(given: object, indexes: Sequence[str]) -> list[float]:
    """Return a weight per index, 1 where none is given. Raises `InvalidInput` for what weighs nothing known."""
    if given is not None and not isinstance(given, Mapping):
        raise InvalidInput(f"weights are {quoted(given)}; give a number by the name of an index")
    known = dict(given or {})
    if foreign := [each for each in known if each not in indexes]:
        raise InvalidInput(f"a weight is given for {quoted(foreign[0])}; this search asks {', '.join(indexes)}")
    weights = [_weight(each, known.get(each, 1.0)) for each in indexes]
    if not any(weights):
        raise InvalidInput("every weight is 0; at least one index has to rank what the others filter")
    return weights


def _weight(index: str, given: object) -> float:
    number = given.item() if isinstance(given, np.number) else given
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= _MOST_WEIGHT:
        raise InvalidInput(f"the weight of {index!r} is {quoted(given)}; it is a number from 0 to {_MOST_WEIGHT:g}")
    return float(number)


def _reciprocal(ranking: Ranking) -> _Floats:
    return 1 / (RANK_OFFSET + np.arange(1, len(ranking.rows) + 1, dtype=np.float64))


def _normalised(ranking: Ranking) -> _Floats:
    if not len(ranking.scores):
        return ranking.scores
    most, least = ranking.scores[0], ranking.scores[-1]
    return np.ones(len(ranking.scores)) if most == least else (ranking.scores - least) / (most - least)
