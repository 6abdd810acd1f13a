"""Kill a raw-log collector at each request, or lose the reply to that request.

No row is lost, and no expired chunk is left.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import pytest

from storage_core.base.errors import TidemarkError
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.raw_log.history import union
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_of
from tests.support.distribution import Board
from tests.support.fault_store import Crash, CrashFault, FaultStore, PutFault
from tests.support.raw_collection import collect, offsets_of, produce
from tests.support.rejected_lines import rejected_lines

NAMES = ("one", "two", "events")
CLOCK = ManualClock()
LOST = (PutFault.APPLIED_THEN_UNKNOWN, PutFault.APPLIED_THEN_CONFLICT, PutFault.DROPPED_THEN_UNKNOWN)


@cache
def start() -> dict[str, MemoryStore]:
    """Return two stores with distributed chunks and one chunk that is not distributed, and an append table."""
    stores = {name: MemoryStore(name, clock=ManualClock()) for name in NAMES}
    board = _board(dict(stores)).create()
    produce(board, 1, 2)
    produce(board, 7, table="nobody", seed=2)
    board.distribute()
    produce(board, 3, seed=3)
    return stores


def _board(stores: dict[str, ObjectStore], seed: int = 1) -> Board:
    return Board([stores["one"], stores["two"]], {"events": stores["events"]}, seed=seed, raw_clock=CLOCK)


def _copies() -> dict[str, MemoryStore]:
    """Return copies of the stores. All copies have the same age and share one clock. A collection moves this clock."""
    found = start()
    CLOCK.now = START_MS
    return {name: copy_of(found[name], name, CLOCK) for name in NAMES}


def judge(stores: dict[str, MemoryStore]) -> None:
    """Assert that the raw log still has all undistributed rows, and that a new table reads the log without gaps.

    Then assert that another run completes the work.
    """
    history = union([stores["one"], stores["two"]])
    assert (history.missing, [ref.number for ref in history.chunks if ref.number > _reached(stores, ref.writer)]) == (
        [],
        [1],
    )
    assert len(list(rejected_lines(stores["one"]))) == 1
    board = _board(dict(stores), 5)
    collect(board, seed=11)
    assert len(union(list(board.stores)).chunks) == 1
    later = Board(board.stores, {"later": MemoryStore("later")}, seed=6).create()
    assert later.distribute().held == ()
    board.distribute()
    assert board.numbers("events") == [1, 2, 3]
    collect(board, seed=12)
    assert [info.key for store in board.stores for info in store.list("live/") if info.key.endswith(".avro")] == []


def _reached(stores: dict[str, MemoryStore], writer: str) -> int:
    return offsets_of(_board(dict(stores)))["events"].get(writer, 0)


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("side", list(CrashFault))
def test_a_collector_may_end_at_any_request_to_any_store(name: str, side: CrashFault) -> None:
    counting = FaultStore(_copies()[name])
    collect(_board({**_copies(), name: counting}, 2))
    assert len(counting.trace) > 8
    for number in range(len(counting.trace)):
        stores = _copies()
        crashing = FaultStore(stores[name])
        crashing.at(number, side)
        with pytest.raises(Crash):
            collect(_board({**stores, name: crashing}, 2))
        judge(stores)


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("fault", LOST)
def test_a_lost_reply_to_any_put_is_handled(name: str, fault: PutFault) -> None:
    counting = FaultStore(_copies()[name])
    collect(_board({**_copies(), name: counting}, 2))
    puts = [number for number, each in enumerate(counting.trace) if each.request.kind == "put"]
    assert len(puts) >= 3
    for number in puts:
        stores = _copies()
        losing = FaultStore(stores[name])
        losing.at(number, fault)
        with suppress(TidemarkError):
            collect(_board({**stores, name: losing}, 2))
        judge(stores)
