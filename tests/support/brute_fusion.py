"""Expected results of hybrid searches: rankings of all rows and their fusion, computed in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.support.brute_force import nearest

Row = Mapping[str, Any]
Ranked = list[tuple[float, Row]]
"""Rows with their scores, best first."""


def by_prefixes(rows: Iterable[Row], prefixes: Sequence[str], *, column: str, order: Callable[[Row], Any]) -> Ranked:
    """Rank rows by the number of prefixes (as in `eb* tid*`) that match a word of the row."""
    scored = [
        (float(sum(any(word.startswith(each) for word in (row[column] or "").split()) for each in prefixes)), row)
        for row in rows
    ]
    return sorted((each for each in scored if each[0]), key=lambda each: (-each[0], order(each[1])))


def by_vector(
    rows: Iterable[Row], query: Sequence[float], metric: str, *, column: str, order: Callable[[Row], Any]
) -> Ranked:
    """Rank rows by the score of a vector search."""
    found = nearest(rows, query, metric, column=column, order=order)
    return [(1 - away if metric == "cosine" else 0.0 - away, row) for away, row in found]


def fused(
    rankings: Mapping[str, Ranked],
    weights: Mapping[str, float],
    fusion: str,
    *,
    order: Callable[[Row], Any],
    window: int,
    growth: int,
) -> list[dict[str, Any]]:
    """Return all rows that occur in the rankings, in the order and form that a search returns.

    The search window grows until it contains all rows. `id` identifies a row.
    """
    answer: dict[int, dict[str, Any]] = {}
    while True:
        cut = {name: ranking[:window] for name, ranking in rankings.items()}
        rows = sorted(_fused(cut, weights, fusion), key=lambda row: (-row["score"], order(row)))
        for row in rows:
            if len(answer) < window or all(len(each) < window for each in cut.values()):
                answer.setdefault(row["id"], row)
        if all(len(each) < window for each in cut.values()):
            return [*answer.values()]
        window *= growth


def _fused(rankings: Mapping[str, Ranked], weights: Mapping[str, float], fusion: str) -> Iterable[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    unranked = {f"{name}_{what}": None for name in rankings for what in ("rank", "score")}
    for name, ranking in rankings.items():
        for rank, (score, row) in enumerate(ranking, start=1):
            most, least = ranking[0][0], ranking[-1][0]
            linear = 1.0 if most == least else (score - least) / (most - least)
            own = found.setdefault(row["id"], {**row, "score": 0.0, **unranked})
            own["score"] += weights[name] * (1 / (60 + rank) if fusion == "rrf" else linear)
            own[f"{name}_rank"], own[f"{name}_score"] = rank, score
    return found.values()
