"""The layout of the files of a vector segment (docs/spec.md, section 13.2).

Rows are ordered by cluster, and by row number within a cluster. The rows are divided into blocks. Each block is read
and verified separately.

| File | Content |
|---|---|
| `head.json` | the properties of the segment: `Head` |
| `clusters.bin` | one record per block (`BLOCK`) |
| `row_numbers.bin` | for each row of the segment, the row number in the split, unsigned 32 bit |
| `codebook.bin` | the codebook with which the codes were computed (`Codebook`) |
| `blocks.bin` | for each block, the offsets and norm corrections of its rows, then the codes of its rows |
| `second.bin` | only for `rotated`. Per block: norm corrections of all rows, then their codes of 8 bits per dimension |

Offsets and norm corrections are 32-bit floats. With the quantization `none`, `blocks.bin` contains only the embeddings.
A segment without clusters has blocks of `BLOCK_ROWS` rows, all in cluster 0. All numbers are little endian.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias, assert_never, cast, get_args

import numpy as np
import numpy.typing as npt
import xxhash

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.base.text import shortened
from storage_core.data.rows.vectors import MOST_DIMENSIONS, Floats
from storage_core.data.settings.index import Metric, Quantization
from storage_core.index.damage import damaged
from storage_core.log.actions import IndexSegment

# Codes.
#
# A code represents a rotated vector z as a vector v of integers from -127 to 127. A dot product with a query is then a
# dot product of bytes. The norm correction of a row (`norm_corrections` in the code) is |z|² / <v, z>. The norm
# correction multiplied by the dot product <v, q> is an estimate of <z, q>, where q is the query. The average of the
# estimate over random rotations is correct. If q = z, the estimate of <z, q> is exact.
#
# | Quantization | Bytes of a code | v |
# |---|---|---|
# | rotated, first step | d / 4 | for each dimension, one of four levels with the least loss for a normal distribution |
# | rotated, second step, and scalar | d | z scaled so that its greatest number is 127 |
# | product | d / 4 | for each 4 dimensions, the nearest of 256 trained vectors |


Bytes: TypeAlias = npt.NDArray[np.uint8]
Whole: TypeAlias = npt.NDArray[np.int8]

GREATEST = 127
PER_BYTE = 4
"""The number of dimensions that one byte of a coarse code represents."""

BOOK_ENTRIES = 256
"""The number of trained vectors in one book of a `product` codebook. One byte of a code is the number of a vector in
its book.
"""

ALIKE_ROWS = 10_000
"""The maximum number of candidates of a search if many rows share the same embedding."""

# Max, "Quantizing for minimum distortion" (1960). For a normal distribution with deviation 1, the four levels are
# ±0.4528 and ±1.510. The thresholds between these levels are 0 and ±0.9816. The integer levels 3 and 10 have nearly the
# same ratio as the levels 0.4528 and 1.510.
_THRESHOLD = 0.9816
_LEVELS = np.array([-10, -3, 3, 10], np.int8)
_UNPACKED = _LEVELS[(np.arange(256)[:, None] >> np.array([0, 2, 4, 6])) & 3].astype(np.int8).view(np.uint32).ravel()


def coarse(vectors: Floats) -> Bytes:
    """Return codes of 2 bits per dimension.

    Each byte contains four dimensions. The first dimension is in the lowest bits.
    """
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
    """Return the integers of coarse codes, `padded_size` per row.

    The numbers after the last dimension are undefined.
    """
    whole: Whole = np.take(_UNPACKED, codes).view(np.int8)
    return whole


def encode_int8(vectors: Floats) -> Whole:
    """Return codes of 8 bits per dimension. A vector of zeros has a code of zeros."""
    greatest = np.abs(vectors).max(axis=1, initial=0.0)[:, None]
    return np.rint(vectors / np.where(greatest > 0, greatest, 1) * GREATEST).astype(np.int8)


def padded_size(dimensions: int) -> int:
    """Return the number of integers in a coarse code with this number of dimensions."""
    return -(-dimensions // PER_BYTE) * PER_BYTE


def norm_corrections(vectors: Floats, whole: Whole) -> Floats:
    """Return the norm correction |z|² / <v, z> per row, or 0 if v contains no information about z."""
    products = np.einsum("ij,ij->i", whole[:, : vectors.shape[1]].astype(np.float32), vectors)
    squares = np.einsum("ij,ij->i", vectors, vectors)
    return np.where(products > 0, squares / np.where(products > 0, products, 1), 0).astype(np.float32)


def query_code(query: Floats, size: int) -> tuple[Whole, float]:
    """Return a rotated query as bytes, padded to `size`.

    Also return the scale by which these bytes must be multiplied.
    """
    greatest = float(np.abs(query).max(initial=0.0)) or 1.0
    whole = np.zeros(size, np.int8)
    whole[: len(query)] = np.rint(query / np.float32(greatest) * GREATEST)
    return whole, greatest / GREATEST


def dot_products(query: Whole, whole: Whole) -> Floats:
    """Return the dot product of the query with each row."""
    import simsimd  # numpy has no dot product of bytes. Floats would take 3 times as long and 4 times the memory

    if not len(whole):
        return np.zeros(0, np.float32)
    return np.asarray(simsimd.cdist(query[None, :], whole, metric="dot"), np.float32).reshape(-1)


def ranking_keys(offsets: Floats, products: Floats) -> Floats:
    """Return the values that determine the ranking of rows by codes.

    If a value does not fit into 32 bits, the row is treated as one of the nearest rows. The exact embedding of the row
    then determines its rank.
    """
    found: Floats = offsets - products
    if not np.isfinite(found.sum(dtype=np.float64)):  # the sum is not finite if a number is not finite
        found = np.nan_to_num(found, nan=-float(np.finfo(np.float32).max))
    return found


def farthest(values: npt.NDArray[np.floating], most: int) -> float:
    """Return the largest of the first `most` values in ascending order. Return infinity if there are not more than
    `most` values.
    """
    return float(np.partition(values, most - 1)[most - 1]) if len(values) > most else np.inf


def farthest_candidate(distances: npt.NDArray[np.floating], most: int) -> float:
    """Return the distance up to which rows are candidates for the `most` nearest. Distances are computed from codes.

    Rows with the same embedding have the same code, and can occupy all of the first positions. Because codes are
    inexact, the true nearest row may come after these rows. If more than half of the `most` nearest distances are
    duplicates, the function counts equal distances only once. The search then considers up to `ALIKE_ROWS` rows.
    """
    last = farthest(distances, most)
    if len(distances) <= most or 2 * len(np.unique(distances[distances <= last])) >= most:
        return last
    different = np.unique(distances[distances <= farthest(distances, max(most, ALIKE_ROWS))])
    return float(different[:most][-1])


def best_of(values: npt.NDArray[np.floating], most: int) -> npt.NDArray[np.int64]:
    """Return the positions of the `most` smallest values. Values equal to the largest of these values are included."""
    return np.arange(len(values)) if len(values) <= most else np.flatnonzero(values <= farthest(values, most))


def candidates_of(distances: npt.NDArray[np.floating], most: int) -> npt.NDArray[np.int64]:
    """Return the positions of the rows that may be among the nearest `most` rows (see `farthest_candidate`)."""
    if len(distances) <= most:
        return np.arange(len(distances))
    return np.flatnonzero(distances <= farthest_candidate(distances, most))


HEAD, CLUSTERS, ROWS, CODEBOOK = "head.json", "clusters.bin", "row_numbers.bin", "codebook.bin"
BLOCKS, SECOND = "blocks.bin", "second.bin"
FORMAT = 1

FLAT_BYTES = 16 * 2**20
"""The maximum size in bytes of the codes of a segment without clusters.

