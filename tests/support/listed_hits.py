"""The hits of a full-text search as a list of records, in the order of the search."""

from __future__ import annotations

from typing import NamedTuple

from storage_core.index.fulltext import Hits


class Hit(NamedTuple):
    """One row: the position of its source, its row number and its score."""

    source: int
    row: int
    score: float


def listed(hits: Hits) -> list[Hit]:
    """Return one record for each row."""
    return [*map(Hit, hits.sources.tolist(), hits.rows.tolist(), hits.scores.tolist())]
