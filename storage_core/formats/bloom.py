"""A split-block bloom filter over primary keys: which generations certainly do not hold a key.

A filter only ever skips work, it never decides that a row exists (lesson 24). Its size follows the real number of keys.
The layout is the split-block filter of Parquet (256-bit blocks of eight 32-bit words, one bit per word); the hash is
ours and vectorised, so the bytes are specified here:

| Bytes | Content |
|---|---|
| 0 … 8 | `TMBLOOM` and the format version 1 |
| 8 … 16 | number of keys, unsigned 64-bit little-endian |
| 16 … 24 | xxh3-64 of the blocks, unsigned 64-bit little-endian |
| 24 … | the blocks, a power of two of them, 32 bytes each, words little-endian |
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from storage_core.errors import Corrupt, Unsupported
from storage_core.formats.key_hash import Hashes

Words = npt.NDArray[np.uint32]

BITS_PER_KEY = 16
_BLOCK_BITS = 256
_AT_ONCE = 2**16
"""Keys that go in together: on the way each takes about 70 bytes."""

_HEADER = struct.Struct("<8sQQ")
_MAGIC = b"TMBLOOM\x01"
_SALTS = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)
"""The odd constants of the Parquet format's split-block filter; each word derives its bit from another one."""


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """An immutable filter of `keys` hashed keys; `words` has shape (blocks, 8)."""

    keys: int
    words: Words

    def may_contain(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Return, per hash, False when the key was certainly not added; True may be wrong in about 1 of 1,000 cases."""
        blocks, bits = _positions(hashes, len(self.words))
        found: npt.NDArray[np.bool_] = (self.words[blocks] & bits == bits).all(axis=1)
        return found

    def to_bytes(self) -> bytes:
        """Return the stored form."""
        body = self.words.astype("<u4").tobytes()
        return _HEADER.pack(_MAGIC, self.keys, xxhash.xxh3_64_intdigest(body)) + body


DENIES_NOTHING = BloomFilter(0, np.full((1, len(_SALTS)), 2**32 - 1, dtype=np.uint32))
"""In place of a filter that cannot be read."""


def build(hashes: Hashes) -> BloomFilter:
    """Return a filter of these hashed keys, sized by how many there are; no key that went in is ever denied."""
    blocks = 1
    while blocks * _BLOCK_BITS < len(hashes) * BITS_PER_KEY:
        blocks *= 2
    words = np.zeros((blocks, len(_SALTS)), dtype=np.uint32)
    for start in range(0, len(hashes), _AT_ONCE):
        targets, bits = _positions(hashes[start : start + _AT_ONCE], blocks)
        np.bitwise_or.at(words, targets, bits)
    return BloomFilter(len(hashes), words)


def from_bytes(data: bytes, where: str) -> BloomFilter:
    """Return the filter in `data`; `where` is its key. Raises `Corrupt`, or `Unsupported` for a newer format."""
    if len(data) < _HEADER.size or data[:7] != _MAGIC[:7]:
        raise Corrupt(f"{where}: not a bloom filter ({len(data)} bytes)", key=where)
    magic, keys, digest = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise Unsupported(f"{where}: bloom filter of format {magic[7]}, this release reads 1; upgrade", key=where)
    body = data[_HEADER.size :]
    blocks = len(body) // (_BLOCK_BITS // 8)
    if len(body) != blocks * _BLOCK_BITS // 8 or blocks.bit_count() != 1 or xxhash.xxh3_64_intdigest(body) != digest:
        raise Corrupt(f"{where}: the bloom filter's {len(body)} bytes do not match their checksum or shape", key=where)
    words = np.frombuffer(body, dtype="<u4").astype(np.uint32).reshape(blocks, len(_SALTS))
    return BloomFilter(keys, words)


def _positions(hashes: Hashes, blocks: int) -> tuple[npt.NDArray[np.intp], Words]:
    # The upper half chooses the block, the lower half the bits within it, so the two are independent.
    chosen = ((hashes >> np.uint64(32)) & np.uint64(blocks - 1)).astype(np.intp)
    low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    bits = np.uint32(1) << ((low[:, None] * _SALTS) >> np.uint32(27))
    return chosen, bits.astype(np.uint32)