A search reads these codes completely. Reading all codes takes a few milliseconds and one request."""

BLOCK_ROWS = 8192

BLOCK = np.dtype([("cluster", "<u4"), ("rows", "<u4"), ("blocks", "<u8"), ("second", "<u8")])
"""The record of a block: its cluster, its number of rows, and two checksums.

The checksums are the xxh3-64 of the block's parts in `blocks.bin` and in `second.bin` (or 0).
"""

Table = npt.NDArray[np.void]
_FLOAT = 4
_HEADERS_BYTES = 1024  # the headers of the bundle, of `head.json` and of the codebook


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The properties of a segment. `rows` counts the rows of the segment, and `of` counts the rows of the split.

    `codebook` is the identity of the codebook that made the codes. `clusters` is the number of clusters of the
    codebook, or 0 for a segment without clusters.
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
        """Return the head that `to_bytes` wrote.

        Raises `Corrupt` with `where`, and `Unsupported` for a newer format.
        """
        try:
            found: Mapping[str, Any] = json.loads(bytes(data))
            if found["format"] != FORMAT:
                raise Unsupported(
                    f"{where}: a vector segment has format {found['format']!r}, but this release reads format "
                    f"{FORMAT}. Upgrade Tidemark",
                    key=where,
                )
            head = Head(**found)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise not_a_segment(where, f"{HEAD}: {type(error).__name__}: {error}") from error
        if not head.is_valid:
            raise not_a_segment(where, f"{HEAD}: {found}")
        return head

    @property
    def is_valid(self) -> bool:
        """Whether every field of the head of a vector segment has a valid value."""
        numbers = (self.rows, self.of, self.dimensions, self.clusters)
        if not all(type(each) is int and 0 <= each < 2**32 for each in numbers):
            return False
        sized = self.rows <= self.of and 1 <= self.dimensions <= MOST_DIMENSIONS
        known = self.metric in get_args(Metric) and self.quantization in get_args(Quantization)
        return sized and known and isinstance(self.codebook, str)


def files_of(quantization: Quantization) -> tuple[str, ...]:
    """Return the names of a segment's files, in the order of the files in the bundle."""
    opening = (HEAD, CLUSTERS, ROWS, CODEBOOK)  # One request fetches these files and the directory.
    return (BLOCKS, SECOND, *opening) if quantization == "rotated" else (BLOCKS, *opening)


