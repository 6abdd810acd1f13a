"""Nearest rows, found by comparing the query with all rows in numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Row = Mapping[str, Any]


def distance(metric: str, query: Sequence[float], vector: Sequence[float]) -> float:
    """Return the distance between two embeddings of 32-bit values, computed in 64-bit arithmetic."""
    asked, given = (np.asarray(each, np.float32).astype(np.float64) for each in (query, vector))
    match metric:
        case "l2":
            return float(np.sqrt(np.square(given - asked).sum()))
        case "cosine":
            lengths = np.sqrt(np.square(given).sum()) * np.sqrt(np.square(asked).sum())
            return float(1.0 - np.clip((given * asked).sum() / lengths, -1.0, 1.0))
        case _:
            return float(0.0 - (given * asked).sum())


def nearest(
    rows: Iterable[Row], query: Sequence[float], metric: str, *, column: str, order: Callable[[Row], Any]
) -> list[tuple[float, Row]]:
    """Return every row that has an embedding, nearest first. `order` sorts rows at the same distance."""
    held = [row for row in rows if row[column] is not None and (metric != "cosine" or np.any(row[column]))]
    found = [(distance(metric, query, row[column]), row) for row in held]
    return sorted(found, key=lambda each: (each[0], order(each[1])))
