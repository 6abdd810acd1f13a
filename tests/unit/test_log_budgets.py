"""Requests and bytes of opening, committing and checkpointing at versions 13, 1,003 and 10,003 of one log.

The log has all of its version files and a state every ten versions. If a cost grows with the history, a test fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest

from storage_core.data.formats.keys import LOG_PREFIX, VERSIONS_PREFIX
from storage_core.data.settings.table import TableConfig
from storage_core.log.checkpoint_writing import write_checkpoint
from storage_core.log.log import TransactionLog
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.copies import copy_of
from tests.support.log_tables import log_on, metadata, removal, split

AGES = (13, 1_003, 10_003)
"""Each version is three versions after a checkpoint state, so the logs differ only in the length of the history."""

FILES = 20
HINT = f"{LOG_PREFIX}_last_checkpoint"

Cost = dict[str, int]
Aged = Callable[[int], MemoryStore]


@pytest.fixture(scope="module")
def logs() -> Mapping[int, MemoryStore]:
    """Return the log at each version of `AGES`, built by commits. Every commit replaces one of the 20 live splits."""
    store = MemoryStore("aged")
    log = log_on(store)
    head = log.create(metadata(TableConfig(checkpoint_interval=0)))
    head = log.commit(head, [split(f"n{n}") for n in range(FILES)], operation="APPEND").snapshot
    found = {}
    for version in range(2, AGES[-1] + 1):
        head = log.commit(head, [split(f"v{version}"), removal(_replaced(version))], operation="COMPACT").snapshot
        assert head.version == version
        if version % 10 == 0:
            # A full rewrite of the state shares no manifest with the previous state and needs no LIST. A LIST of this
            # memory store is slow.
            head = write_checkpoint(store, head, log.ids.uuid, compact=True).snapshot
        if version in AGES:
            found[version] = copy_of(store)
    return found


def _replaced(version: int) -> str:
    return "n0" if version == 2 else f"v{version - 1}"


@pytest.fixture
def aged(logs: Mapping[int, MemoryStore]) -> Aged:
    """Return a function that copies the log at a version. A test may change the copy."""
    return lambda version: copy_of(logs[version])


def _cost(store: MemoryStore, act: Callable[[TransactionLog], object]) -> Cost:
    metered = MeteredStore(store)
    act(log_on(metered, seed=3))
    return {kind: count for kind, count in metered.requests.items() if count}


def _same_at_every_age(aged: Aged, act: Callable[[TransactionLog], object]) -> Cost:
    costs = [_cost(aged(version), act) for version in AGES]
    assert costs == [costs[0]] * len(AGES)
    return costs[0]


def test_the_log_under_test_has_every_version_file_and_a_state_and_a_manifest_per_ten(aged: Aged) -> None:
    for version in AGES:
        store = aged(version)
        keys = [info.key for info in store.list(LOG_PREFIX)]
        assert sum(key.startswith(VERSIONS_PREFIX) and key.endswith(".json") for key in keys) == version + 1
        assert sum("/state-v" in key for key in keys) == sum("/manifest-" in key for key in keys) == version // 10
        assert log_on(store).snapshot().version == version
        assert len(log_on(store).snapshot().splits) == FILES


def test_opening_with_the_hint_gets_hint_and_state_and_later_versions_and_a_probe_and_lists_what_lies_beyond(
    aged: Aged,
) -> None:
    assert _same_at_every_age(aged, lambda log: log.snapshot()) == {"get": 2 + 3 + 1, "list": 1}


def test_looking_at_all_files_is_one_get_more_per_manifest(aged: Aged) -> None:
    assert _same_at_every_age(aged, lambda log: log.snapshot().splits.table()) == {"get": 2 + 3 + 1 + 1, "list": 1}


def test_opening_a_version_behind_the_newest_state_costs_what_lies_between(aged: Aged) -> None:
    for version in AGES:
        assert _cost(aged(version), lambda log, at=version - 1: log.snapshot(version=at)) == {"get": 2 + 2}  # type: ignore[misc]


def test_opening_a_version_before_the_newest_state_lists_the_states_near_it_at_any_age(aged: Aged) -> None:
    for version in AGES:
        # These requests read the hint, a state and six versions. The hint contains a later state. In the log with 13
        # versions, version 6 is requested, and no state exists before version 6. The requests therefore read the seven
        # versions from 0 to 6.
        cost = _cost(aged(version), lambda log, at=version - 7: log.snapshot(version=at))  # type: ignore[misc]
        assert cost == {"get": 1 + 7, "list": 1}


@pytest.mark.parametrize(("version", "lists"), [(13, 1), (1_003, 5), (10_003, 6)])
def test_opening_without_the_hint_lists_a_page_per_doubling_of_the_versions_and_the_newest_states(
    aged: Aged, version: int, lists: int
) -> None:
    store = aged(version)
    store.delete([HINT])
    # The GETs read the missing hint, the state, three versions and a probe. The number of GETs does not depend on the
    # length of the history.
    assert _cost(store, lambda log: log.snapshot()) == {"get": 1 + 1 + 3 + 1, "list": lists}


def test_opening_without_any_checkpoint_is_a_list_and_a_get_per_version() -> None:
    store = MemoryStore("young")
    log = log_on(store)
    log.create(metadata(TableConfig(checkpoint_interval=0)))
    for number in range(9):
        log.commit(log.snapshot(), [split(f"n{number}")], operation="APPEND")
    # The missing hint, versions 0 to 9, and the probe for version 10.
    assert _cost(store, lambda log: log.snapshot()) == {"get": 1 + 10 + 1, "list": 1}


def test_a_commit_is_a_head_and_a_put_at_any_age(aged: Aged) -> None:
    for version in AGES:
        store = aged(version)
        head = log_on(store).snapshot()
        cost = _cost(store, lambda log, on=head: log.commit(on, [split("x")], operation="APPEND"))  # type: ignore[misc]
        assert cost == {"head": 1, "put": 1}


def test_a_commit_that_removes_reads_the_manifest_that_lists_the_split_once(aged: Aged) -> None:
    store = aged(1_003)
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


def test_a_checkpoint_costs_three_puts_at_any_age(aged: Aged) -> None:
    cost = _same_at_every_age(aged, lambda log: log.checkpoint(log.snapshot()))
    # Opening takes 6 requests and a LIST. The checkpoint itself takes two GETs of the hint, a GET of the manifest with
    # a removed split, and three PUTs. The PUTs write a new manifest, the state and the hint. A HEAD checks the only
    # manifest that could be shared.
    assert cost == {"get": 6 + 2 + 1, "put": 3, "list": 1, "head": 1}


@pytest.mark.parametrize("files", [1, 100])
def test_a_commit_writes_as_many_bytes_at_version_10_003_as_at_version_13(aged: Aged, files: int) -> None:
    def written(version: int) -> int:
        store = aged(version)
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