def code_bytes(quantization: Quantization, dimensions: int) -> int:
    """Return the number of bytes of one code, or of one embedding with the quantization `none`."""
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
    """Return the number of integers that a code represents, or 0 with the quantization `none`."""
    sizes = {"scalar": dimensions, "none": 0}
    return sizes.get(quantization, padded_size(dimensions))


def row_bytes(quantization: Quantization, dimensions: int) -> int:
    """Return the bytes of a row in `blocks.bin`."""
    return code_bytes(quantization, dimensions) + (0 if quantization == "none" else 2 * _FLOAT)


def second_bytes(quantization: Quantization, dimensions: int) -> int:
    """Return the bytes of a row in `second.bin`."""
    return _FLOAT + dimensions if quantization == "rotated" else 0


def clusters_for(quantization: Quantization, dimensions: int, rows: int, flat_bytes: int) -> int:
    """Return the number of clusters for this number of rows. The number is 0 if the codes take at most `flat_bytes`."""
    return 0 if rows * row_bytes(quantization, dimensions) <= flat_bytes else round(3 * math.sqrt(rows))


def opening_bytes(quantization: Quantization, dimensions: int, rows: int, clusters: int | None = None) -> int:
    """Return the maximum number of bytes that a segment stores after its blocks. The segment comes from `build`.

    `clusters` is the number of clusters, or None if it is unknown.
    """
    if clusters is None:
        clusters = clusters_for(quantization, dimensions, rows, FLAT_BYTES)
    books = padded_size(dimensions) * BOOK_ENTRIES if quantization == "product" else 0
    codebook = _FLOAT * (dimensions + books) + clusters * (_FLOAT + dimensions)
    return _HEADERS_BYTES + BLOCK.itemsize * (1 + clusters + rows // BLOCK_ROWS) + 4 * rows + codebook


def table_of(data: bytes | memoryview, head: Head, *, where: str) -> Table:
    """Return the records of `clusters.bin`, and check that the records match the head. Raises `Corrupt`."""
    if len(data) % BLOCK.itemsize:
        raise not_a_segment(where, f"{CLUSTERS} has {len(data)} bytes, which is not a multiple of {BLOCK.itemsize}")
    table = np.frombuffer(data, BLOCK)
    rows, clusters = table["rows"].astype(np.int64), table["cluster"].astype(np.int64)
    sound = int(rows.sum()) == head.rows and bool((rows > 0).all()) and bool((rows <= BLOCK_ROWS).all())
    if not sound or (np.diff(clusters) < 0).any() or (clusters >= max(1, head.clusters)).any():
        raise not_a_segment(where, f"the blocks of {CLUSTERS} do not fit {head.rows} rows in {head.clusters} clusters")
    return table


def expected_bytes(head: Head, name: str) -> int | None:
    """Return the expected length in bytes of the file `name` in a segment. `head` describes the segment.

    Return None if the head does not determine the length.
    """
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
    """Return the error for bytes that are not the files of a vector segment."""
    return damaged(where, f"not the files of a vector segment: {shortened(what)}")


# Random rotation of vectors.
#
# The same seed produces the same rotation on every machine and in every release. The rotation spreads information that
# is in few dimensions over all dimensions. Therefore one scale fits all dimensions, and codes of a few bits lose little
# information. Up to `_BLOCK` dimensions, the rotation is one random orthogonal matrix. For vectors with more than
# `_BLOCK` dimensions, the rotation has two steps. Each step changes the dimensions to a random order and divides them
# into blocks. The step then rotates each block by a separate matrix. Therefore every number of the result depends on
# every dimension. A vector costs `d · 2 · block` operations instead of d².


_BLOCK = 256
_PART = 128


@dataclass(frozen=True, slots=True, eq=False)
class RotationStep:
    """One step of a rotation.

    The step changes the order of the dimensions, then rotates each block of dimensions by a matrix.
    """

    order: npt.NDArray[np.int64]
    matrices: tuple[Floats, ...]

    def __call__(self, vectors: Floats) -> Floats:
        """Return the rotated vectors."""
        given, found, at = np.take(vectors, self.order, axis=1), np.empty(vectors.shape, np.float32), 0
        for matrix in self.matrices:
            end = at + len(matrix)
            np.matmul(given[:, at:end], matrix, out=found[:, at:end])
            at = end
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """A rotation of vectors with a fixed number of dimensions. The rotation does not change lengths and angles."""

    steps: tuple[RotationStep, ...]

    def __call__(self, vectors: Floats) -> Floats:
        """Return the rotated vectors. `vectors` is an array of rows by dimensions."""
        for turn in self.steps:
            vectors = turn(vectors)
        return vectors


@functools.lru_cache(maxsize=8)
def rotation(dimensions: int, seed: int) -> Rotation:
    """Return the rotation for a seed.

    For `d` dimensions, the time grows with `128² · d` and the memory with `256 · d`.
    """
    # The raw words of this generator are the same in every release of numpy. Do not use numpy's distributions of random
    # numbers, because a new release of numpy can change how it computes them.
    words = np.random.PCG64(seed)
    small = dimensions <= _BLOCK
    parts = np.array_split(np.arange(dimensions), 1 if small else -(-dimensions // _PART))
    turns = []
    for _ in range(1 if small else 2):
        order = np.argsort(words.random_raw(dimensions), kind="stable")
        turns.append(RotationStep(order, tuple(_orthogonal(words, len(part)) for part in parts)))
    return Rotation(tuple(turns))


def _orthogonal(words: np.random.PCG64, size: int) -> Floats:
    """Return a random orthogonal matrix.

    A matrix has several QR decompositions. The function uses the decomposition without negative numbers on the diagonal
    of R.
    """
    q, r = np.linalg.qr(_normal(words, size * size).reshape(size, size))
    return (q * np.where(np.diagonal(r) < 0, -1.0, 1.0)).astype(np.float32)


def _normal(words: np.random.PCG64, count: int) -> npt.NDArray[np.float64]:
    """Return normally distributed random numbers, computed by the Box-Muller transform."""
    unit = ((words.random_raw(2 * count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.sqrt(-2.0 * np.log(unit[:count])) * np.cos(2.0 * np.pi * unit[count:])


# The codebook of a segment contains the rotation, the center, the centroids of clusters, and the books of trained
# vectors.
#
# | Part of `codebook.bin` | Bytes |
# |---|---|
# | magic `TIDEMKV`, version byte `2` | 8 |
# | n, the length of the header, unsigned 32 bit, little endian | 4 |
# | header: UTF-8 JSON, see `_HEADER` | n |
# | center: 32-bit floats, little endian | 4 per dimension |
# | centroids: for each a scale (float as above), then a signed byte per dimension | as the header says |
# | books: 32-bit floats, little endian | as the header says |
# | xxh3-64 of all bytes before, little endian | 8 |
#
# In version 1, centroids are 32-bit floats.


_MAGIC, _VERSION, _OF_FLOATS = b"TIDEMKV", b"2", b"1"
_LENGTH = struct.Struct("<I")
_CHECKSUM = struct.Struct("<Q")
_HEADER = ("dimensions", "metric", "quantization", "seed", "rows", "error", "centroids", "books")


@dataclass(frozen=True, slots=True, eq=False)
class Codebook:
    """The transformation of the embeddings of a segment to codes.

    Attributes:
        dimensions: The number of dimensions.
        metric: The metric of the index.
        quantization: The quantization of the codes.
        seed: The seed of the rotation.
        rows: The number of rows for which the codebook was trained.
        error: The mean squared error of the codes, measured on the sample (`segment.coding_error`).
        center: The vector that is subtracted first.
        centroids: The centroids in the space of `to_code_space`, in the form that `rounded` returns. Empty if there are
            too few rows for clusters.
        books: The books of `product`. Empty for other quantizations.
    """

    dimensions: int
    metric: Metric
    quantization: Quantization
    seed: int
    rows: int
    error: float
    center: Floats
    centroids: Floats
    books: Floats

    def to_code_space(self, vectors: Floats) -> Floats:
        """Return the vectors in the space of codes and centroids. `vectors` is an array of rows by dimensions.

        The vectors are normalized (for cosine), centered and rotated. With the quantization `none` they are not
        rotated, because there are no codes.
        """
        if self.metric == "cosine":
            vectors = normalized(vectors)
        centered = vectors - self.center
        return centered if self.quantization == "none" else rotation(self.dimensions, self.seed)(centered)

    def turned(self, vector: Floats) -> Floats:
        """Return the difference of two vectors, converted to the space of `to_code_space`."""
        return vector if self.quantization == "none" else rotation(self.dimensions, self.seed)(vector[None, :])[0]

    @property
    def identity(self) -> str:
        """The result of `identity_of` for the bytes of the codebook."""
        return identity_of(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the bytes from which `from_bytes` makes an equal codebook. Equal codebooks have equal bytes."""
        header = {name: getattr(self, name) for name in _HEADER} | {
            "centroids": len(self.centroids),
            "books": len(self.books),
        }
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        arrays = [self.center.astype("<f4"), in_bytes(self.centroids), self.books.astype("<f4")]
        body = b"".join([_MAGIC, _VERSION, _LENGTH.pack(len(text)), text, *(each.tobytes() for each in arrays)])
        return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))

    @staticmethod
    def from_bytes(data: bytes | memoryview, *, where: str) -> Codebook:
        """Return the codebook that `to_bytes` wrote.

        Raises `Corrupt` with `where`, and `Unsupported` for a newer version.
        """
        view = memoryview(data)
        begin = len(_MAGIC) + len(_VERSION)
        if len(view) < begin + _LENGTH.size + _CHECKSUM.size or view[: len(_MAGIC)] != _MAGIC:
            raise _not_a_codebook(where, f"the {len(view)} bytes do not begin with {_MAGIC!r}")
        if xxhash.xxh3_64_intdigest(view[: -_CHECKSUM.size]) != _CHECKSUM.unpack(view[-_CHECKSUM.size :])[0]:
            raise _not_a_codebook(where, "the checksum does not match")
        version = bytes(view[len(_MAGIC) : begin])
        if version not in (_OF_FLOATS, _VERSION):
            raise Unsupported(
                f"{where}: codebook version {version!r}, but this release reads up to {_VERSION!r}. Upgrade Tidemark"
            )
        (length,) = _LENGTH.unpack_from(view, begin)
        text, arrays = view[begin + _LENGTH.size :][:length], view[begin + _LENGTH.size + length : -_CHECKSUM.size]
        try:
            return _decoded(json.loads(bytes(text)), arrays, of_floats=version == _OF_FLOATS)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise _not_a_codebook(where, f"{type(error).__name__}: {error}") from error


def normalized(vectors: Floats) -> Floats:
    """Return the vectors with length 1. A vector of zeros is unchanged."""
    # The computation first scales the vectors, because the square of a 32-bit number may exceed 32 bits.
    greatest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    scaled = vectors / np.where(greatest > 0, greatest, 1)
    lengths = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
    return (scaled / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def rounded(centroids: Floats) -> Floats:
    """Return the centroids as a codebook stores them, rounded to signed bytes and a scale per centroid."""
    stored = in_bytes(centroids)
    found: Floats = stored["scale"][:, None] * stored["whole"]
    return found


def identity_of(data: bytes | memoryview) -> str:
    """Return the xxh3-64 of the bytes of a codebook as 16 hex digits. Segments store it."""
    return xxhash.xxh3_64_hexdigest(data)


def in_bytes(centroids: Floats) -> npt.NDArray[np.void]:
    """Return for each centroid the `scale` and the integers `whole` that a codebook stores."""
    greatest = np.abs(centroids).max(axis=1, initial=0.0)
    stored = np.zeros(len(centroids), _centroid(centroids.shape[1]))
    # If the numbers are already rounded, the greatest number is from 64 to 127. A centroid that was already rounded
    # therefore keeps its scale.
    stored["scale"] = np.ldexp(np.float32(1), np.frexp(greatest / np.float32(127.5))[1])
    stored["whole"] = np.rint(centroids / stored["scale"][:, None])
    return stored


def _decoded(header: Mapping[str, Any], arrays: memoryview, *, of_floats: bool) -> Codebook:
    whole = {name: header[name] for name in ("dimensions", "seed", "rows", "centroids", "books")}
    if not all(type(each) is int and each >= 0 for each in whole.values()):
        raise ValueError(f"its header has {shortened(str(whole))}")
    dimensions, clusters, books = whole["dimensions"], whole["centroids"], whole["books"]
    metric, quantization, error = header["metric"], header["quantization"], float(header["error"])
    if not 1 <= dimensions <= MOST_DIMENSIONS or not math.isfinite(error):
        raise ValueError(f"{dimensions} dimensions, error {error}")
    if metric not in get_args(Metric) or quantization not in get_args(Quantization):
        raise ValueError(f"metric {metric!r}, quantization {quantization!r}")
    if books != (padded_size(dimensions) // PER_BYTE if quantization == "product" else 0):
        raise ValueError(f"{books} books do not fit {quantization} codes of {dimensions} dimensions")
    kind = _float(dimensions) if of_floats else _centroid(dimensions)
    kinds = [(1, _float(dimensions)), (clusters, kind), (books, _float(BOOK_ENTRIES, PER_BYTE))]
    ends = np.cumsum([count * each.itemsize for count, each in kinds])
    if len(arrays) != int(ends[-1]):
        raise ValueError(f"{len(arrays)} bytes of numbers, expected {int(ends[-1])}")
    [center], stored, entries = (
        np.ndarray(count, each, arrays[end - count * each.itemsize : end])
        for (count, each), end in zip(kinds, ends.tolist(), strict=True)
    )
    with np.errstate(over="ignore", invalid="ignore"):
        centroids = stored if of_floats else stored["scale"][:, None] * stored["whole"]
    center, centroids, entries = (each.astype(np.float32) for each in (center, centroids, entries))
    if not all(np.isfinite(each).all() for each in (center, centroids, entries)):
        raise ValueError("a number is NaN or infinite")
    return Codebook(
        dimensions=dimensions,
        metric=cast("Metric", metric),
        quantization=cast("Quantization", quantization),
        seed=whole["seed"],
        rows=whole["rows"],
        error=error,
        center=center,
        centroids=centroids,
        books=entries,
    )


def _float(*shape: int) -> np.dtype[Any]:
    return np.dtype(("<f4", shape))


def _centroid(dimensions: int) -> np.dtype[Any]:
    return np.dtype([("scale", "<f4"), ("whole", "i1", (dimensions,))])


def _not_a_codebook(where: str, what: str) -> Corrupt:
    return damaged(where, f"not a codebook of vectors: {shortened(what)}")


# The training result of a segment, which the log records (`details.training`). A reader can therefore read the training
# result without a request for the segment.


TRAINING = "training"

_WHERE = "a vector segment that was just built"


@dataclass(frozen=True, slots=True)
class Training:
    """The result of training a segment with `rows` rows and `clusters` clusters.

    `clusters` is 0 for a segment without clusters.

    `imbalance` is the size of the largest cluster divided by the size of the smallest cluster that is not empty.
    `error` is the mean squared distance of the sample's vectors from their codes. `again` is True if this training
    replaced a worse training.
    """

    rows: int
    clusters: int
    imbalance: float
    error: float
    again: bool = False

    def to_object(self) -> dict[str, object]:
        """Return the training result as a JSON object that `of` can read."""
        return asdict(self)

    @staticmethod
    def of(segment: IndexSegment) -> Training | None:
        """Return the training result that the log stores in the details of the segment.

        Returns None for other kinds of index, and for segments of early releases of 0.1.
        """
        match segment.details.get(TRAINING):
            case {"rows": int(rows), "clusters": int(clusters), "imbalance": int() | float() as imbalance, **more}:
                error, again = more.get("error"), more.get("again") is True
                known = float(error) if isinstance(error, int | float) else 0.0
                return Training(rows, clusters, float(imbalance), known, again)
            case _:
                return None

    @staticmethod
    def in_files(files: Mapping[str, bytes | memoryview]) -> Training:
        """Return the training result of a segment, computed from the segment's files."""
        head = Head.from_bytes(files[HEAD], where=_WHERE)
        table = table_of(files[CLUSTERS], head, where=_WHERE)
        sizes = np.bincount(table["cluster"].astype(np.int64), weights=table["rows"])
        filled = sizes[sizes > 0]
        imbalance = float(filled.max() / filled.min()) if head.clusters and len(filled) else 1.0
        error = Codebook.from_bytes(files[CODEBOOK], where=_WHERE).error
        return Training(head.rows, head.clusters, imbalance, error)


def trained_again(segment: IndexSegment) -> IndexSegment:
    """Return the segment with a changed log entry. The entry records that the segment was trained again."""
    trained = Training.of(segment)
    again = {} if trained is None else {TRAINING: replace(trained, again=True).to_object()}
    return replace(segment, details={**segment.details, **again})
