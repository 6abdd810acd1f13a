"""Nearest rows: each source names candidates by its codes, and the exact vectors of the table decide.

Sources without a segment are scored exactly, and so is a source of which a filter leaves few rows: that reads less
than looking into clusters until enough of them are found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from storage_core.index import vector
from storage_core.index.vector.distances import Distances
from storage_core.objectstore.prefetch import prefetch
from storage_core.rows.keys import Positions
from storage_core.rows.positions import positions
from storage_core.rows.vectors import matrix
from storage_core.search.live import Live, Looked
from storage_core.search.order import Best
from storage_core.search.question import VectorQuery
from storage_core.search.source import Source, usable
from storage_core.search.windows import windows
from storage_core.settings.vector_options import Metric
from storage_core.split.kept_values import KeptValues

DISTANCE = "distance"

FIRST_WINDOW = 10
"""The rows of the first of the windows (`windows`) that an answer is made of."""

FEW_ROWS = 10_000
FEW_SHARE = 0.02
"""A source of which a filter leaves no more rows, or no greater share of them, is scored exactly."""
FEW_NUMBERS = 2**18
"""Unless their vectors have more numbers: then looking at codes takes less."""

BLOCK_BYTES = 2**26
_BLOCK_ROWS = 65_536  # those of a row group, which is decoded as a whole
_ADDED_ROWS = 10_000
_AT_ONCE, _FAR_AT_ONCE = 2, 8


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Rows of a source and their distances, exact ones or as codes tell them."""

    rows: Positions
    distances: Distances
    is_exact: bool = True


_NOTHING = Found(np.zeros(0, np.int64), np.zeros(0, np.float64))


class Nearest:
    """The nearest `most` rows of sources, in windows that grow.

    A source that is scored exactly is scored once; candidates of segments are ranked anew in each window. `readers`
    keeps open segments by the names of sources.
    """

    def __init__(self, live: Live, query: VectorQuery, most: int, *, readers: KeptValues) -> None:
        """Look at nothing yet."""
        self._live, self._query, self._most, self._readers = live, query, most, readers
        self._segments = sum(each.origin.segment is not None for each in live.sources)
        self._exact: dict[int, Found] = {}

    def add(self, found: Sequence[Found], best: Best) -> None:
        """Add the `rows` of a window to the best; of each the score is -distance."""
        parts = [
            (source, each.rows[at : at + _ADDED_ROWS], each.distances[at : at + _ADDED_ROWS])
            for source, each in zip(self._live.sources, found, strict=True)
            for at in range(0, len(each.rows), _ADDED_ROWS)
        ]
        rows = prefetch(lambda part: best.taken(part[0], part[1].tolist()), parts, self._read_at_once)
        for taken, (_, _, distances) in zip(rows, parts, strict=True):
            best.add(taken, (0.0 - distances).tolist())

    def rows(self, window: int) -> list[Found]:
        """Return of each source the rows of a window that are among the `most` nearest, or as near as the last of them.

        Requests: those of `Source.directory` for each source with a segment; of the others, and for the vectors of
        candidates, those of `Source.take`. Memory: a few blocks of `BLOCK_BYTES`, beside segments.
        """
        numbers, wanted = range(len(self._live.sources)), max(FIRST_WINDOW, window)
        for number in numbers if self._live.is_filtered else ():
            self._live.rows(number)  # of one source after the other: a filter has one process
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
        """From so many sources rows are taken side by side."""
        return 1 if all(each.is_near for each in self._live.sources) else _FAR_AT_ONCE

    def distances(self) -> Distances:
        """Return the distances of the `most` rows, window after window."""
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
        before = self._live.looked.setdefault(number, Looked(len(allowed), 0))
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
        # What codes cannot tell apart is near until its vector says that it is not.
        near = np.nan_to_num(distances, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        return Found(rows, near, is_exact=reader.head.quantization == "none")


def exactly(source: Source, query: VectorQuery, rows: Positions, most: int) -> Found:
    """Return which of these rows are the `most` nearest, or as near as the last, by exact vectors, block by block."""
    kept = _NOTHING
    step = block_rows(len(query.vector))
    rows = np.sort(rows)  # as they are in the files, where no row has moved
    for at in range(0, len(rows), step):
        block = rows[at : at + step]
        column = source.take(block.tolist(), [query.column]).column(query.column)
        held = np.flatnonzero(vector.indexable(column, query.metric))
        distances = vector.exact(query.vector, matrix(column)[held], query.metric)
        joined = Found(np.append(kept.rows, block[held]), np.append(kept.distances, distances))
        (kept,) = nearest_of([joined], most)
    return kept


def block_rows(dimensions: int) -> int:
    """Return how many vectors of so many dimensions are read at once."""
    return max(1, min(_BLOCK_ROWS, BLOCK_BYTES // (4 * dimensions)))


def nearest_of(found: Sequence[Found], most: int) -> list[Found]:
    """Return of each source the rows that are among the `most` nearest of all sources, or as near as the last."""
    return _up_to(found, most, vector.farthest)


def _candidates_of(found: Sequence[Found], most: int) -> list[Found]:
    """Return of each source those of its candidates that exact vectors shall rank."""
    return _up_to(found, most, vector.farthest_candidate)


def _up_to(found: Sequence[Found], most: int, bound: Callable[[Distances, int], float]) -> list[Found]:
    if not found:
        return []
    last = bound(np.concatenate([each.distances for each in found]), most)
    kept = [each.distances <= last for each in found]
    return [Found(each.rows[own], each.distances[own], each.is_exact) for each, own in zip(found, kept, strict=True)]


def has_ties(found: Sequence[Found]) -> bool:
    """Whether two of the rows are equally far."""
    distances = np.concatenate([each.distances for each in found] or [np.zeros(0)])
    return len(np.unique(distances)) < len(distances)


def with_distance(rows: pa.Table, metric: Metric, *, score: str, distance: str) -> pa.Table:
    """Return the rows, whose score is -distance, with the score of the metric and with the distance."""
    distances = 0.0 - rows.column(score).to_numpy()
    scores = 1.0 - distances if metric == "cosine" else 0.0 - distances
    scored = rows.set_column(rows.column_names.index(score), score, pa.array(scores))
    return scored.append_column(distance, pa.array(distances))


def most_scored(rows: int, dimensions: int) -> int:
    """Return of how many rows that a filter leaves a source of so many is scored exactly."""
    return min(max(FEW_ROWS, int(FEW_SHARE * rows)), FEW_NUMBERS // dimensions)


def _usable_if_ranged(ranged: vector.Ranged | None) -> AbstractContextManager[None]:
    """What is read by ranges is found to be damaged while it is read; files were verified before."""
    return nullcontext() if ranged is None else usable(ranged.where)


_Opened = tuple[vector.Reader, vector.Ranged | None]


def _reader(source: Source, count: int, readers: KeptValues) -> _Opened:
    """The open segment of a source, and where it is read by ranges the files that are."""

    def opened() -> tuple[_Opened, int]:
        ranged, held = source.ranged(), 0
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
