"""The answer of a search by several indexes: windows of their rankings, fused until there are rows enough.

The first 100 rows are those of the fusion of windows of 100, the best 100 rows of each index; the next are what the
fusion of windows of 400 has besides (`windows`). So an answer needs no ranking of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from storage_core.log.snapshot import Snapshot
from storage_core.rows.keys import Positions, key_codes
from storage_core.search.fusion import Fusion, Ranking, fuse
from storage_core.search.hybrid_question import Fused
from storage_core.search.order import SCORE, Best, best_first, free_name, row_name, tie_columns
from storage_core.search.question import VectorQuery
from storage_core.search.vectors import DISTANCE, with_distance
from storage_core.search.windows import in_windows

FIRST_WINDOW: Final = 100


@dataclass(frozen=True, slots=True)
class Names:
    """What an answer calls its scores, the distance, and per index rank and score: names that no column has."""

    score: str
    distance: str | None
    ranks: Sequence[str]
    scores: Sequence[str]

    @staticmethod
    def of(snapshot: Snapshot, parts: Fused) -> Names:
        """Return the names for these indexes."""
        has_vector = any(isinstance(each.question, VectorQuery) for each in parts.ranking)
        taken = [*snapshot.schema.names, *row_name(snapshot)]

        def free(name: str) -> str:
            found = free_name(name, taken)
            taken.append(found)
            return found

        score, distance = free(SCORE), free(DISTANCE) if has_vector else None
        each = [(free(f"{part.definition.name}_rank"), free(f"{part.definition.name}_score")) for part in parts.ranking]
        return Names(score, distance, [rank for rank, _ in each], [own for _, own in each])

    def added(self) -> list[str]:
        """Return all of them in their order in an answer."""
        pairs = [name for pair in zip(self.ranks, self.scores, strict=True) for name in pair]
        return [self.score, *([self.distance] if self.distance else []), *pairs]


class Answer:
    """Makes the rows of an answer, best first, from windows of the rankings of each index."""

    def __init__(self, snapshot: Snapshot, parts: Fused, columns: Sequence[str], fusion: Fusion) -> None:
        """Hold no row; of a row `columns` are wanted."""
        self._parts, self._fusion = parts, fusion
        self._columns = list(columns)
        self._name = row_name(snapshot)
        self._ties = dict.fromkeys([*tie_columns(snapshot), *self._name])
        self._held = list(dict.fromkeys([*columns, *self._ties]))
        self._names = Names.of(snapshot, parts)
        by_vector = [isinstance(each.question, VectorQuery) for each in parts.ranking]
        self._nearest = by_vector.index(True) if any(by_vector) else None

    def rows(self, rank: Callable[[int, int], Best], most: int) -> pa.Table:
        """Return the first `most` rows; `rank` gives the best rows of an index by its number, as many as a window has.

        Memory: the rows of the windows of all indexes, of which the last has at most `GROWTH` times `most`.
        """

        def ranked(window: int) -> tuple[pa.Table, bool]:
            rankings = [self._ranking(number, rank(number, window)) for number in range(len(self._parts.ranking))]
            return self._fused(rankings), all(each.num_rows < window for each in rankings)

        found = in_windows(ranked, most, self._name, first=FIRST_WINDOW)
        return found.select([*self._columns, *self._names.added()])

    def _ranking(self, number: int, best: Best) -> pa.Table:
        """The rows of an index in its order with its score, and with the distance where it is the first of vectors."""
        score, query = self._names.scores[number], self._parts.ranking[number].question
        rows = best.answer(self._held, score=score)
        if not isinstance(query, VectorQuery):
            return rows
        distance = self._names.distance or DISTANCE
        return with_distance(rows, query.metric, score=score, distance=distance)

    def _fused(self, rankings: Sequence[pa.Table]) -> pa.Table:
        """Every row of the rankings once, best first."""
        numbers = key_codes(rankings, self._name)
        first = np.unique(np.concatenate(numbers), return_index=True)[1]
        rows = pa.concat_tables([each.select(self._held) for each in rankings]).take(pa.array(first))
        own = [
            Ranking(each, table.column(name).to_numpy())
            for each, table, name in zip(numbers, rankings, self._names.scores, strict=True)
        ]
        scores = pa.chunked_array([fuse(own, self._parts.weights, self._fusion, len(first))])
        rows = rows.append_column(self._names.score, scores)
        if self._nearest is not None and self._names.distance is not None:
            distances = rankings[self._nearest].column(self._names.distance)
            rows = rows.append_column(self._names.distance, _spread(distances, numbers[self._nearest], len(first)))
        for each, table, rank, score in zip(numbers, rankings, self._names.ranks, self._names.scores, strict=True):
            ranks = pa.chunked_array([np.arange(1, len(each) + 1)])
            rows = rows.append_column(rank, _spread(ranks, each, len(first)))
            rows = rows.append_column(score, _spread(table.column(score), each, len(first)))
        return rows.take(pa.array(best_first(scores, rows, [*self._ties])))


def _spread(values: pa.ChunkedArray, rows: Positions, count: int) -> pa.ChunkedArray:
    """The values of these rows among so many; null for all others."""
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(rows))
    return values.take(pa.array(places, mask=places < 0))
