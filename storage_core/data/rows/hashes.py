"""Hash functions that give the same results as other systems: Spark's Murmur3, Iceberg's bucket hash, SipHash.

**`murmur3`** hashes column values exactly as Spark does. The bucket transforms of regions use `murmur3`. `murmur3` is
the x86 32-bit variant with Spark's treatment of the tail. Each byte after the last whole word is mixed as a separate
signed word. These bytes are hashed:

| Type | Hashed as |
|---|---|
| int8 … int64, uint8 … uint32 | the 64-bit integer, so that a promotion keeps the hash |
| float32, float64 | the bits of the float64, with -0.0 as 0.0 and with the same bits for every NaN |
| bool, date32 | a 32-bit integer: 1 or 0 for bool, the days since 1970 for date32 |
| timestamp | microseconds since 1970 as a 64-bit integer |
| decimal | the unscaled value: a 64-bit integer if the value fits, otherwise the shortest big-endian two's complement |
| string, binary | the bytes, text in UTF-8 |

A null does not change the hash. Spark computes the same hash when integers are cast to long and floats to double. For
decimals, the hashes agree up to precision 18. Above this precision, Spark hashes the bytes of small values, too.
Tidemark hashes small values as 64-bit integers, so its hash stays the same when a precision is widened.

**`siphash_2_4`** is SipHash-2-4 with both keys 0, for many messages at once (Aumasson and Bernstein, 2012).

**`iceberg_hashes`** is the hash of Iceberg's bucket transform: murmur3 (x86, 32 bits) with seed 0. Integers, dates and
timestamps are hashed as 64-bit integers, with dates in days and timestamps in microseconds since 1970. If a column is
promoted to a wider type, the hash of a value therefore does not change. Decimals are hashed as the shortest big-endian
two's complement of the unscaled value, and strings as UTF-8. Spark's murmur3 gives different hashes from Iceberg's
murmur3, because Spark mixes the last bytes of a text differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.keys import Positions

Hashes = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Column: TypeAlias = pa.Array | pa.ChunkedArray


# Murmur3.

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_M5 = np.uint32(0xE6546B64)
_WORD_BYTES = 4
_FEW = 32
"""Up to this number of values, each value is hashed individually.

One vectorized step takes about as long as hashing this number of words in Python.
"""
_PIECE_WORDS = 2**16


def murmur3(columns: Sequence[Column]) -> npt.NDArray[np.int32]:
    """Return one signed hash per row, computed from the columns in order.

    The hash of each column is the seed of the next column.

    A null does not change the hash, so the hash of a row of nulls is 0. Columns must have equal lengths. Raises
    `InvalidInput` for a type that has no hash: lists, structs, maps.

    Cost: the function has no Python loop over rows. The function hashes text word by word, so the memory does not grow
        with the length of a text.
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
        # Adding zero turns -0.0 into 0.0. Every NaN becomes the quiet NaN.
        floats = _filled(array.cast(pa.float64())).astype(np.float64) + 0.0
        return hash_long(np.where(np.isnan(floats), np.nan, floats).view(np.int64), seeds)
    if kinds.is_decimal128(type_):
        return _hash_decimal(array, seeds)
    if is_hashable(type_):
        return _hash_texts(array, seeds)
    raise InvalidInput(f"values of type {type_} have no hash. Use another column or transform")


def _filled(array: pa.Array) -> npt.NDArray[np.generic]:
    """Return the values, with 0 for null."""
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
    """Return the bytes of texts or binary values, and the start and the length of each value.

    There must be at least one value.
    """
    texts = array.cast(pa.large_binary())
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return data, offsets[:-1], np.diff(offsets)


