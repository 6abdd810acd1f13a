"""The search of a vector segment.

A search selects clusters and ranks their rows by codes. The search then ranks the best of these rows again by more
exact codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.keys import Positions, positions
from storage_core.data.rows.vectors import Floats
from storage_core.data.settings.index import Metric
from storage_core.index.vector.blocks import KEPT_BYTES, Blocks, Parts
from storage_core.index.vector.layout import (
    CLUSTERS,
    CODEBOOK,
    HEAD,
    ROWS,
    Head,
    Whole,
    best_of,
    candidates_of,
    dot_products,
    expected_bytes,
    in_bytes,
    not_a_segment,
    padded_size,
    query_code,
    ranking_keys,
    row_bytes,
    table_of,
)
from storage_core.index.vector.segment import codebook_of, require_rows

# Distances in each metric, computed from exact embeddings. A smaller distance is nearer for every metric.
#
# | Metric | Distance |
# |---|---|
# | l2 | the Euclidean distance |
# | cosine | 1 - the cosine of the angle, from 0 to 2 |
# | dot | the dot product times -1 |


Distances = npt.NDArray[np.float64]

_VALUES_AT_ONCE = 2**16  # half a megabyte. This amount of data fits into the processor's cache.


def exact(query: npt.ArrayLike, vectors: Floats, metric: Metric) -> Distances:
    """Return the distance of each embedding from the query, computed in 64 bits.

    `vectors` is an array of rows by dimensions.

    Two equal embeddings have the same distance to the query, regardless of their positions in the array. Under cosine,
    the distance is NaN if the embedding or the query is zero. Memory is a few megabytes in addition to the result.
    """
    wanted = np.asarray(query, np.float64)
    step = max(1, _VALUES_AT_ONCE // max(1, vectors.shape[1]))
    parts = [_exact(wanted, vectors[at : at + step].astype(np.float64), metric) for at in range(0, len(vectors), step)]
    return np.concatenate(parts) if parts else np.zeros(0, np.float64)


def _exact(query: Distances, vectors: Distances, metric: Metric) -> Distances:
    match metric:
        case "l2":
            found: Distances = np.sqrt(np.square(vectors - query).sum(axis=1))
        case "cosine":
            # No matrix product is used, because in a library the order of additions may depend on the position of a
            # row.
            lengths = np.sqrt(np.square(vectors).sum(axis=1)) * np.sqrt(np.square(query).sum())
            with np.errstate(invalid="ignore", divide="ignore"):
                cosines = (vectors * query).sum(axis=1) / lengths
            found = 1.0 - np.clip(cosines, -1.0, 1.0)
        case "dot":
            found = -(vectors * query).sum(axis=1)
        case _:
            assert_never(metric)
    return found


# The number of clusters that a search reads, and the blocks that it fetches.


LEAST_PROBES = 16
FILTERED_BYTES = 64 * 2**20
SHARE, RANGED_SHARE = 3 / 16, 1 / 12
"""A search reads the nearest clusters until the clusters contain this share of the rows.

The smaller share `RANGED_SHARE` applies if a search reads only byte ranges of the segment. With a filter, the nearest
matching rows are farther from the query and spread over more clusters than without a filter. A filtered search
therefore reads clusters until the clusters contain a minimum number of matching rows. For codes of at most
`FILTERED_BYTES` bytes, this minimum is `SHARE` times the number of all rows. For codes of more than `FILTERED_BYTES`
bytes, the minimum is `SHARE` times the number of matching rows.
"""

REQUESTS, BYTES = 12, 8 * 2**20
"""The wanted number of requests of a search, and the maximum number of bytes to fetch.

Each opened segment counts as one request.
"""

FALLOFF, SPARED = 14.0, 0.15
"""The parameters with which a search selects pieces to drop if there are more pieces than wanted. See `nearness`.

