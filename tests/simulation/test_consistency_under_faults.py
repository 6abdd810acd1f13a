"""Test readers at every consistency level.

Between two requests of a reader, other processes write, flush, merge, sort, compact or end.

One thread plays all processes: two writers with one region each, two maintainers, and two readers. The clocks of the
processes are twenty minutes apart. Faults lose replies, refuse requests, and end processes. A model checks the recorded
history of all calls and results (`tests.support.consistency`). The same seed replays the same run exactly (see
`seeds`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from storage_core.base.errors import CommitConflict, CommitUnknown, Unavailable
from storage_core.maintain.collect import collect
from storage_core.store.memory import MemoryStore
from storage_core.table import Table
from storage_core.write.region.records import WriterOptions
from tests.simulation.recorded_calls import Ledger, RecordedReader, RecordedWriter, by_letter, letter, opened
from tests.simulation.seeds import naming, run_until_met, seed_blocks
from tests.support.clock import START_MS, ManualClock
from tests.support.consistency import Level, check
from tests.support.fault_store import Crash, CrashFault, FaultStore, GetFault, ListFault, PutFault, Rates
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

LETTERS = "ab"
KEYS = {name: [f"{name}{number}" for number in range(3)] for name in LETTERS}
ALL_KEYS = [key for keys in KEYS.values() for key in keys]
MOVES = 30
INTERLEAVED = 0.12
CRASHES = 0.06

LOST_REPLIES: Rates = {
    PutFault.APPLIED_THEN_CONFLICT: 0.05,
    PutFault.APPLIED_THEN_UNKNOWN: 0.05,
    PutFault.DROPPED_THEN_UNKNOWN: 0.05,
    PutFault.DELAYED_THEN_UNKNOWN: 0.05,
    PutFault.REFUSED: 0.03,
}
OUTAGES: Rates = {**LOST_REPLIES, GetFault.REFUSED: 0.01, ListFault.REFUSED: 0.02, ListFault.REORDERED: 0.3}
PROFILES: tuple[Rates, ...] = ({}, {}, LOST_REPLIES, OUTAGES)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


class World:
    """The objects, the processes, and the recorded history."""

    def __init__(self, seed: int, minutes_apart: int) -> None:
        self.random = Random(seed)
        self.objects = MemoryStore("planes", clock=ManualClock(step_ms=1))
        KeyedTable(self.objects, SeededIds(seed)).create(config=by_letter(0))
        self.rates = PROFILES[seed % len(PROFILES)]
        self.ledger = Ledger()
        self.stores: list[FaultStore] = []
        self.inside = False
        self.met: dict[str, int] = {}
        ahead = (-minutes_apart, minutes_apart)
        self.processes = [
            *(writing(self, name, minutes) for name, minutes in zip(LETTERS, ahead, strict=True)),
            *(reading(self, f"reader {number}") for number in range(2)),
            *(maintaining(self, minutes) for minutes in ahead),
        ]

    def run(self) -> None:
        """Run all processes.

        Then apply the delayed puts, flush, merge, read all keys once more, and check the history.
        """
        for _ in range(MOVES):
            self.somebody().move()
            if self.random.random() < 0.05:
                self.clean()
        for store in self.stores:
            store.deliver()
        self.rates = {}
        table = KeyedTable(self.objects, SeededIds(self.random.getrandbits(32)))
        for name in LETTERS:
            RecordedWriter(self.ledger, table, name).flush()
        while (done := table.merge()) is not None:
            self.ledger.merged(done)
        last = RecordedReader(self.ledger, opened(table), "last")
        for level in (Level.SNAPSHOT, Level.COMMITTED, Level.LATEST):
            last.read(level, "get_many", ALL_KEYS)
        check(self.ledger.history, letter)

    def somebody(self, but: Process | None = None) -> Process:
        """Return a random process. Maintenance processes are rare, so that unmerged records exist."""
        often = [each for each in self.processes[:-2] for _ in range(3)]
        return self.random.choice([each for each in (*often, *self.processes[-2:]) if each is not but])

    def interleave(self, process: Process) -> None:
        """Before a request of one process, sometimes let another process act."""
        if self.inside or threading.current_thread() is not threading.main_thread():
            return  # regions are read in parallel, so a run with an action in a reading thread is not repeatable
        if any(each.name.startswith("tidemark-prefetch") for each in threading.enumerate()):
            return  # a concurrent prefetch may or may not see the commit of an action
        if self.random.random() < INTERLEAVED:
            self.inside = True
            try:
                self.somebody(but=process).move()
            finally:
                self.inside = False

    def clean(self) -> None:
        """Collect all unneeded objects. No process is in a call and no put is delayed, as the horizon guarantees."""
        for store in self.stores:
            store.deliver()
        table = KeyedTable(self.objects, SeededIds(self.random.getrandbits(32)))
        ahead = ManualClock(START_MS + 10**11)  # a clock that is years ahead must not change the result
        if collect(self.objects, table.log, clock=ahead, horizon_ms=0).deleted:
            self.tell("collected")

    def tell(self, what: str) -> None:
        self.met[what] = self.met.get(what, 0) + 1


class Process:
    """A process that sometimes crashes.

    After a crash, a new process continues without the memory of the old process.
    """

    def __init__(self, world: World, *acts: Callable[[Process], None], minutes: int = 0) -> None:
        self.world, self.random, self._acts = world, world.random, acts
        self.clock = ManualClock(START_MS + minutes * 60_000, step_ms=1)
        self._begin()

    def move(self) -> None:
        """Make one random action. The process may crash during the action."""
        if self.random.random() < CRASHES:
            self.store.at(len(self.store.trace) + self.random.randrange(8), self.random.choice(list(CrashFault)))
        try:
            with suppress(Unavailable, CommitUnknown, CommitConflict):
                self.random.choice(self._acts)(self)
        except Crash:
            self.world.tell("crashed")
            self._begin()

    def _begin(self) -> None:
        self.writer: RecordedWriter | None = None
        self._view: Table | None = None
        self.store = FaultStore(
            self.world.objects,
            watch=lambda *_: self.world.interleave(self),
            seed=self.random.getrandbits(32),
            rates=self.world.rates,
            clock=self.clock,
        )
        self.world.stores.append(self.store)
        self.table = KeyedTable(self.store, SeededIds(self.random.getrandbits(32)), self.clock)

    @property
    def view(self) -> Table:
        """The table object of this process."""
        self._view = self._view or opened(self.table)
        return self._view


def writing(world: World, name: str, minutes: int) -> Process:
    """Return a process that writes to a region, flushes, and reads its writes. Its clock is `minutes` wrong."""

    def with_writer(act: Callable[[RecordedWriter], None]) -> Callable[[Process], None]:
        def work(process: Process) -> None:
            writer, process.writer = process.writer, None  # a failed writer is not used again
            writer = writer or RecordedWriter(world.ledger, process.table, name, WriterOptions(flush_rows=8))
            act(writer)
            process.writer = writer

        return work

    def some() -> list[str]:
        return world.random.sample(KEYS[name], world.random.randint(1, 3))

    put = with_writer(lambda writer: writer.write(some()))
    delete = with_writer(lambda writer: writer.write([], deleted=some()))
    flush = with_writer(RecordedWriter.flush)

    def read(process: Process) -> None:
        with_writer(lambda writer: writer.read(process.view, KEYS[name]))(process)

    return Process(world, put, put, put, delete, flush, flush, read, minutes=minutes)


def maintaining(world: World, minutes: int) -> Process:
    """Return a process that merges, sorts and compacts. The clock of the process is wrong by `minutes`."""

    def merge(process: Process) -> None:
        done = process.table.merge()
        world.ledger.merged(done)
        world.tell("merged" if done else "nothing to merge")

    def compact(process: Process) -> None:
        if process.table.compact():
            world.tell("compacted")

    def sort(process: Process) -> None:
        if process.table.sort():
            world.tell("sorted")

    return Process(world, merge, merge, sort, compact, compact, minutes=minutes)


def reading(world: World, session: str) -> Process:
    """Return a process that reads some or all keys with methods that need no DuckDB session."""

    def read(process: Process) -> None:
        level = world.random.choice([Level.SNAPSHOT, Level.COMMITTED, Level.LATEST])
        way, keys = world.random.choice(["get", "get_many"]), world.random.sample(ALL_KEYS, world.random.choice([4, 6]))
        RecordedReader(world.ledger, process.view, session).read(level, way, keys)
        world.tell(f"read at {level}")

    return Process(world, read)


def simulate(seed: int, minutes_apart: int = 10) -> World:
    """Run one seed. The message of a failure contains the seed."""
    world = World(seed, minutes_apart)
    with naming(seed):
        world.run()
    return world


@seed_blocks(24)
def test_every_read_is_explained_by_a_prefix_of_each_region_that_never_goes_back(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.parametrize("seed", [1_002, 1_003])
def test_clocks_that_are_wrong_by_ten_minutes_change_nothing_that_anybody_is_told_or_reads(seed: int) -> None:
    wrong, right = simulate(seed, minutes_apart=10), simulate(seed, minutes_apart=0)
    assert wrong.ledger.history.writes == right.ledger.history.writes
    assert wrong.ledger.history.marks == right.ledger.history.marks
    assert wrong.ledger.history.reads == right.ledger.history.reads


def test_the_seeds_meet_everything_that_can_happen() -> None:
    wanted = (
        "crashed",
        "merged",
        "sorted",
        "compacted",
        "collected",
        "unknown",
        *(f"read at {level}" for level in list(Level)[:3]),
    )

    def met(seed: int) -> dict[str, int]:
        world = simulate(seed)
        return {**world.met, "unknown": sum(write.durable is None for write in world.ledger.history.writes)}

    run_until_met(met, wanted, first=1_000)
