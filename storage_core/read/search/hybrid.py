"""Search by several indexes. Each index ranks the rows, and the rankings are fused (docs/architecture/indexes.md).

The first 100 rows come from the fusion of the best 100 rows of each index. The next rows come from the fusion of the
best 400 rows of each index, without the earlier rows. Later windows continue in the same way (`windows`). Therefore a
search does not need to rank all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np
import pyarrow as pa

from storage_core.data.rows.keys import Positions, key_codes
from storage_core.index import fulltext
from storage_core.index.fulltext import Hits
from storage_core.index.row_positions import SegmentCache
from storage_core.index.segments import Coverage
from storage_core.log.snapshot import Snapshot
from storage_core.read.search import ranking as by_one
from storage_core.read.search.matches import Searched, Trace
from storage_core.read.search.order import SCORE, Best, best_first, free_name, in_windows, row_name, tie_columns
from storage_core.read.search.search_cache import SearchCache
from storage_core.read.search.search_request import (
    IndexQuestion,
    Ranking,
    SearchQuestion,
    SearchRequest,
    VectorQuery,
    fuse,
    page,
    request_of,
)
from storage_core.read.search.source_protocol import LiveFilter, TextFilter
from storage_core.read.search.vectors import DISTANCE, with_distance

FIRST_WINDOW: Final = 100


def search(
    searched: Searched,
    given: SearchQuestion,
    columns: Sequence[str] | None = None,
    *,
    limit: object = 10,
    offset: object = 0,
    trace: Trace | None = None,
) -> pa.Table:
    """Return the result of `ranking.search` for one index, or a fused result of several indexes.

    `search_request.fuse` documents the formulas.

    A search uses several indexes if both `query` and `vector` are given, or if `index` is a list of names. Full-text
    indexes get the query, and vector indexes get the vector. If no names are given, the search uses the only index of
    each kind. `weights` maps the names of indexes to weights. The default weight is 1. A full-text index with the
    weight 0 only filters. The result then contains only rows that match the query in this index.

    The result has the columns of the rows and these columns:

    - `score`: the fused score.
    - `distance`: the distance in the first vector index, if a vector is given.
    - `<index>_rank` (from 1) and `<index>_score` for each index that ranks. The indexes are in the order of the given
      names. If no names are given, the full-text index comes first.

    If a row is not in the window of an index, the columns of this index are null for the row. An index that only
    filters has no columns for rank and score. If the table has a column with the same name, the added column gets the
    prefix `_`. The rows of earlier windows come before the rows of later windows. Within a window, rows are ordered by
    score. Rows with equal scores have the same order as in a search of one index.

    Raises:
        InvalidInput: Weights or fusion are invalid. The errors of a search of each index are raised, too.

    Cost:
        For each needed window, the requests of a search in each index. Hidden rows and rows that meet the filter are
        looked up once for all indexes. If a full-text index only filters, all of its matches are in memory.
    """
    snapshot, kept = searched.snapshot, searched.kept
    asked, (first, after) = request_of(snapshot, given), page(limit, offset)
    most = first + after
    if not asked.weights:
        return by_one.search(searched, asked.ranking[0], columns, most=most, trace=trace).slice(after)
    names = tuple(snapshot.schema.names) if columns is None else tuple(columns)
    definitions = [each.definition for each in (*asked.filtering, *asked.ranking)]
    overlay = searched.overlay()

    def best(covered: Sequence[Coverage], cached: SegmentCache) -> pa.Table:
        found, split = searched.lives(covered, overlay, cached), len(asked.filtering)
        filtering = found[:split]
        matched = [
            TextFilter(own.sources, _hits(own, each, kept=kept, root=cached.root), snapshot.config.primary_key)
            for own, each in zip(filtering, asked.filtering, strict=True)
        ]
        lives = [own.among(matched) for own in found[split:]]
        if trace is not None:
            trace.lives = dict(zip((each.name for each in definitions), [*filtering, *lives], strict=True))

        def ranked(number: int, window: int) -> Best:
            rows = Best(snapshot, window, names, is_named=True)
            by_one.add_best(lives[number], asked.ranking[number], rows, window, kept=kept, root=cached.root)
            return rows

        rows = Answer(snapshot, asked, names).rows(ranked, most)
        lives[0].require_valid()
        return rows

    return searched.attempt(best, definitions).slice(after)


def _hits(live: LiveFilter, one: IndexQuestion, *, kept: SearchCache, root: Path) -> Hits:
    """Return all rows that a text query finds."""
    query = cast("fulltext.TextQuery", one.question)
    with kept.searchers.searcher(one.definition, live.sources, root) as searcher:
        return query.every_hit(searcher, live=live)


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the columns that are added to a result: scores, distance, and the rank and score of each index.

    No other column of the result has the same name as an added column.
    """

    score: str
    distance: str | None
    ranks: Sequence[str]
    scores: Sequence[str]

    @staticmethod
    def of(snapshot: Snapshot, parts: SearchRequest) -> Names:
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
        """Return all names in the order of the result columns."""
        pairs = [name for pair in zip(self.ranks, self.scores, strict=True) for name in pair]
        return [self.score, *([self.distance] if self.distance else []), *pairs]


