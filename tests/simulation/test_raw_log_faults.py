"""Each request to a raw log's stores fails once with each fault. No row is lost, duplicated or invented.

The oracle is the result that each caller got: acknowledged, unknown, or surely not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import pytest

from storage_core.base.errors import CommitUnknown, Unavailable
from storage_core.data.formats.raw_chunk import RawColumns
from storage_core.data.formats.raw_fields import decode_fields
from storage_core.store.memory import MemoryStore
from storage_core.write.raw_log.history import History, RawStore, union
from storage_core.write.raw_log.records import RawLimits
from storage_core.write.raw_log.writer import RawLog
from tests.simulation.seeds import naming, seed_blocks
from tests.support.clock import ManualClock
from tests.support.fault_store import Crash, CrashFault, Fault, FaultStore, GetFault, HeadFault, ListFault, PutFault
from tests.support.ids import SeededIds

WAIT_MS = 20_000
LIMITS = RawLimits(segment_bytes=2_500, segment_ms=60_000, close_wait_ms=WAIT_MS)

PUT_RATES: Mapping[Fault, float] = {
    PutFault.APPLIED_THEN_CONFLICT: 0.04,
    PutFault.APPLIED_THEN_UNKNOWN: 0.05,
    PutFault.APPLIED_THEN_UNAVAILABLE: 0.05,
    PutFault.DROPPED_THEN_UNKNOWN: 0.1,
    PutFault.DELAYED_THEN_UNKNOWN: 0.15,
    PutFault.CONFLICT_WITH_NOTHING: 0.02,
    PutFault.REFUSED: 0.1,
    GetFault.REFUSED: 0.2,
}
READ_RATES: Mapping[Fault, float] = {
    GetFault.REFUSED: 0.05,
    GetFault.TORN: 0.1,
    GetFault.EMPTY: 0.05,
    GetFault.FLIPPED: 0.1,
    GetFault.SWAPPED: 0.1,
    HeadFault.REFUSED: 0.02,
    ListFault.REFUSED: 0.1,
    ListFault.REORDERED: 0.2,
    ListFault.DOUBLED: 0.1,
}


@dataclass
class Told:
    """The appended values, grouped by the result that the caller got."""

    acknowledged: list[int] = field(default_factory=list)
    unknown: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)

    def check(self, history: History) -> None:
        """Compare these results with the values of readers.

        Each value occurs at most once, in order, and no refused value occurs.
        """
        found = values(history)
        assert len(set(found)) == len(found)
        assert [value for value in found if value not in self.unknown] == self.acknowledged
        assert not self.refused & set(found)


def values(history: History) -> list[int]:
    """Return all values in the order of the history. Fail on a gap or on damage."""
    found: list[int] = []
    for each in history.read():
        assert isinstance(each, RawColumns)
        found += _values_of(each)
    return found


def _values_of(chunk: RawColumns) -> list[int]:
    return [decode_fields(text)["value"] for text in chunk.records.column("fields").to_pylist()]


def opened(stores: list[FaultStore], clock: ManualClock, seed: int) -> RawLog:
    """Open a raw log with two mandatory stores and an optional store."""
    a, b, c = stores
    return RawLog([a, b, RawStore(c, mandatory=False)], clock=clock, ids=SeededIds(seed), limits=LIMITS)


def append(log: RawLog, first: int, count: int, told: Told) -> bool:
    """Append `count` values and record the result. Return True if the writer can continue."""
    given = range(first, first + count)
    try:
        log.append("t", [{"value": value, "noise": "x" * 300} for value in given])
    except (CommitUnknown, Crash):
        told.unknown.update(given)
        return False
    except Unavailable:
        told.refused.update(given)
        return False
    told.acknowledged += given
    return True


# Kill a process at each request.


def _life(stores: list[FaultStore], clock: ManualClock, told: Told, *, seed: int, first: int) -> None:
    log = opened(stores, clock, seed)
    for call in range(3):
        clock.now += 1
        going_on = append(log, first + 10 * call, 2, told)
        log.drain(WAIT_MS)
        if not going_on:
            break
    log.close()


def _requests(at: int) -> int:
    stores = [FaultStore(MemoryStore(name)) for name in "abc"]
    _life(stores, ManualClock(), Told(), seed=1, first=0)
    return len(stores[at].trace)


MATRIX = [
    pytest.param(at, number, fault, id=f"{'abc'[at]}-{number}-{fault.name}")
    for at in range(3)
    for number in range(_requests(at))
    for fault in CrashFault
]


@pytest.mark.parametrize(("at", "number", "fault"), MATRIX)
def test_whatever_request_a_writer_ends_at_what_was_acknowledged_is_there_once(
    at: int, number: int, fault: CrashFault
) -> None:
    inner = [MemoryStore(name) for name in "abc"]
    stores = [FaultStore(each) for each in inner]
    stores[at].at(number, fault)
    clock, told = ManualClock(), Told()
    _life(stores, clock, told, seed=1, first=0)
    # A failed optional store does not stop a writer. If a mandatory store fails during a call, the writer can no longer
    # be used.
    assert len(told.unknown) == (0 if at == 2 else 2)
    clock.now += 1
    _life([FaultStore(each) for each in inner], clock, told, seed=2, first=100)
    assert told.acknowledged[-1] == 121
    for stores_left in (inner, inner[:1], inner[1:2]):
        told.check(union(stores_left))


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("fault", list(PutFault))
@pytest.mark.parametrize("times", [1, 4])
def test_whatever_happens_to_a_put_the_caller_is_told_the_truth(at: int, fault: PutFault, times: int) -> None:
    inner = [MemoryStore(name) for name in "abc"]
    stores = [FaultStore(each) for each in inner]
    stores[at].on_put("00000000000000000002.avro", *[fault] * times)
    clock, told = ManualClock(), Told()
    _life(stores, clock, told, seed=1, first=0)
    told.check(union(inner))
    for each in stores:
        each.deliver()
    clock.now += 1
    _life(stores, clock, told, seed=2, first=100)
    told.check(union(inner))
    told.check(union(inner[:1]))


# Seeds.


@seed_blocks(100)
def test_under_any_faults_what_was_acknowledged_is_there_once_and_nothing_else(seeds: range) -> None:
    for seed in seeds:
        with naming(seed):
            _simulate(seed)


def _simulate(seed: int) -> None:
    random, clock, told = Random(seed), ManualClock(), Told()
    inner = [MemoryStore(name) for name in "abc"]
    stores = [FaultStore(each, seed=seed + index, rates=PUT_RATES) for index, each in enumerate(inner)]
    log = opened(stores, clock, seed)
    for call in range(12):
        clock.now += random.choice([1, 1, 70_000])
        going_on = append(log, 10 * call, random.randint(1, 5), told)
        log.drain(WAIT_MS)
        if random.random() < 0.3:
            random.choice(stores).deliver(1)
        if not going_on and random.random() < 0.7:  # otherwise the caller calls the failed writer once more
            log.close()
            clock.now += 1
            log = opened(stores, clock, 1_000 * seed + call)
    log.close()
    for each in stores:
        each.deliver()
    told.check(union(inner))
    told.check(union([inner[0]]))
    told.check(union([inner[1]]))
    _read_through_faults(inner, seed, told)


def _read_through_faults(inner: list[MemoryStore], seed: int, told: Told) -> None:
    """Read from stores that return faulty data. A read raises a typed error, reports missing data, or is correct."""
    right = values(union(inner))
    stores = [FaultStore(each, seed=seed + index, rates=READ_RATES) for index, each in enumerate(inner[:2])]
    for _ in range(10):
        try:
            read = [*union(stores).read()]
        except Unavailable:
            continue
        found = [value for each in read if isinstance(each, RawColumns) for value in _values_of(each)]
        assert found == [value for value in right if value in set(found)]
        if all(isinstance(each, RawColumns) for each in read):
            assert [value for value in found if value not in told.unknown] == told.acknowledged
