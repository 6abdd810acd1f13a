"""Hashes of primary keys, and the objects that store them: bloom filters and key indexes.

**Hashes.** Equal keys have equal hashes. The width of integers, the layout of text and the chunks have no effect. So
filters stay valid if a type is promoted. Different keys may have equal hashes, and the readers of filters and indexes
handle this case.

**Bloom filters.** With a split-block bloom filter over primary keys, a reader finds the generations that certainly do
not contain a key. A filter only saves work and never proves that a row exists (lesson 24). The size of a filter depends
on the number of keys. The layout is the split-block filter of Parquet (256-bit blocks of eight 32-bit words, one bit
per word). Tidemark uses its own vectorized hash, so this section specifies the bytes:

| Bytes | Content |
|---|---|
| 0 … 8 | `TMBLOOM` and the format version 1 |
| 8 … 16 | number of keys, unsigned 64-bit little-endian |
| 16 … 24 | xxh3-64 of the blocks, unsigned 64-bit little-endian |
| 24 … | the blocks of 32 bytes each, with little-endian words. The number of blocks is a power of two |

**Key indexes.** A key index contains the position of each key in a generation, so a lookup reads only the entries that
it needs. `key_index.arrow` is an Arrow IPC stream with one row per record, ascending by `hash`. Records with equal
hashes are in the order of their acknowledgement. The columns of `key_index.arrow` are `hash` (uint64), `entry` (uint64,
the number of the WAL entry) and `row` (uint32, the record in the entry, from 0). Like the bloom filter, the index only
saves work. A reader that finds a hash still compares the keys.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.data.formats.arrow_files import read_stream

Hashes = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint32]


# Hashes of keys.

_PIECE_BYTES = 2**20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


def key_hashes(rows: pa.Table, key: Sequence[str]) -> Hashes:
    """Return one hash per row, computed from the key columns in their order. The columns must not contain nulls."""
    hashes = np.zeros(rows.num_rows, dtype=np.uint64)
    for name in key:
        hashes = _mix(hashes + _GOLDEN ^ _column_hashes(rows.column(name)))
    return hashes


def within(wanted: Hashes, hashes: Hashes) -> Places:
    """Return the positions of the wanted hashes in the ascending `hashes`. A hash may have several positions."""
    first = np.searchsorted(hashes, wanted, side="left")
    lengths = np.searchsorted(hashes, wanted, side="right") - first
    starts = np.cumsum(lengths) - lengths
    places: Places = np.repeat(first - starts, lengths) + np.arange(int(lengths.sum()))
    return places


@dataclass(frozen=True, slots=True, eq=False)
class HashedRows:
    """Ascending hashes, and the row of each hash."""

    hashes: Hashes
    rows: Numbers

    @staticmethod
    def of(hashes: Hashes, *, stable: bool = False) -> HashedRows:
        """Sort the hashes of the rows. Return each hash with the number of its row.

        With `stable`, rows with equal hashes keep their order. The stable sort is slower.
        """
        order = np.argsort(hashes, kind="stable" if stable else None)
        return HashedRows(hashes[order], order.astype(np.uint32))

    @staticmethod
    def joined(parts: Sequence[HashedRows]) -> HashedRows:
        """Return the hashes of consecutive parts as one `HashedRows`."""
        if len(parts) == 1:
            return parts[0]
        found = [HashedRows(np.zeros(0, np.uint64), np.zeros(0, np.uint32)), *parts]
        return HashedRows(
            np.concatenate([each.hashes for each in found]), np.concatenate([each.rows for each in found])
        )

    @property
    def size_bytes(self) -> int:
        """The size in memory, in bytes."""
        return self.hashes.nbytes + self.rows.nbytes

    def rows_of(self, wanted: Hashes) -> Places:
        """Return all rows with these hashes, ordered by hash."""
        return self.rows[within(wanted, self.hashes)].astype(np.int64)


def _mix(values: Hashes) -> Hashes:
    """Return the values after the finalizer of SplitMix64.

    In the finalizer, every input bit affects every output bit.
    """
    values = (values ^ (values >> np.uint64(30))) * _MIX_A
    values = (values ^ (values >> np.uint64(27))) * _MIX_B
    return values ^ (values >> np.uint64(31))


def _column_hashes(column: pa.ChunkedArray) -> Hashes:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _column_hashes(column.cast(kind.value_type))
    if pa.types.is_floating(kind):
        # Adding zero turns -0.0 into 0.0. The two zeros are the same key.
        floats = column.cast(pa.float64()).to_numpy() + 0.0
        return _mix(np.where(np.isnan(floats), np.nan, floats).view(np.uint64) + _GOLDEN)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _mix(column.cast(pa.int64()).to_numpy().astype(np.int64).view(np.uint64) + _GOLDEN)
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        width = pa.int64() if pa.types.is_timestamp(kind) else pa.int32()
        return _mix(column.cast(width).cast(pa.int64()).to_numpy().view(np.uint64) + _GOLDEN)
    return _text_hashes(column if pa.types.is_binary(kind) else column.cast(pa.string()))


def _text_hashes(column: pa.ChunkedArray) -> Hashes:
    parts = [_byte_hashes(chunk.cast(pa.large_binary())) for chunk in column.chunks]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint64)


def _byte_hashes(texts: pa.Array) -> Hashes:
    """Return one multilinear hash per text.

    Each byte is multiplied by a constant that depends on the byte's position, and the products are added. The sum is
    mixed with the length of the text.
    """
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer else np.zeros(0, np.uint8)
    # Prefix sums wrap around. Nevertheless, the difference of two prefix sums is the exact sum of all products between
    # the two positions. For an empty text, the difference is 0.
    sums = _prefix_sums(data, offsets)
    return _mix(np.diff(sums) + np.diff(offsets).astype(np.uint64) * _GOLDEN)


def _prefix_sums(data: Bytes, offsets: Places) -> Hashes:
    """Return the sum of the weighted bytes up to each offset.

    One mebibyte is processed at a time, because the computation needs about forty times the memory of its input.
    """
    sums = np.zeros(len(offsets), np.uint64)
    total = np.uint64(0)
    for low in range(int(offsets[0]), int(offsets[-1]), _PIECE_BYTES):
        high = min(low + _PIECE_BYTES, int(offsets[-1]))
        first, last = np.searchsorted(offsets, low, side="right"), np.searchsorted(offsets, high, side="left")
        starts, bounds = offsets[first - 1 : last], np.clip(offsets[first - 1 : last + 1], low, high)
        position = np.arange(low, high, dtype=np.uint64) - np.repeat(starts, np.diff(bounds)).astype(np.uint64)
        weighted = (data[low:high].astype(np.uint64) + np.uint64(1)) * _mix((position + np.uint64(1)) * _GOLDEN)
        running = total + np.cumsum(weighted, dtype=np.uint64)
        ended = slice(first, np.searchsorted(offsets, high, side="right"))
        sums[ended] = running[offsets[ended] - low - 1]
        total = running[-1]
    return sums


# Bloom filters.

Words = npt.NDArray[np.uint32]

BITS_PER_KEY = 16
_BLOCK_BITS = 256
_AT_ONCE = 2**16
"""The number of keys that are added in one step. Each key needs about 70 bytes of memory."""

_HEADER = struct.Struct("<8sQQ")
_MAGIC = b"TMBLOOM\x01"
_SALTS = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)
"""The constants of the Parquet format's split-block filter, which are odd numbers.

