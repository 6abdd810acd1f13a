"""Building and checking the files of a vector segment, and training its codebook."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.vectors import Floats, faults, is_vector, matrix, type_text
from storage_core.data.settings.index import IndexDefinition, Metric, VectorOptions
from storage_core.index.vector.layout import (
    BLOCK,
    BLOCK_ROWS,
    BLOCKS,
    BOOK_ENTRIES,
    CLUSTERS,
    CODEBOOK,
    FLAT_BYTES,
    GREATEST,
    HEAD,
    PER_BYTE,
    ROWS,
    SECOND,
    Bytes,
    Codebook,
    Head,
    Whole,
    clusters_for,
    coarse,
    encode_int8,
    expected_bytes,
    files_of,
    from_coarse,
    identity_of,
    norm_corrections,
    normalized,
    not_a_segment,
    padded_size,
    rounded,
    row_bytes,
    second_bytes,
    table_of,
)

# Clusters of vectors by Lloyd's k-means, computed with matrix products.
#
# Libraries such as faiss and scikit-learn also use Lloyd's k-means algorithm. With a sample of 21 vectors per cluster,
# faiss and scikit-learn reach the same recall as this code. Therefore thirty lines over numpy are better than a
# dependency of several megabytes.


Numbers = npt.NDArray[np.int64]

_VALUES_AT_ONCE = 2**22

_LARGE = 3
_ROUNDS_OF_PARTS = 5


def k_means(vectors: Floats, count: int, words: np.random.PCG64, *, rounds: int, start: Floats | None = None) -> Floats:
    """Return `count` centroids, or one centroid per vector if there are fewer vectors.

    The initial centroids are the centroids in `start`. If `start` has too few centroids, vectors drawn from the sample
    are the other initial centroids. If a cluster loses all its vectors, its new centroid is the vector that is farthest
    from its own centroid.
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
    """Return the centroids, but replace the centroid of each oversized cluster by centroids of its parts.

    A cluster is oversized if it has more than `_LARGE` times the mean number of vectors. An oversized cluster collects
    vectors that lie between other clusters. Most queries have an oversized cluster among their nearest clusters, but
    the cluster contains few of the nearest rows.
    """
    numbers = nearest(vectors, centroids)
    sizes, mean = np.bincount(numbers, minlength=len(centroids)), len(vectors) / max(1, len(centroids))
    found = [centroids[sizes <= _LARGE * mean]]
    for number in np.flatnonzero(sizes > _LARGE * mean):
        parts = k_means(vectors[numbers == number], int(sizes[number] // mean), words, rounds=_ROUNDS_OF_PARTS)
        found.append(np.unique(parts, axis=0))
    return np.concatenate(found)


def nearest(vectors: Floats, centroids: Floats) -> Numbers:
    """Return the number of the nearest centroid of each vector.

    If several centroids are equally near, return the first of these.
    """
    return _assigned(vectors, centroids)[0]


def distances_to(vectors: Floats, centroids: Floats) -> Floats:
    """Return the squared distance of each vector from the nearest centroid."""
    return _assigned(vectors, centroids)[1]


def in_a_row(centroids: Floats) -> Floats:
    """Return the centroids in a new order, so that neighbours in space are mostly adjacent.

    After each centroid comes the nearest of the remaining centroids. Therefore the clusters that a search reads are in
    few pieces of the file. The time grows with the square of the number of centroids.
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
    """Return the sum and the number of the vectors of each cluster. Sorting is ten times faster than `np.add.at`."""
    order = np.argsort(numbers, kind="stable")
    sizes = np.bincount(numbers, minlength=count)
    sums = np.zeros((count, vectors.shape[1]), np.float32)
    filled = np.flatnonzero(sizes)
    starts = (np.cumsum(sizes) - sizes)[filled]
    sums[filled] = np.add.reduceat(vectors[order], starts, axis=0)
    return sums, sizes


# Validation of a vector index and its options.


def validate(definition: IndexDefinition, schema: pa.Schema) -> None:
    """Raise `InvalidInput` if the index cannot be built over tables of `schema`.

    The index must have exactly one column of embeddings.
    """
    options_of(definition)
    if len(definition.columns) != 1:
        raise InvalidInput(
            f"index {definition.name!r}: a vector index has one column, found {list(definition.columns)}. "
            "Define an index for each column"
        )
    (column,) = definition.columns
    kind = schema.field(column).type
    if not is_vector(kind):
        raise InvalidInput(
            f"index {definition.name!r}: column {column!r} does not contain embeddings, its type is "
            f"{type_text(kind)}. The type must be pa.list_(pa.float32(), d) in Arrow, or vector(d) in a declaration"
        )


def options_of(definition: IndexDefinition) -> VectorOptions:
    """Return the options of the index. Raises `InvalidInput`."""
    return VectorOptions.of(definition.name, definition.options)


# Product quantization: each group of 4 dimensions is replaced by the number of the nearest of 256 trained vectors.


_ROUNDS = 8
_SAMPLE = 16 * BOOK_ENTRIES


def train_books(rotated: Floats, words: np.random.PCG64) -> Floats:
    """Return the trained vectors as an array with three axes: books (one per 4 dimensions), vectors, dimensions."""
    sample = _padded(rotated[:_SAMPLE])
    books = np.zeros((sample.shape[1] // PER_BYTE, BOOK_ENTRIES, PER_BYTE), np.float32)
    for number, book in enumerate(books):
        part = np.ascontiguousarray(sample[:, number * PER_BYTE : (number + 1) * PER_BYTE])
        found = k_means(part, BOOK_ENTRIES, words, rounds=_ROUNDS)
        book[: len(found)] = found
        book[len(found) :] = found[0] if len(found) else 0
    return books


def to_product(rotated: Floats, books: Floats) -> Bytes:
    """Return the code of each row. For each book, a code contains the number of the book's nearest vector."""
    padded = _padded(rotated)
    codes = np.empty((len(rotated), len(books)), np.uint8)
    for number, book in enumerate(books):
        codes[:, number] = nearest(padded[:, number * PER_BYTE : (number + 1) * PER_BYTE], book)
    return codes


def from_product(codes: Bytes, books: Floats) -> Whole:
    """Return the entries as integers. One scale for the whole codebook maps the greatest absolute number to 127."""
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


# Codes of each quantization in two forms: as stored, and as the integers that the codes represent.


def whole_of(codebook: Codebook, placed: Floats) -> tuple[Bytes, Whole]:
    """Return the codes of the vectors in `placed`, and the integers that the codes represent.

    Quantization `none` has no codes.
    """
    match codebook.quantization:
        case "scalar":
            whole = encode_int8(placed)
            return whole.view(np.uint8), whole
        case "product":
            codes = to_product(placed, codebook.books)
        case _:
            codes = coarse(placed)
    return codes, decoded(codebook, codes)


def decoded(codebook: Codebook, codes: Bytes) -> Whole:
    """Return the integers that codes represent, one row per code."""
    match codebook.quantization:
        case "scalar":
            return codes.view(np.int8)
        case "product":
            return from_product(codes, codebook.books)
        case _:
            return from_coarse(codes)


_AT_ONCE = 2**20


def indexable(vectors: pa.ChunkedArray | pa.Array, metric: Metric) -> Mask:
    """Return a mask of the embeddings that an index can contain: not null, finite, and not zero under cosine.

    Every embedding that Tidemark writes is valid or null. Another writer may have written invalid embeddings. No index
    and no result contains invalid embeddings.
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
    """Return the files of a segment over a column of embeddings, by name.

    The column has the rows of one split in order.

    The same rows and codebook produce the same bytes. A row is identified by its position in the column. The segment
    omits rows that cannot be indexed (`indexable`). If the codes have at most `flat_bytes` bytes, the segment has no
    clusters.

    Raises:
        InvalidInput: The codebook does not fit the definition or the size of the embeddings.

    Cost:
        No Python step per row. Memory is twice the size of the files, plus some megabytes.
    """
    options = options_of(definition)
    wanted = (options.metric, options.quantization, vectors.type.list_size)
    if wanted != (codebook.metric, codebook.quantization, codebook.dimensions):
        raise InvalidInput(
            f"index {definition.name!r}: a codebook for {codebook.metric}, {codebook.quantization}, "
            f"{codebook.dimensions} dimensions does not fit an index for {wanted[0]}, {wanted[1]}, {wanted[2]} "
            "dimensions. Train a new codebook"
        )
    rows = np.flatnonzero(indexable(vectors, codebook.metric)).astype(np.uint32)
    is_flat = not len(codebook.centroids) or len(rows) * row_bytes(*wanted[1:]) <= flat_bytes
    with np.errstate(over="ignore", invalid="ignore"):  # for numbers close to the limit of 32 bits, see `_encode`
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
    """The rows of a segment as columns of bytes, and the cluster of each row."""

    def __init__(self, codebook: Codebook, numbers: Floats, rows: npt.NDArray[np.uint32], *, is_flat: bool) -> None:
        self._codebook, self._rows = codebook, rows
        self._clusters = np.zeros(len(rows), np.int64)
        kinds = codebook.quantization, codebook.dimensions
        self._blocks = np.zeros((len(rows), row_bytes(*kinds)), np.uint8)
        self._second = np.zeros((len(rows), second_bytes(*kinds)), np.uint8)
        step = max(1, _AT_ONCE // codebook.dimensions)
        for at in range(0, len(rows), step):
            given = numbers[rows[at : at + step]]
            placed = codebook.to_code_space(given)
            place = slice(at, at + len(given))
            if not is_flat:
                self._clusters[place] = nearest(placed, codebook.centroids)
            if codebook.quantization == "none":
                self._blocks[place] = _as_bytes(given)
            else:
                self._encode(codebook, given, placed, place)

    def _encode(self, codebook: Codebook, given: Floats, placed: Floats, place: slice) -> None:
        codes, whole = whole_of(codebook, placed)
        factors = np.stack([_offsets(codebook, given, placed), norm_corrections(placed, whole)], axis=1)
        # If a value exceeds 32 bits, all rows get the same distance, and exact embeddings then rank all rows.
        self._blocks[place, :8] = _as_bytes(np.nan_to_num(factors))
        self._blocks[place, 8:] = codes
        if self._second.shape[1]:
            second = encode_int8(placed)
            self._second[place, :4] = _as_bytes(np.nan_to_num(norm_corrections(placed, second)[:, None]))
            self._second[place, 4:] = second.view(np.uint8)

    def files(self, head: Head) -> dict[str, bytes]:
        """Return the files. The rows are ordered by cluster."""
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
    """Raise `Corrupt` with `where` unless these are the files of a segment over a split of `rows` rows.

    `rows` is None if the number is unknown. The function compares all blocks with their checksums.
    """
    options = options_of(definition)
    names = files_of(options.quantization)
    if {*names} != files.keys():
        raise not_a_segment(where, f"its files are {sorted(files)}, expected {sorted(names)}")
    head = Head.from_bytes(files[HEAD], where=where)
    if (head.metric, head.quantization) != (options.metric, options.quantization):
        raise not_a_segment(
            where, f"the codes are for {head.metric} and {head.quantization}, which differ from the index"
        )
    if rows is not None and head.of != rows:
        raise not_a_segment(where, f"the segment covers {head.of} rows, expected {rows}")
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
    """Return the codebook of a segment, and check that this codebook produced the codes. Raises `Corrupt`."""
    book = Codebook.from_bytes(data, where=where)
    if identity_of(data) != head.codebook:
        raise not_a_segment(
            where, f"the codes need codebook {head.codebook}, but the segment has codebook {identity_of(data)}"
        )
    fits = (book.metric, book.quantization, book.dimensions) == (head.metric, head.quantization, head.dimensions)
    if not fits or head.clusters not in (0, len(book.centroids)):
        raise not_a_segment(
            where, f"its codebook is for {book.metric}, {book.quantization}, {book.dimensions} dimensions"
        )
    return book


def require_rows(rows: npt.NDArray[np.uint32], sizes: Numbers, head: Head, *, where: str) -> None:
    """Raise `Corrupt` unless every row number is valid for the split and appears only once."""
    # The check sorts the row numbers. The check uses no array with `head.of` entries, because a forged head may contain
    # any number of rows.
    once = np.unique(rows)
    if len(once) != len(rows) or (len(once) and int(once[-1]) >= head.of) or int(sizes.sum()) != len(rows):
        raise not_a_segment(where, f"{ROWS} does not contain {head.rows} different rows of the {head.of} rows")


def require_block(data: bytes | memoryview, name: str, expected: int, *, where: str) -> None:
    """Raise `Corrupt` if the bytes of a block do not match its checksum."""
    if xxhash.xxh3_64_intdigest(data) != expected:
        raise not_a_segment(where, f"the checksum of a block of {name} does not match")


def _offsets(codebook: Codebook, given: Floats, placed: Floats) -> Floats:
    """Return the part of each row's distance that does not depend on the query.

    This part of the distance is |z|². For the metric `dot`, the part that does not depend on the query is -<m, x - m>,
    where m is the center.
    """
    if codebook.metric == "dot":
        offsets: Floats = np.negative((given - codebook.center) @ codebook.center)
    else:
        offsets = np.einsum("ij,ij->i", placed, placed)
    return offsets


def _pieces(clusters: Numbers) -> list[tuple[int, int, int]]:
    """Return the blocks of rows as (cluster, first row, row after the last). The rows are ordered by cluster."""
    if not len(clusters):
        return []
    begins = [0, *(np.flatnonzero(np.diff(clusters)) + 1).tolist()]
    found = []
    for begin, end in zip(begins, [*begins[1:], len(clusters)], strict=True):
        starts = range(begin, end, BLOCK_ROWS)
        found += [(int(clusters[begin]), start, min(start + BLOCK_ROWS, end)) for start in starts]
    return found


def _columns(rows: Bytes, widths: tuple[int, ...]) -> bytes:
    """Return the bytes of rows column by column.

    The first columns have the given widths, and the last column has the remaining bytes.
    """
    ends = np.cumsum(widths).tolist()
    parts = [rows[:, start:end] for start, end in zip([0, *ends], [*ends, rows.shape[1]], strict=True)]
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


def _as_bytes(numbers: Floats) -> Bytes:
    return np.ascontiguousarray(numbers, "<f4").view(np.uint8)


# Training of a codebook on a sample.


SAMPLE_PER_CLUSTER = 21
LEAST_SAMPLE = 4096
ROUNDS = 10

_FAR = 8


def train(
    sample: Floats,
    definition: IndexDefinition,
    seed: int,
    *,
    rows: int | None = None,
    flat_bytes: int = FLAT_BYTES,
    start: Codebook | None = None,
) -> Codebook:
    """Return a codebook for `rows` embeddings that are similar to those of the sample.

    The same arguments give the same codebook.

    If the codes have more than `flat_bytes` bytes, the codebook has about 3 √rows clusters. The codebook has more
    clusters if some clusters would be far larger than the others.

    Args:
        sample: The sample, rows by dimensions, in any order. Each row must be valid for an index (`indexable`).
            `sample_rows` returns the wanted number of rows.
        definition: The definition of the index.
        seed: The seed of random choices.
        rows: The number of embeddings, or None for the size of the sample.
        flat_bytes: The maximum size of codes, in bytes, without clusters.
        start: A codebook of this definition, or None. Training starts from the centroids of this codebook.

    Raises:
        InvalidInput: The sample is empty or is not a matrix of finite numbers.
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
        seed=seed,
        rows=total,
        error=0.0,
        center=_center(placed),
        centroids=empty,
        books=np.zeros((0, BOOK_ENTRIES, PER_BYTE), np.float32),
    )
    placed = fresh.to_code_space(vectors)
    if options.quantization == "product":
        fresh = replace(fresh, books=train_books(placed, words))
    count = clusters_for(fresh.quantization, fresh.dimensions, total, flat_bytes)
    if count:
        begin = None if start is None else start.centroids + fresh.turned(start.center - fresh.center)
        drawn = placed[: SAMPLE_PER_CLUSTER * count]
        found = divided(drawn, k_means(drawn, count, words, rounds=ROUNDS, start=begin), words)
        # If numbers are close to the limit of 32 bits, their mean may exceed this limit. The codebook then has no
        # clusters.
        fresh = replace(fresh, centroids=rounded(in_a_row(found)) if np.isfinite(found).all() else empty)
    return replace(fresh, error=coding_error(fresh, vectors))


def train_on(
    vectors: pa.ChunkedArray | pa.Array, definition: IndexDefinition, seed: int, *, start: Codebook | None = None
) -> Codebook:
    """Return a codebook for a column of embeddings. The function trains the codebook on a sample of these embeddings.

    The same rows, `seed` and `start` give the same codebook. If `start` is given, the training continues from this
    codebook with another sample. For a column without valid embeddings, the function returns a codebook that can encode
    any vector.
    """
    metric = options_of(definition).metric
    rows = np.flatnonzero(indexable(vectors, metric))
    words = np.random.PCG64(seed if start is None else (seed, start.rows))
    drawn = np.argsort(words.random_raw(len(rows)), kind="stable")[: sample_rows(len(rows))]
    sample = matrix(vectors)[rows[drawn]] if len(rows) else np.zeros((1, vectors.type.list_size), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        book = train(sample, definition, seed, rows=len(rows), start=start)
    return replace(book, books=np.nan_to_num(book.books), error=float(np.nan_to_num(book.error)))


def sample_rows(rows: int) -> int:
    """Return the number of rows to sample when a codebook for `rows` rows is trained."""
    return min(rows, max(LEAST_SAMPLE, SAMPLE_PER_CLUSTER * round(3 * math.sqrt(rows))))


def coding_error(codebook: Codebook, vectors: Floats) -> float:
    """Return the mean squared distance between vectors and their codes.

    With the quantization `none`, the result is the mean squared distance from the nearest centroid.
    """
    placed = codebook.to_code_space(vectors)
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


def _center(vectors: Floats) -> Floats:
    """Return the mean of the vectors. The function ignores vectors that are far longer than most vectors.

    Even a single very long vector would move the mean far away from all other vectors.
    """
    lengths = np.abs(vectors).max(axis=1)
    usual = vectors[lengths <= _FAR * np.median(lengths)]
    center: Floats = usual.mean(axis=0, dtype=np.float64).astype(np.float32)
    return center


def _checked(sample: Floats) -> Floats:
    vectors = np.ascontiguousarray(sample, np.float32)
    if vectors.ndim != 2 or not len(vectors) or not np.isfinite(vectors).all():
        raise InvalidInput(
            f"a codebook is trained on rows of finite numbers, found an array of the shape {vectors.shape}. Give at "
            "least one embedding without NaN"
        )
    return vectors
