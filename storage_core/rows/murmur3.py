"""Murmur3 of column values exactly as Spark computes it: the base of the bucket transforms.

The x86 32-bit variant with Spark's tail: each byte behind the last whole word is mixed as a word of its own, signed.
What is hashed of a value:

| Type | Hashed as |
|---|---|
| int8 … int64, uint8 … uint32 | the 64-bit integer, so that a promotion keeps the hash |
| float32, float64 | the bits of the float64; -0.0 as 0.0, every NaN as one |
| bool, date32 | the 32-bit integer: 1 or 0, days since 1970 |
| timestamp | microseconds since 1970 as a 64-bit integer |
| decimal | its unscaled value: a 64-bit integer where that fits, else the shortest big-endian two's complement |
| string, binary | the bytes, text in UTF-8 |

A null leaves the hash as it was. Spark agrees natively when integers are cast to long and floats to double; of
decimals it agrees up to precision 18 (above, Spark hashes bytes also of small values, ours keeps the hash when a
precision is widened).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.rows.keys import Positions

Hashes = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Column: TypeAlias = pa.Array | pa.ChunkedArray

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_M5 = np.uint32(0xE6546B64)
_WORD_BYTES = 4
_FEW = 32
"""So few values are hashed each by itself: a step over columns costs about as much as so many words in Python."""
_PIECE_WORDS = 2**16


def murmur3(columns: Sequence[Column]) -> npt.NDArray[np.int32]:
    """Return one signed hash per row over the columns in order; the hash of each is the seed of the next.

    Nulls change nothing, so the hash of a row of nulls is 0. Columns are of one length. Raises `InvalidInput`
    for a type that has no hash: lists, structs, maps. No Python loop over rows; text is hashed word by word. Its memory
    does not grow with the length of one text.
    """
    rows = len(columns[0]) if columns else 0
    hashes = np.zeros(rows, np.uint32)
    for column in columns:
        array = _plain(column)
        mixed = _hash_array(array, hashes)
        hashes = np.where(_valid(array), mixed, hashes) if array.null_count else mixed
    return hashes.view(np.int32)


def is_hashable(type_: pa.DataType) -> bool:
    """Return whether values of this type have a hash."""
    kinds = pa.types
    simple = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_date32, kinds.is_timestamp)
    other = (kinds.is_decimal128, kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary)
    return any(is_kind(type_) for is_kind in (*simple, *other))


def _plain(column: Column) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _hash_array(array: pa.Array, seeds: Hashes) -> Hashes:
    kinds, type_ = pa.types, array.type
    if kinds.is_boolean(type_) or kinds.is_date32(type_):
        return _hash_int(_filled(array.cast(pa.int32())).view(np.uint32), seeds)
    if kinds.is_integer(type_):
        return hash_long(_filled(array.cast(pa.int64())), seeds)
    if kinds.is_timestamp(type_):
        zoneless = pa.timestamp("us", tz=type_.tz)
        return hash_long(_filled(array.cast(zoneless).cast(pa.int64())), seeds)
    if kinds.is_floating(type_):
        # Adding zero turns -0.0 into 0.0; every NaN becomes the quiet one.
        floats = _filled(array.cast(pa.float64())).astype(np.float64) + 0.0
        return hash_long(np.where(np.isnan(floats), np.nan, floats).view(np.int64), seeds)
    if kinds.is_decimal128(type_):
        return _hash_decimal(array, seeds)
    if is_hashable(type_):
        return _hash_texts(array, seeds)
    raise InvalidInput(f"values of type {type_} have no hash; use another column or transform")


def _filled(array: pa.Array) -> npt.NDArray[np.generic]:
    """The values, 0 for null."""
    values: npt.NDArray[np.generic] = (array.fill_null(0) if array.null_count else array).to_numpy()
    return values


def _hash_int(words: Hashes, seeds: Hashes) -> Hashes:
    return _finish(_mix(seeds, words), np.full(len(words), _WORD_BYTES, dtype=np.uint32))


def hash_long(values: npt.NDArray[np.generic], seeds: Hashes) -> Hashes:
    """Return the hash of each 64-bit value."""
    bits = np.ascontiguousarray(values).view(np.uint64)
    low, high = bits.astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)
    return _finish(_mix(_mix(seeds, low), high), np.full(len(bits), 2 * _WORD_BYTES, dtype=np.uint32))


def _hash_texts(array: pa.Array, seeds: Hashes) -> Hashes:
    if not len(array):
        return seeds
    return hash_bytes(*text_bytes(array), seeds)


def text_bytes(array: pa.Array) -> tuple[Bytes, Positions, Positions]:
    """Return the bytes of texts or binary values, and where each begins and how long it is. Of one value at least."""
    texts = array.cast(pa.large_binary())
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return data, offsets[:-1], np.diff(offsets)


def _hash_decimal(array: pa.Array, seeds: Hashes) -> Hashes:
    """128 bits per value, little-endian: as a long where the upper half only repeats the sign, else as bytes."""
    if not len(array):
        return seeds
    halves = _halves(array)
    low, high = halves[:, 0], halves[:, 1]
    hashes = hash_long(low, seeds)
    wide = np.flatnonzero((high != low >> np.int64(63)) & _valid(array))
    if len(wide):
        hashes[wide] = hash_bytes(*_shortest(halves[wide]), seeds[wide])
    return hashes


def decimal_bytes(array: pa.Array) -> tuple[Bytes, Positions, Positions]:
    """Return the unscaled values as `text_bytes` does texts: big-endian two's complement in as few bytes as hold it."""
    return _shortest(_halves(array))


