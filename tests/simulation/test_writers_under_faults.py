"""Writers take a region from each other on faulty stores, while mergers run.

The stores lose replies, and refuse or delay requests. The test kills processes at random requests. A merger takes the
region from a writer that it considers dead. A writer that is alive continues under its own epoch.

A single thread executes the work of all processes. Before any request of a process, another process may do one piece of
work. At the same point, the store may apply a put that was delayed. The seed decides when other processes work and when
delayed puts are applied. The clocks differ by ten minutes. The expected result is a set of possible table contents.
Each of these contents includes the effects of all acknowledged calls. The contents differ in the calls with unknown
outcome that they include. When a process claims the region, the claim decides permanently which calls with unknown
outcome took effect. A call under a lost epoch is never acknowledged and never visible. The same seed replays the same
run exactly:

    TIDEMARK_SEED=1234 python -m pytest tests/simulation      one seed
    TIDEMARK_SCALE=100 python -m pytest tests/simulation    a hundred times as many (`make simulate SCALE=100`)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import pytest

from storage_core.base.errors import CommitConflict, CommitUnknown, Unavailable, WriterFenced
from storage_core.data.settings.table import TableConfig
from storage_core.store.memory import MemoryStore
from storage_core.write.region.manifest import read_latest, region_of
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.writer import RegionWriter
from tests.simulation.seeds import naming, run_until_met, seed_blocks
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import contents
from tests.support.fault_store import Crash, CrashFault, FaultStore, GetFault, HeadFault, ListFault, PutFault, Rates
from tests.support.fault_store.in_turn import read_in_turn
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

PROCESSES = 2
MOVES = 11
LOOKED_AT = 0.25
INTERLEAVED = 0.05
CRASHES = 0.12
CLOCKS_APART_MS = 600_000
NAMES = "abcd"
NOTHING = 0

Plane = tuple[int | None, str | None]
Known = dict[str, Plane]
Change = Callable[[Known], Known]

LOST_REPLIES: Rates = {
    PutFault.APPLIED_THEN_CONFLICT: 0.06,
    PutFault.APPLIED_THEN_UNKNOWN: 0.08,
    PutFault.APPLIED_THEN_UNAVAILABLE: 0.04,
    PutFault.DROPPED_THEN_UNKNOWN: 0.06,
    PutFault.DELAYED_THEN_UNKNOWN: 0.08,
    PutFault.CONFLICT_WITH_NOTHING: 0.03,
    PutFault.REFUSED: 0.05,
}
STORM: Rates = {PutFault.DROPPED_THEN_UNKNOWN: 0.2, PutFault.DELAYED_THEN_UNKNOWN: 0.3, PutFault.REFUSED: 0.2}
OUTAGES: Rates = {
    **LOST_REPLIES,
    GetFault.REFUSED: 0.02,
    GetFault.TIMED_OUT: 0.01,
    HeadFault.REFUSED: 0.02,
    HeadFault.TIMED_OUT: 0.01,
    ListFault.REFUSED: 0.05,
    ListFault.REORDERED: 0.3,
}
PROFILES: tuple[Rates, ...] = ({}, LOST_REPLIES, STORM, OUTAGES)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


@dataclass(frozen=True, slots=True)
class Possible:
    """A possible content of the table. `written` has the numbers of the calls whose changes are included."""

    known: frozenset[tuple[str, Plane]]
    written: frozenset[int]

    def after(self, call: int, change: Change) -> Possible:
        """Return the possible table content after one more call."""
        return Possible(frozenset(change(dict(self.known)).items()), self.written | {call})


class World:
    """The stored objects, the processes, and the possible contents of the table in a simulation."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.objects = MemoryStore("planes", clock=ManualClock(step_ms=1))
        # Every region counts as idle immediately, so a merger usually fences a writer that is alive.
        config = TableConfig(primary_key=("tailnum",), idle_after_ms=0)
        table = KeyedTable(self.objects, ids=SeededIds(seed)).create(config=config)
        self.region = region_of(table.snapshot.table_id)
        self.rates = PROFILES[seed % len(PROFILES)]
        self.possible = {Possible(frozenset(), frozenset())}
        self.epoch = 0
        self.calls = 0
        self.met: dict[str, int] = {}
        self.stores: list[FaultStore] = []
        self.inside = False
        self.processes = [Process(self, number) for number in range(PROCESSES)]

    def run(self) -> None:
        """Let the processes work, then deliver everything, flush and merge."""
        for _ in range(MOVES):
            self.random.choice(self.processes).move()
            if self.random.random() < LOOKED_AT:
                assert self.read() in {each.known for each in self.possible}
        table = KeyedTable(self.objects, ids=SeededIds(self.random.getrandbits(32)))
        with table.writer() as last:
            self.claimed(last.epoch)
            for store in self.stores:
                store.deliver()
            last.flush()
        table.merge()
        base = [(str(each["tailnum"]), (each["seats"], each["model"])) for each in table.base_rows()]
        assert len(base) == len({name for name, _ in base}), "a key is there twice"
        assert frozenset(base) in {each.known for each in self.possible}, "a put of a lost epoch took effect"

    def interleave(self, process: Process) -> None:
        """Before a request of `process`, sometimes let another process act."""
        if self.inside or self.random.random() > INTERLEAVED:
            return
        self.inside = True
        try:
            if self.random.random() < 0.3:
                self.random.choice(self.stores).deliver(1)
            else:
                self.random.choice([each for each in self.processes if each is not process]).move()
        finally:
            self.inside = False

    def read(self) -> frozenset[tuple[str, Plane]]:
        """Return the rows at level `latest`."""
        found = KeyedTable(self.objects).rows()
        return frozenset((str(name), (each["seats"], each["model"])) for name, each in found.items())  # type: ignore[misc]

    def begin(self, change: Change, epoch: int) -> int:
        """Record that a call may take effect from now on, unless another process already took its writer's epoch."""
        self.calls += 1
        manifest = read_latest(self.objects, self.region)
        if epoch == self.epoch or (manifest is not None and manifest.idle_epoch == epoch):
            self.possible |= {each.after(self.calls, change) for each in self.possible}
        return self.calls

    def acknowledged(self, call: int) -> None:
        """Record that the call took effect."""
        self.possible = {each for each in self.possible if call in each.written}
        assert self.possible, "acknowledged under a lost epoch, or seen as missing before"
        self.tell("acknowledged")

    def refused(self, call: int) -> None:
        """Record that the call did not and will not take effect."""
        self.possible = {each for each in self.possible if call not in each.written}
        assert self.possible, "told to be fenced, but seen before"
        self.tell("refused")

    def claimed(self, epoch: int) -> None:
        """Record a claim.

        The claim decides all calls whose outcome was unknown, so only the visible content remains possible.
        """
        self.tell("claimed")
        if epoch < self.epoch:
            return  # another claim succeeded before this claim returned
        self.epoch = epoch
        seen = self.read()
        self.possible = {each for each in self.possible if each.known == seen}
        assert self.possible, "a claim does not see what was acknowledged, or sees more"

    def claimed_again(self, epoch: int) -> None:
        """Record a higher epoch, if the writer reclaimed the region from a merger during a call."""
        if epoch > self.epoch:
            self.tell("claimed again")
            self.epoch = epoch

    def tell(self, what: str) -> None:
        self.met[what] = self.met.get(what, 0) + 1


