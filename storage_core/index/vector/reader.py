"""Searching a segment of vectors: which clusters, then their codes, then a second look at the best of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from storage_core.errors import InvalidInput
from storage_core.index.vector.codebook import in_bytes
from storage_core.index.vector.codes import Whole, apart, best_of, candidates_of, dots, padded_size, query_code
from storage_core.index.vector.distances import Distances, exact
from storage_core.index.vector.layout import (
    BLOCKS,
    CLUSTERS,
    CODEBOOK,
    HEAD,
    ROWS,
    SECOND,
    Head,
    expected_bytes,
    not_a_segment,
    row_bytes,
    second_bytes,
    table_of,
)
from storage_core.index.vector.parts import Parts, Span
from storage_core.index.vector.probing import Rows, in_pieces, pieces_per_segment, probes
from storage_core.index.vector.segment import codebook_of, require_block, require_rows
from storage_core.index.vector.whole import decoded
from storage_core.rows.vectors import Floats, Mask
from storage_core.split.kept_values import KeptValues

COARSE = 40
"""Candidates per row of the answer that are kept by their coarse codes, and that filtered clusters must hold."""

RANKED_PER_ROW = 4
"""Candidates per row of the answer that are ranked by exact vectors, so that a second look leaves no more."""

LEAST_SECOND = 128
"""From so many dimensions on coarse codes name the nearest well enough not to fetch finer ones."""

KEPT_BYTES = 256 * 2**20

_Loaded = TypeVar("_Loaded")


@dataclass(frozen=True, slots=True, eq=False)
class _Query:
    """A query as it was given, where codes are, and as bytes, of which one stands for `unit`."""

    given: Floats
    placed: Floats
    code: Whole
    unit: float


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Codes of a block as whole numbers, with the offset and the lean of each row."""

    offsets: Floats
    leans: Floats
    whole: Whole


