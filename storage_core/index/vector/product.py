"""Product quantization: per few dimensions the number of the nearest of 256 trained vectors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.index.vector.clusters import k_means, nearest
from storage_core.index.vector.codes import BOOK_ENTRIES, GREATEST, PER_BYTE, Bytes, Whole, padded_size
from storage_core.rows.vectors import Floats

_ROUNDS = 8
_SAMPLE = 16 * BOOK_ENTRIES


def train_books(rotated: Floats, words: np.random.PCG64) -> Floats:
    """Return the trained vectors: one book per 4 dimensions, its entries, their numbers."""
    sample = _padded(rotated[:_SAMPLE])
    books = np.zeros((sample.shape[1] // PER_BYTE, BOOK_ENTRIES, PER_BYTE), np.float32)
    for number, book in enumerate(books):
        part = np.ascontiguousarray(sample[:, number * PER_BYTE : (number + 1) * PER_BYTE])
        found = k_means(part, BOOK_ENTRIES, words, rounds=_ROUNDS)
        book[: len(found)] = found
        book[len(found) :] = found[0] if len(found) else 0
    return books


def to_product(rotated: Floats, books: Floats) -> Bytes:
    """Return the code of each row: the number of the nearest entry of each book."""
    padded = _padded(rotated)
    codes = np.empty((len(rotated), len(books)), np.uint8)
    for number, book in enumerate(books):
        codes[:, number] = nearest(padded[:, number * PER_BYTE : (number + 1) * PER_BYTE], book)
    return codes


def from_product(codes: Bytes, books: Floats) -> Whole:
    """Return the entries as whole numbers: those of all books at one scale, at which the greatest is 127."""
    greatest = float(np.abs(books).max(initial=0.0)) or 1.0
    entries = np.rint(books * (GREATEST / greatest)).astype(np.int8).view(np.uint32).reshape(len(books), -1)
    places: npt.NDArray[np.int64] = codes + np.arange(len(books)) * entries.shape[1]
    return np.take(entries.ravel(), places).view(np.int8)


def _padded(rotated: Floats) -> Floats:
    rows, dimensions = rotated.shape
    if dimensions == padded_size(dimensions):
        return rotated
    padded = np.zeros((rows, padded_size(dimensions)), np.float32)
    padded[:, :dimensions] = rotated
    return padded
