"""Concurrent reads keep the order of results and a limit of reads in progress, and stop after an error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from threading import Barrier

import pyarrow as pa
import pytest

from storage_core.base.errors import Unavailable
from storage_core.compact import execute as compaction
from storage_core.compact.carry_over import CarryOver
from storage_core.data.formats.keys import parse, version_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.settings.table import TableConfig
from storage_core.maintain.audit import PARALLEL_READS, Selection, audit, compactions
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import RequestKind, all_of, prefetch
from tests.support import merge_plan
from tests.support.deleted_rows import delete_where
from tests.support.fault_store import FaultStore
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

SPLITS = 3
MEETING_SECONDS = 120
CONFIG = TableConfig(checkpoint_interval=0)


class Meeting:
    """A `watch` hook that delays the first GETs of one kind of object until all of them are in progress.

    If the GETs are not all in progress at the same time, the GETs fail after `MEETING_SECONDS`.
    """

    def __init__(self, kind: KeyKind, parties: int) -> None:
        self._kind, self._barrier, self._lock = kind, Barrier(parties), threading.Lock()
        self.keys: list[str] = []

    def __call__(self, kind: RequestKind, key: str) -> None:
        parsed = parse(key)
        if kind != "get" or parsed is None or parsed.kind is not self._kind:
            return
        with self._lock:
            self.keys.append(key)
            number = len(self.keys)
        if number <= self._barrier.parties:
            self._barrier.wait(MEETING_SECONDS)


def test_results_come_in_the_order_of_the_keys_and_no_more_are_begun_than_were_asked_for() -> None:
    begun: list[int] = []

    def read(key: int) -> int:
        begun.append(key)
        return key * key

    with closing(prefetch(read, range(100), 4)) as found:
        assert [next(found) for _ in range(10)] == [key * key for key in range(10)]
    assert len(begun) == len(set(begun)) <= 10 + 3
    assert set(range(10)) <= set(begun) <= set(range(10 + 3))
    assert list(prefetch(str, range(5), 8)) == ["0", "1", "2", "3", "4"]
    assert list(prefetch(str, [], 8)) == []


def test_no_more_are_begun_than_weigh_so_much_together_but_one() -> None:
    lock, under_way, most = threading.Lock(), list[int](), list[int]()

    def read(key: int) -> int:
        with lock:
            under_way.append(key)
            most.append(sum(under_way))
        return key

    found = list[int]()
    for key in prefetch(read, iter([3, 3, 3, 9, 20, 1, 1, 1, 1, 3]), 4, weight=lambda each: each, most=9):
        found.append(key)
        with lock:
            under_way.remove(key)
    assert found == [3, 3, 3, 9, 20, 1, 1, 1, 1, 3]
    assert max(most) == 20


def test_keys_are_made_as_they_are_needed() -> None:
    made = list[int]()

    def keys() -> Iterator[int]:
        for each in range(100):
            made.append(each)
            yield each

    with closing(prefetch(str, keys(), 4)) as found:
        assert [next(found) for _ in range(10)] == [str(each) for each in range(10)]
    assert len(made) <= 10 + 4


def test_an_error_comes_in_its_place_and_nothing_is_read_after_it() -> None:
    begun: list[int] = []

    def read(key: int) -> int:
        begun.append(key)
        if key == 5:
            raise Unavailable("5")
        return key

    reading = prefetch(read, range(100), 3)
    assert [next(reading) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(Unavailable, match="5"):
        next(reading)
    assert max(begun) <= 7
    assert [each for each in threading.enumerate() if each.name.startswith("tidemark-prefetch")] == []


@pytest.mark.parametrize(("keys", "at_once"), [([7], 8), ([7, 8, 9], 1)])
def test_one_key_or_one_at_a_time_is_read_in_this_thread(keys: list[int], at_once: int) -> None:
    assert set(prefetch(lambda _: threading.get_ident(), keys, at_once)) == {threading.get_ident()}


def test_all_of_them_come_in_order_and_a_slow_one_holds_up_none_behind_it() -> None:
    others = threading.Semaphore(0)

    def read(key: int) -> int:
        if key == 0:
            assert all(others.acquire(timeout=MEETING_SECONDS) for _ in range(19)), "the others wait for the first"
        else:
            others.release()
        return key * key

    assert all_of(read, range(20), 2) == [key * key for key in range(20)]
    assert all_of(lambda _: threading.get_ident(), [7], 2) == [threading.get_ident()]
    assert all_of(str, [], 2) == []


def test_of_all_of_them_the_first_error_in_their_order_is_raised_not_the_first_in_time() -> None:
    later = threading.Event()

    def read(key: int) -> int:
        if key == 4:
            later.set()
        elif key == 3:
            assert later.wait(MEETING_SECONDS)
        else:
            return key
        raise Unavailable(f"key {key}")

    with pytest.raises(Unavailable, match="key 3"):
        all_of(read, range(6), 2)


@pytest.fixture
def table() -> KeyedTable:
    """Make a table of a few splits, each with so many deleted rows that its deletion vector is a stored object."""
    rows = 2_000
    table = KeyedTable(MemoryStore("ahead")).create(pa.schema([("n", pa.int64())]), CONFIG)
    for first in range(0, SPLITS * rows, rows):
        table.append([{"n": n} for n in range(first, first + rows)])
    return table


def test_a_compaction_reads_the_vectors_that_came_meanwhile_side_by_side(table: KeyedTable) -> None:
    watch = Meeting(KeyKind.VECTOR, SPLITS)
    process = KeyedTable(FaultStore(table.store, watch=watch), ids=SeededIds(5), clock=table.clock)
    snapshot = process.snapshot
    (operation,) = merge_plan.plan(snapshot)
    result = compaction.execute(process.store, operation, ids=process.ids, now_ms=1)
    delete_where(table.log, lambda row: row["n"] % 2)
    rebase = CarryOver(process.store, [(operation, result)], ids=process.ids)
    process.log.commit(snapshot, result.actions, operation="COMPACT", rebase=rebase)
    assert len(watch.keys) == len(set(watch.keys)) == SPLITS
    assert {row["n"] for row in table.base_rows()} == set(range(0, SPLITS * 2_000, 2))


def test_an_audit_reads_the_versions_side_by_side_and_finds_the_same_in_the_same_order(table: KeyedTable) -> None:
    for n in range(3):
        table.compact()
        table.append([{"n": -n}])
    head = table.snapshot
    watch = Meeting(KeyKind.VERSION, PARALLEL_READS)
    found = compactions(FaultStore(table.store, watch=watch), head, Selection(since=0))
    one_by_one = compactions(table.store, head, Selection(commits=head.version))
    assert len(found.compactions) > 1
    assert found.compactions == one_by_one.compactions
    watch = Meeting(KeyKind.VERSION, PARALLEL_READS)
    assert audit(FaultStore(table.store, watch=watch), head) == audit(table.store, head)


def test_an_audit_of_the_last_compactions_reads_no_version_in_vain(table: KeyedTable) -> None:
    assert table.compact() is not None
    head = table.snapshot
    watch = Meeting(KeyKind.VERSION, 1)
    compactions(FaultStore(table.store, watch=watch), head, Selection(commits=1))
    # The audit reads the newest version, and the compaction's starting snapshot needs the earlier versions.
    assert sorted(watch.keys) == [version_key(each) for each in range(head.version + 1)]
