"""A random rotation of vectors, the same for a seed on every machine and for ever.

It spreads what a vector has in few dimensions over all of them, so that one scale fits all dimensions and codes of a
few bits lose little. Up to `_BLOCK` dimensions it is one random orthogonal matrix. Above that, twice: the dimensions in
a random order, cut into blocks, each turned by a matrix of its own; a number then depends on every dimension, and a
vector costs `d · 2 · block` steps instead of d².
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_core.rows.vectors import Floats

_BLOCK = 256
_PART = 128


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """The dimensions in another order, then blocks of them turned by a matrix each."""

    order: npt.NDArray[np.int64]
    matrices: tuple[Floats, ...]

    def __call__(self, vectors: Floats) -> Floats:
        """Return the vectors turned."""
        given, found, at = np.take(vectors, self.order, axis=1), np.empty(vectors.shape, np.float32), 0
        for matrix in self.matrices:
            end = at + len(matrix)
            np.matmul(given[:, at:end], matrix, out=found[:, at:end])
            at = end
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Turns vectors of one size; lengths and angles stay as they are."""

    turns: tuple[Turn, ...]

    def __call__(self, vectors: Floats) -> Floats:
        """Return the vectors, rows by dimensions, rotated."""
        for turn in self.turns:
            vectors = turn(vectors)
        return vectors


@functools.lru_cache(maxsize=8)
def rotation(dimensions: int, seed: int) -> Rotation:
    """Return the rotation of a seed. Time grows with the dimensions times 128², memory with them times 256."""
    # The words of this generator are the same in every release of numpy, unlike what numpy makes of them.
    words = np.random.PCG64(seed)
    small = dimensions <= _BLOCK
    parts = np.array_split(np.arange(dimensions), 1 if small else -(-dimensions // _PART))
    turns = []
    for _ in range(1 if small else 2):
        order = np.argsort(words.random_raw(dimensions), kind="stable")
        turns.append(Turn(order, tuple(_orthogonal(words, len(part)) for part in parts)))
    return Rotation(tuple(turns))


def _orthogonal(words: np.random.PCG64, size: int) -> Floats:
    """A random orthogonal matrix. Of the QR decompositions of a matrix one has no negative number in R's diagonal."""
    q, r = np.linalg.qr(_normal(words, size * size).reshape(size, size))
    return (q * np.where(np.diagonal(r) < 0, -1.0, 1.0)).astype(np.float32)


def _normal(words: np.random.PCG64, count: int) -> npt.NDArray[np.float64]:
    """Numbers of a normal distribution, by the transform of Box and Muller."""
    unit = ((words.random_raw(2 * count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.sqrt(-2.0 * np.log(unit[:count])) * np.cos(2.0 * np.pi * unit[count:])