class Answer:
    """The rows of a result, best first. The result is built step by step from the ranking of each index."""

    def __init__(self, snapshot: Snapshot, parts: SearchRequest, columns: Sequence[str]) -> None:
        """Prepare a result without rows. The result will have these `columns` of the table."""
        self._parts = parts
        self._columns = list(columns)
        self._name = row_name(snapshot)
        self._ties = dict.fromkeys([*tie_columns(snapshot), *self._name])
        self._held = list(dict.fromkeys([*columns, *self._ties]))
        self._names = Names.of(snapshot, parts)
        by_vector = [isinstance(each.question, VectorQuery) for each in parts.ranking]
        self._nearest = by_vector.index(True) if any(by_vector) else None

    def rows(self, rank: Callable[[int, int], Best], most: int) -> pa.Table:
        """Return the first `most` rows.

        `rank` takes the number of an index and the size of a window, and returns the best rows of the index. Memory:
        the rows in the windows of all indexes. The last window has at most `GROWTH` times `most` rows.
        """

        def ranked(window: int) -> tuple[pa.Table, bool]:
            rankings = [self._ranking(number, rank(number, window)) for number in range(len(self._parts.ranking))]
            return self._fused(rankings), all(each.num_rows < window for each in rankings)

        found = in_windows(ranked, most, self._name, first=FIRST_WINDOW)
        return found.select([*self._columns, *self._names.added()])

    def _ranking(self, number: int, best: Best) -> pa.Table:
        """Return the ranked rows of an index with scores. For the first vector index, the rows also have distances."""
        score, query = self._names.scores[number], self._parts.ranking[number].question
        rows = best.answer(self._held, score=score)
        if not isinstance(query, VectorQuery):
            return rows
        distance = self._names.distance or DISTANCE
        return with_distance(rows, query.metric, score=score, distance=distance)

    def _fused(self, rankings: Sequence[pa.Table]) -> pa.Table:
        """Return the rows of all rankings without duplicates, best first."""
        numbers = key_codes(rankings, self._name)
        first = np.unique(np.concatenate(numbers), return_index=True)[1]
        rows = pa.concat_tables([each.select(self._held) for each in rankings]).take(pa.array(first))
        own = [
            Ranking(each, table.column(name).to_numpy())
            for each, table, name in zip(numbers, rankings, self._names.scores, strict=True)
        ]
        scores = pa.chunked_array([fuse(own, self._parts.weights, self._parts.fusion, len(first))])
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
    """Return a column of `count` rows. The column has the values at the positions `rows`, and null elsewhere."""
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(rows))
    return values.take(pa.array(places, mask=places < 0))
