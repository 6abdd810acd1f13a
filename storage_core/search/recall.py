"""Recall of a vector index: how many of the nearest rows its searches find, against all rows scored exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.index import vector
from storage_core.index.cache import SegmentCache
from storage_core.index.coverage import Coverage
from storage_core.index.vector.distances import Distances
from storage_core.log.snapshot import Snapshot
from storage_core.rows.keys import Positions
from storage_core.rows.positions import positions
from storage_core.rows.vectors import Floats, matrix
from storage_core.search.live import Live
from storage_core.search.question import SearchQuestion, VectorQuery, index_for, question
from storage_core.search.searched import Searched
from storage_core.search.source import Source
from storage_core.search.vectors import Nearest, block_rows
from storage_core.settings.index import IndexDefinition

USUAL_QUERIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """The share `recall` of the `k` nearest rows that searches by so many `queries` found; 1 where there are no rows.

    A row as near as the k-th is as good. `candidates` rows were ranked by vectors of the table, in all windows of all
    searches together; of `rows` rows with a vector, those that meet the filter, the nearest were told exactly.
    """

    index: str
    k: int
    recall: float
    queries: int
    candidates: int
    rows: int


def recall(
    searched: Searched,
    *,
    index: str | None = None,
    queries: object = None,
    k: object = 10,
    nprobe: object = None,
    seed: int = 0,
) -> Recall:
    """Return the recall of searches by vector over the rows of the snapshot that meet the filter.

    `queries` are vectors, or the number of rows, drawn by `seed`, whose vectors they are; each finds its own row as
    well. All vectors are read once for all queries. Memory: some blocks of vectors, and 8 bytes per row. Raises
    `InvalidInput` for queries that are none, and what `search` raises.
    """
    snapshot = searched.snapshot
    definition = index_for(snapshot, index, by_vector=True)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InvalidInput(f"k is {quoted(k)}; ask for at least one row")
    if type(seed) is not int or seed < 0:
        raise InvalidInput(f"seed is {quoted(seed)}; give a whole number, 0 or more")
    given = _Given.of(queries, definition, snapshot, nprobe)
    overlay, wanted_rows = searched.overlay(), searched.row_filter()

    def measured(covered: Sequence[Coverage], cached: SegmentCache) -> Recall:
        [found] = searched.sources(covered, overlay, cached)
        live = Live(found, wanted_rows)
        rows = [positions(live.rows(each)) for each in range(len(found))]
        live.require_sound()
        wanted_queries = given.queries or _drawn(found, rows, given, seed)
        truth, count = _nearest_distances(found, rows, wanted_queries, k)
        hits = wanted = 0
        for query, farthest in zip(wanted_queries, truth, strict=True):
            distances = Nearest(live, query, k, readers=searched.kept.readers).distances()
            wanted += len(farthest)
            hits += int((distances <= farthest[-1:]).sum())
        return Recall(
            index=definition.name,
            k=k,
            recall=hits / wanted if wanted else 1.0,
            queries=len(wanted_queries),
            candidates=sum(each.ranked for each in live.looked.values()),
            rows=count,
        )

    return searched.attempted(measured, [definition])


@dataclass(frozen=True, slots=True)
class _Given:
    """The queries that were given, or how many are to be drawn, each like `pattern`."""

    queries: Sequence[VectorQuery]
    wanted: int
    pattern: VectorQuery

    @staticmethod
    def of(queries: object, definition: IndexDefinition, snapshot: Snapshot, nprobe: object) -> _Given:
        def query_of(vector: object) -> VectorQuery:
            return cast("VectorQuery", question(definition, snapshot, SearchQuestion(vector=vector, nprobe=nprobe)))

        size = snapshot.schema.field(definition.columns[0]).type.list_size
        pattern = query_of(np.ones(size, np.float32))
        queries = USUAL_QUERIES if queries is None else queries
        if isinstance(queries, int) and not isinstance(queries, bool) and queries > 0:
            return _Given((), queries, pattern)
        is_listed = isinstance(queries, list | tuple) or (isinstance(queries, np.ndarray) and queries.ndim > 0)
        given = list(cast("Sequence[object]", queries)) if is_listed else []
        if not given:
            raise InvalidInput(f"queries are {quoted(queries)}; give vectors, or a number of rows, at least 1")
        return _Given([query_of(each) for each in given], len(given), pattern)


def _drawn(found: Sequence[Source], rows: Sequence[Positions], given: _Given, seed: int) -> list[VectorQuery]:
    """Queries by the vectors of rows that have one, drawn from all."""
    ends = np.cumsum([len(each) for each in rows])
    order = np.random.default_rng(seed).permutation(int(ends[-1]) if len(ends) else 0)
    drawn: list[VectorQuery] = []
    for at in range(0, len(order), given.wanted):
        places = np.sort(order[at : at + given.wanted])
        numbers = np.searchsorted(ends, places, side="right")
        for number in np.unique(numbers).tolist():
            inside = places[numbers == number] - (ends[number] - len(rows[number]))
            vectors = _vectors(found[number], rows[number][inside], given.pattern)
            drawn += [replace(given.pattern, vector=each) for each in vectors]
        if len(drawn) >= given.wanted:
            break
    return drawn[: given.wanted]


def _nearest_distances(
    found: Sequence[Source], rows: Sequence[Positions], queries: Sequence[VectorQuery], k: int
) -> tuple[list[Distances], int]:
    """The distances of the k nearest rows of each query, ascending, and how many rows have a vector."""
    nearest, count = [np.zeros(0, np.float64) for _ in queries], 0
    if not queries:  # no row has a vector
        return nearest, count
    step = block_rows(len(queries[0].vector))
    for source, own in zip(found, rows, strict=True):
        for at in range(0, len(own), step):
            vectors = _vectors(source, own[at : at + step], queries[0])
            count += len(vectors)
            for number, query in enumerate(queries):
                distances = np.append(nearest[number], vector.exact(query.vector, vectors, query.metric))
                nearest[number] = np.sort(distances)[:k]
    return nearest, count


def _vectors(source: Source, rows: Positions, query: VectorQuery) -> Floats:
    """The vectors of those of the rows that have one."""
    column = source.take(rows.tolist(), [query.column]).column(query.column)
    found: Floats = matrix(column)[np.flatnonzero(vector.indexable(column, query.metric))]
    return found
