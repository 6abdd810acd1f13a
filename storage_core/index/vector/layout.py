"""How a segment of vectors is laid out in its files; see docs/spec.md, section 13.2.

Rows are ordered by cluster, and by their number in it; blocks of them are what is read and verified by itself.

| File | Content |
|---|---|
| `head.json` | what the segment is: `Head` |
| `clusters.bin` | a record per block: `BLOCK` |
| `row_numbers.bin` | the number of each row in the split, unsigned 32 bit |
| `codebook.bin` | what made the codes: `Codebook` |
| `blocks.bin` | per block its rows' offsets and leans (32-bit floats), then their codes; under `none` their vectors |
| `second.bin` | of `rotated` only: per block its rows' leans (32-bit floats), then 8 bits per dimension |

A flat segment has blocks of `BLOCK_ROWS` rows of cluster 0. Everything is little endian.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, assert_never, get_args

import numpy as np
import numpy.typing as npt

from storage_core.errors import Corrupt, Unsupported
from storage_core.foreign_text import shortened
from storage_core.index.damage import damaged
from storage_core.index.vector.codes import BOOK_ENTRIES, PER_BYTE, padded_size
from storage_core.rows.vectors import MOST_DIMENSIONS
from storage_core.settings.vector_options import Metric, Quantization

HEAD, CLUSTERS, ROWS, CODEBOOK = "head.json", "clusters.bin", "row_numbers.bin", "codebook.bin"
BLOCKS, SECOND = "blocks.bin", "second.bin"
FORMAT = 1

FLAT_BYTES = 16 * 2**20
"""Codes up to so many bytes are read whole: that takes a search milliseconds, and one request."""

BLOCK_ROWS = 8192

BLOCK = np.dtype([("cluster", "<u4"), ("rows", "<u4"), ("blocks", "<u8"), ("second", "<u8")])
"""A block: its cluster, its rows, and the xxh3-64 of what it has in `blocks.bin` and in `second.bin` (0 without)."""

Table = npt.NDArray[np.void]
_FLOAT = 4
_HEADERS_BYTES = 1024  # of the bundle, of `head.json` and of the codebook


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """`rows` of the split's `of` rows are in the segment; `codebook` is the identity of the one that made the codes.

    `clusters` are those of the codebook, 0 for a flat segment.
    """

    rows: int
    of: int
    dimensions: int
    metric: Metric
    quantization: Quantization
    codebook: str
    clusters: int
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """Return the content of `head.json`."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes | memoryview, *, where: str) -> Head:
        """Return what `to_bytes` wrote. Raises `Corrupt` naming `where`, `Unsupported` for a newer format."""
        try:
            found: Mapping[str, Any] = json.loads(bytes(data))
            if found["format"] != FORMAT:
                raise Unsupported(
                    f"{where}: format {found['format']!r} of a vector segment, this release reads {FORMAT}; upgrade",
                    key=where,
                )
            head = Head(**found)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise not_a_segment(where, f"{HEAD}: {type(error).__name__}: {error}") from error
        if not head.is_sound:
            raise not_a_segment(where, f"{HEAD}: {found}")
        return head

    @property
    def is_sound(self) -> bool:
        """Whether each field is what it can be."""
        numbers = (self.rows, self.of, self.dimensions, self.clusters)
        if not all(type(each) is int and 0 <= each < 2**32 for each in numbers):
            return False
        sized = self.rows <= self.of and 1 <= self.dimensions <= MOST_DIMENSIONS
        known = self.metric in get_args(Metric) and self.quantization in get_args(Quantization)
        return sized and known and isinstance(self.codebook, str)


def files_of(quantization: Quantization) -> tuple[str, ...]:
    """Return the names of the files of a segment, in the order in which they are packed."""
    opening = (HEAD, CLUSTERS, ROWS, CODEBOOK)  # beside the directory, for both are fetched at once
    return (BLOCKS, SECOND, *opening) if quantization == "rotated" else (BLOCKS, *opening)


def code_bytes(quantization: Quantization, dimensions: int) -> int:
    """Return the bytes of a code; under `none` of a vector."""
    match quantization:
        case "rotated" | "product":
            return padded_size(dimensions) // PER_BYTE
        case "scalar":
            return dimensions
        case "none":
            return _FLOAT * dimensions
        case _:
            assert_never(quantization)


def decoded_size(quantization: Quantization, dimensions: int) -> int:
    """Return the whole numbers that a code stands for; none under `none`."""
    sizes = {"scalar": dimensions, "none": 0}
    return sizes.get(quantization, padded_size(dimensions))


def row_bytes(quantization: Quantization, dimensions: int) -> int:
    """Return what a row takes in `blocks.bin`."""
    return code_bytes(quantization, dimensions) + (0 if quantization == "none" else 2 * _FLOAT)


def second_bytes(quantization: Quantization, dimensions: int) -> int:
    """Return what a row takes in `second.bin`."""
    return _FLOAT + dimensions if quantization == "rotated" else 0


def clusters_for(quantization: Quantization, dimensions: int, rows: int, flat_bytes: int) -> int:
    """Return into how many clusters so many rows are divided; 0 where their codes take at most `flat_bytes`."""
    return 0 if rows * row_bytes(quantization, dimensions) <= flat_bytes else round(3 * math.sqrt(rows))


def opening_bytes(quantization: Quantization, dimensions: int, rows: int, clusters: int | None = None) -> int:
    """Return how long the files behind the blocks are together, at most, as `build` makes them of so many rows.

    `clusters` as far as they are known.
    """
    if clusters is None:
        clusters = clusters_for(quantization, dimensions, rows, FLAT_BYTES)
    books = padded_size(dimensions) * BOOK_ENTRIES if quantization == "product" else 0
    codebook = _FLOAT * (dimensions + books) + clusters * (_FLOAT + dimensions)
    return _HEADERS_BYTES + BLOCK.itemsize * (1 + clusters + rows // BLOCK_ROWS) + 4 * rows + codebook


def table_of(data: bytes | memoryview, head: Head, *, where: str) -> Table:
    """Return the records of `clusters.bin`, found to be of a segment with this head. Raises `Corrupt`."""
    if len(data) % BLOCK.itemsize:
        raise not_a_segment(where, f"{CLUSTERS} has {len(data)} bytes, no multiple of {BLOCK.itemsize}")
    table = np.frombuffer(data, BLOCK)
    rows, clusters = table["rows"].astype(np.int64), table["cluster"].astype(np.int64)
    sound = int(rows.sum()) == head.rows and bool((rows > 0).all()) and bool((rows <= BLOCK_ROWS).all())
    if not sound or (np.diff(clusters) < 0).any() or (clusters >= max(1, head.clusters)).any():
        raise not_a_segment(
            where, f"the blocks of {CLUSTERS} are not those of {head.rows} rows in {head.clusters} clusters"
        )
    return table


def expected_bytes(head: Head, name: str) -> int | None:
    """Return the length of a file of a segment with this head; None where the head does not say."""
    match name:
        case "row_numbers.bin":
            return 4 * head.rows
        case "blocks.bin":
            return head.rows * row_bytes(head.quantization, head.dimensions)
        case "second.bin":
            return head.rows * second_bytes(head.quantization, head.dimensions)
        case _:
            return None


def not_a_segment(where: str, what: str) -> Corrupt:
    """Return the error for what cannot be the files of a segment of vectors."""
    return damaged(where, f"not the files of a vector segment: {shortened(what)}")