The weight of a piece is the sum of the `nearness` of its blocks. A search may want more pieces than it should fetch. It
drops the excess pieces if their weight is at most the share `SPARED` of the total weight. In data with separate groups,
a few clusters are much nearer to the query than all others. A few pieces then have most of the total weight. In data
without separate groups, such as embeddings of single words, all clusters are about equally far from the query. Every
piece then has a similar share of the total weight.
"""

LEAST_PIECES = 3

Rows = npt.NDArray[np.int64]


def probes(held: Rows, of: int, *, is_ranged: bool) -> int:
    """Return the number of clusters that a search reads by default.

    `held` contains the number of rows of each cluster, nearest cluster first.

    These clusters together contain at least the default share of all rows. `of` is the number of all rows.
    """
    share = (RANGED_SHARE if is_ranged else SHARE) * of
    return max(LEAST_PROBES, int(np.searchsorted(np.cumsum(held), share)) + 1)


@dataclass(frozen=True, slots=True)
class Budget:
    """The wanted number of pieces to fetch from one segment, and the maximum number of bytes of these pieces."""

    pieces: int
    bytes: int

    @staticmethod
    def of_one(segments: int) -> Budget:
        """Return the budget per segment for a search over this number of segments."""
        return Budget(max(LEAST_PIECES, REQUESTS // max(1, segments) - 1), BYTES // max(1, segments))


BUDGET_OF_ONE = Budget.of_one(1)
"""The budget of a search with only one segment."""


def nearness(away: Distances, nearest: float) -> Distances:
    """Return the nearness of a cluster to the query, as a weight from 0 to 1.

    The weight of a cluster estimates how many of the nearest rows the cluster contains. The weight of the nearest
    cluster is 1.

    `nearest` is the distance of the nearest cluster. `away` is the distance from the query to the given cluster, minus
    `nearest`. The distances in `nearest` and `away` are squared distances.
    """
    found: Distances = np.exp(-FALLOFF * np.minimum(away / max(abs(nearest), np.finfo(np.float64).tiny), 1.0))
    return found


def in_pieces(blocks: Rows, sizes: Rows, near: Distances, needed: Mask, *, pieces: int, most_rows: int) -> Rows:
    """Return the blocks to fetch, ascending.

    The result contains `blocks`, and the blocks in the smallest gaps between the wanted blocks. A gap consists of the
    blocks between two wanted blocks. The result has about `pieces` contiguous pieces.

    The blocks in filled gaps have at most half as many rows as the wanted blocks. If memory allows more rows, the
    function fills gaps between wanted blocks until the result has `most_rows` rows. If the result still has too many
    pieces, the function drops the pieces whose blocks have the smallest sum of `near`. If the excess pieces have more
    than the share `SPARED` of the sum of `near`, the function drops no piece.

    Args:
        blocks: The blocks that the search wants, ascending.
        sizes: The number of rows of each block of the segment.
        near: The nearness of each block of the segment.
        needed: For each block of the segment, whether the block must be kept.
        pieces: The wanted number of pieces.
        most_rows: The number of rows for which there is memory.
    """
    ends = np.cumsum(sizes)
    gaps = np.flatnonzero(np.diff(blocks) > 1)
    after = blocks[gaps + 1]
    rows, wanted = ends[after] - sizes[after] - ends[blocks[gaps]], int(sizes[blocks].sum())
    smallest = np.argsort(rows, kind="stable")[: max(0, len(gaps) + 1 - pieces)]
    filled = smallest[np.cumsum(rows[smallest]) <= max(wanted // 2, most_rows - wanted)]
    between = [np.arange(blocks[gap] + 1, blocks[gap + 1]) for gap in gaps[filled]]
    found = np.sort(np.concatenate([blocks, *between]))
    starts = np.flatnonzero(np.diff(found, prepend=-2) > 1)
    worth = np.add.reduceat(near[found], starts)
    is_needed = np.logical_or.reduceat(needed[found], starts)
    far = np.lexsort((-worth, ~is_needed))[pieces:]
    far = far[~is_needed[far]]
    if not len(far) or worth[far].sum() > SPARED * worth.sum():
        return found
    return found[~np.isin(np.searchsorted(starts, np.arange(len(found)), side="right") - 1, far)]


COARSE = 40
"""The number of candidates that a search selects by coarse codes, per row of the result.

With a filter, the searched clusters must contain `COARSE` matching rows for each row of the result.
"""

RANKED_PER_ROW = 4
"""The number of candidates that a search ranks by their exact embeddings, per row of the result.

After the second step of a search, about this number of candidates per row of the result remains.
"""

LEAST_SECOND = 128
"""From this number of dimensions on, a search that reads byte ranges does not read the 8-bit codes in `second.bin`.

