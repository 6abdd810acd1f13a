"""The module finds the rows that are nearest to a given embedding. The module also measures the recall of an index.

Each source selects candidates by its codes, and the exact embeddings of the table determine the result. Rows without a
segment are scored exactly. If only a few rows of a source meet the filter, these rows are scored exactly, too. The
exact scoring of a few rows reads little data. A search by clusters would read more data, because it reads the clusters
that contain enough matching rows.

The recall of a vector index is the share of the true nearest rows that its searches find. To find the true nearest
rows, all rows are scored exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pyarrow as pa

from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted
from storage_core.data.rows.keys import Positions, positions
from storage_core.data.rows.vectors import Floats, matrix
from storage_core.data.settings.index import IndexDefinition, Metric
from storage_core.index import vector
from storage_core.index.row_positions import SegmentCache
from storage_core.index.segments import Coverage
from storage_core.index.vector.reader import Distances
from storage_core.log.snapshot import Snapshot
from storage_core.read.search.matches import Searched
from storage_core.read.search.order import Best, windows
from storage_core.read.search.search_request import SearchQuestion, VectorQuery, index_for, question
from storage_core.read.search.source_protocol import LiveFilter, SearchCounts, Source, usable
from storage_core.store.meter import prefetch
from storage_core.store.pieces import KeptValues

DISTANCE = "distance"

FIRST_WINDOW = 10
"""The number of rows in the first window of a result (`windows`)."""

FEW_ROWS = 10_000
FEW_SHARE = 0.02
"""Limits for exact scores. A limit is a number or a share of the rows of a source that meet the filter."""

FEW_NUMBERS = 2**18
"""Maximum number of values in embeddings that are scored exactly.

For more than this number of values, a search by codes costs less than exact scores.
"""

BLOCK_BYTES = 2**26
_BLOCK_ROWS = 65_536  # the rows of a row group, because a row group is decoded as a whole
_ADDED_ROWS = 10_000
_AT_ONCE, _FAR_AT_ONCE = 2, 8


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Rows of a source, with their distances from the query. The distances are exact or computed from codes."""

    rows: Positions
    distances: Distances
    is_exact: bool = True


_NOTHING = Found(np.zeros(0, np.int64), np.zeros(0, np.float64))


