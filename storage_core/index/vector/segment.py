"""Vectors to the files of a segment, and whether bytes can be such files."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from storage_core.errors import InvalidInput
from storage_core.index.vector.clusters import Numbers, nearest
from storage_core.index.vector.codebook import Codebook, identity_of
from storage_core.index.vector.codes import Bytes, fine, lean
from storage_core.index.vector.definition import options_of
from storage_core.index.vector.layout import (
    BLOCK,
    BLOCK_ROWS,
    BLOCKS,
    CLUSTERS,
    CODEBOOK,
    FLAT_BYTES,
    HEAD,
    ROWS,
    SECOND,
    Head,
    expected_bytes,
    files_of,
    not_a_segment,
    row_bytes,
    second_bytes,
    table_of,
)
from storage_core.index.vector.whole import whole_of
from storage_core.rows.vectors import Floats, Mask, faults, matrix
from storage_core.settings.index import IndexDefinition
from storage_core.settings.vector_options import Metric

_AT_ONCE = 2**20


def indexable(vectors: pa.ChunkedArray | pa.Array, metric: Metric) -> Mask:
    """Return which vectors an index can hold: not null, finite, and not zero under cosine.

    Doors let in no others but null; those that other writers wrote are in no index and in no answer.
    """
    held = np.asarray(vectors.is_valid(), np.bool_)
    for _, wrong in faults(vectors, nonzero=metric == "cosine"):
        held &= ~wrong
    return held


def build(
    vectors: pa.ChunkedArray | pa.Array,
    codebook: Codebook,
    definition: IndexDefinition,
    *,
    flat_bytes: int = FLAT_BYTES,
) -> dict[str, bytes]:
    """Return the files of a segment over a column of vectors, the rows of one split in order, as name ▸ content.

    The same rows and codebook give the same bytes. A row is named by its place in the column; rows that cannot be
    indexed (`indexable`) are left out. Codes of up to `flat_bytes` are not divided into clusters. No Python step per
    row. Memory: the files twice, and some megabytes. Raises `InvalidInput` when the codebook is not one of the
    definition and of vectors of this size.
    """
    options = options_of(definition)
    wanted = (options.metric, options.quantization, vectors.type.list_size)
    if wanted != (codebook.metric, codebook.quantization, codebook.dimensions):
        raise InvalidInput(
            f"index {definition.name!r}: a codebook for {codebook.metric}, {codebook.quantization}, "
            f"{codebook.dimensions} dimensions cannot encode {wanted[0]}, {wanted[1]}, {wanted[2]}; train one"
        )
    rows = np.flatnonzero(indexable(vectors, codebook.metric)).astype(np.uint32)
    is_flat = not len(codebook.centroids) or len(rows) * row_bytes(*wanted[1:]) <= flat_bytes
    with np.errstate(over="ignore", invalid="ignore"):  # of numbers near the end of 32 bits: see `_encode`
        encoded = _Encoded(codebook, matrix(vectors), rows, is_flat=is_flat)
    head = Head(
        rows=len(rows),
        of=len(vectors),
        dimensions=codebook.dimensions,
        metric=codebook.metric,
        quantization=codebook.quantization,
        codebook=codebook.identity,
        clusters=0 if is_flat else len(codebook.centroids),
    )
    return encoded.files(head)


class _Encoded:
    """The rows of a segment as columns of bytes, and the clusters that they are in."""

    def __init__(self, codebook: Codebook, numbers: Floats, rows: npt.NDArray[np.uint32], *, is_flat: bool) -> None:
        self._codebook, self._rows = codebook, rows
        self._clusters = np.zeros(len(rows), np.int64)
        kinds = codebook.quantization, codebook.dimensions
        self._blocks = np.zeros((len(rows), row_bytes(*kinds)), np.uint8)
        self._second = np.zeros((len(rows), second_bytes(*kinds)), np.uint8)
        step = max(1, _AT_ONCE // codebook.dimensions)
        for at in range(0, len(rows), step):
            given = numbers[rows[at : at + step]]
            placed = codebook.placed(given)
            place = slice(at, at + len(given))
            if not is_flat:
                self._clusters[place] = nearest(placed, codebook.centroids)
            if codebook.quantization == "none":
                self._blocks[place] = _as_bytes(given)
            else:
                self._encode(codebook, given, placed, place)

    def _encode(self, codebook: Codebook, given: Floats, placed: Floats, place: slice) -> None:
        codes, whole = whole_of(codebook, placed)
        factors = np.stack([_offsets(codebook, given, placed), lean(placed, whole)], axis=1)
        # Beyond 32 bits every row is as far as the others, and all are ranked by their vectors.
        self._blocks[place, :8] = _as_bytes(np.nan_to_num(factors))
        self._blocks[place, 8:] = codes
        if self._second.shape[1]:
            second = fine(placed)
            self._second[place, :4] = _as_bytes(np.nan_to_num(lean(placed, second)[:, None]))
            self._second[place, 4:] = second.view(np.uint8)

    def files(self, head: Head) -> dict[str, bytes]:
        """Return the files, rows by cluster."""
        order = np.argsort(self._clusters, kind="stable")
        pieces = _pieces(self._clusters[order])
        blocks = [_columns(self._blocks[order[start:end]], (4, 4)) for _, start, end in pieces]
        seconds = [_columns(self._second[order[start:end]], (4,)) for _, start, end in pieces]
        if head.quantization == "none":
            blocks = [self._blocks[order[start:end]].tobytes() for _, start, end in pieces]
        table = np.zeros(len(pieces), BLOCK)
        table["cluster"] = [cluster for cluster, _, _ in pieces]
        table["rows"] = [end - start for _, start, end in pieces]
        table["blocks"] = [xxhash.xxh3_64_intdigest(each) for each in blocks]
        has_second = head.quantization == "rotated"
        table["second"] = [xxhash.xxh3_64_intdigest(each) if has_second else 0 for each in seconds]
        found = {
            HEAD: head.to_bytes(),
            CLUSTERS: table.tobytes(),
            ROWS: self._rows[order].astype("<u4").tobytes(),
            CODEBOOK: self._codebook.to_bytes(),
            BLOCKS: b"".join(blocks),
            SECOND: b"".join(seconds),
        }
        return {name: found[name] for name in files_of(head.quantization)}


def check(
    files: Mapping[str, bytes | memoryview], definition: IndexDefinition, *, rows: int | None, where: str
) -> None:
    """Return only when these are the files of a segment over a split of `rows` rows; raises `Corrupt` naming `where`.

    `rows` is None if unknown. All blocks are compared with their checksums.
    """
    options = options_of(definition)
    names = files_of(options.quantization)
    if {*names} != files.keys():
        raise not_a_segment(where, f"its files are {sorted(files)}, expected {sorted(names)}")
    head = Head.from_bytes(files[HEAD], where=where)
    if (head.metric, head.quantization) != (options.metric, options.quantization):
        raise not_a_segment(where, f"codes for {head.metric} and {head.quantization} in an index of others")
    if rows is not None and head.of != rows:
        raise not_a_segment(where, f"it is over {head.of} rows, expected {rows}")
    for name in names:
        expected = expected_bytes(head, name)
        if expected is not None and len(files[name]) != expected:
            raise not_a_segment(where, f"{name} has {len(files[name])} bytes, expected {expected}")
    codebook_of(files[CODEBOOK], head, where=where)
    table = table_of(files[CLUSTERS], head, where=where)
    require_rows(np.frombuffer(files[ROWS], "<u4"), table["rows"].astype(np.int64), head, where=where)
    kind = head.quantization, head.dimensions
    for name, width in ((BLOCKS, row_bytes(*kind)), (SECOND, second_bytes(*kind))):
        ends = np.cumsum(table["rows"].astype(np.int64)) * width
        for end, record in zip(ends.tolist(), table if width else (), strict=False):
            begin = end - int(record["rows"]) * width
            require_block(files[name][begin:end], name, int(record[name.removesuffix(".bin")]), where=where)


def codebook_of(data: bytes | memoryview, head: Head, *, where: str) -> Codebook:
    """Return the codebook of a segment, found to be the one that made its codes. Raises `Corrupt`."""
    book = Codebook.from_bytes(data, where=where)
    if identity_of(data) != head.codebook:
        raise not_a_segment(where, f"its codes are of codebook {head.codebook}, it has {identity_of(data)}")
    fits = (book.metric, book.quantization, book.dimensions) == (head.metric, head.quantization, head.dimensions)
    if not fits or head.clusters not in (0, len(book.centroids)):
        raise not_a_segment(
            where, f"its codebook is for {book.metric}, {book.quantization}, {book.dimensions} dimensions"
        )
    return book


def require_rows(rows: npt.NDArray[np.uint32], sizes: Numbers, head: Head, *, where: str) -> None:
    """Raise `Corrupt` unless every row is one of the split's, and is there once."""
    # By sorting, not by an array over `head.of`: a forged head may claim any number of rows.
    once = np.unique(rows)
    if len(once) != len(rows) or (len(once) and int(once[-1]) >= head.of) or int(sizes.sum()) != len(rows):
        raise not_a_segment(where, f"{ROWS} does not name {head.rows} of {head.of} rows once each")


