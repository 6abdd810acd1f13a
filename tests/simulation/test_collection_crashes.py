"""Kill the collector of regions at each of its requests, or let another process act before that request.

No row is lost, and no deleted row becomes visible again.

The collection deletes the generation that the last merge merged. The collection also prunes deleted generations from
the region's manifest (docs/architecture/collection.md).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache

import pytest

from storage_core.base.errors import CommitConflict, CommitUnknown
from storage_core.data.formats.region_manifest import RegionManifest
from storage_core.data.settings.table import TableConfig
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.region.manifest import read_latest, region_of
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_of
from tests.support.crashes import left_by_crashes
from tests.support.fault_store import FaultStore, PutFault
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable, Row
from tests.support.scale import scaled

CONFIG = TableConfig(primary_key=("tailnum",), checkpoint_interval=0, version_retention_ms=0, gc_horizon_ms=0)


def _plane(name: str, seats: int) -> Row:
    return {"tailnum": name, "seats": seats, "model": None}


def _process(store: ObjectStore, seed: int) -> KeyedTable:
    return KeyedTable(store, ids=SeededIds(seed))


def _collect(table: KeyedTable) -> None:
    # This clock is days ahead, so every commit of any process is older than the retention.
    collect(table.store, table.log, clock=ManualClock(START_MS + 10**9, step_ms=1))


def _merge(table: KeyedTable) -> None:
    table.merge_all()
    table.log.checkpoint(table.snapshot)


@cache
def start() -> MemoryStore:
    """Return a region with five generations and unflushed records.

    Generations 1 and 2 are deleted but still in the manifest, 3 is merged, and 4 and 5 wait for a merge.
    """
    store = MemoryStore("planes")
    table = _process(store, 1).create(config=CONFIG)
    with table.writer() as writer:
        writer.put([_plane("a", 1), _plane("b", 1)])
        writer.flush()
        writer.delete(["b"])
        writer.flush()
        _merge(table)
        _collect(table)
        writer.put(_plane("b", 3))
        writer.flush()
        _merge(table)
        writer.put(_plane("a", 4))
        writer.flush()
        writer.put(_plane("c", 5))
        writer.flush()
        writer.put(_plane("tail", 6))
    assert [each.generation for each in manifest(store).flushed_generations] == [1, 2, 3, 4, 5]
    return store


EXPECTED: dict[object, Row] = {name: _plane(name, seats) for name, seats in {"a": 4, "b": 3, "c": 5, "tail": 6}.items()}


def manifest(store: ObjectStore) -> RegionManifest:
    found = read_latest(store, region_of(_process(store, 1).snapshot.table_id))
    assert found is not None
    return found


@cache
def trace() -> tuple[str, ...]:
    """Return the kind and key of each request of a collector that no other process disturbs."""
    store = FaultStore(copy_of(start()))
    _collect(_process(store, 2))
    requests = tuple(f"{each.request.kind} {each.request.key}" for each in store.trace)
    assert manifest(store).collected_generation == 2
    return requests


class Judged:
    """Checks each distinct state of a table once. A request that only reads does not change the state."""

    def __init__(self) -> None:
        self.states: set[tuple[frozenset[str], int]] = set()

    def __call__(self, store: MemoryStore) -> None:
        state = (frozenset(info.key for info in store.list("")), manifest(store).collected_generation)
        if state not in self.states:
            self.states.add(state)
            _judge(store)


def _judge(store: MemoryStore) -> None:
    """Check the rows before and after the other processes continue. In the end, nothing is left to prune."""
    table = _process(store, 4)
    assert table.rows() == EXPECTED
    with table.writer() as writer:
        writer.put(_plane("a", 9))
        writer.flush()
        _merge(table)
        for _ in range(3):
            _collect(table)
        newest = manifest(store)
        assert (newest.flushed_generations, newest.collected_generation) == ((), newest.current_generation - 1)
        writer.put(_plane("c", 9))
    assert table.rows() == {**EXPECTED, "a": _plane("a", 9), "c": _plane("c", 9)}
    assert fsck(table.store, clock=table.clock).clean


def test_a_collector_may_end_at_any_request() -> None:
    judge = Judged()
    for left in left_by_crashes(start(), lambda store: _collect(_process(store, 2))):
        judge(left)
    assert {mark for _, mark in judge.states} == {0, 2}
    print(f"{len(trace())} requests leave {len(judge.states)} different tables behind")  # noqa: T201 -- for `pytest -rA`


@pytest.mark.parametrize("fault", [PutFault.APPLIED_THEN_UNKNOWN, PutFault.DROPPED_THEN_UNKNOWN])
def test_a_lost_reply_to_any_put_of_a_collection_changes_no_row(fault: PutFault) -> None:
    puts = [number for number, request in enumerate(trace()) if request.startswith("put ")]
    for number in puts:
        objects = copy_of(start())
        store = FaultStore(objects)
        store.at(number, fault)
        with suppress(CommitUnknown, CommitConflict):  # whether an error occurs depends on the put
            _collect(_process(store, 2))
        _judge(objects)
    assert len(puts) > 2, "the plan, the region's manifest, its hint"


def _other_claims_and_flushes(store: MemoryStore) -> None:
    with _process(store, 7).writer() as writer:
        writer.flush()


def _other_merges(store: MemoryStore) -> None:
    _merge(_process(store, 7))


def _other_sorts(store: MemoryStore) -> None:
    _process(store, 7).sort()


def _other_collects(store: MemoryStore) -> None:
    _collect(_process(store, 7))


OTHERS: list[Callable[[MemoryStore], None]] = [
    _other_claims_and_flushes,
    _other_merges,
    _other_sorts,
    _other_collects,
]


@pytest.mark.parametrize("act", OTHERS, ids=["a claim and a flush", "a merger", "a sorter", "another collector"])
def test_whatever_somebody_else_does_at_any_request_of_a_collection_no_row_is_lost(
    act: Callable[[MemoryStore], None],
) -> None:
    judge, conflicts = Judged(), 0
    step = 1 if scaled(1) > 1 else 2
    for number in range(OTHERS.index(act) % step, len(trace()), step):
        objects = copy_of(start())
        store = FaultStore(objects)
        store.at(number, lambda objects=objects: act(objects))  # type: ignore[misc]
        try:
            _collect(_process(store, 2))
        except CommitConflict:  # without a horizon, a rival deletes objects that this collector will read
            conflicts += 1
        judge(objects)
    assert (conflicts > 0) == (act is _other_collects), "only another collector is in the way"