class Nearest:
    """A search for the `most` rows with the smallest distance, in windows of increasing size.

    If all rows of a source are scored with exact distances, the source is scored only once. The candidates of segments
    are ranked again in each window. `readers` caches open segments by the name of the source.
    """

    def __init__(self, live: LiveFilter, query: VectorQuery, most: int, *, readers: KeptValues) -> None:
        """Prepare without reading."""
        self._live, self._query, self._most, self._readers = live, query, most, readers
        self._segments = sum(each.origin.segment is not None for each in live.sources)
        self._exact: dict[int, Found] = {}

    def add(self, found: Sequence[Found], best: Best) -> None:
        """Add the `rows` of a window to the best rows. The score of each row is -distance."""
        parts = [
            (source, each.rows[at : at + _ADDED_ROWS], each.distances[at : at + _ADDED_ROWS])
            for source, each in zip(self._live.sources, found, strict=True)
            for at in range(0, len(each.rows), _ADDED_ROWS)
        ]
        rows = prefetch(lambda part: best.taken(part[0], part[1]), parts, self._read_at_once)
        for taken, (_, _, distances) in zip(rows, parts, strict=True):
            best.add(taken, 0.0 - distances)

    def rows(self, window: int) -> list[Found]:
        """Return, for each source, the nearest rows of a window.

        Rows at the same distance as the last row are included.

        Cost:
            For each source with a segment, the requests of `Source.directory`. For all other sources, and for the
            embeddings of candidates, the requests of `Source.take`. Memory: the segments and a few blocks of
            `BLOCK_BYTES`.
        """
        numbers, wanted = range(len(self._live.sources)), max(FIRST_WINDOW, window)
        for number in numbers if self._live.is_filtered else ():
            self._live.rows(number)  # evaluate one source at a time, because all sources share one filter process
        found = list(prefetch(lambda each: self._candidates(each, wanted), numbers, _AT_ONCE))
        coded = [_NOTHING if each.is_exact else each for each in found]
        ranked = _candidates_of(coded, vector.RANKED_PER_ROW * wanted)

        def by_vectors(number: int) -> Found:
            rows = ranked[number].rows
            return exactly(self._live.sources[number], self._query, rows, len(rows))

        again = [number for number in numbers if not found[number].is_exact]
        for number, each in zip(again, prefetch(by_vectors, again, self._read_at_once), strict=True):
            looked = self._live.looked[number]
            self._live.looked[number] = replace(looked, ranked=looked.ranked + len(ranked[number].rows))
            found[number] = each
        return nearest_of(found, min(window, self._most))

    @property
    def _read_at_once(self) -> int:
        """The number of sources from which rows are read concurrently."""
        return 1 if all(each.is_near for each in self._live.sources) else _FAR_AT_ONCE

    def distances(self) -> Distances:
        """Return the distances of the `most` nearest rows, window by window."""
        found, known = list[float](), set[tuple[int, int]]()
        for window in windows(FIRST_WINDOW, self._most):
            rows = sorted(
                (away, source, row)
                for source, each in enumerate(self.rows(window))
                for away, row in zip(each.distances.tolist(), each.rows.tolist(), strict=True)
            )
            fresh = [each for each in rows if each[1:] not in known][: min(window, self._most) - len(found)]
            known.update((source, row) for _, source, row in fresh)
            found += [away for away, _, _ in fresh]
        return np.array(found)

    def _candidates(self, number: int, window: int) -> Found:
        if number in self._exact:
            return self._exact[number]
        query, source, allowed = self._query, self._live.sources[number], self._live.rows(number)
        before = self._live.looked.setdefault(number, SearchCounts(len(allowed), 0))
        if not allowed:
            return _NOTHING
        count = source.count()
        is_few = self._live.is_filtered and len(allowed) <= most_scored(count, len(query.vector))
        if is_few or source.origin.segment is None:
            self._live.looked[number] = replace(before, ranked=before.ranked + len(allowed))
            self._exact[number] = exactly(source, query, positions(allowed), self._most)
            return self._exact[number]
        reader, ranged = _reader(source, count, self._readers)

        def note(clusters: Positions) -> None:
            looked_into = len(np.unique(clusters)) if reader.head.clusters else None
            self._live.looked[number] = replace(before, is_exact=False, clusters=looked_into)

        with _usable_if_ranged(ranged):
            rows, distances = reader.candidates(
                query.vector,
                window,
                None if len(allowed) == count else allowed,
                query.nprobe,
                budget=vector.Budget.of_one(self._segments),
                note=note,
            )
        # If codes cannot determine the distance of a row, the row is treated as near until its exact distance is known.
        near = np.nan_to_num(distances, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        return Found(rows, near, is_exact=reader.head.quantization == "none")


def exactly(source: Source, query: VectorQuery, rows: Positions, most: int) -> Found:
    """Return the `most` nearest of these rows by exact embeddings.

    Rows with the same distance as the last row are included.

    The embeddings are read block by block.
    """
    kept = _NOTHING
    step = block_rows(len(query.vector))
    rows = np.sort(rows)  # the rows then have the order of the files, unless rows have moved
    for at in range(0, len(rows), step):
        block = rows[at : at + step]
        column = source.take(block, [query.column]).column(query.column)
        held = np.flatnonzero(vector.indexable(column, query.metric))
        distances = vector.exact(query.vector, matrix(column)[held], query.metric)
        joined = Found(np.append(kept.rows, block[held]), np.append(kept.distances, distances))
        (kept,) = nearest_of([joined], most)
    return kept


def block_rows(dimensions: int) -> int:
    """Return the number of embeddings that are read at a time. The embeddings have the given number of dimensions."""
    return max(1, min(_BLOCK_ROWS, BLOCK_BYTES // (4 * dimensions)))


def nearest_of(found: Sequence[Found], most: int) -> list[Found]:
    """Return, for each source, its rows among the `most` nearest rows.

    Rows at the same distance as the last row are included.
    """
    return _up_to(found, most, vector.farthest)


def _candidates_of(found: Sequence[Found], most: int) -> list[Found]:
    """Return, for each source, the candidates that exact embeddings will rank."""
    return _up_to(found, most, vector.farthest_candidate)


def _up_to(found: Sequence[Found], most: int, bound: Callable[[Distances, int], float]) -> list[Found]:
    if not found:
        return []
    last = bound(np.concatenate([each.distances for each in found]), most)
    kept = [each.distances <= last for each in found]
    return [Found(each.rows[own], each.distances[own], each.is_exact) for each, own in zip(found, kept, strict=True)]


def has_ties(found: Sequence[Found]) -> bool:
    """Return whether two of the rows have the same distance."""
    distances = np.concatenate([each.distances for each in found] or [np.zeros(0)])
    return len(np.unique(distances)) < len(distances)


def with_distance(rows: pa.Table, metric: Metric, *, score: str, distance: str) -> pa.Table:
    """Return the rows with the score of the metric and the distance. In the given rows, the score is -distance."""
    distances = 0.0 - rows.column(score).to_numpy()
    scores = 1.0 - distances if metric == "cosine" else 0.0 - distances
    scored = rows.set_column(rows.column_names.index(score), score, pa.array(scores))
    return scored.append_column(distance, pa.array(distances))


def most_scored(rows: int, dimensions: int) -> int:
    """Return the limit for exact scores in a source with `rows` rows.

    The limit is a number of rows that meet the filter.
    """
    return min(max(FEW_ROWS, int(FEW_SHARE * rows)), FEW_NUMBERS // dimensions)


def _usable_if_ranged(ranged: vector.Ranged | None) -> AbstractContextManager[None]:
    """Return a context manager that converts errors of ranged reads of a segment.

    The context does nothing for whole files, because whole files are already verified.
    """
    return nullcontext() if ranged is None else usable(ranged.where)


_Opened = tuple[vector.Reader, vector.Ranged | None]


def _reader(source: Source, count: int, readers: KeptValues) -> _Opened:
    """Return the open segment of a source. If the segment is read by ranges, also return its ranged files."""

    def opened() -> tuple[_Opened, int]:
        ranged, held = source.ranged_files(), 0
        parts: vector.Parts | None = ranged
        if parts is None:
            files = {each.name: each.read_bytes() for each in source.directory().iterdir()}
            parts, held = vector.HeldFiles(files), sum(map(len, files.values()))
        with _usable_if_ranged(ranged):
            reader = vector.Reader(parts, where=source.name if ranged is None else ranged.where, rows=count)
        decoded = min(vector.KEPT_BYTES, reader.head.rows * (reader.head.dimensions + 8))
        return (reader, ranged), held + decoded

    found = readers.made((source.name,), tuple, opened, lambda each: int(each[1]))
    kept: _Opened = found[0]
    return kept


USUAL_QUERIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """The recall of a vector index, measured by searches.

    Attributes:
        index: The name of the index.
        k: The number of nearest rows that each search returns.
        recall: The share of the `k` nearest rows that the searches found. It is 1 if there are no rows. A row as near
            as the k-th row counts as found.
        queries: The number of queries.
        candidates: The number of rows that were ranked by embeddings of the table, as a sum over all windows of all
            searches.
        rows: The number of rows that have an embedding and meet the filter. The true nearest rows are among these rows.
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

    Args:
        searched: The table, the filter and the limits.
        index: The name of the index, or None for the only vector index.
        queries: Embeddings to search for, or the number of rows to draw. The embeddings of the drawn rows are then the
            queries. A query that comes from a row also finds this row.
        k: The number of nearest rows.
        nprobe: The number of clusters to search, or None for the index's setting.
        seed: The seed of the random choice of rows.

    Raises:
        InvalidInput: The queries are invalid. The errors of `search` are raised, too.

    Cost:
        All embeddings are read once for all queries. Memory is some blocks of embeddings, plus 8 bytes per row.
    """
    snapshot = searched.snapshot
    definition = index_for(snapshot, index, by_vector=True)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InvalidInput(f"k is {quoted(k)}. Give 1 or more")
    if type(seed) is not int or seed < 0:
        raise InvalidInput(f"seed is {quoted(seed)}. Give a whole number, 0 or more")
    given = _Given.of(queries, definition, snapshot, nprobe)
    overlay, wanted_rows = searched.overlay(), searched.row_filter()

    def measured(covered: Sequence[Coverage], cached: SegmentCache) -> Recall:
        [found] = searched.sources(covered, overlay, cached)
        live = LiveFilter(found, wanted_rows)
        rows = [positions(live.rows(each)) for each in range(len(found))]
        live.require_valid()
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

    return searched.attempt(measured, [definition])


@dataclass(frozen=True, slots=True)
class _Given:
    """Queries to measure the recall.

    The caller passes the queries, or passes the number of queries to draw. Each query has the settings of `pattern`.
    """

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
            raise InvalidInput(f"queries are {quoted(queries)}. Give embeddings, or a number of rows, 1 or more")
        return _Given([query_of(each) for each in given], len(given), pattern)


def _drawn(found: Sequence[Source], rows: Sequence[Positions], given: _Given, seed: int) -> list[VectorQuery]:
    """Return queries that use the embeddings of randomly drawn rows.

    The function selects only rows that have an embedding.
    """
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
    """Return the distances of the k nearest rows of each query, ascending.

    Also return the number of rows with an embedding.
    """
    nearest, count = [np.zeros(0, np.float64) for _ in queries], 0
    if not queries:  # no row has an embedding
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
    """Return the embeddings of the given rows, without rows that have no embedding."""
    column = source.take(rows, [query.column]).column(query.column)
    found: Floats = matrix(column)[np.flatnonzero(vector.indexable(column, query.metric))]
    return found
