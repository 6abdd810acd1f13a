"""Fusion of rankings: one score for rows that several indexes ranked (Cormack, Clarke and Büttcher, SIGIR 2009).

Reciprocal rank adds `weight / (60 + rank)` per ranking, rank counted from 1; a row that a ranking lacks gets nothing of
it. Linear fusion adds `weight * (score - least) / (most - least)` of what each ranking holds; where all scores are
equal each counts 1. A ranking of weight 0 adds nothing and filters: a row that it lacks is no answer, and neither is
one that it alone has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

Fusion = Literal["rrf", "linear"]

RANK_OFFSET: Final = 60

_Floats = npt.NDArray[np.float64]
_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rows by their numbers, best first, each once, with scores that never rise."""

    rows: _Rows
    scores: _Floats


@dataclass(frozen=True, slots=True)
class Fused:
    """Rows by ascending number, with their scores; `ranks` has a column per ranking, 0 where it lacks the row."""

    rows: _Rows
    scores: _Floats
    ranks: npt.NDArray[np.int64]


def fuse(rankings: Sequence[Ranking], weights: Sequence[float], fusion: Fusion) -> Fused:
    """Return the rows of all rankings with one score each. No order of equal scores is chosen here."""
    rows = np.unique(np.concatenate([each.rows for each, weight in zip(rankings, weights, strict=True) if weight]))
    scores, is_answer = np.zeros(len(rows)), np.ones(len(rows), np.bool_)
    ranks = np.zeros((len(rows), len(rankings)), np.int64)
    for number, (ranking, weight) in enumerate(zip(rankings, weights, strict=True)):
        is_known = np.isin(ranking.rows, rows)
        places = np.searchsorted(rows, ranking.rows[is_known])
        ranks[places, number] = 1 + np.flatnonzero(is_known)
        added = _reciprocal(ranking) if fusion == "rrf" else _normalised(ranking)
        scores[places] += weight * added[is_known]
        if weight == 0:
            is_answer &= ranks[:, number] > 0
    return Fused(rows[is_answer], scores[is_answer], ranks[is_answer])


def fusion_of(given: object) -> Fusion:
    """Return how rankings are fused. Raises `InvalidInput`."""
    if given not in get_args(Fusion):
        raise InvalidInput(f"fusion is {quoted(given)}; ask for one of {', '.join(get_args(Fusion))}")
    return cast("Fusion", given)


def weights_of(given: Mapping[str, object] | None, indexes: Sequence[str]) -> list[float]:
    """Return a weight per index, 1 where none is given. Raises `InvalidInput` for what weighs nothing known."""
    known = {} if given is None else dict(given)
    if foreign := sorted(known.keys() - set(indexes)):
        raise InvalidInput(f"a weight is given for {quoted(foreign[0])}; this search asks {', '.join(indexes)}")
    weights = [_weight(each, known.get(each, 1.0)) for each in indexes]
    if not any(weights):
        raise InvalidInput("every weight is 0; at least one index has to rank what the others filter")
    return weights


def _weight(index: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < np.inf:
        raise InvalidInput(f"the weight of {index!r} is {quoted(given)}; it is a number from 0 on")
    return float(given)


def _reciprocal(ranking: Ranking) -> _Floats:
    return 1 / (RANK_OFFSET + np.arange(1, len(ranking.rows) + 1, dtype=np.float64))


def _normalised(ranking: Ranking) -> _Floats:
    if not len(ranking.scores):
        return ranking.scores
    most, least = ranking.scores[0], ranking.scores[-1]
    return np.ones(len(ranking.scores)) if most == least else (ranking.scores - least) / (most - least)