def _hash_decimal(array: pa.Array, seeds: Hashes) -> Hashes:
    """Return the hash of each decimal. A value that fits 64 bits is hashed as a long, and any other value as bytes."""
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
    """Return the unscaled values in the form of `text_bytes`: the shortest big-endian two's complement."""
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
    """Return, for each big-endian number, the number of leading bytes that only repeat its sign.

    Java's `BigInteger` omits these bytes.
    """
    sign = np.where(data[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    repeats = (data[:, :-1] == sign) & ((data[:, 1:] >= 0x80) == (sign == 0xFF))
    skipped: Positions = np.logical_and.accumulate(repeats, axis=1).sum(axis=1).astype(np.int64)
    return skipped


def hash_bytes(
    data: Bytes, starts: Positions, lengths: Positions, seeds: Hashes, *, tail_by_bytes: bool = True
) -> Hashes:
    """Return the hash of each byte range of `data`.

    Each step processes one word position in all rows that are long enough. When only a few rows are left, the function
    hashes them individually. The bytes after the last whole word are mixed byte by byte as in Spark, or as in the
    original murmur3.
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
    """Return the hash of the whole words of `data`, starting from `seed`.

    A part of the hash does not depend on the previous word. This part is computed for many words in one step. The part
    that depends on the previous word is computed in a Python loop.
    """
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


# SipHash.

Words = npt.NDArray[np.uint64]
_State = tuple[Words, Words, Words, Words]

# The words of "somepseudorandomlygeneratedbytes", from the paper.
_START: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_END: Final = np.uint64(0xFF)


def siphash_2_4(messages: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the signed hash of every message. Messages with the same number of words are hashed together."""
    hashes = np.empty(len(messages), np.uint64)
    by_words: dict[int, list[int]] = {}
    for place, message in enumerate(messages):
        by_words.setdefault(len(message) // 8 + 1, []).append(place)
    for count, places in by_words.items():
        padded = b"".join(_padded(messages[place]) for place in places)
        words = np.frombuffer(padded, "<u8").reshape(len(places), count)
        hashes[places] = _hash(words.astype(np.uint64, copy=False).T)
    return hashes.view(np.int64)


def _padded(message: bytes) -> bytes:
    """Return the message, padded to a multiple of 8 bytes. The last byte is the length modulo 256."""
    return message + bytes(7 - len(message) % 8) + bytes([len(message) & 0xFF])


def _hash(words: Words) -> Words:
    """Return one hash per message. Each message is a column of `words`, with one word per row."""
    a, b, c, d = (np.full(words.shape[1], start, np.uint64) for start in _START)
    for word in words:
        a, b, c, d = _round(_round((a, b, c, d ^ word)))
        a = a ^ word
    state = (a, b, c ^ _END, d)
    for _ in range(4):
        state = _round(state)
    a, b, c, d = state
    return a ^ b ^ c ^ d


def _round(state: _State) -> _State:
    a, b, c, d = state
    a, c = a + b, c + d
    b, d = _rotated_words(b, 13) ^ a, _rotated_words(d, 16) ^ c
    a, c = _rotated_words(a, 32) + d, c + b
    b, d = _rotated_words(b, 17) ^ c, _rotated_words(d, 21) ^ a
    return a, b, _rotated_words(c, 32), d


def _rotated_words(words: Words, bits: int) -> Words:
    return words << np.uint64(bits) | words >> np.uint64(64 - bits)


# Iceberg's bucket hash.


def iceberg_hashes(column: pa.Array) -> Hashes:
    """Return the hash of each value, without a Python loop over rows. The hash of a null is undefined."""
    kinds, type_ = pa.types, column.type
    seeds = np.zeros(len(column), np.uint32)
    if not len(column):
        return seeds
    if kinds.is_string(type_):
        return hash_bytes(*text_bytes(column), seeds, tail_by_bytes=False)
    if kinds.is_decimal128(type_):
        return hash_bytes(*decimal_bytes(column), seeds, tail_by_bytes=False)
    if kinds.is_timestamp(type_):
        column = column.cast(pa.timestamp("us", tz=type_.tz))
    numbers = column.cast(pa.int32()) if kinds.is_date32(type_) else column
    return hash_long(numbers.cast(pa.int64()).fill_null(0).to_numpy(), seeds)
