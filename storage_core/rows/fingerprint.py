"""A fingerprint of a multiset of rows: what compaction must leave unchanged (MC-1, MC-2, MC-4).

Every cell is hashed with the name of its column, the cells of a row are summed and mixed, and the mixed rows are
summed. So neither the order of rows nor of columns counts, nor chunks, nor dictionaries; a null adds nothing, which
makes a missing column equal to one without values. Values are hashed in the total order's sense: one zero, one NaN.
Strings are hashed by multilinear hashing over their words (Lemire and Kaser, "Strongly universal string hashing is
fast"), all rows at once. The digest detects mistakes; it is no defence against an adversary, and is not stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from storage_core.rows.codes import Unsigned, is_blob_or_text, null_mask, ordered_bits
from storage_core.rows.vectors import Floats, is_vector, matrix

_BATCH_ROWS = 65_536
_WORD = (1 << 64) - 1
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class RowFingerprint:
    """The number of rows and a 64-bit digest of their contents; equal multisets have equal fingerprints."""

    rows: int
    digest: int


NO_ROWS = RowFingerprint(0, 0)
"""The fingerprint of no rows, which changes none that it is combined with."""


def of(table: pa.Table) -> RowFingerprint:
    """Return the fingerprint of the rows, over all columns by name. Memory: about 100 bytes for each of 65,536 rows."""
    digest = 0
    for start in range(0, table.num_rows, _BATCH_ROWS):
        batch = table.slice(start, _BATCH_ROWS)
        digest += int(_mix(_row_hashes(batch)).sum(dtype=np.uint64))
    return RowFingerprint(table.num_rows, digest & _WORD)


def row_hashes(table: pa.Table) -> Unsigned:
    """Return a 64-bit hash per row, over all columns by name: equal rows have equal hashes."""
    return _mix(_row_hashes(table))


def cells(column: pa.Array) -> Unsigned:
    """Return a 64-bit hash per value, 0 for null: equal values have equal hashes, behind a dictionary too."""
    return _seeded(column, 0)


def combine(a: RowFingerprint, b: RowFingerprint) -> RowFingerprint:
    """Return the fingerprint of the rows of both together; associative and commutative."""
    return RowFingerprint(a.rows + b.rows, (a.digest + b.digest) & _WORD)


def _row_hashes(table: pa.Table) -> Unsigned:
    hashes = np.full(table.num_rows, _ODD)
    for name, column in zip(table.column_names, table.columns, strict=True):
        hashes += _cells(column, xxhash.xxh3_64_intdigest(name.encode()))
    return hashes


def _cells(column: pa.ChunkedArray, seed: int) -> Unsigned:
    """The hash of every cell under a seed, 0 for null."""
    parts = [_seeded(chunk, seed) for chunk in column.chunks if len(chunk)]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def _seeded(array: pa.Array, seed: int) -> Unsigned:
    if pa.types.is_dictionary(array.type):
        # A slice of few rows under a large dictionary is cheaper to decode than to hash the dictionary for.
        wide = len(array.dictionary) > len(array)
        return _seeded(array.dictionary_decode(), seed) if wide else _dictionary_cells(array, seed)
    cells = _mix(_hashes(array) + np.uint64(seed))
    nulls = null_mask(pa.chunked_array([array]))
    if nulls is not None:
        cells[nulls] = 0
    return cells


def _dictionary_cells(array: pa.DictionaryArray, seed: int) -> Unsigned:
    lookup = np.append(_seeded(array.dictionary, seed), np.uint64(0))  # the last one for null
    positions = array.indices.fill_null(0).to_numpy().astype(np.int64)
    if array.indices.null_count:
        positions[array.indices.is_null().to_numpy(zero_copy_only=False)] = len(lookup) - 1
    cells: Unsigned = lookup[positions]
    return cells


def _hashes(array: pa.Array) -> Unsigned:
    """The hash of every value, anything for null."""
    kinds, type_ = pa.types, array.type
    if is_blob_or_text(type_):
        return _bytes_hashes(array.cast(pa.large_binary()))
    if kinds.is_decimal(type_):
        return _decimal_hashes(array.cast(pa.decimal128(38, type_.scale)))
    if kinds.is_map(type_):
        entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        return _list_hashes(entries, np.asarray(array.offsets))
    if is_vector(type_):
        return _vector_hashes(matrix(array))
    if kinds.is_list(type_) or kinds.is_large_list(type_):
        return _list_hashes(array.values, np.asarray(array.offsets))
    if kinds.is_struct(type_):
        children = pa.Table.from_arrays(array.flatten(), names=[child.name for child in type_.fields])
        return _mix(_row_hashes(children)) if type_.num_fields else np.zeros(len(array), np.uint64)
    return ordered_bits(pa.chunked_array([array]))


def _bytes_hashes(array: pa.Array) -> Unsigned:
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    counts = (lengths + 7) // 8
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    inside = (np.arange(ends[-1]) - np.repeat(ends[:-1], counts)) * 8
    words = _words(data, offsets, np.repeat(starts, counts) + inside)
    rest = np.repeat(lengths, counts) - inside
    short = rest < 8
    words[short] &= (np.uint64(1) << (rest[short] * 8).astype(np.uint64)) - np.uint64(1)
    # The length tells "a" from "a" with a zero byte behind it, which fill the same words.
    return _mix(_sequence_hashes(_mix(words), ends) + lengths.astype(np.uint64))


def _words(data: pa.Buffer | None, offsets: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Unsigned:
    """The eight bytes from each position of the values on, aligned or not; zeros behind the last value."""
    first, last = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(last - first + 8, np.uint8)
    if data is not None:
        padded[:-8] = np.frombuffer(data, np.uint8)[first:last]
    overlapping: Unsigned = np.ndarray(len(padded) - 7, np.dtype("<u8"), padded, strides=(1,))
    return overlapping[positions]


def _decimal_hashes(array: pa.Array) -> Unsigned:
    words = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)[array.offset : array.offset + len(array)]
    return words[:, 0] + _mix(words[:, 1] + _ODD)


def _list_hashes(values: pa.Array, offsets: npt.NDArray[np.int64]) -> Unsigned:
    first, last = int(offsets[0]), int(offsets[-1])
    elements = _cells(pa.chunked_array([values.slice(first, last - first)]), seed=1)
    return _sequence_hashes(elements, (offsets - first).astype(np.int64))


def _vector_hashes(numbers: Floats) -> Unsigned:
    """Multilinear hash of the numbers of each row, one zero and one NaN, as the words of 32 bits that they are."""
    numbers = np.where(np.isnan(numbers), np.float32(np.nan), numbers) + np.float32(0)
    coefficients = _mix(np.arange(1, numbers.shape[1] + 1, dtype=np.uint64) * _ODD) | np.uint64(1)
    return _mix((numbers.view(np.uint32).astype(np.uint64) + np.uint64(1)) @ coefficients)


def _sequence_hashes(elements: Unsigned, offsets: npt.NDArray[np.int64]) -> Unsigned:
    """Multilinear hash of each run of elements between offsets: sum of (element + 1) x the coefficient of its place."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    longest = int(lengths.max(initial=0))
    coefficients = _mix(np.arange(1, longest + 1, dtype=np.uint64) * _ODD) | np.uint64(1)
    places = np.arange(len(elements)) - np.repeat(starts, lengths)
    products = (elements + np.uint64(1)) * coefficients[places]
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(products, dtype=np.uint64)))
    return _mix(sums[offsets[1:]] - sums[starts] + lengths.astype(np.uint64) * _ODD)


def _mix(values: Unsigned) -> Unsigned:
    """Spread every bit over the whole word (the finalizer of SplitMix64); a bijection."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