class Process:
    """A sequence of processes on one machine. Each process ends with a crash and leaves no memory to the next."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.random = world.random
        self.clock = ManualClock(START_MS + number * CLOCKS_APART_MS, step_ms=1)
        self.writer: RegionWriter | None = None
        self.start()

    def start(self) -> None:
        """Begin without memory."""
        self.writer = None
        self.store = FaultStore(
            self.world.objects,
            watch=lambda *_: self.world.interleave(self),
            seed=self.random.getrandbits(32),
            rates=self.world.rates,
            clock=self.clock,
        )
        self.world.stores.append(self.store)
        self.table = KeyedTable(self.store, ids=SeededIds(self.random.getrandbits(32)), clock=self.clock)

    def move(self) -> None:
        """Do one piece of work. The process may crash during this work."""
        if self.random.random() < CRASHES:
            self.store.at(len(self.store.trace) + self.random.randrange(8), self.random.choice(list(CrashFault)))
        writes = [self.put, self.put, self.patch, self.delete, self.reset]
        moves = [*writes, self.flush, self.flush, self.merge, self.merge, self.flush_idle, self.claim]
        try:
            self.random.choice(moves)()
        except Crash:
            self.world.tell("crashed")
            self.start()

    def claim(self) -> None:
        """Claim the region from any owner."""
        self.writer = None
        with suppress(Unavailable, CommitUnknown, WriterFenced):
            self.writer = self.table.writer(WriterOptions(flush_rows=5))
            self.world.claimed(self.writer.epoch)

    def put(self) -> None:
        """Write the rows of one to three planes in one `put` call."""
        rows = {name: self.random.randrange(1000) for name in self.random.sample(NAMES, self.random.randint(1, 3))}
        self.write(
            lambda writer: writer.put([{"tailnum": name, "seats": seats} for name, seats in rows.items()]),
            lambda known: known | {name: (seats, None) for name, seats in rows.items()},
        )

    def reset(self) -> None:
        """Reset one plane."""
        name, seats = self.random.choice(NAMES), self.random.randrange(1000)
        self.write(
            lambda writer: writer.reset({"tailnum": name, "seats": seats}),
            lambda known: known | {name: (seats, None)},
        )

    def patch(self) -> None:
        """Change one field in the table row of one plane."""
        name, model = self.random.choice(NAMES), f"M{self.random.randrange(1000)}"
        self.write(
            lambda writer: writer.patch({"tailnum": name, "model": model}),
            lambda known: known | {name: (known.get(name, (None, None))[0], model)},
        )

    def delete(self) -> None:
        """Delete one plane."""
        name = self.random.choice(NAMES)
        self.write(
            lambda writer: writer.delete(name),
            lambda known: {key: plane for key, plane in known.items() if key != name},
        )

    def flush(self) -> None:
        """Flush a generation, which changes no visible row."""
        self.write(lambda writer: writer.flush() or NOTHING, lambda known: known)

    def write(self, act: Callable[[RegionWriter], object], change: Change) -> None:
        """Make one call and record its result."""
        if self.writer is None:
            self.claim()
        if self.writer is None:
            return
        call = self.world.begin(change, self.writer.epoch)
        try:
            done = act(self.writer)
        except WriterFenced:
            self.world.refused(call)
            self.drop_writer(0.5)
        except (CommitUnknown, Unavailable):
            self.world.tell("unknown")
            self.drop_writer(0.7)
        else:
            # A flush without work returns no information, not even that the epoch is still valid.
            (self.world.acknowledged if done is not NOTHING else self.world.refused)(call)
            self.world.claimed_again(self.writer.epoch)

    def drop_writer(self, chance: float) -> None:
        """Drop the failed writer with the probability `chance`.

        If the writer is used again, it raises the same error.
        """
        if self.random.random() < chance:
            self.writer = None

    def flush_idle(self) -> None:
        """Flush the records of a dead writer, or the unflushed records of a live writer."""
        with suppress(Unavailable, CommitUnknown):
            if self.table.flush_idle():
                self.world.tell("flushed")

    def merge(self) -> None:
        """Merge flushed records. A concurrent merger may merge these records first."""
        with suppress(Unavailable, CommitUnknown, CommitConflict):
            if self.table.merge() is not None:
                self.world.tell("merged")


def simulate(seed: int) -> World:
    """Run one seed. The message of a failure contains the seed."""
    world = World(seed)
    with naming(seed):
        world.run()
    return world


@seed_blocks(100)
def test_what_a_writer_acknowledged_is_there_once_and_nothing_of_a_lost_epoch_is(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_seed_replays_every_request_and_every_byte(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in_turn(monkeypatch)
    first, again = simulate(seed), simulate(seed)
    assert [requests(store) for store in first.stores] == [requests(store) for store in again.stores]
    assert contents(first.objects) == contents(again.objects)


def test_the_seeds_meet_every_outcome() -> None:
    outcomes = ("acknowledged", "refused", "unknown", "claimed", "claimed again", "crashed", "flushed", "merged")
    run_until_met(lambda seed: simulate(seed).met, outcomes)


def requests(store: FaultStore) -> list[tuple[str, str, int, str]]:
    """Return the outcome of each request, in order."""
    return [(each.request.kind, each.request.key, each.request.repeat, each.step or "") for each in store.trace]
