"""The damage helper really changes an object, at a position derived from the seed, and refuses an unchanged result."""

from __future__ import annotations

from random import Random

import pytest

from storage_core.base.errors import InvalidInput, NotFound
from storage_core.store.contract import IfAbsent
from storage_core.store.memory import MemoryStore
from tests.support.damage import Damage, damage, empty, flip_bit, truncate

DATA = bytes(range(40))


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore("damaged")
    store.put("a", DATA, IfAbsent())
    store.put("b", b"another", IfAbsent())
    return store


@pytest.mark.parametrize("seed", range(50))
def test_a_flipped_bit_is_one_bit(seed: int) -> None:
    flipped = flip_bit(DATA, Random(seed))
    assert sum((old ^ new).bit_count() for old, new in zip(DATA, flipped, strict=True)) == 1


@pytest.mark.parametrize("seed", range(50))
def test_a_truncated_object_is_a_beginning_of_what_it_was(seed: int) -> None:
    cut = truncate(DATA, Random(seed))
    assert 0 < len(cut) < len(DATA)
    assert DATA.startswith(cut)


@pytest.mark.parametrize("kind", [Damage.BIT_FLIP, Damage.TRUNCATION, Damage.EMPTY])
def test_the_stored_bytes_change_and_other_objects_do_not(store: MemoryStore, kind: Damage) -> None:
    damage(store, "a", kind, seed=3)
    assert store.get("a").data != DATA
    assert store.get("b").data == b"another"


def test_the_place_of_the_damage_follows_from_the_seed() -> None:
    assert flip_bit(DATA, Random(1)) == flip_bit(DATA, Random(1))
    assert len({flip_bit(DATA, Random(seed)) for seed in range(50)}) > 10


def test_swapped_objects_hold_each_others_bytes(store: MemoryStore) -> None:
    damage(store, "a", Damage.SWAP, other="b")
    assert (store.get("a").data, store.get("b").data) == (b"another", DATA)


def test_a_missing_object_is_gone(store: MemoryStore) -> None:
    damage(store, "a", Damage.MISSING)
    with pytest.raises(NotFound):
        store.get("a")


@pytest.mark.parametrize("kind", Damage)
def test_what_is_not_there_cannot_be_damaged(store: MemoryStore, kind: Damage) -> None:
    with pytest.raises(NotFound):
        damage(store, "never", kind, other="b")


def test_damage_that_would_change_nothing_is_refused(store: MemoryStore) -> None:
    store.put("twin", DATA, IfAbsent())
    with pytest.raises(InvalidInput, match="changing places changes nothing"):
        damage(store, "a", Damage.SWAP, other="twin")
    with pytest.raises(InvalidInput, match="name the object"):
        damage(store, "a", Damage.SWAP)
    with pytest.raises(InvalidInput, match="no bit"):
        flip_bit(b"", Random(0))
    with pytest.raises(InvalidInput, match="cannot be cut"):
        truncate(b"x", Random(0))
    with pytest.raises(InvalidInput, match="already"):
        empty(b"")
