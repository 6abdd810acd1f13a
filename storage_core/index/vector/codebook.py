"""What made the codes of a segment: the rotation, the center, the centroids of clusters, the books of codes.

magic `TIDEMKV`, version byte `2`                                  8 bytes
n, length of the header, unsigned 32 bit, little endian            4 bytes
header: UTF-8 JSON, see `_HEADER`                                  n bytes
center: 32-bit floats, little endian                               4 bytes a dimension
centroids: of each a scale like these, a signed byte a dimension   as the header says
books: 32-bit floats, little endian                                as the header says
xxh3-64 of all before, little endian                               8 bytes

In version 1 centroids are 32-bit floats.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
import xxhash

from storage_core.errors import Corrupt, Unsupported
from storage_core.foreign_text import shortened
from storage_core.index.damage import damaged
from storage_core.index.vector.codes import BOOK_ENTRIES, PER_BYTE, padded_size
from storage_core.index.vector.rotation import rotation
from storage_core.rows.vectors import MOST_DIMENSIONS, Floats
from storage_core.settings.vector_options import Metric, Quantization

_MAGIC, _VERSION, _OF_FLOATS = b"TIDEMKV", b"2", b"1"
_LENGTH = struct.Struct("<I")
_CHECKSUM = struct.Struct("<Q")
_HEADER = ("dimensions", "metric", "quantization", "seed", "rows", "error", "centroids", "books")


@dataclass(frozen=True, slots=True, eq=False)
class Codebook:
    """How the vectors of a segment become codes.

    `rows` is for how many it was trained, `error` the mean squared error of the codes of the sample
    (`training.coding_error`). `center` is subtracted before anything else. `centroids` are in the space of `placed`, as
    `rounded` has them, none where rows are too few for clusters; `books` are those of `product`, of others none.
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

    def placed(self, vectors: Floats) -> Floats:
        """Return vectors, rows by dimensions, where codes and centroids are: normalized for cosine, centered, rotated.

        Vectors under `none` are not rotated: they have no codes.
        """
        if self.metric == "cosine":
            vectors = normalized(vectors)
        centered = vectors - self.center
        return centered if self.quantization == "none" else rotation(self.dimensions, self.seed)(centered)

    def turned(self, vector: Floats) -> Floats:
        """Return a difference of two vectors in the space of `placed`."""
        return vector if self.quantization == "none" else rotation(self.dimensions, self.seed)(vector[None, :])[0]

    @property
    def identity(self) -> str:
        """What `identity_of` says of its bytes."""
        return identity_of(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the bytes from which `from_bytes` makes an equal codebook; the same bytes for the same."""
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
        """Return the codebook that `to_bytes` wrote. Raises `Corrupt` naming `where`, `Unsupported` for a newer one."""
        view = memoryview(data)
        begin = len(_MAGIC) + len(_VERSION)
        if len(view) < begin + _LENGTH.size + _CHECKSUM.size or view[: len(_MAGIC)] != _MAGIC:
            raise _not_a_codebook(where, f"{len(view)} bytes that do not begin with {_MAGIC!r}")
        if xxhash.xxh3_64_intdigest(view[: -_CHECKSUM.size]) != _CHECKSUM.unpack(view[-_CHECKSUM.size :])[0]:
            raise _not_a_codebook(where, "its checksum does not match")
        version = bytes(view[len(_MAGIC) : begin])
        if version not in (_OF_FLOATS, _VERSION):
            raise Unsupported(
                f"{where}: codebook version {version!r}, this release reads up to {_VERSION!r}; upgrade Tidemark"
            )
        (length,) = _LENGTH.unpack_from(view, begin)
        text, arrays = view[begin + _LENGTH.size :][:length], view[begin + _LENGTH.size + length : -_CHECKSUM.size]
        try:
            return _decoded(json.loads(bytes(text)), arrays, of_floats=version == _OF_FLOATS)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise _not_a_codebook(where, f"{type(error).__name__}: {error}") from error


def normalized(vectors: Floats) -> Floats:
    """Return the vectors at length 1; one of zeros stays."""
    # In two steps: the square of a number of 32 bits may be none of them any more.
    greatest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    scaled = vectors / np.where(greatest > 0, greatest, 1)
    lengths = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
    return (scaled / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def rounded(centroids: Floats) -> Floats:
    """Return the centroids as a codebook keeps them: whole numbers of a byte, of each times a power of 2."""
    stored = in_bytes(centroids)
    found: Floats = stored["scale"][:, None] * stored["whole"]
    return found


def identity_of(data: bytes | memoryview) -> str:
    """Return the xxh3-64 of the bytes of a codebook as 16 hex digits, by which segments name it."""
    return xxhash.xxh3_64_hexdigest(data)


def in_bytes(centroids: Floats) -> npt.NDArray[np.void]:
    """Return of each centroid the `scale` and the `whole` numbers that a codebook has of it."""
    greatest = np.abs(centroids).max(axis=1, initial=0.0)
    stored = np.zeros(len(centroids), _centroid(centroids.shape[1]))
    # Of numbers that were rounded before the greatest is from 64 to 127, so they have the same scale again.
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
        raise ValueError(f"{books} books for {quantization} codes of {dimensions} dimensions")
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