def require_block(data: bytes | memoryview, name: str, expected: int, *, where: str) -> None:
    """Raise `Corrupt` unless the bytes of a block have its checksum."""
    if xxhash.xxh3_64_intdigest(data) != expected:
        raise not_a_segment(where, f"the checksum of a block of {name} does not match")


def _offsets(codebook: Codebook, given: Floats, placed: Floats) -> Floats:
    """What a row's distance has that depends on no query: |z|², for dot -<m, x - m> of the center m."""
    if codebook.metric == "dot":
        offsets: Floats = np.negative((given - codebook.center) @ codebook.center)
    else:
        offsets = np.einsum("ij,ij->i", placed, placed)
    return offsets


def _pieces(clusters: Numbers) -> list[tuple[int, int, int]]:
    """The blocks as (cluster, first row, row behind the last) of rows that are ordered by cluster."""
    if not len(clusters):
        return []
    begins = [0, *(np.flatnonzero(np.diff(clusters)) + 1).tolist()]
    found = []
    for begin, end in zip(begins, [*begins[1:], len(clusters)], strict=True):
        starts = range(begin, end, BLOCK_ROWS)
        found += [(int(clusters[begin]), start, min(start + BLOCK_ROWS, end)) for start in starts]
    return found


def _columns(rows: Bytes, widths: tuple[int, ...]) -> bytes:
    """The bytes of rows column by column: those of the given widths, then the rest."""
    ends = np.cumsum(widths).tolist()
    parts = [rows[:, start:end] for start, end in zip([0, *ends], [*ends, rows.shape[1]], strict=True)]
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


def _as_bytes(numbers: Floats) -> Bytes:
    return np.ascontiguousarray(numbers, "<f4").view(np.uint8)
