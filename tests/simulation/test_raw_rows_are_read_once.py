"""Rows of a raw log are read exactly once at every point of a distribution, despite any concurrent action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import product

import pytest

from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.meter import RequestKind
from storage_core.write.distribution.work import Terms
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from tests import draws
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import contents
from tests.support.fault_store import Crash, CrashFault, FaultStore
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.meanwhile import Meanwhile
from tests.support.raw_collection import collect
from tests.support.raw_reads import RAW, READS, TABLES, Answer, RawReads, by_history, by_scan, records_of


@cache
def start() -> RawReads:
    """Return stores with distributed and merged rows, newer rows of the same keys, and repeated IDs."""
    reads = RawReads.create()
    _append(reads, 1, [1, 2, 3, 4], "first row", at=START_MS)
    reads.board().distribute(Terms(closed_after_ms=0))
    for name in ("users", "parts"):
        KeyedTable(reads.stores[name], ids=SeededIds(3), clock=reads.clock).merge_all()
    with KeyedTable(reads.stores["users"], ids=SeededIds(4), clock=reads.clock).writer() as writer:
        writer.put([{"n": 2, "text": "direct row"}, {"n": 9, "text": "direct row"}])
    _append(reads, 5, [2, 3, 5], "second row", at=START_MS + 5)
    _append(reads, 6, [3, 6, 7], "third row", at=START_MS + 3)
    return reads


def _append(reads: RawReads, seed: int, numbers: list[int], text: str, *, at: int) -> None:
    clock = ManualClock(at)
    stores = [reads.stores[each] for each in RAW]
    with RawLog(stores, clock=clock, ids=SeededIds(seed), limits=RawLimits(segment_ms=1)) as log:
        for n in numbers:
            rows = [RawRecord(table=name, fields={"n": n, "text": text}) for name in TABLES]
            with_ids = [RawRecord(table=name, fields={"n": 100 + n, "text": "a row"}, id=f"{n}") for name in TABLES]
            log.append_many([*rows, *with_ids, RawRecord(table="users", fields={"n": "bad"})])
            clock.now += 1
        log.append_many([RawRecord(table=name, operation="delete", fields={"n": 1}) for name in ("users", "parts")])


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("round_bytes", [1, 10**9])
def test_at_every_request_of_a_distribution_and_a_merge_each_row_is_there_once(name: str, round_bytes: int) -> None:
    reads = start().copied()
    expected = reads.expected(name)
    records, puts = records_of(reads.table(name)), 0
    wanted = draws.instants(f"{name}, {round_bytes}")
    due = next(wanted)

    def look(kind: RequestKind, key: str) -> None:
        nonlocal puts, due
        if kind != "put" or "/manifests/" in key:
            return
        if puts == due:
            due = next(wanted)
            table = reads.table(name)
            assert by_scan(table) == expected, (kind, key)
            assert by_history(table) == expected, (kind, key)
            assert records_of(table) == records or is_merging, (kind, key)
        puts += 1

    is_merging = False
    over: dict[str, ObjectStore] = {each: FaultStore(reads.stores[each], watch=look) for each in (*RAW, name)}
    done = reads.board(over).distribute(Terms(round_bytes=round_bytes, closed_after_ms=0))
    assert done.failures == {}
    is_merging = True
    if name != "events":
        KeyedTable(over[name], ids=SeededIds(77), clock=reads.clock).merge_all()
    assert puts > 3
    assert reads.settled(name) == expected
    assert by_scan(reads.table(name)) == expected


def distribute(own: RawReads, _: str) -> None:
    """Distribute all waiting rows."""
    own.board().distribute(Terms(closed_after_ms=0))


def distribute_and_merge(own: RawReads, name: str) -> None:
    """Distribute all waiting rows, and merge them into the base."""
    distribute(own, name)
    if name != "events":
        KeyedTable(own.stores[name], ids=SeededIds(5_000), clock=own.clock).merge_all()


def distribute_and_collect(own: RawReads, name: str) -> None:
    """Distribute all waiting rows, and collect their chunks."""
    distribute_and_merge(own, name)
    for _ in range(2):
        collect(own.board(), retention_ms=0)


def break_off_write_and_merge(own: RawReads, name: str) -> None:
    """Crash after the regions have the rows, but before the log records the distribution.

    Then add newer rows, and merge everything.
    """
    ending = FaultStore(own.stores[name])
    for _ in range(2):
        ending.on_put("_transaction_log/", CrashFault.BEFORE)
    with suppress(Crash):
        own.board({name: ending}).distribute(Terms(closed_after_ms=0))
    table = KeyedTable(own.stores[name], ids=SeededIds(5_001), clock=own.clock)
    with table.routing_writer() as writer:
        writer.put([{"n": n, "text": "newest row"} for n in (2, 3, 5)])
    table.merge_all()


ACTS = (distribute, distribute_and_merge, distribute_and_collect, break_off_write_and_merge)
USUAL = ("by_scan", "by_keys", "by_history")
OTHERS = sorted(READS.keys() - {*USUAL})
# For the table with several regions, each action is combined with each read in `USUAL`. For tables without several
# regions, each action and each read occurs in at least one case.
CASES = [
    *product(["parts"], ACTS, USUAL),
    *product(["users"], ACTS, ["by_scan"]),
    *product(["users"], [distribute_and_merge], ["by_keys", "by_history"]),
    *product(["events"], [distribute, distribute_and_collect], ["by_scan"]),  # the append table has no merge
    *product(["events"], [distribute_and_collect], ["by_keys", "by_history"]),
    *product(TABLES, [distribute_and_merge], OTHERS),
]


@pytest.mark.parametrize(("name", "act", "how"), CASES)
def test_whatever_is_done_between_two_requests_of_a_read_it_has_the_rows_before_or_after(
    name: str, act: Callable[[RawReads, str], None], how: str
) -> None:
    before, after = start().expected(name), _after(act, name)
    instant = 0
    for instant in draws.instants(f"{name}, {act.__name__}, {how}"):
        reads = start().copied()
        watch = Meanwhile(instant, partial(_becomes, reads, _done(act, name)))
        over: Mapping[str, ObjectStore] = {each: FaultStore(reads.stores[each], watch=watch) for each in (*RAW, name)}
        assert READS[how](reads.table(name, over)) in (before, after), instant
        assert instant < 500
        if not watch.acted:
            break
    assert instant > 3


@cache
def _done(act: Callable[[RawReads, str], None], name: str) -> RawReads:
    """Return the tables after the action. The result is cached, because reads do not change the tables."""
    reads = start().copied()
    act(reads, name)
    return reads


@cache
def _after(act: Callable[[RawReads, str], None], name: str) -> Answer:
    return _done(act, name).expected(name)


def _becomes(reads: RawReads, done: RawReads) -> None:
    """Make each store of `reads` equal to the store of the same name in `done`."""
    for name, store in reads.stores.items():
        before, after = contents(store), contents(done.stores[name])
        store.delete(sorted(before.keys() - after.keys()))
        for key in (each for each in after if before.get(each) != after[each]):
            store.put(key, after[key], Overwrite())
