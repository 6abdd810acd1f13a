"""Damage to bytes, and to objects at rest: what a disk, a copy or an operator does to them (lesson 61).

Every function guarantees that something changed; where nothing can (no bit in an empty object, two equal objects) it
refuses. The place of the damage follows from the given randomness alone, so a case replays.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random
from typing import assert_never

from storage_core.errors import InvalidInput
from storage_core.objectstore.contract import ObjectStore, Overwrite


class Damage(StrEnum):
    """What happens to one stored object."""

    BIT_FLIP = "one bit is another"
    TRUNCATION = "the end is cut off, something is left"
    EMPTY = "nothing is left of the content"
    SWAP = "it changed places with another object"
    MISSING = "it is gone"


def damage(store: ObjectStore, key: str, kind: Damage, *, seed: int = 0, other: str | None = None) -> None:
    """Damage the object `key` where it lies; `other` is the object that it changes places with, for `SWAP` only.

    The seed chooses the bit or the cut. One GET and one PUT, two of each for a swap, one DELETE for `MISSING`. Raises
    `NotFound` without the object, `InvalidInput` where the damage would change nothing.
    """
    data = store.get(key).data
    match kind:
        case Damage.BIT_FLIP:
            store.put(key, flip_bit(data, Random(seed)), Overwrite())
        case Damage.TRUNCATION:
            store.put(key, truncate(data, Random(seed)), Overwrite())
        case Damage.EMPTY:
            store.put(key, empty(data), Overwrite())
        case Damage.SWAP:
            _swap(store, key, other)
        case Damage.MISSING:
            store.delete([key])
        case unreachable:
            assert_never(unreachable)


def flip_bit(data: bytes, random: Random) -> bytes:
    """Return `data` with exactly one bit changed. Raises `InvalidInput` for no bytes."""
    if not data:
        raise InvalidInput("there is no bit to flip in an empty object")
    position = random.randrange(len(data) * 8)
    changed = bytearray(data)
    changed[position // 8] ^= 1 << position % 8
    return bytes(changed)


def truncate(data: bytes, random: Random) -> bytes:
    """Return a true, non-empty beginning of `data`. Raises `InvalidInput` when it has less than two bytes."""
    if len(data) < 2:
        raise InvalidInput(f"{len(data)} bytes cannot be cut so that something is left")
    return data[: random.randrange(1, len(data))]


def empty(data: bytes) -> bytes:
    """Return no bytes. Raises `InvalidInput` when there were none."""
    if not data:
        raise InvalidInput("the object is empty already")
    return b""


def _swap(store: ObjectStore, key: str, other: str | None) -> None:
    if other is None:
        raise InvalidInput(f"{key}: name the object that it changes places with", key=key)
    ours, theirs = store.get(key).data, store.get(other).data
    if ours == theirs:
        raise InvalidInput(f"{key}: holds the bytes of {other}; changing places changes nothing", key=key)
    store.put(key, theirs, Overwrite())
    store.put(other, ours, Overwrite())
