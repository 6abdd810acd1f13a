"""Threads write, flush, merge, sort, compact, collect and read one table, and a model checks the results of all reads.

The test runs at each consistency level, and records the history of all calls during the run. `TIDEMARK_SCALE` makes the
test run longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from storage_core.base.clock import SystemIds
from storage_core.base.errors import CommitConflict
from storage_core.store.local import LocalStore
from storage_core.write.region.records import WriterOptions
from tests.integration.threaded_writer import collected
from tests.simulation.recorded_calls import WAYS, Ledger, RecordedReader, RecordedWriter, by_letter, letter, opened
from tests.support.clock import START_MS, ManualClock
from tests.support.consistency import History, Level, check
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled

READS = scaled(50)
LETTERS = "abc"
KEYS = 5
HORIZON_MS = 5_000

Act = Callable[[Random], object]


def keys_of(name: str) -> list[str]:
    return [f"{name}{number}" for number in range(KEYS)]


def in_threads(acts: list[Act], enough: Callable[[], bool]) -> None:
    """Repeat each act in its own thread until `enough` returns True, and raise the first failure."""
    failures: list[BaseException] = []

    def work(number: int, act: Act) -> None:
        random = Random(number)
        try:
            while not failures and not enough():
                act(random)
                time.sleep(random.uniform(0.0, 0.02))
        except BaseException as error:  # noqa: BLE001 -- raised by the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=work, args=each) for each in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def writing(ledger: Ledger, table: KeyedTable, name: str) -> tuple[Act, Act]:
    """Return two acts: one writes to a region and reads its own writes, the other flushes the region."""
    writer = RecordedWriter(ledger, table, name, WriterOptions(flush_rows=40))
    view, keys = opened(table), keys_of(name)

    def write(random: Random) -> None:
        some = random.sample(keys, random.randint(1, 3))
        match random.randrange(6):
            case 0:
                writer.write([], deleted=some)
            case 1:
                writer.gather(some, lambda: writer.read(view, keys))
            case 2:
                writer.read(view, keys)
            case _:
                writer.write(some)

    def flush(random: Random) -> None:
        time.sleep(random.uniform(0.0, 0.3))
        writer.flush()

    return write, flush


def reading(ledger: Ledger, table: KeyedTable, session: str) -> Act:
    reader = RecordedReader(ledger, opened(table), session)
    everything = [key for name in LETTERS for key in keys_of(name)]

    def read(random: Random) -> None:
        level = random.choice([Level.SNAPSHOT, Level.COMMITTED, Level.LATEST])
        reader.read(level, random.choice(WAYS), random.sample(everything, 6))

    return read


def maintaining(ledger: Ledger, table: KeyedTable) -> list[Act]:
    """Return functions that merge, sort, compact and collect. Each function first sleeps for a random time."""

    def now_and_then(act: Callable[[], object]) -> Act:
        def maintain(random: Random) -> None:
            time.sleep(random.uniform(0.0, 0.3))
            with suppress(CommitConflict):
                act()

        return maintain

    return [
        now_and_then(lambda: ledger.merged(table.merge())),
        now_and_then(table.sort),
        now_and_then(table.compact),
        now_and_then(lambda: collected(table)),
    ]


def saw_everything(history: History) -> bool:
    """Return True if the history contains a read at every consistency level, a flush and a merge."""
    levels = {read.level for read in [*history.reads]}
    return levels == {*Level} and {mark.level for mark in [*history.marks]} == {Level.COMMITTED, Level.SNAPSHOT}


def test_no_reader_sees_a_gap_a_duplicate_or_an_older_value_while_others_write_and_maintain(tmp_path: Path) -> None:
    store, ledger = LocalStore(tmp_path / "planes"), Ledger()

    def process(apart_ms: int = 0) -> KeyedTable:
        return KeyedTable(store, SystemIds(), ManualClock(START_MS + apart_ms, step_ms=1))

    process().create(config=by_letter(HORIZON_MS))
    acts = [act for name in LETTERS for act in writing(ledger, process(), name)]
    acts += [reading(ledger, process(), f"reader {number}") for number in range(3)]
    acts += maintaining(ledger, process(600_000))
    history = ledger.history
    in_threads(acts, lambda: len(history.reads) >= READS and saw_everything(history))
    check(history, letter)
    levels = {level: sum(read.level is level for read in history.reads) for level in Level}
    print(f"{len(history.writes)} writes, {len(history.marks)} flushes and merges, reads: {levels}")  # noqa: T201 -- of a soak
