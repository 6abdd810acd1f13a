"""Searching a segment of vectors: which clusters, then their codes, then a second look at the best of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from storage_core.errors import InvalidInput
from storage_core.index.vector.blocks import KEPT_BYTES, Blocks
from storage_core.index.vector.codebook import in_bytes
from storage_core.index.vector.codes import Whole, apart, best_of, candidates_of, dots, padded_size, query_code
from storage_core.index.vector.distances import Distances, exact
from storage_core.index.vector.layout import (
    CLUSTERS,
    CODEBOOK,
    HEAD,
    ROWS,
    Head,
    expected_bytes,
    not_a_segment,
    row_bytes,
    table_of,
)
from storage_core.index.vector.parts import Parts
from storage_core.index.vector.probing import BUDGET_OF_ONE, FILTERED_BYTES, Budget, in_pieces, nearness, probes
from storage_core.index.vector.segment import codebook_of, require_rows
from storage_core.rows.keys import Positions
from storage_core.rows.positions import positions
from storage_core.rows.vectors import Floats, Mask

COARSE = 40
"""Candidates per row of the answer that are kept by their coarse codes, and that filtered clusters must hold."""

RANKED_PER_ROW = 4
"""Candidates per row of the answer that are ranked by exact vectors, so that a second look leaves no more."""

LEAST_SECOND = 128
"""From so many dimensions on coarse codes name the nearest well enough not to fetch finer ones."""


@dataclass(frozen=True, slots=True, eq=False)
class _Query:
    """A query as it was given, where codes are, and as bytes, of which one stands for `unit`."""

    given: Floats
    placed: Floats
    code: Whole
    unit: float


class Reader:
    """One open segment. Safe for threads. What was read and decoded last is kept, up to `kept_bytes`.

    Opening reads all but the blocks, which lie together. Raises `Corrupt` naming `where` for what cannot be a segment,
    also when the codebook is another than the one that made its codes.
    """

    def __init__(self, parts: Parts, *, where: str, rows: int | None = None, kept_bytes: int = KEPT_BYTES) -> None:
        """`rows` is how many the split has, None if unknown."""
        self._is_ranged = parts.is_ranged
        opened = parts.whole((HEAD, CLUSTERS, ROWS, CODEBOOK))
        self.head = Head.from_bytes(opened[HEAD], where=where)
        self._row_bytes = row_bytes(self.head.quantization, self.head.dimensions)
        self._codebook = codebook_of(opened[CODEBOOK], self.head, where=where)
        if rows is not None and self.head.of != rows:
            raise not_a_segment(where, f"it is over {self.head.of} rows, expected {rows}")
        if len(opened[ROWS]) != expected_bytes(self.head, ROWS):
            raise not_a_segment(where, f"{ROWS} has {len(opened[ROWS])} bytes")
        self._table = table_of(opened[CLUSTERS], self.head, where=where)
        self._blocks = Blocks(parts, self.head, self._codebook, self._table, where=where, kept_bytes=kept_bytes)
        self._opened_bytes = sum(map(len, opened.values()))
        self._rows = np.frombuffer(opened[ROWS], "<u4").astype(np.int64)
        require_rows(self._rows.astype(np.uint32), self._blocks.sizes, self.head, where=where)
        centroids = in_bytes(self._codebook.centroids)
        self._scales = centroids["scale"].astype(np.float64)
        self._whole = np.ascontiguousarray(centroids["whole"])
        self._squares = np.square(self._codebook.centroids, dtype=np.float64).sum(axis=1)

    def candidates(
        self,
        query: npt.ArrayLike,
        k: int,
        allowed: BitMap | None = None,
        nprobe: int | None = None,
        *,
        budget: Budget = BUDGET_OF_ONE,
        note: Callable[[Positions], object] = len,
    ) -> tuple[Positions, Distances]:
        """Return rows among which the `k` nearest to the query most probably are, nearest first, and their distances.

        Distances are those of the metric (`distances`), as codes tell them; the caller ranks by exact vectors. Under
        `none` they are exact, and the rows are the k nearest of the clusters looked into. All rows that are as near as
        the last are returned, so equal vectors are there or not together. `allowed` are the rows that count; others are
        not returned. `nprobe` clusters are looked into that hold a row that counts, by default `probes` of them, and
        more until they hold `COARSE` · k; all of a flat segment. `rotated` returns about `RANKED_PER_ROW` · k rows,
        after a second look that reads four times as much per row; where parts are ranged it takes none from
        `LEAST_SECOND` dimensions on. Without one, and under `scalar` and `product`, about `COARSE` · k are returned.
        Ranged blocks lie in pieces as of the `budget` (`in_pieces`). `note` gets the cluster of each block. Raises
        `InvalidInput` for a query that is no vector of the index, `Corrupt` for a block that is not what was written.
        Requests: those of `Parts.read`, once for the blocks and once for a second look.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # numbers near the end of 32 bits: see `apart`
            wanted, counted = self._query(query, k), self._counted(allowed)
            blocks = self._looked_into(wanted, counted, COARSE * k, nprobe=nprobe, budget=budget)
            note(self._table["cluster"][blocks])
            return self._found(wanted, k, counted, blocks)

    @property
    def _looks_again(self) -> bool:
        is_dear = self._is_ranged and self.head.dimensions >= LEAST_SECOND
        return self.head.quantization == "rotated" and not is_dear

    def _found(self, query: _Query, k: int, counted: Mask | None, blocks: Positions) -> tuple[Positions, Distances]:
        if not len(blocks):
            return np.zeros(0, np.int64), np.zeros(0, np.float64)
        places = self._blocks.places(blocks)
        counts = None if counted is None else counted[places]
        places = places if counts is None else places[counts]
        if self.head.quantization == "none":
            vectors = self._blocks.vectors(blocks)
            distances = np.concatenate([exact(query.given, each, self.head.metric) for each in vectors])
            distances = distances if counts is None else distances[counts]
            return self._answer(places, distances, best_of(distances, k))
        offsets, leans, products = self._blocks.coarse(query.code, blocks, counts)
        told, most = apart(offsets, self._products(query, leans, products)), COARSE * k
        if self._looks_again and len(places) > RANKED_PER_ROW * k:
            best = candidates_of(told, most)
            places, most = places[best], RANKED_PER_ROW * k
            told = apart(offsets[best], self._products(query, *self._blocks.fine(query.code, places)))
        distances = self._measured(query, told)
        return self._answer(places, distances, candidates_of(distances, most))

    def _query(self, query: npt.ArrayLike, k: int) -> _Query:
        try:
            wanted = np.asarray(query, np.float32)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"the query is no vector of numbers: {error}") from error
        if wanted.shape != (self.head.dimensions,) or not np.isfinite(wanted).all():
            raise InvalidInput(
                f"the query has the shape {wanted.shape}, or NaN or infinity in it; give {self.head.dimensions} numbers"
            )
        if self.head.metric == "cosine" and not wanted.any():
            raise InvalidInput("the query is zero, which has no direction; an index by cosine finds nothing by it")
        if k < 1:
            raise InvalidInput(f"k is {k}; ask for at least one row")
        placed = self._codebook.placed(wanted[None, :])[0]
        code, unit = query_code(placed, padded_size(len(placed)))
        return _Query(wanted, placed, code, unit)

    def _counted(self, allowed: BitMap | None) -> Mask | None:
        """Of each place whether its row counts; None where all do."""
        if allowed is None:
            return None
        is_allowed = np.zeros(self.head.of, np.bool_)
        named = positions(allowed)
        is_allowed[named[named < self.head.of]] = True
        return is_allowed[self._rows]

    def _looked_into(
        self, query: _Query, counted: Mask | None, most: int, *, nprobe: int | None, budget: Budget
    ) -> Positions:
        """The blocks to look into, ascending."""
        per_block, sizes, ends = self._blocks.sizes, self._blocks.sizes, self._blocks.ends
        if counted is not None:
            sums = np.append(0, np.cumsum(counted))
            per_block = sums[ends] - sums[ends - sizes]
        holding = per_block > 0
        near, is_needed = np.ones(len(holding)), holding
        if self.head.clusters:
            clusters, away = self._table["cluster"].astype(np.int64), self._away(query)
            per_cluster = np.bincount(clusters, weights=per_block, minlength=self.head.clusters)
            order = np.argsort(away, kind="stable")
            order = order[per_cluster[order] > 0]
            held = per_cluster[order]
            needed = max(nprobe or 0, int(np.searchsorted(np.cumsum(held), most)) + 1)
            is_small = self.head.rows * self._row_bytes <= FILTERED_BYTES
            of = self.head.rows if is_small else int(held.sum())
            usual = needed if nprobe else probes(held, of, is_ranged=self._is_ranged and counted is None)
            turn = np.full(self.head.clusters, self.head.clusters)
            turn[order] = np.arange(len(order))
            turns = turn[clusters]
            is_needed = holding & (turns < needed)
            holding = holding & (turns < max(usual, needed))
            near = np.where(holding, self._nearness(query, away, order)[clusters], 0.0)
        found = np.flatnonzero(holding)
        if not self._is_ranged or not len(found):
            return found
        room = budget.bytes - self._opened_bytes
        return in_pieces(found, sizes, near, is_needed, pieces=budget.pieces, most_rows=room // self._row_bytes)

    def _nearness(self, query: _Query, away: Distances, order: Positions) -> Distances:
        """How near each cluster is to the first of these."""
        least = float(away[order[0]]) if len(order) else 0.0
        of_query = 0.0 if self.head.metric == "dot" else float(query.placed.astype(np.float64) @ query.placed)
        return nearness(away - least, least + of_query)

    def _away(self, query: _Query) -> Distances:
        """How far each centroid is from the query, in some unit. By bytes: threads of numpy may wait for each other."""
        book, is_dot = self._codebook, self.head.metric == "dot"
        code, unit = query_code(query.placed + book.turned(book.center) if is_dot else query.placed, len(query.placed))
        products = unit * self._scales * dots(code, self._whole)
        away: Distances = -products if is_dot else self._squares - 2 * products
        return away

    def _products(self, query: _Query, leans: Floats, products: Floats) -> Floats:
        """What the distance of each row takes from its dot product with the query."""
        times = np.float32(query.unit if self.head.metric == "dot" else 2 * query.unit)
        return times * leans * products

    def _measured(self, query: _Query, distances: Floats) -> Distances:
        """Distances of the metric, of what tells rows apart."""
        book, wide = self._codebook, distances.astype(np.float64)
        if book.metric == "dot":
            return wide - float(query.given.astype(np.float64) @ book.center)
        placed = query.placed.astype(np.float64)
        squares = np.maximum(wide + float(placed @ placed), 0)
        measured: Distances = np.sqrt(squares) if book.metric == "l2" else squares / 2
        return measured

    def _answer(self, places: Positions, distances: Distances, best: Positions) -> tuple[Positions, Distances]:
        rows, distances = self._rows[places[best]], distances[best]
        order = np.lexsort((rows, distances))
        return rows[order], distances[order]
