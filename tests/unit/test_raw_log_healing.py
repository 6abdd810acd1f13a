"""A raw-log store that missed chunks gets exact copies from the other stores, also after an interrupted run."""

from __future__ import annotations

from contextlib import suppress

import pytest

from storage_core.base.errors import TidemarkError
from storage_core.data.formats.keys import COLLECTED_KEY
from storage_core.maintain.raw_logs import Healing, heal
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.write.raw_log.history import union
from tests.support.clock import ManualClock
from tests.support.copies import contents, copy_of
from tests.support.distribution import Board
from tests.support.fault_store import Crash, CrashFault, FaultStore, GetFault, ListFault, PutFault
from tests.support.ids import SeededIds
from tests.support.raw_collection import DAY_MS, LONG_AFTER, collect, produce, raw_board


def given(*numbers: int) -> Board:
    """Make a raw log with two stores: one store with one chunk for each number, and one empty store."""
    board = raw_board("here")
    produce(board, *numbers)
    board.stores = [*board.stores, MemoryStore("away", clock=board.raw_clock)]
    return board


def healed(board: Board, **given: bool) -> Healing:
    return heal(list(board.stores), clock=ManualClock(), ids=SeededIds(3), **given)


def test_each_store_gets_what_it_lacks_and_a_second_run_has_nothing_to_do() -> None:
    board = given(1, 2, 3)
    here, away = board.stores
    produce(Board([away], {}), 4, seed=2)
    report = healed(board)
    assert (report.copied, report.is_whole) == ({here.uri: 1, away.uri: 3}, True)
    assert contents(here) == contents(away)
    assert len(contents(here)) == 4
    again = healed(board)
    assert (again.copied, again.bytes, again.is_whole) == ({}, 0, True)


def test_a_dry_run_counts_and_writes_nothing() -> None:
    board = given(1, 2)
    assert healed(board, dry_run=True).lacking == {"memory://here": 0, "memory://away": 2}
    assert contents(board.stores[1]) == {}


def test_a_damaged_copy_is_never_copied_and_is_replaced_by_a_sound_one() -> None:
    board = given(1, 2)
    healed(board)
    here, away = board.stores
    first, second = (each.keys[0] for each in union([here]).chunks)
    here.put(first, b"torn", Overwrite())
    flipped = bytearray(away.get(second).data)
    flipped[-1] ^= 1
    away.put(second, bytes(flipped), Overwrite())
    assert healed(board).replaced == {here.uri: 1}, "a flipped bit has no other size"
    assert healed(board, verify=True).replaced == {away.uri: 1}
    assert contents(here) == contents(away)
    assert union([away]).verify().damaged == ()


def test_a_chunk_without_a_sound_copy_is_named_and_stays() -> None:
    board = given(1)
    (key,) = contents(board.stores[0])
    board.stores[0].put(key, b"torn", Overwrite())
    report = healed(board)
    assert (report.damaged, report.is_whole) == ((key,), False)
    assert contents(board.stores[1]) == {}


def test_the_ids_of_records_are_copied_too() -> None:
    board = raw_board("here")
    produce(board, 1, 2, ids=True)
    board.distribute()
    board.stores = [*board.stores, MemoryStore("away")]
    here, away = board.stores
    assert healed(board).copied == {away.uri: 3}
    assert contents(here) == contents(away)
    (key,) = [key for key in contents(here) if key.startswith("ids/")]
    here.put(key, b"torn", Overwrite())
    assert healed(board).replaced == {here.uri: 1}


def test_what_was_collected_is_not_brought_back_and_the_note_of_it_is_copied() -> None:
    board = given(1, 2)
    here, away = board.stores
    board.stores = [here]
    board.distribute()
    chunks = contents(here)
    collect(board)
    for key, data in chunks.items():
        away.put(key, data, Overwrite())
    board.stores = [here, away]
    healed(board)
    assert [*contents(here)] == ["_gc/candidates.json", COLLECTED_KEY]
    assert COLLECTED_KEY in contents(away)
    collect(board, seed=12, now_ms=LONG_AFTER + 2 * DAY_MS)
    assert union([here, away]).chunks == []


def test_a_store_that_does_not_answer_is_named_and_the_others_are_healed() -> None:
    board = given(1)
    silent = FaultStore(MemoryStore("silent"))
    silent.on("list", "live/", ListFault.REFUSED)
    board.stores = [*board.stores, silent]
    report = healed(board)
    assert (report.unreachable, report.copied, report.is_whole) == ((silent.uri,), {"memory://away": 1}, False)


@pytest.mark.parametrize("fault", [*CrashFault, *PutFault, *GetFault], ids=str)
@pytest.mark.parametrize("wrapped", ["here", "away"])
def test_a_run_that_ends_or_fails_anywhere_is_finished_by_the_next(wrapped: str, fault: CrashFault | PutFault) -> None:
    start = given(1, 2, 3)
    expected = contents(start.stores[0])
    for number in range(12):
        stores = {name: copy_of(each, name) for name, each in zip(("here", "away"), start.stores, strict=True)}
        faulty = FaultStore(stores[wrapped])
        faulty.at(number, fault)
        with suppress(Crash, TidemarkError, AssertionError, ValueError):
            healed(Board([faulty if name == wrapped else store for name, store in stores.items()], {}))
        healed(Board([*stores.values()], {}), verify=True)
        assert [contents(each) for each in stores.values()] == [expected, expected]
