"""Training of a codebook on a sample."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.index.vector.clusters import distances_to, divided, in_a_row, k_means
from storage_core.index.vector.codebook import Codebook, normalized, rounded
from storage_core.index.vector.codes import BOOK_ENTRIES, PER_BYTE
from storage_core.index.vector.definition import options_of
from storage_core.index.vector.layout import FLAT_BYTES, clusters_for
from storage_core.index.vector.product import train_books
from storage_core.index.vector.segment import indexable
from storage_core.index.vector.whole import whole_of
from storage_core.rows.vectors import Floats, matrix
from storage_core.settings.index import IndexDefinition

SAMPLE_PER_CLUSTER = 21
LEAST_SAMPLE = 4096
ROUNDS = 10

_FAR = 8


def train(
    sample: Floats,
    definition: IndexDefinition,
    seed: int,
    *,
    rows: int | None = None,
    flat_bytes: int = FLAT_BYTES,
    start: Codebook | None = None,
) -> Codebook:
    """Return a codebook for `rows` vectors like those of the sample, by default as many; the same for the same.

    `sample` has rows by dimensions, all of them such as can be indexed (`segment.indexable`), in any order;
    `sample_rows` says how many are wanted. Centroids begin as those of `start`, a codebook of this definition. Above
    `flat_bytes` of codes there are about 3 √rows clusters, more where some are far larger than others. Raises
    `InvalidInput` for a sample that is no matrix of finite numbers, or empty.
    """
    options, vectors = options_of(definition), _checked(sample)
    total = len(vectors) if rows is None else rows
    words = np.random.PCG64(seed)
    placed = normalized(vectors) if options.metric == "cosine" else vectors
    empty = np.zeros((0, vectors.shape[1]), np.float32)
    fresh = Codebook(
        dimensions=vectors.shape[1],
        metric=options.metric,
        quantization=options.quantization,
        seed=seed,
        rows=total,
        error=0.0,
        center=_center(placed),
        centroids=empty,
        books=np.zeros((0, BOOK_ENTRIES, PER_BYTE), np.float32),
    )
    placed = fresh.placed(vectors)
    if options.quantization == "product":
        fresh = replace(fresh, books=train_books(placed, words))
    count = clusters_for(fresh.quantization, fresh.dimensions, total, flat_bytes)
    if count:
        begin = None if start is None else start.centroids + fresh.turned(start.center - fresh.center)
        drawn = placed[: SAMPLE_PER_CLUSTER * count]
        found = divided(drawn, k_means(drawn, count, words, rounds=ROUNDS, start=begin), words)
        # Of numbers near the end of 32 bits a mean may be none of them: then rows are not divided into clusters.
        fresh = replace(fresh, centroids=rounded(in_a_row(found)) if np.isfinite(found).all() else empty)
    return replace(fresh, error=coding_error(fresh, vectors))


def train_on(
    vectors: pa.ChunkedArray | pa.Array, definition: IndexDefinition, seed: int, *, start: Codebook | None = None
) -> Codebook:
    """Return a codebook for a column of vectors, trained on a sample of them; the same for the same rows and seed.

    With `start` it goes on from that codebook, by another sample. Of a column without a vector that can be indexed it
    is one that encodes any.
    """
    metric = options_of(definition).metric
    rows = np.flatnonzero(indexable(vectors, metric))
    words = np.random.PCG64(seed if start is None else (seed, start.rows))
    drawn = np.argsort(words.random_raw(len(rows)), kind="stable")[: sample_rows(len(rows))]
    sample = matrix(vectors)[rows[drawn]] if len(rows) else np.zeros((1, vectors.type.list_size), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        book = train(sample, definition, seed, rows=len(rows), start=start)
    return replace(book, books=np.nan_to_num(book.books), error=float(np.nan_to_num(book.error)))


def sample_rows(rows: int) -> int:
    """Return how many of so many rows a codebook is trained on."""
    return min(rows, max(LEAST_SAMPLE, SAMPLE_PER_CLUSTER * round(3 * math.sqrt(rows))))


def coding_error(codebook: Codebook, vectors: Floats) -> float:
    """Return the mean squared distance of the vectors from what their codes say; under `none` from their centroids."""
    placed = codebook.placed(vectors)
    if not len(placed):
        return 0.0
    if codebook.quantization == "none":
        away = distances_to(placed, codebook.centroids) if len(codebook.centroids) else np.zeros(1, np.float32)
        return float(away.mean(dtype=np.float64))
    whole = whole_of(codebook, placed)[1][:, : codebook.dimensions].astype(np.float32)
    squares, lengths = (np.einsum("ij,ij->i", each, each) for each in (placed, whole))
    products = np.einsum("ij,ij->i", placed, whole)
    kept = np.square(products.astype(np.float64)) / np.where(lengths > 0, lengths, 1)
    return float(np.nan_to_num(np.maximum(squares - kept, 0).mean(dtype=np.float64)))


def _center(vectors: Floats) -> Floats:
    """The mean of vectors but for those that are far longer than most: one such would lie far from all others."""
    lengths = np.abs(vectors).max(axis=1)
    usual = vectors[lengths <= _FAR * np.median(lengths)]
    center: Floats = usual.mean(axis=0, dtype=np.float64).astype(np.float32)
    return center


def _checked(sample: Floats) -> Floats:
    vectors = np.ascontiguousarray(sample, np.float32)
    if vectors.ndim != 2 or not len(vectors) or not np.isfinite(vectors).all():
        raise InvalidInput(
            f"a codebook is trained on rows of finite numbers, found an array of the shape {vectors.shape}; "
            "give at least one vector, none with NaN"
        )
    return vectors
