"""Distribution of a raw log into tables whose columns change before, between and during the rounds."""

from __future__ import annotations

import pytest

from storage_core.change.creation import add_column, change_column, drop_column, rename_column
from storage_core.log.log import TransactionLog
from storage_core.split.read import conform_split, read_split
from storage_core.store.memory import MemoryStore
from storage_core.write.distribution.work import Terms
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import ManualClock
from tests.support.distribution import Board, Step, TasksMeanwhile
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

LIMITS = RawLimits(segment_ms=1_000)


def board() -> Board:
    return Board([MemoryStore("raw")], {"a": MemoryStore("a"), "users": MemoryStore("users")}).create(users="n")


def append(given: Board, seed: int, **fields: object) -> None:
    with RawLog(given.stores, clock=ManualClock(), ids=SeededIds(seed), limits=LIMITS) as log:
        log.append_many([RawRecord(table=name, fields={"n": seed, **fields}) for name in given.tables])


def change(given: Board) -> None:
    for name, store in given.tables.items():
        log = TransactionLog(store, clock=given.clock, ids=SeededIds(len(name)))
        for each in (rename_column("text", "words"), add_column("text", "long", 5)):
            change_column(log, log.snapshot(), each)


def found(given: Board) -> dict[str, list[tuple[object, ...]]]:
    """Return the rows of both tables as readers see them."""
    snapshot = TransactionLog(given.tables["a"]).snapshot()
    splits = [conform_split(read_split(given.tables["a"], add), snapshot.schema) for add in snapshot.splits.values()]
    base = [tuple(row.values()) for split in splits for row in split.to_pylist()]
    keyed = [tuple(row.values()) for row in KeyedTable(given.tables["users"]).rows().values()]
    return {"a": sorted(base, key=str), "users": sorted(keyed, key=str)}


def test_records_of_before_and_after_a_change_are_rows_of_the_table() -> None:
    given = board()
    append(given, 1, text="one")
    given.distribute()
    change(given)
    append(given, 2, words="two", text=2)
    append(given, 3, words="three")

    assert {name: each.rows for name, each in given.distribute().tables.items()} == {"a": 2, "users": 2}

    rows: list[tuple[object, ...]] = [(1, "one", 5), (2, "two", 2), (3, "three", None)]
    assert found(given) == {"a": rows, "users": rows}


@pytest.mark.parametrize("step", ["divide", "fill"])
def test_a_change_while_a_round_is_distributed_loses_no_row_and_moves_no_value(step: Step) -> None:
    given = board()
    append(given, 1, text="one")
    distributor = given.distributor()
    distributor.tasks = TasksMeanwhile(distributor.tasks, lambda: change(given), before=step)

    distributor.distribute(Terms())
    given.distribute()

    rows: list[tuple[object, ...]] = [(1, "one", 5)]
    assert found(given) == {"a": rows, "users": rows}


def test_a_column_that_is_gone_is_left_out_of_what_was_distributed_before() -> None:
    given = board()
    append(given, 1, text="one")
    given.distribute()
    for store in given.tables.values():
        log = TransactionLog(store, clock=given.clock, ids=SeededIds(9))
        change_column(log, log.snapshot(), drop_column("text"))
    append(given, 2)

    given.distribute()

    assert found(given) == {"a": [(1,), (2,)], "users": [(1,), (2,)]}
