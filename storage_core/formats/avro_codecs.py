"""Blocks of Avro files, measured as they expand: no more of one is held than a piece, whatever it claims.

Pure. (Apache Avro 1.11 specification, "Required Codecs", "Optional Codecs".)
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import cramjam

from storage_core.errors import Corrupt, Unsupported

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_EXPANDED_BYTES = 2**29
CODEC_DAMAGE = (zstd.ZstdError, cramjam.DecompressionError, zlib.error, ValueError, EOFError)
_STEP = 2**20
_CHECKSUM_BYTES = 4

Measure = Callable[[bytes, int], int]
"""The bytes that a block expands to, or more than `room` as soon as it is known to be more."""


def expanded_bytes(measure: Measure, block: bytes, room: int, where: str) -> int:
    """Return how many bytes the block expands to. Raises `Corrupt` where it is damaged, or beyond `room`."""
    try:
        size = measure(block, room)
    except CODEC_DAMAGE as error:
        raise Corrupt(f"{where}: damaged block: {error}", key=where) from error
    if size > room:
        raise Corrupt(f"{where}: expands beyond {MAX_EXPANDED_BYTES} bytes; no manifest of ours does", key=where)
    return size


def measure_of(codec: str, where: str) -> Measure:
    """Return what measures blocks of the codec. Raises `Unsupported` for one that this release does not read."""
    found = _MEASURES.get(codec)
    if found is None:
        raise Unsupported(
            f"{where}: Avro codec {codec!r}; this release reads {', '.join(sorted(_MEASURES))}", key=where
        )
    return found


def expand(codec: str, block: bytes, where: str) -> bytes:
    """Return the content of a block that was measured. Raises `Corrupt` where it is damaged."""
    try:
        match codec:
            case "deflate":
                return zlib.decompress(block, -zlib.MAX_WBITS)
            case "zstandard":
                return zstd.decompress(block)
            case "snappy":
                data = bytes(cramjam.snappy.decompress_raw(block[:-_CHECKSUM_BYTES]))
                if zlib.crc32(data) != int.from_bytes(block[-_CHECKSUM_BYTES:], "big"):
                    raise ValueError("it does not fit its checksum")
                return data
            case _:
                return block
    except CODEC_DAMAGE as error:
        raise Corrupt(f"{where}: damaged block: {error}", key=where) from error


def _plain(block: bytes, _room: int) -> int:
    return len(block)


def _deflated(block: bytes, room: int) -> int:
    return _streamed(zlib.decompressobj(-zlib.MAX_WBITS), block, room)


def _zstandard(block: bytes, room: int) -> int:
    total = 0
    while block and total <= room:
        stream = zstd.ZstdDecompressor()
        total += _streamed(stream, block, room - total)
        block = stream.unused_data
    return total


def _streamed(stream: Any, block: bytes, room: int) -> int:
    """Expand piece by piece, keeping nothing. zlib hands back what it has not consumed, zstd keeps it inside."""
    total = len(stream.decompress(block, _STEP))
    while not stream.eof and total <= room:
        rest = getattr(stream, "unconsumed_tail", b"")
        piece = stream.decompress(rest, _STEP)
        if not piece and not rest:
            raise EOFError(f"the block ends early after {len(block)} bytes")
        total += len(piece)
    return total


def _snappy(block: bytes, room: int) -> int:
    # The length in front is what the decoder allocates and enforces; four bytes of checksum follow the block.
    claimed = int(cramjam.snappy.decompress_raw_len(block[:-_CHECKSUM_BYTES]))
    return claimed if claimed <= room else room + 1


_MEASURES: Mapping[str, Measure] = {
    "null": _plain,
    "deflate": _deflated,
    "zstandard": _zstandard,
    "snappy": _snappy,
}
