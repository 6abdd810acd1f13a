"""SipHash-2-4 with both keys 0, of many messages at once (Aumasson and Bernstein, 2012)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
_State = tuple[Words, Words, Words, Words]

# The words of "somepseudorandomlygeneratedbytes", as the paper gives them.
_START: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_END: Final = np.uint64(0xFF)


def siphash_2_4(messages: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the hash of every message, signed. Messages of as many words are hashed together."""
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
    """Whole words, of which the last byte is the length modulo 256."""
    return message + bytes(7 - len(message) % 8) + bytes([len(message) & 0xFF])


def _hash(words: Words) -> Words:
    """The hashes of the messages in the columns of `words`, a row per word."""
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
    b, d = _rotated(b, 13) ^ a, _rotated(d, 16) ^ c
    a, c = _rotated(a, 32) + d, c + b
    b, d = _rotated(b, 17) ^ c, _rotated(d, 21) ^ a
    return a, b, _rotated(c, 32), d


def _rotated(words: Words, bits: int) -> Words:
    return words << np.uint64(bits) | words >> np.uint64(64 - bits)
