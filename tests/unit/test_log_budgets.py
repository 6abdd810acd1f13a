"""What opening, committing and checkpointing cost in requests and bytes: the same at any age of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from storage_core.config import TableConfig
from storage_core.formats.keys import version_key
from storage_core.log.checkpoint import write_checkpoint
from storage_core.log.log import TransactionLog
from storage_core.objectstore.memory import MemoryStore
from storage_core.objectstore.meter import MeteredStore
from storage_core.testkit.log_tables import log_on, metadata, removal, split

AGES = (10, 1_000, 10_000)
FILES = 1_000

Cost = dict[str, int]


def _aged(version: int) -> MemoryStore:
    """Return a table of 1,000 files at `version`, checkpointed five versions before; older versions are collected."""
    store = MemoryStore("aged")
    log = log_on(store)
    log.create(metadata(TableConfig(checkpoint_interval=0)))
    head = log.commit(log.snapshot(), [split(f"n{n}") for n in range(FILES)], operation="APPEND").snapshot
    checkpointed = version - 5
    write_checkpoint(store, replace(head, version=checkpointed, timestamp=head.timestamp + version), log.ids.uuid)
    store.delete([version_key(number) for number in (0, 1)])
    for number in range(5):
        log.commit(log.snapshot(), [split(f"new{number}")], operation="APPEND")
    assert log.snapshot().version == version
    return store


def _cost(store: MemoryStore, act: Callable[[TransactionLog], object]) -> Cost:
    metered = MeteredStore(store)
    act(log_on(metered, seed=3))
    return {kind: count for kind, count in metered.requests.items() if count}


def _same_at_every_age(act: Callable[[TransactionLog], object]) -> Cost:
    costs = [_cost(_aged(version), act) for version in AGES]
    assert costs == [costs[0]] * len(AGES)
    return costs[0]


def test_opening_with_a_checkpoint_is_a_get_for_hint_and_state_and_one_per_later_version_and_a_probe() -> None:
    assert _same_at_every_age(lambda log: log.snapshot()) == {"get": 2 + 5 + 1}


def test_looking_at_all_files_is_one_more_per_manifest() -> None:
    assert _same_at_every_age(lambda log: log.snapshot().splits.table()) == {"get": 2 + 5 + 1 + 1}


def test_opening_without_the_hint_is_one_list_more_and_the_hint_that_is_not_there() -> None:
    def act(log: TransactionLog) -> None:
        log.snapshot()

    costs = []
    for version in AGES:
        store = _aged(version)
        store.delete(["_transaction_log/_last_checkpoint"])
        costs.append(_cost(store, act))
    assert costs == [{"get": 1 + 1 + 5 + 1, "list": 1}] * len(AGES)


def test_opening_without_any_checkpoint_is_a_list_and_a_get_per_version() -> None:
    store = MemoryStore("young")
    log = log_on(store)
    log.create(metadata(TableConfig(checkpoint_interval=0)))
    for number in range(9):
        log.commit(log.snapshot(), [split(f"n{number}")], operation="APPEND")
    # The hint that is not there, versions 0 to 9, and the probe for the one after.
    assert _cost(store, lambda log: log.snapshot()) == {"get": 1 + 10 + 1, "list": 1}


def test_opening_at_a_version_costs_what_lies_between_it_and_the_state_before() -> None:
    for version in AGES:
        store = _aged(version)
        assert _cost(store, lambda log, at=version - 3: log.snapshot(version=at)) == {"get": 2 + 2}  # type: ignore[misc]


def test_a_commit_is_a_head_and_a_put_at_any_age() -> None:
    def act(log: TransactionLog, store: MemoryStore) -> Cost:
        head = log.snapshot()
        return _cost(store, lambda metered: metered.commit(head, [split("x")], operation="APPEND"))

    for version in AGES:
        store = _aged(version)
        assert act(log_on(store), store) == {"head": 1, "put": 1}


def test_a_commit_that_removes_reads_the_manifest_that_lists_the_split_once() -> None:
    store = _aged(1_000)
    head = log_on(store).snapshot()
    metered = MeteredStore(store)
    opened = log_on(metered).snapshot()
    before = metered.requests
    log_on(metered, seed=4).commit(opened, [removal("n5")], operation="DELETE")
    assert {kind: count - before[kind] for kind, count in metered.requests.items() if count - before[kind]} == {
        "get": 1,
        "head": 1,
        "put": 1,
    }
    assert len(log_on(store).snapshot().splits) == len(head.splits) - 1


def test_a_checkpoint_costs_three_puts_at_any_age() -> None:
    cost = _same_at_every_age(lambda log: log.checkpoint(log.snapshot()))
    # To open 8; the hint twice; one new manifest, the state and the hint; a LIST of the manifests to be shared.
    assert cost == {"get": 8 + 2, "put": 3, "list": 1}


@pytest.mark.parametrize("files", [1, 100])
def test_a_commit_writes_as_many_bytes_at_version_10_000_as_at_version_10(files: int) -> None:
    def written(version: int) -> int:
        store = _aged(version)
        head = log_on(store).snapshot()
        metered = MeteredStore(store)
        log_on(metered, seed=5).commit(head, [split(f"x{number}") for number in range(files)], operation="APPEND")
        return metered.bytes_written

    young, *older = map(written, AGES)
    assert all(abs(old - young) <= 0.05 * young for old in older), (young, older)


def test_what_a_checkpoint_writes_follows_what_is_new_not_what_is_there() -> None:
    def written(files: Iterable[int]) -> list[int]:
        sizes = []
        for count in files:
            store = MemoryStore("grown")
            log = log_on(store)
            log.create(metadata(TableConfig(checkpoint_interval=0)))
            log.commit(log.snapshot(), [split(f"n{number}") for number in range(count)], operation="APPEND")
            log.checkpoint(log.snapshot())
            log.commit(log.snapshot(), [split(f"new{number}") for number in range(50)], operation="APPEND")
            sizes.append(log.checkpoint(log.snapshot()).bytes)
        return sizes

    small, large = written((200, 20_000))
    assert large < 1.1 * small