In each word of a block, the constant of the word determines which bit of the word is set.
"""


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """An immutable filter of `keys` hashed keys. `words` has the shape (blocks, 8)."""

    keys: int
    words: Words

    def may_contain(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Return, for each hash, False if the key was certainly not added, else True.

        For other keys, the result is True in about 1 of 1,000 cases.
        """
        blocks, bits = _positions(hashes, len(self.words))
        found: npt.NDArray[np.bool_] = (self.words[blocks] & bits == bits).all(axis=1)
        return found

    def to_bytes(self) -> bytes:
        """Return the stored form."""
        body = self.words.astype("<u4").tobytes()
        return _HEADER.pack(_MAGIC, self.keys, xxhash.xxh3_64_intdigest(body)) + body


DENIES_NOTHING = BloomFilter(0, np.full((1, len(_SALTS)), 2**32 - 1, dtype=np.uint32))
"""A filter that excludes no key. Readers use this filter if they cannot read the filter of a generation."""


def build_bloom(hashes: Hashes) -> BloomFilter:
    """Return a filter of these hashed keys.

    The number of keys determines the size of the filter. The filter contains every added key.
    """
    blocks = 1
    while blocks * _BLOCK_BITS < len(hashes) * BITS_PER_KEY:
        blocks *= 2
    words = np.zeros((blocks, len(_SALTS)), dtype=np.uint32)
    for start in range(0, len(hashes), _AT_ONCE):
        targets, bits = _positions(hashes[start : start + _AT_ONCE], blocks)
        np.bitwise_or.at(words, targets, bits)
    return BloomFilter(len(hashes), words)