class Reader:
    """One open segment. Safe for threads. What was read and decoded last is kept, up to `kept_bytes`.

    Opening reads all but the blocks, which lie together. Raises `Corrupt` naming `where` for what cannot be a segment,
    also when the codebook is another than the one that made its codes.
    """

    def __init__(self, parts: Parts, *, where: str, rows: int | None = None, kept_bytes: int = KEPT_BYTES) -> None:
        """`rows` is how many the split has, None if unknown."""
        self._parts, self._where = parts, where
        opened = parts.whole((HEAD, CLUSTERS, ROWS, CODEBOOK))
        self.head = Head.from_bytes(opened[HEAD], where=where)
        self._codebook = codebook_of(opened[CODEBOOK], self.head, where=where)
        if rows is not None and self.head.of != rows:
            raise not_a_segment(where, f"it is over {self.head.of} rows, expected {rows}")
        if len(opened[ROWS]) != expected_bytes(self.head, ROWS):
            raise not_a_segment(where, f"{ROWS} has {len(opened[ROWS])} bytes")
        self._table = table_of(opened[CLUSTERS], self.head, where=where)
        self._sizes = self._table["rows"].astype(np.int64)
        self._ends = np.cumsum(self._sizes)
        self._rows = np.frombuffer(opened[ROWS], "<u4").astype(np.int64)
        require_rows(self._rows.astype(np.uint32), self._sizes, self.head, where=where)
        self._kept = KeptValues(kept_bytes)
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
        pieces: int = pieces_per_segment(1),
        note: Callable[[Rows], object] = len,
    ) -> tuple[Rows, Distances]:
        """Return rows among which the `k` nearest to the query most probably are, nearest first, and their distances.

        Distances are those of the metric (`distances`), as codes tell them; the caller ranks by exact vectors. Under
        `none` they are exact, and the rows are the k nearest of the clusters looked into. All rows that are as near as
        the last are returned, so equal vectors are there or not together. `allowed` are the rows that count; others are
        not returned. `nprobe` clusters are looked into that hold a row that counts, by default `probes` of them, and
        more until they hold `COARSE` · k; all of a flat segment. `rotated` returns about `RANKED_PER_ROW` · k rows,
        after a second look that reads four times as much per row; where parts are ranged it takes none from
        `LEAST_SECOND` dimensions on. Without one, and under `scalar` and `product`, about `COARSE` · k are returned.
        Ranged blocks lie in about `pieces` pieces (`in_pieces`). `note` gets the cluster of each block. Raises
        `InvalidInput` for a query that is no vector of the index, `Corrupt` for a block that is not what was written.
        Requests: those of `Parts.read`, once for the blocks and once for a second look.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # numbers near the end of 32 bits: see `apart`
            wanted, counted = self._query(query, k), self._counted(allowed)
            blocks = self._looked_into(wanted, counted, COARSE * k, nprobe=nprobe, pieces=pieces)
            note(self._table["cluster"][blocks])
            return self._found(wanted, k, counted, blocks)

    @property
    def _looks_again(self) -> bool:
        is_dear = self._parts.is_ranged and self.head.dimensions >= LEAST_SECOND
        return self.head.quantization == "rotated" and not is_dear

    def _found(self, query: _Query, k: int, counted: Mask | None, blocks: Rows) -> tuple[Rows, Distances]:
        if not len(blocks):
            return np.zeros(0, np.int64), np.zeros(0, np.float64)
        places = self._places(blocks)
        counts = slice(None) if counted is None else counted[places]
        if self.head.quantization == "none":
            distances = self._exact(query, blocks)[counts]
            return self._answer(places[counts], distances, best_of(distances, k))
        offsets, products = self._coarse(query, blocks)
        places, offsets, products = places[counts], offsets[counts], products[counts]
        most = COARSE * k
        if self._looks_again and len(places) > RANKED_PER_ROW * k:
            best = candidates_of(apart(offsets, products), most)
            places, offsets, most = places[best], offsets[best], RANKED_PER_ROW * k
            products = self._second(query, places)
        distances = self._measured(query, apart(offsets, products))
        return self._answer(places, distances, candidates_of(distances, most))

    def _places(self, blocks: Rows) -> Rows:
        """The places of the rows of the blocks."""
        if len(blocks) == len(self._sizes):
            return np.arange(self.head.rows)
        return np.concatenate([np.arange(self._ends[each] - self._sizes[each], self._ends[each]) for each in blocks])

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
        named = np.array(allowed, np.int64) if len(allowed) else np.zeros(0, np.int64)
        is_allowed[named[named < self.head.of]] = True
        return is_allowed[self._rows]

    def _looked_into(self, query: _Query, counted: Mask | None, most: int, *, nprobe: int | None, pieces: int) -> Rows:
        """The blocks to look into, ascending."""
        per_block = self._sizes
        if counted is not None:
            sums = np.append(0, np.cumsum(counted))
            per_block = sums[self._ends] - sums[self._ends - self._sizes]
        holding, needed = per_block > 0, 1
        turns = np.zeros(len(holding), np.int64)
        if self.head.clusters:
            clusters = self._table["cluster"].astype(np.int64)
            per_cluster = np.bincount(clusters, weights=per_block, minlength=self.head.clusters)
            order = np.argsort(self._away(query), kind="stable")
            order = order[per_cluster[order] > 0]
            held = per_cluster[order]
            needed = max(nprobe or 0, int(np.searchsorted(np.cumsum(held), most)) + 1)
            usual = needed if nprobe else probes(held, is_ranged=self._parts.is_ranged)
            turn = np.full(self.head.clusters, self.head.clusters)
            turn[order] = np.arange(len(order))
            turns = turn[clusters]
            holding &= turns < max(usual, needed)
        found = np.flatnonzero(holding)
        if not self._parts.is_ranged or not len(found):
            return found
        return in_pieces(found, self._sizes, turns, needed, pieces=pieces)

    def _away(self, query: _Query) -> Distances:
        """How far each centroid is from the query, in some unit. By bytes: threads of numpy may wait for each other."""
        book, is_dot = self._codebook, self.head.metric == "dot"
        code, unit = query_code(query.placed + book.turned(book.center) if is_dot else query.placed, len(query.placed))
        products = unit * self._scales * dots(code, self._whole)
        away: Distances = -products if is_dot else self._squares - 2 * products
        return away

    def _exact(self, query: _Query, blocks: Rows) -> Distances:
        def numbers(data: memoryview, rows: int) -> Floats:
            return np.frombuffer(data, "<f4").reshape(rows, self.head.dimensions)

        found = self._loaded(BLOCKS, blocks, numbers)
        return np.concatenate([exact(query.given, each, self.head.metric) for each in found])

    def _coarse(self, query: _Query, blocks: Rows) -> tuple[Floats, Floats]:
        """Of each row of the blocks the offset, and what its product with the query takes from that."""

        def block(data: memoryview, rows: int) -> _Block:
            factors = np.frombuffer(data[: 8 * rows], "<f4")
            codes = np.frombuffer(data[8 * rows :], np.uint8).reshape(rows, -1)
            return _Block(factors[:rows], factors[rows:], decoded(self._codebook, codes))

        width = 0 if self.head.quantization == "scalar" else self.head.dimensions
        found = self._loaded(BLOCKS, blocks, block, decoded_bytes=width)
        products = [self._products(query, each.leans, each.whole) for each in found]
        return np.concatenate([each.offsets for each in found]), np.concatenate(products)

    def _second(self, query: _Query, places: Rows) -> Floats:
        """The products by the codes of 8 bits."""

        def block(data: memoryview, rows: int) -> tuple[Floats, Whole]:
            return np.frombuffer(data[: 4 * rows], "<f4"), np.frombuffer(data[4 * rows :], np.int8).reshape(rows, -1)

        numbers = np.searchsorted(self._ends, places, side="right")
        blocks = np.unique(numbers)
        loaded = self._loaded(SECOND, blocks, block)
        starts = np.searchsorted(numbers, blocks).tolist()  # places ascend, and so do their blocks
        inside = np.split(places - (self._ends[numbers] - self._sizes[numbers]), starts[1:])
        taken = [(leans[rows], codes[rows]) for (leans, codes), rows in zip(loaded, inside, strict=True)]
        leans, whole = zip(*taken, strict=True)
        return self._products(query, np.concatenate(leans), np.concatenate(whole))

    def _products(self, query: _Query, leans: Floats, whole: Whole) -> Floats:
        """What the distance of each row takes from its dot product with the query."""
        times = np.float32(query.unit if self.head.metric == "dot" else 2 * query.unit)
        return times * leans * dots(query.code[: whole.shape[1]], whole)

    def _measured(self, query: _Query, distances: Floats) -> Distances:
        """Distances of the metric, of what tells rows apart."""
        book, wide = self._codebook, distances.astype(np.float64)
        if book.metric == "dot":
            return wide - float(query.given.astype(np.float64) @ book.center)
        placed = query.placed.astype(np.float64)
        squares = np.maximum(wide + float(placed @ placed), 0)
        measured: Distances = np.sqrt(squares) if book.metric == "l2" else squares / 2
        return measured

    def _answer(self, places: Rows, distances: Distances, best: Rows) -> tuple[Rows, Distances]:
        rows, distances = self._rows[places[best]], distances[best]
        order = np.lexsort((rows, distances))
        return rows[order], distances[order]

    def _loaded(
        self,
        name: str,
        blocks: Rows,
        decode: Callable[[memoryview, int], _Loaded],
        *,
        decoded_bytes: int = 0,
    ) -> list[_Loaded]:
        """The blocks of a file, decoded; those that are not kept are read at once, and verified.

        `decoded_bytes` is what a row takes decoded, beside what was read.
        """
        held = {int(each): self._kept.get((name, int(each))) for each in blocks}
        missing = [each for each, value in held.items() if value is None]
        width = {BLOCKS: row_bytes, SECOND: second_bytes}[name](self.head.quantization, self.head.dimensions)
        ends = [int(self._ends[each]) * width for each in missing]
        checksums = self._table[name.removesuffix(".bin")]
        spans = [
            Span(end - int(self._sizes[each]) * width, end, int(checksums[each]))
            for each, end in zip(missing, ends, strict=True)
        ]
        for each, data in zip(missing, self._parts.read(name, spans) if spans else (), strict=True):
            require_block(data, name, int(checksums[each]), where=self._where)
            value = decode(data, int(self._sizes[each]))
            read = len(data) if self._parts.is_ranged else 0  # others are there anyway
            self._kept.keep((name, each), value, int(self._sizes[each]) * decoded_bytes + read)
            held[each] = value
        return list(held.values())  # type: ignore[arg-type]  # what is kept under a name was made by its own decoder
