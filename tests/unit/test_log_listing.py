"""A listing near a version or the head: its results and its number of pages, for all ages, gaps and formats."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.formats.documents import CheckpointKind
from storage_core.data.formats.keys import json_checkpoint_key, json_checkpoint_part_key, state_key, version_key
from storage_core.log.listing import Checkpointed, has_log, list_head, list_log, list_near
from storage_core.store.contract import IfAbsent
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.scale import scaled

AVRO, JSON = CheckpointKind.AVRO_STATE, CheckpointKind.JSON


def _store(versions: Iterable[int] = (), states: Iterable[int] = (), json: Iterable[int] = ()) -> MemoryStore:
    store = MemoryStore("listed")
    keys = [*map(version_key, versions), *map(state_key, states), *map(json_checkpoint_key, json)]
    for key in keys:
        store.put(key, b"", IfAbsent())
    return store


def test_the_whole_listing_has_every_version_and_checkpoint_in_order() -> None:
    found = list_log(_store([2, 0, 1], states=[2, 1], json=[2]))
    assert found.versions == (0, 1, 2)
    assert found.checkpoints == (Checkpointed(1, AVRO), Checkpointed(2, JSON), Checkpointed(2, AVRO))
    assert (found.newest, found.since) == (2, 0)


@pytest.mark.parametrize(
    ("store", "expected"),
    [(_store(), False), (_store([7]), True), (_store(states=[7]), True), (_store(json=[7]), True)],
    ids=["nothing", "a version", "a state", "a JSON checkpoint"],
)
def test_a_log_is_there_when_anything_of_it_is(store: MemoryStore, expected: bool) -> None:
    assert has_log(store) is expected
    assert (list_head(store).newest >= 0) is expected


@pytest.mark.parametrize(
    ("at", "found"),
    [
        (2_995, [Checkpointed(version, AVRO) for version in range(2_000, 2_995, 10)]),
        (2_003, [Checkpointed(2_000, AVRO)]),
        (1_999, [Checkpointed(version, AVRO) for version in range(1_000, 2_000, 10)]),
    ],
)
def test_near_a_version_are_the_states_up_to_it_that_share_its_thousand(at: int, found: list[Checkpointed]) -> None:
    store = MeteredStore(_store(states=range(0, 5_000, 10)))
    near = list_near(store, at)
    assert list(near.checkpoints) == found
    assert near.since == at // 1_000 * 1_000
    assert store.requests["list"] == 1


def test_near_the_first_of_a_thousand_are_the_states_of_the_thousand_before() -> None:
    near = list_near(_store(states=[995, 1_995]), 2_000)
    assert (near.checkpoints, near.since) == ((Checkpointed(1_995, AVRO),), 1_000)
    assert list_near(_store(states=[995]), 2_000).checkpoints == ()


def test_json_checkpoints_are_near_where_no_state_is_close() -> None:
    assert list_near(_store(range(200), json=[110]), 120).checkpoints == (Checkpointed(110, JSON),)
    assert list_head(_store(range(1_500), json=[990])).checkpoints == (Checkpointed(990, JSON),)
    mixed = _store(range(3_400), states=[2_400], json=range(2_410, 3_400, 10))
    assert list_near(mixed, 3_295).checkpoints[-1] == Checkpointed(3_290, JSON)
    assert list_head(mixed).checkpoints[-1] == Checkpointed(3_390, JSON)


def test_the_head_is_found_behind_more_parts_of_a_checkpoint_than_a_page_holds() -> None:
    which = "0" * 8 + "-0000-4000-8000-" + "0" * 12
    for newest in (1_999, 2_000, 2_001):
        store = _store(range(newest + 1))
        for part in range(1, 2_100):
            store.put(json_checkpoint_part_key(newest, which, part), b"", IfAbsent())
        assert list_head(store).newest == newest
        assert list_head(store).versions[-1] == newest


@settings(max_examples=scaled(60), deadline=None)
@given(
    deleted=st.integers(0, 30_000),
    count=st.integers(1, 5_000),
    hole=st.integers(0, 4_000),
    seed=st.integers(0, 2**32),
)
def test_the_head_is_found_whatever_was_collected_or_lost_before_it(
    deleted: int, count: int, hole: int, seed: int
) -> None:
    lost = range(deleted + 1, deleted + min(hole, count - 1))
    versions = [version for version in range(deleted, deleted + count) if version not in lost]
    random.Random(seed).shuffle(versions)
    newest = deleted + count - 1
    store = MeteredStore(_store(versions, states=[newest - newest % 10]))
    found = list_head(store)
    assert found.newest == newest
    assert set(found.versions) == {version for version in versions if version >= found.since}
    assert store.requests["list"] <= 20


def test_a_state_newer_than_every_version_file_is_the_head() -> None:
    assert list_head(_store(range(3), states=[1, 9])).newest == 9
