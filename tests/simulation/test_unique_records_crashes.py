"""A distributor of records with IDs is killed at each request, or loses the reply to that request.

In the end, each table has exactly one record for each ID.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import pytest

from storage_core.base.errors import TidemarkError
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.distribution.work import Terms
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from storage_core.write.region.manifest import read_latest, region_of
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_of
from tests.support.crashes import left_in_stores
from tests.support.distribution import Board
from tests.support.fault_store import FaultStore, PutFault
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

NAMES = ("one", "two", "events", "users")
LOST = (PutFault.APPLIED_THEN_UNKNOWN, PutFault.APPLIED_THEN_CONFLICT, PutFault.DROPPED_THEN_UNKNOWN)


def _board(stores: dict[str, ObjectStore], seed: int) -> Board:
    tables = {name: stores[name] for name in ("events", "users")}
    return Board([stores["one"], stores["two"]], tables, seed=seed)


def _append(stores: dict[str, MemoryStore], numbers: list[int], *, seed: int, at: int, places: list[str]) -> None:
    clock = ManualClock(at)
    limits = RawLimits(segment_ms=1)
    with RawLog([stores[each] for each in places], clock=clock, ids=SeededIds(seed), limits=limits) as log:
        for n in numbers:
            fields = {"n": n, "text": str(seed)}
            log.append_many([RawRecord(table=name, fields=fields, id=str(n)) for name in ("events", "users")])
            clock.now += 1


@cache
def start() -> dict[str, MemoryStore]:
    """Return two raw stores with records of several writers.

    Some records are in both stores. A first round distributed some of the records.
    """
    stores = {name: MemoryStore(name) for name in NAMES}
    _board(dict(stores), 1).create(users="n")
    _append(stores, [1, 2], seed=1, at=START_MS + 20, places=["one", "two"])
    _board(dict(stores), 1).distribute()
    _append(stores, [2, 3], seed=2, at=START_MS + 30, places=["one"])
    _append(stores, [3, 4, 1], seed=3, at=START_MS + 30, places=["two"])
    return stores


def _copies() -> dict[str, MemoryStore]:
    return {name: copy_of(store, name) for name, store in start().items()}


def judge(stores: dict[str, MemoryStore]) -> None:
    """Check that repeated records change nothing, even if they come before all other records."""
    _append(stores, [4, 3], seed=4, at=START_MS, places=["one"])
    board = _board(dict(stores), 50)
    assert board.distribute(Terms(work_bytes=1)).failures == {}
    assert board.numbers("events") == [1, 2, 3, 4]
    assert sorted(map(str, board.rows("users"))) == ["1", "2", "3", "4"]
    manifest = read_latest(stores["users"], region_of(KeyedTable(stores["users"]).snapshot.table_id))
    assert manifest is not None
    assert len(manifest.flushed_generations) == 2


def test_a_distributor_may_end_at_any_request_to_any_store() -> None:
    left = left_in_stores(start(), lambda stores: _board(stores, 2).distribute())
    assert len(left) > 4
    for stores in left:
        judge(stores)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", LOST)
def test_a_lost_reply_to_any_put_is_handled(name: str, fault: PutFault) -> None:
    counting = FaultStore(_copies()[name])
    _board({**_copies(), name: counting}, 2).distribute()
    puts = [number for number, each in enumerate(counting.trace) if each.request.kind == "put"]
    assert puts
    for number in puts:
        stores = _copies()
        losing = FaultStore(stores[name])
        losing.at(number, fault)
        with suppress(TidemarkError):
            _board({**stores, name: losing}, 2).distribute()
        judge(stores)
