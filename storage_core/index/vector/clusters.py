"""Clusters of vectors: k-means as Lloyd has it, in products of matrices.

That is all that libraries do here: on a sample of 21 vectors a cluster their centroids give the same recall, and none
of them is worth its megabytes (faiss, scikit-learn) for what are thirty lines over numpy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.rows.vectors import Floats

Numbers = npt.NDArray[np.int64]

_VALUES_AT_ONCE = 2**22

_LARGE = 3
_ROUNDS_OF_PARTS = 5


def k_means(vectors: Floats, count: int, words: np.random.PCG64, *, rounds: int, start: Floats | None = None) -> Floats:
    """Return `count` centroids, or one per vector where these are fewer.

    They begin as vectors drawn from the sample, or as those of `start`, as far as there are. A cluster that loses all
    of its vectors takes the one that is farthest from its own centroid.
    """
    count = min(count, len(vectors))
    if not count:
        return np.zeros((0, vectors.shape[1]), np.float32)
    drawn = np.argsort(words.random_raw(len(vectors)), kind="stable")[:count]
    centroids = vectors[drawn].copy()
    if start is not None and len(start):
        taken = np.linspace(0, len(start) - 1, min(count, len(start))).round().astype(np.int64)
        centroids[: len(taken)] = start[taken]
    for _ in range(rounds):
        numbers, distances = _assigned(vectors, centroids)
        sums, sizes = _sums(vectors, numbers, count)
        empty = np.flatnonzero(sizes == 0)
        filled = sizes > 0
        moved = centroids.copy()
        moved[filled] = sums[filled] / sizes[filled, None]
        moved[empty] = vectors[np.argsort(-distances, kind="stable")[: len(empty)]]
        if np.array_equal(moved, centroids):
            break
        centroids = moved
    return centroids


def divided(vectors: Floats, centroids: Floats, words: np.random.PCG64) -> Floats:
    """Return the centroids, in the place of one with more than `_LARGE` times the mean those of parts of its cluster.

    Such clusters gather what lies between others. They are near to most queries, and hold few of the nearest.
    """
    numbers = nearest(vectors, centroids)
    sizes, mean = np.bincount(numbers, minlength=len(centroids)), len(vectors) / max(1, len(centroids))
    found = [centroids[sizes <= _LARGE * mean]]
    for number in np.flatnonzero(sizes > _LARGE * mean):
        parts = k_means(vectors[numbers == number], int(sizes[number] // mean), words, rounds=_ROUNDS_OF_PARTS)
        found.append(np.unique(parts, axis=0))
    return np.concatenate(found)


def nearest(vectors: Floats, centroids: Floats) -> Numbers:
    """Return the number of the nearest centroid of each vector; of several as near the first."""
    return _assigned(vectors, centroids)[0]


def distances_to(vectors: Floats, centroids: Floats) -> Floats:
    """Return the squared distance of each vector from its nearest centroid."""
    return _assigned(vectors, centroids)[1]


def in_a_row(centroids: Floats) -> Floats:
    """Return the centroids so that neighbours in space are mostly neighbours in order: from each on to the nearest.

    Clusters that a search looks into then lie in few pieces. Time: the square of their number.
    """
    if len(centroids) <= 2:
        return centroids
    squares = np.einsum("ij,ij->i", centroids, centroids)
    left = np.ones(len(centroids), np.bool_)
    at, order = int(np.argmax(squares)), []
    for _ in range(len(centroids)):
        order.append(at)
        left[at] = False
        away = np.where(left, squares - 2 * (centroids @ centroids[at]), np.inf)
        at = int(np.argmin(away))
    ordered: Floats = centroids[np.array(order)]
    return ordered


def _assigned(vectors: Floats, centroids: Floats) -> tuple[Numbers, Floats]:
    squares = np.einsum("ij,ij->i", centroids, centroids)
    numbers, distances = np.zeros(len(vectors), np.int64), np.zeros(len(vectors), np.float32)
    step = max(1, _VALUES_AT_ONCE // max(1, len(centroids)))
    turned = np.ascontiguousarray(centroids.T)
    for at in range(0, len(vectors), step):
        part = vectors[at : at + step]
        away = part @ turned
        away *= -2
        away += squares
        found = away.argmin(axis=1)
        numbers[at : at + step] = found
        own = np.take_along_axis(away, found[:, None], axis=1)[:, 0]
        distances[at : at + step] = np.maximum(own + np.einsum("ij,ij->i", part, part), 0)
    return numbers, distances


def _sums(vectors: Floats, numbers: Numbers, count: int) -> tuple[Floats, Numbers]:
    """The sum of the vectors of each cluster, and their number. By sorting: `np.add.at` takes ten times as long."""
    order = np.argsort(numbers, kind="stable")
    sizes = np.bincount(numbers, minlength=count)
    sums = np.zeros((count, vectors.shape[1]), np.float32)
    filled = np.flatnonzero(sizes)
    starts = (np.cumsum(sizes) - sizes)[filled]
    sums[filled] = np.add.reduceat(vectors[order], starts, axis=0)
    return sums, sizes