With this number of dimensions, coarse codes are exact enough to select the candidates.
"""


@dataclass(frozen=True, slots=True, eq=False)
class _Query:
    """The numbers of a query in three forms: as given by the caller, centered and rotated like codes, and as bytes.

    A byte with the number 1 represents the value `unit`.
    """

    given: Floats
    placed: Floats
    code: Whole
    unit: float


class Reader:
    """One open segment. Safe for threads. The reader caches the most recently used blocks, up to `kept_bytes` bytes.

    Opening reads all files except the blocks. These files are adjacent in the object.

    Raises:
        Corrupt: The files are not those of a segment, or another codebook made the codes. The error names `where`.
    """

    def __init__(self, parts: Parts, *, where: str, rows: int | None = None, kept_bytes: int = KEPT_BYTES) -> None:
        """Open the segment. `rows` is the number of rows of the split, or None if unknown."""
        self._is_ranged = parts.is_ranged
        opened = parts.whole((HEAD, CLUSTERS, ROWS, CODEBOOK))
        self.head = Head.from_bytes(opened[HEAD], where=where)
        self._row_bytes = row_bytes(self.head.quantization, self.head.dimensions)
        self._codebook = codebook_of(opened[CODEBOOK], self.head, where=where)
        if rows is not None and self.head.of != rows:
            raise not_a_segment(where, f"the segment covers {self.head.of} rows, expected {rows}")
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
        """Return rows that very probably include the `k` nearest rows to the query.

        Return the distances of these rows too, nearest first.

        The distances are distances of the metric, computed from codes. The caller ranks the rows by exact embeddings.
        With the quantization `none`, the distances are exact, and the rows are the k nearest rows of the searched
        clusters. All rows as near as the last row are returned. Rows with equal embeddings are therefore all returned
        or all omitted.

        The number of returned rows depends on the quantization:

        - `rotated` returns about `RANKED_PER_ROW` · k rows, after a second step that reads four times as many bytes per
          row. If the files are read by ranges and have at least `LEAST_SECOND` dimensions, there is no second step.
        - `scalar`, `product`, and `rotated` without a second step return about `COARSE` · k rows.

        Args:
            query: The embedding to search for.
            k: The number of nearest rows.
            allowed: The rows that can be returned, or None for all rows.
            nprobe: The number of clusters to read, among the clusters that contain an allowed row. The default is
                `probes`. The search reads more clusters until they contain `COARSE` · k allowed rows. In a segment
                without clusters, it reads everything.
            budget: The pieces in which blocks are fetched by ranges (`in_pieces`).
            note: Receives the cluster of each block.

        Raises:
            InvalidInput: The query does not have the type or the dimensions of the index.
            Corrupt: A block differs from what was written.

        Cost:
            The requests of `Parts.read`, once for the blocks and once for the second step.
        """
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # for numbers close to the limit of 32 bits, see `ranking_keys`
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
        told, most = ranking_keys(offsets, self._products(query, leans, products)), COARSE * k
        if self._looks_again and len(places) > RANKED_PER_ROW * k:
            best = candidates_of(told, most)
            places, most = places[best], RANKED_PER_ROW * k
            told = ranking_keys(
                offsets[best], self._products(query, *self._blocks.int8_corrections(query.code, places))
            )
        distances = self._measured(query, told)
        return self._answer(places, distances, candidates_of(distances, most))

    def _query(self, query: npt.ArrayLike, k: int) -> _Query:
        try:
            wanted = np.asarray(query, np.float32)
        except (TypeError, ValueError) as error:
            raise InvalidInput("the query is not a list of numbers. Give a list or an array of numbers") from error
        if wanted.shape != (self.head.dimensions,) or not np.isfinite(wanted).all():
            raise InvalidInput(
                f"the query has the shape {wanted.shape}, or contains NaN or infinity. Give {self.head.dimensions} "
                "finite numbers"
            )
        if self.head.metric == "cosine" and not wanted.any():
            raise InvalidInput(
                "the query is zero, which has no direction. An index with the metric cosine needs another query"
            )
        if k < 1:
            raise InvalidInput(f"k is {k}. Give 1 or more")
        placed = self._codebook.to_code_space(wanted[None, :])[0]
        code, unit = query_code(placed, padded_size(len(placed)))
        return _Query(wanted, placed, code, unit)

    def _counted(self, allowed: BitMap | None) -> Mask | None:
        """Return a mask of the positions with an allowed row. Return None if all rows are allowed."""
        if allowed is None:
            return None
        is_allowed = np.zeros(self.head.of, np.bool_)
        named = positions(allowed)
        is_allowed[named[named < self.head.of]] = True
        return is_allowed[self._rows]

    def _looked_into(
        self, query: _Query, counted: Mask | None, most: int, *, nprobe: int | None, budget: Budget
    ) -> Positions:
        """Return the blocks to read, ascending."""
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
        """Return the nearness of each cluster relative to the first cluster in `order`."""
        least = float(away[order[0]]) if len(order) else 0.0
        of_query = 0.0 if self.head.metric == "dot" else float(query.placed.astype(np.float64) @ query.placed)
        return nearness(away - least, least + of_query)

    def _away(self, query: _Query) -> Distances:
        """Return the distance of each centroid from the query.

        The distances are only comparable with each other, because their unit is arbitrary.

        The products are computed from bytes, because threads of numpy may wait for each other.
        """
        book, is_dot = self._codebook, self.head.metric == "dot"
        code, unit = query_code(query.placed + book.turned(book.center) if is_dot else query.placed, len(query.placed))
        products = unit * self._scales * dot_products(code, self._whole)
        away: Distances = -products if is_dot else self._squares - 2 * products
        return away

    def _products(self, query: _Query, leans: Floats, products: Floats) -> Floats:
        """Return the part of each row's distance that depends on its dot product with the query."""
        times = np.float32(query.unit if self.head.metric == "dot" else 2 * query.unit)
        return times * leans * products

    def _measured(self, query: _Query, distances: Floats) -> Distances:
        """Convert the values that rank the rows to distances of the metric."""
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
