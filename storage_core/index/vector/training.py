"""Training of a codebook on a sample, and what calls for a new one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.index.vector.clusters import distances_to, in_a_row, k_means
from storage_core.index.vector.codebook import Codebook, normalized
from storage_core.index.vector.definition import options_of
from storage_core.index.vector.layout import FLAT_BYTES, row_bytes
from storage_core.index.vector.product import train_books
from storage_core.index.vector.segment import indexable
from storage_core.index.vector.whole import whole_of
from storage_core.rows.vectors import Floats, matrix
from storage_core.settings.index import IndexDefinition
from storage_core.settings.vector_options import VectorOptions

SAMPLE_PER_CLUSTER = 64
LEAST_SAMPLE = 4096
ROUNDS = 10

MOST_GROWTH = 2.0
MOST_ERROR = 1.15


def train(
    sample: Floats,
    definition: IndexDefinition,
    seed: int,
    *,
    rows: int | None = None,
    start: Codebook | None = None,
    flat_bytes: int = FLAT_BYTES,
) -> Codebook:
    """Return a codebook for `rows` vectors like those of the sample, by default as many; the same for the same.

    `sample` has rows by dimensions, all of them such as can be indexed (`segment.indexable`), in any order;
    `sample_rows` says how many are wanted. Above `flat_bytes` of codes there are about √rows clusters. With
    `start`, an older codebook of the definition, its rotation stays and its centroids are where the new ones begin.
    Raises `InvalidInput` for a sample that is no matrix of finite numbers, or empty.
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
        seed=seed if start is None else start.seed,
        rows=total,
        error=0.0,
        center=placed.mean(axis=0, dtype=np.float64).astype(np.float32),
        centroids=empty,
        books=np.zeros((0, 256, 4), np.float32),
    )
    placed = fresh.placed(vectors)
    if options.quantization == "product":
        fresh = replace(fresh, books=train_books(placed, words))
    count = clusters_for(total, fresh, flat_bytes)
    if count:
        begin = None if start is None else start.centroids + fresh.turned(start.center - fresh.center)
        found = k_means(placed[: SAMPLE_PER_CLUSTER * count], count, words, rounds=ROUNDS, start=begin)
        fresh = replace(fresh, centroids=in_a_row(found))
    return replace(fresh, error=coding_error(fresh, vectors))


def train_on(vectors: pa.ChunkedArray | pa.Array, definition: IndexDefinition, seed: int) -> Codebook:
    """Return a codebook for a column of vectors, trained on a sample of them; the same for the same rows and seed.

    Of a column without a vector that can be indexed it is one that encodes any.
    """
    metric = options_of(definition).metric
    rows = np.flatnonzero(indexable(vectors, metric))
    drawn = np.argsort(np.random.PCG64(seed).random_raw(len(rows)), kind="stable")[: sample_rows(len(rows))]
    sample = matrix(vectors)[rows[drawn]] if len(rows) else np.zeros((1, vectors.type.list_size), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        book = train(sample, definition, seed, rows=len(rows))
    # Of numbers near the end of 32 bits a mean may be none of them: then rows are not divided into clusters.
    is_sound = bool(np.isfinite(book.centroids).all())
    return replace(
        book,
        centroids=book.centroids if is_sound else book.centroids[:0],
        books=np.nan_to_num(book.books),
        error=float(np.nan_to_num(book.error)),
    )


def sample_rows(rows: int) -> int:
    """Return how many of so many rows a codebook is trained on."""
    return min(rows, max(LEAST_SAMPLE, SAMPLE_PER_CLUSTER * round(math.sqrt(rows))))


def clusters_for(rows: int, codebook: Codebook, flat_bytes: int = FLAT_BYTES) -> int:
    """Return into how many clusters so many rows are divided; 0 where their codes are few enough to read all."""
    is_flat = rows * row_bytes(codebook.quantization, codebook.dimensions) <= flat_bytes
    return 0 if is_flat else round(math.sqrt(rows))


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


def imbalance(sizes: Sequence[int]) -> float:
    """Return how many times as many rows the largest cluster has as the smallest that has any; 1 without clusters."""
    filled = [each for each in sizes if each]
    return max(filled) / min(filled) if filled else 1.0


def why_train_again(
    codebook: Codebook,
    options: VectorOptions,
    *,
    rows: int,
    sizes: Sequence[int] = (),
    error: float | None = None,
    recall: float | None = None,
) -> tuple[str, ...]:
    """Return why the index should get a new codebook, in words; nothing where it should not.

    `rows` are those indexed now, `sizes` those of each cluster over all segments, `error` what `coding_error` says of
    rows of today, `recall` the last one measured.
    """
    found = []
    uneven = imbalance(sizes)
    if len(sizes) > 1 and uneven > options.retrain_imbalance_threshold:
        most = options.retrain_imbalance_threshold
        found.append(f"the largest cluster has {uneven:.0f} times the rows of the smallest, {most:g} are the most")
    if rows > MOST_GROWTH * max(1, codebook.rows) and (len(codebook.centroids) or clusters_for(rows, codebook)):
        found.append(f"{rows} rows, more than {MOST_GROWTH:g} times the {codebook.rows} that it was trained for")
    if error is not None and error > MOST_ERROR * codebook.error and codebook.error > 0:
        found.append(
            f"the error of the codes is {error:.4g}, more than {MOST_ERROR:g} times the sample's {codebook.error:.4g}"
        )
    if recall is not None and recall < options.recall_floor:
        found.append(f"the measured recall is {recall:.3f}, below the floor of {options.recall_floor:g}")
    return tuple(found)


def _checked(sample: Floats) -> Floats:
    vectors = np.ascontiguousarray(sample, np.float32)
    if vectors.ndim != 2 or not len(vectors) or not np.isfinite(vectors).all():
        raise InvalidInput(
            f"a codebook is trained on rows of finite numbers, found an array of the shape {vectors.shape}; "
            "give at least one vector, none with NaN"
        )
    return vectors