def _halves(array: pa.Array) -> npt.NDArray[np.int64]:
    words = np.frombuffer(array.buffers()[1], dtype="<i8").reshape(-1, 2)
    found: npt.NDArray[np.int64] = words[array.offset : array.offset + len(array)]
    return found


def _shortest(halves: npt.NDArray[np.int64]) -> tuple[Bytes, Positions, Positions]:
    data = np.ascontiguousarray(halves).view(np.uint8).reshape(-1, 16)[:, ::-1]
    skipped = _sign_bytes(data)
    starts = np.arange(len(halves), dtype=np.int64) * 16 + skipped
    return np.ascontiguousarray(data).reshape(-1), starts, 16 - skipped


def _sign_bytes(data: Bytes) -> Positions:
    """How many leading bytes of each big-endian number only repeat its sign: Java's `BigInteger` leaves them out."""
    sign = np.where(data[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    repeats = (data[:, :-1] == sign) & ((data[:, 1:] >= 0x80) == (sign == 0xFF))
    skipped: Positions = np.logical_and.accumulate(repeats, axis=1).sum(axis=1).astype(np.int64)
    return skipped


def hash_bytes(
    data: Bytes, starts: Positions, lengths: Positions, seeds: Hashes, *, tail_by_bytes: bool = True
) -> Hashes:
    """Hash the stretches of `data`: one step per word position, over the rows that reach so far while they are many.

    What is left behind the last whole word is mixed byte by byte as Spark does it, or else as murmur3 has it.
    """
    hashes = seeds.copy()
    words = lengths // _WORD_BYTES
    active = np.flatnonzero(words)
    position = 0
    while len(active) > _FEW:
        at = starts[active] + position * _WORD_BYTES
        word = np.zeros(len(active), dtype=np.uint32)
        for byte in range(_WORD_BYTES):
            word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        hashes[active] = _mix(hashes[active], word)
        position += 1
        active = active[words[active] > position]
    for row in active:
        start = starts[row] + position * _WORD_BYTES
        hashes[row] = _hash_words(data[start : starts[row] + words[row] * _WORD_BYTES], int(hashes[row]))
    tails = np.zeros(len(lengths), np.uint32)
    for byte in range(_WORD_BYTES - 1):
        active = np.flatnonzero(lengths % _WORD_BYTES > byte)
        found = data[starts[active] + words[active] * _WORD_BYTES + byte]
        if tail_by_bytes:
            hashes[active] = _mix(hashes[active], found.view(np.int8).astype(np.int32).view(np.uint32))
        else:
            tails[active] |= found.astype(np.uint32) << np.uint32(8 * byte)
    return _finish(hashes ^ _scrambled(tails), lengths.astype(np.uint32))


def _hash_words(data: Bytes, seed: int) -> int:
    """Mix whole words into one hash: what does not depend on the word before for many at once, the rest in Python."""
    found = seed
    for piece in np.split(data, range(_PIECE_WORDS * _WORD_BYTES, len(data), _PIECE_WORDS * _WORD_BYTES)):
        for word in _scrambled(piece.view("<u4")).tolist():
            found ^= word
            found = (((found << 13) | (found >> 19)) * 5 + 0xE6546B64) & 0xFFFFFFFF
    return found


def _scrambled(words: Hashes) -> Hashes:
    return _rotated(words * _C1, 15) * _C2


def _rotated(values: Hashes, bits: int) -> Hashes:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))


def _mix(hashes: Hashes, words: Hashes) -> Hashes:
    mixed = hashes ^ _scrambled(words)
    return _rotated(mixed, 13) * np.uint32(5) + _M5


def _finish(hashes: Hashes, lengths: Hashes) -> Hashes:
    mixed = hashes ^ lengths
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return mixed ^ (mixed >> np.uint32(16))