def from_bytes(data: bytes, where: str) -> BloomFilter:
    """Return the filter in `data`, from the key `where`. Raises `Corrupt`, or `Unsupported` for a newer format."""
    if len(data) < _HEADER.size or data[:7] != _MAGIC[:7]:
        raise Corrupt(f"{where}: not a bloom filter ({len(data)} bytes)", key=where)
    magic, keys, digest = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise Unsupported(
            f"{where}: bloom filter of format {magic[7]}, this release reads 1. Upgrade Tidemark", key=where
        )
    body = data[_HEADER.size :]
    blocks = len(body) // (_BLOCK_BITS // 8)
    if len(body) != blocks * _BLOCK_BITS // 8 or blocks.bit_count() != 1 or xxhash.xxh3_64_intdigest(body) != digest:
        raise Corrupt(f"{where}: the bloom filter's {len(body)} bytes do not match their checksum or shape", key=where)
    words = np.frombuffer(body, dtype="<u4").astype(np.uint32).reshape(blocks, len(_SALTS))
    return BloomFilter(keys, words)


def _positions(hashes: Hashes, blocks: int) -> tuple[npt.NDArray[np.intp], Words]:
    # The upper half of the hash selects the block, and the lower half selects the bits. The two selections are
    # independent.
    chosen = ((hashes >> np.uint64(32)) & np.uint64(blocks - 1)).astype(np.intp)
    low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    bits = np.uint32(1) << ((low[:, None] * _SALTS) >> np.uint32(27))
    return chosen, bits.astype(np.uint32)


# Key indexes.

Rows = npt.NDArray[np.int64]

_SCHEMA = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("entry", pa.uint64(), nullable=False),
        pa.field("row", pa.uint32(), nullable=False),
    ]
)


def build_key_index(hashes: Hashes, entries: Sequence[int], lengths: Sequence[int]) -> bytes:
    """Return the index of records with these hashes of keys.

    `lengths` is the number of records in each entry, in order.
    """
    order = np.argsort(hashes, kind="stable")
    entry = np.repeat(np.array(entries, np.uint64), lengths)
    starts = np.repeat(np.cumsum([0, *lengths])[:-1], lengths)
    row = (np.arange(len(hashes)) - starts).astype(np.uint32)
    columns = [pa.array(each[order]) for each in (hashes, entry, row)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA))
    data: bytes = sink.getvalue().to_pybytes()
    return data


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """The positions of the records of a generation, ascending by hash."""

    hashes: Hashes
    entry: npt.NDArray[np.uint64]
    row: npt.NDArray[np.uint32]

    @property
    def nbytes(self) -> int:
        """The size in memory, in bytes."""
        return self.hashes.nbytes + self.entry.nbytes + self.row.nbytes

    def find(self, wanted: Hashes) -> Mapping[int, Rows]:
        """Return the rows whose key has one of the wanted hashes, grouped by entry.

        The rows of an entry are ascending.
        """
        found = within(np.unique(wanted), self.hashes)
        entry, row = self.entry[found], self.row[found]
        return {int(each): np.sort(row[entry == each]).astype(np.int64) for each in np.unique(entry)}


def decode_key_index(data: bytes, where: str) -> KeyIndex:
    """Decode the key index of the object at `where`. Raises `Corrupt` if `data` is not a valid key index."""
    index, _ = read_stream(data, "the key index", where)
    if not index.schema.equals(_SCHEMA):
        raise Corrupt(f"{where}: expected a key index with {_SCHEMA.names}, found {index.schema.names}", key=where)
    hashes, entry, row = (index.column(name).to_numpy() for name in _SCHEMA.names)
    if (hashes[1:] < hashes[:-1]).any():
        raise Corrupt(f"{where}: the hashes of a key index ascend, these do not", key=where)
    return KeyIndex(hashes, entry, row)
