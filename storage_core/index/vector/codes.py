"""Codes: rotated vectors as small integers, with what makes distances of them.

A code of a vector z stands for a vector v of whole numbers from -127 to 127, so that a dot product with a query is one
of bytes. `lean` is |z|² / <v, z>: then lean · <v, q> is <z, q>, on average over rotations and exactly for q = z.

| Quantization | Bytes of a code | v |
|---|---|---|
| rotated | d / 4 | per dimension one of four levels, those that lose least of a normal distribution |
| rotated, second look; scalar | d | z at the scale at which its greatest number is 127 |
| product | d / 4 | per 4 dimensions the nearest of 256 trained vectors |
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from storage_core.rows.vectors import Floats

Bytes: TypeAlias = npt.NDArray[np.uint8]
Whole: TypeAlias = npt.NDArray[np.int8]

GREATEST = 127
PER_BYTE = 4
"""Dimensions in a byte of a coarse code."""

BOOK_ENTRIES = 256
"""Vectors of a book, of which a byte names one."""

ALIKE_ROWS = 10_000
"""So many candidates there may be where many rows have the same vector."""

# Max, "Quantizing for minimum distortion" (1960): for a normal distribution of deviation 1, four levels at ±0.4528 and
# ±1.510, the thresholds between them at 0 and ±0.9816. 3 and 10 have the same proportion.
_THRESHOLD = 0.9816
_LEVELS = np.array([-10, -3, 3, 10], np.int8)
_UNPACKED = _LEVELS[(np.arange(256)[:, None] >> np.array([0, 2, 4, 6])) & 3].astype(np.int8).view(np.uint32).ravel()


def coarse(vectors: Floats) -> Bytes:
    """Return 2 bits per dimension, four dimensions to a byte, the first in its lowest bits."""
    rows, dimensions = vectors.shape
    limit = _THRESHOLD * np.sqrt(np.einsum("ij,ij->i", vectors, vectors) / dimensions)[:, None]
    padded = np.zeros((rows, padded_size(dimensions)), np.uint8)
    levels = padded[:, :dimensions]
    for least in (-limit, np.float32(0), limit):
        levels += vectors >= least
    grouped = padded.reshape(rows, -1, PER_BYTE)
    packed = grouped[:, :, 0].copy()
    for number in (1, 2, 3):
        packed |= grouped[:, :, number] << np.uint8(2 * number)
    return packed


def from_coarse(codes: Bytes) -> Whole:
    """Return the whole numbers of coarse codes, `padded_size` of them a row; those behind the dimensions are any."""
    whole: Whole = np.take(_UNPACKED, codes).view(np.int8)
    return whole


def fine(vectors: Floats) -> Whole:
    """Return 8 bits per dimension; a vector of zeros has zeros."""
    greatest = np.abs(vectors).max(axis=1, initial=0.0)[:, None]
    return np.rint(vectors / np.where(greatest > 0, greatest, 1) * GREATEST).astype(np.int8)


def padded_size(dimensions: int) -> int:
    """Return the whole numbers that a coarse code of so many dimensions has."""
    return -(-dimensions // PER_BYTE) * PER_BYTE


def lean(vectors: Floats, whole: Whole) -> Floats:
    """Return |z|² / <v, z> per row; 0 where v says nothing of z."""
    products = np.einsum("ij,ij->i", whole[:, : vectors.shape[1]].astype(np.float32), vectors)
    squares = np.einsum("ij,ij->i", vectors, vectors)
    return np.where(products > 0, squares / np.where(products > 0, products, 1), 0).astype(np.float32)


def query_code(query: Floats, size: int) -> tuple[Whole, float]:
    """Return a rotated query as bytes, padded to `size`, and the number that a unit of them stands for."""
    greatest = float(np.abs(query).max(initial=0.0)) or 1.0
    whole = np.zeros(size, np.int8)
    whole[: len(query)] = np.rint(query / np.float32(greatest) * GREATEST)
    return whole, greatest / GREATEST


def dots(query: Whole, whole: Whole) -> Floats:
    """Return the dot product of the query with each row."""
    import simsimd  # numpy has no kernel for bytes; with floats it takes three times as long, and four times the room

    if not len(whole):
        return np.zeros(0, np.float32)
    return np.asarray(simsimd.cdist(query[None, :], whole, metric="dot"), np.float32).reshape(-1)


def apart(offsets: Floats, products: Floats) -> Floats:
    """Return what tells rows apart. Where 32 bits do not hold it, a row is among the nearest; its vector decides."""
    found: Floats = offsets - products
    if not np.isfinite(found.sum(dtype=np.float64)):  # as some number in it
        found = np.nan_to_num(found, nan=-float(np.finfo(np.float32).max))
    return found


def farthest(values: npt.NDArray[np.floating], most: int) -> float:
    """Return the greatest of the `most` smallest values; infinity where there are no more."""
    return float(np.partition(values, most - 1)[most - 1]) if len(values) > most else np.inf


def farthest_candidate(distances: npt.NDArray[np.floating], most: int) -> float:
    """Return how far, by their codes, the nearest `most` rows are, of equal ones counted once.

    Rows with the same vector have the same code. Where such rows fill the first places, what is nearest may be behind
    them, for codes err: if fewer than half of `most` are different, up to `ALIKE_ROWS` rows are looked at.
    """
    last = farthest(distances, most)
    if len(distances) <= most or 2 * len(np.unique(distances[distances <= last])) >= most:
        return last
    different = np.unique(distances[distances <= farthest(distances, max(most, ALIKE_ROWS))])
    return float(different[:most][-1])


def best_of(values: npt.NDArray[np.floating], most: int) -> npt.NDArray[np.int64]:
    """Return the places of the `most` smallest values, and of all that are as small as the greatest of these."""
    return np.arange(len(values)) if len(values) <= most else np.flatnonzero(values <= farthest(values, most))


def candidates_of(distances: npt.NDArray[np.floating], most: int) -> npt.NDArray[np.int64]:
    """Return the places of the nearest `most` rows by their codes: see `farthest_candidate`."""
    if len(distances) <= most:
        return np.arange(len(distances))
    return np.flatnonzero(distances <= farthest_candidate(distances, most))
