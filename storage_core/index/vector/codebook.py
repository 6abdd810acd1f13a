"""What made the codes of a segment: the rotation, the center, the centroids of clusters, the books of codes.

magic `TIDEMKV`, version byte `1`                                  8 bytes
n, length of the header, unsigned 32 bit, little endian            4 bytes
header: UTF-8 JSON, see `_HEADER`                                  n bytes
center, centroids, books: 32-bit floats, little endian             as the header says
xxh3-64 of all before, little endian                               8 bytes
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

import numpy as np
import xxhash

from storage_core.errors import Corrupt, Unsupported
from storage_core.foreign_text import shortened
from storage_core.index.damage import REBUILD
from storage_core.index.vector.codes import PER_BYTE, padded_size
from storage_core.index.vector.rotation import rotation
from storage_core.rows.vectors import MOST_DIMENSIONS, Floats
from storage_core.settings.vector_options import Metric, Quantization

_MAGIC, _VERSION = b"TIDEMKV", b"1"
_LENGTH = struct.Struct("<I")
_CHECKSUM = struct.Struct("<Q")
_HEADER = ("dimensions", "metric", "quantization", "seed", "rows", "error", "centroids", "books")
_ENTRIES = 256


@dataclass(frozen=True, slots=True, eq=False)
class Codebook:
    """How the vectors of a segment become codes.

    `rows` is for how many it was trained, `error` the mean squared error of the codes of the sample
    (`training.coding_error`). `center` is subtracted before anything else. `centroids` are in the space of `placed`,
    none where rows are too few for clusters; `books` are those of `product`, of others none.
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
        """The xxh3-64 of its bytes as 16 hex digits, by which segments name it."""
        return xxhash.xxh3_64_hexdigest(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the bytes from which `from_bytes` makes an equal codebook; the same bytes for the same."""
        header = {name: getattr(self, name) for name in _HEADER} | {
            "centroids": len(self.centroids),
            "books": len(self.books),
        }
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        arrays = [each.astype("<f4").tobytes() for each in (self.center, self.centroids, self.books)]
        body = b"".join([_MAGIC, _VERSION, _LENGTH.pack(len(text)), text, *arrays])
        return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))

    @staticmethod
    def from_bytes(data: bytes | memoryview, *, where: str) -> Codebook:
        """Return the codebook that `to_bytes` wrote. Raises `Corrupt` naming `where`, `Unsupported` for a newer one."""
        view = memoryview(data)
        begin = len(_MAGIC) + len(_VERSION)
        if len(view) < begin + _LENGTH.size + _CHECKSUM.size or view[: len(_MAGIC)] != _MAGIC:
            raise _damaged(where, f"{len(view)} bytes that do not begin with {_MAGIC!r}")
        if xxhash.xxh3_64_intdigest(view[: -_CHECKSUM.size]) != _CHECKSUM.unpack(view[-_CHECKSUM.size :])[0]:
            raise _damaged(where, "its checksum does not match")
        if view[len(_MAGIC) : begin] != _VERSION:
            found = bytes(view[len(_MAGIC) : begin])
            raise Unsupported(f"{where}: codebook version {found!r}, this release reads {_VERSION!r}; upgrade Tidemark")
        (length,) = _LENGTH.unpack_from(view, begin)
        text, arrays = view[begin + _LENGTH.size :][:length], view[begin + _LENGTH.size + length : -_CHECKSUM.size]
        try:
            return _decoded(json.loads(bytes(text)), arrays)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise _damaged(where, f"{type(error).__name__}: {error}") from error


def normalized(vectors: Floats) -> Floats:
    """Return the vectors at length 1; one of zeros stays."""
    # In two steps: the square of a number of 32 bits may be none of them any more.
    greatest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    scaled = vectors / np.where(greatest > 0, greatest, 1)
    lengths = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
    return (scaled / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _decoded(header: Mapping[str, Any], arrays: memoryview) -> Codebook:
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
    shapes = ((dimensions,), (clusters, dimensions), (books, _ENTRIES, PER_BYTE))
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    if len(arrays) != 4 * int(ends[-1]):
        raise ValueError(f"{len(arrays)} bytes of numbers, expected {4 * int(ends[-1])}")
    numbers = np.frombuffer(arrays, "<f4").astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError("a number is NaN or infinite")
    parts = np.split(numbers, ends[:-1])
    center, centroids, entries = (part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
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


def _damaged(where: str, what: str) -> Corrupt:
    return Corrupt(f"{where}: not a codebook of vectors: {shortened(what)}", advice=REBUILD, key=where)
