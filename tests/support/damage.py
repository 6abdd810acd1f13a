"""Damage to bytes and to stored objects, of the kinds that a disk, a copy or an operator causes (lesson 61).

Every function guarantees a change, or raises an error if no change is possible (an empty object, two equal objects).
The position of the damage depends only on the given random source, so a case replays.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random
from typing import assert_never

from storage_core.base.errors import InvalidInput
from storage_core.store.contract import ObjectStore, Overwrite


class Damage(StrEnum):
    """The kind of damage to one stored object."""

    BIT_FLIP = "one bit is another"
    TRUNCATION = "the end is cut off, something is left"
    EMPTY = "nothing is left of the content"
    SWAP = "it changed places with another object"
    MISSING = "it is gone"


def damage(store: ObjectStore, key: str, kind: Damage, *, seed: int = 0, other: str | None = None) -> None:
    """Damage the object `key` in the store.

    Args:
        kind: The damage.
        seed: Chooses the bit or the length of the cut.
        other: The object to swap with, for `SWAP` only.

    Raises:
        NotFound: The object does not exist.
        InvalidInput: The damage would change nothing.

    Cost: one GET and one PUT, two of each for a swap, one DELETE for `MISSING`.
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
    """Return `data` with exactly one bit changed. Raise `InvalidInput` if `data` is empty."""
    if not data:
        raise InvalidInput("there is no bit to flip in an empty object")
    position = random.randrange(len(data) * 8)
    changed = bytearray(data)
    changed[position // 8] ^= 1 << position % 8
    return bytes(changed)


def truncate(data: bytes, random: Random) -> bytes:
    """Return a non-empty proper prefix of `data`. Raise `InvalidInput` if `data` has fewer than two bytes."""
    if len(data) < 2:
        raise InvalidInput(f"{len(data)} bytes cannot be cut so that something is left")
    return data[: random.randrange(1, len(data))]


def empty(data: bytes) -> bytes:
    """Return an empty value. Raise `InvalidInput` if `data` is already empty."""
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
