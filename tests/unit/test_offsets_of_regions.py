"""Offsets in region manifests are removed after the log has recorded them. No row is distributed twice."""

from __future__ import annotations

import pytest

from storage_core.log.log import TransactionLog
from storage_core.maintain.collect import collect
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.distribution.work import Terms
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from storage_core.write.region import generation
from storage_core.write.region.manifest import read_latest, region_of
from tests.support.clock import ManualClock
from tests.support.copies import contents, copy_of
from tests.support.crashes import left_by_crashes
from tests.support.distribution import LATER_MS, Board, Step, TasksMeanwhile
from tests.support.ids import SeededIds

DAY_MS = 86_400_000


def given(writers: int) -> Board:
    """Make a keyed table with one row from each of `writers` writers. All these writers have ended."""
    board = Board([MemoryStore("raw")], {"users": MemoryStore("users", clock=ManualClock(LATER_MS))})
    board.create(users="n")
    for number in range(writers):
        append(board, number, seed=100 + number)
    board.distribute()
    return board


def append(board: Board, number: int, *, seed: int) -> None:
    limits = RawLimits(segment_ms=1_000)
    with RawLog(board.stores, clock=ManualClock(), ids=SeededIds(seed), limits=limits) as log:
        log.append_many([RawRecord(table="users", fields={"n": number})])


def collected(board: Board, after_ms: int) -> None:
    board.clock.now += after_ms
    table = board.tables["users"]
    collect(table, TransactionLog(table, clock=board.clock, ids=SeededIds(77)), clock=board.clock)


def offsets(board: Board) -> int:
    table = board.tables["users"]
    manifest = read_latest(table, region_of(TransactionLog(table).snapshot().table_id))
    return 0 if manifest is None else len(manifest.distributed)


def records(board: Board) -> int:
    table = board.tables["users"]
    region = region_of(TransactionLog(table).snapshot().table_id)
    manifest = read_latest(table, region)
    assert manifest is not None
    return sum(generation.read(table, region, each).records for each in manifest.flushed_generations)


def test_offsets_leave_a_region_when_the_log_has_had_them_for_the_horizon_and_no_earlier() -> None:
    board = given(5)
    assert offsets(board) == 5
    collected(board, DAY_MS // 2)
    assert offsets(board) == 5
    collected(board, DAY_MS)
    assert offsets(board) == 0
    before = contents(board.tables["users"])
    board.distribute()
    assert (set(board.rows("users")), records(board)) == (set(range(5)), 5)
    collected(board, 0)
    assert contents(board.tables["users"]).keys() >= before.keys(), "nothing to do any more"


def test_a_writer_whose_offset_left_the_region_goes_on_behind_it() -> None:
    board = Board([MemoryStore("raw")], {"users": MemoryStore("users")}).create(users="n")
    clock = ManualClock()
    with RawLog(board.stores, clock=clock, ids=SeededIds(5), limits=RawLimits(segment_ms=1_000)) as log:
        for number in range(3):
            log.append_many([RawRecord(table="users", fields={"n": number})])
            clock.now += 1_000
            board.distribute()
            collected(board, 2 * DAY_MS)
            assert offsets(board) == 0
    assert (set(board.rows("users")), records(board)) == (set(range(3)), 3)


@pytest.mark.parametrize("step", ["divide", "fill"])
def test_a_distributor_that_slept_until_offsets_left_the_region_distributes_nothing_twice(step: Step) -> None:
    board = given(1)
    append(board, 7, seed=5)
    asleep = board.distributor()

    def others() -> None:
        board.distribute()
        collected(board, 2 * DAY_MS)
        assert offsets(board) == 0

    asleep.tasks = TasksMeanwhile(asleep.tasks, others, before=step)
    assert asleep.distribute(Terms()).failures == {}
    assert (set(board.rows("users")), records(board)) == ({0, 7}, 2)


def test_a_collector_that_ends_anywhere_leaves_offsets_or_none_and_each_row_once() -> None:
    board = given(3)
    board.clock.now += 2 * DAY_MS
    table = copy_of(board.tables["users"])

    def run(store: ObjectStore) -> None:
        collect(store, TransactionLog(store, clock=board.clock, ids=SeededIds(78)), clock=board.clock)

    append(board, 7, seed=5)
    for left in left_by_crashes(table, run):
        after = Board(board.stores, {"users": left}, seed=9, clock=board.clock)
        after.distribute()
        assert (set(after.rows("users")), records(after)) == ({0, 1, 2, 7}, 4)
