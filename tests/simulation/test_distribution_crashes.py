"""Kill a distributor at each request to a table, or lose the reply to that request.

In the end, each row is in the table once.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from storage_core.base.errors import TidemarkError
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.distribution.work import Terms
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from storage_core.write.region import generation
from storage_core.write.region.manifest import read_latest, region_of
from tests.support.clock import ManualClock
from tests.support.copies import contents, copy_of
from tests.support.crashes import left_in_stores
from tests.support.distribution import Board
from tests.support.fault_store import Fault, FaultStore, PutFault
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.rejected_lines import rejected_lines

NAMES = ("events", "users", "raw")
LOST = (PutFault.APPLIED_THEN_UNKNOWN, PutFault.APPLIED_THEN_CONFLICT, PutFault.DROPPED_THEN_UNKNOWN)
RATES: dict[Fault, float] = dict.fromkeys(LOST, 0.08)


def given() -> dict[str, MemoryStore]:
    """Return a raw log of two writers, an append table, and a keyed table with a row from a direct writer."""
    stores = {name: MemoryStore(name) for name in NAMES}
    _board(dict(stores), 1).create(users="n")
    clock = ManualClock()
    for seed in (1, 2):
        with RawLog([stores["raw"]], clock=clock, ids=SeededIds(seed), limits=RawLimits(segment_ms=1_000)) as log:
            for n in range(2):
                clock.now += 1_000
                log.append_many(
                    [
                        RawRecord(table="events", fields={"n": 10 * seed + n}),
                        RawRecord(table="events", fields={"n": "bad"}),
                        RawRecord(table="users", fields={"n": 1, "text": f"{seed}{n}"}),
                        RawRecord(table="strange", fields={}),
                    ]
                )
    KeyedTable(stores["users"], ids=SeededIds(5)).writer().put({"n": 2, "text": "direct"})
    return stores


def _board(stores: dict[str, ObjectStore], seed: int) -> Board:
    return Board([stores["raw"]], {name: stores[name] for name in ("events", "users")}, seed=seed)


def judge(stores: dict[str, MemoryStore], seed: int) -> None:
    """Distribute once more, and assert that each record exists once."""
    board = _board(dict(stores), seed)
    assert board.distribute().failures == {}
    assert board.numbers("events") == [10, 11, 20, 21]
    assert {key: row["text"] for key, row in board.rows("users").items()} == {1: "21", 2: "direct"}
    manifest = read_latest(stores["users"], region_of(KeyedTable(stores["users"]).snapshot.table_id))
    assert manifest is not None
    flushed = [generation.read(stores["users"], manifest.region_id, each) for each in manifest.flushed_generations]
    records = [
        row for each in flushed for part in generation.read_records(stores["users"], each) for row in part.to_pylist()
    ]
    assert [row["text"] for row in records] == ["direct", "10", "11", "20", "21"], "in their order, each once"
    assert [len(list(rejected_lines(stores[name]))) for name in NAMES] == [4, 0, 4]


def test_a_distributor_may_end_at_any_request_to_any_store() -> None:
    left = left_in_stores(given(), lambda stores: _board(stores, 2).distribute(Terms(round_bytes=1_500)))
    for name in NAMES:
        assert len({frozenset(contents(stores[name])) for stores in left}) > 1, name
    for stores in left:
        judge(stores, 3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", LOST)
def test_a_lost_reply_to_any_put_is_handled(name: str, fault: PutFault) -> None:
    start = given()
    counting = FaultStore(copy_of(start[name], name))
    _board({**_copies(start), name: counting}, 2).distribute()
    puts = [number for number, each in enumerate(counting.trace) if each.request.kind == "put"]
    assert puts
    for number in puts:
        stores = _copies(start)
        losing = FaultStore(stores[name])
        losing.at(number, fault)
        with suppress(TidemarkError):
            _board({**stores, name: losing}, 2).distribute()
        judge(stores, 3)


@pytest.mark.parametrize("seed", range(20))
def test_under_faults_at_random_each_record_is_distributed_once(seed: int) -> None:
    stores = given()
    faulty = {name: FaultStore(store, seed=seed, rates=RATES) for name, store in stores.items()}
    for attempt in range(3):
        with suppress(TidemarkError):
            _board(dict(faulty), 10_000 * (seed + 1) + 100 * attempt).distribute(Terms(work_bytes=1))
    judge(stores, 3)


def _copies(stores: dict[str, MemoryStore]) -> dict[str, MemoryStore]:
    return {name: copy_of(store, name) for name, store in stores.items()}
