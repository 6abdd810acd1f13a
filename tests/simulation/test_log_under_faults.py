"""Several writers commit to one log over faulty stores, and the log must match the results that the writers got.

The stores lose replies, refuse or delay requests, and return wrong listings. The test kills processes at random
requests. A single thread executes the work of all writers. Before any request of a writer, another writer may do one
piece of work. At the same point, the store may apply a put that was delayed. The seed decides when other writers work
and when delayed puts are applied. The same seed replays the same run exactly:

    TIDEMARK_SEED=1234 python -m pytest tests/simulation      one seed
    TIDEMARK_SCALE=100 python -m pytest tests/simulation    a hundred times as many (`make simulate SCALE=100`)
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

import pytest

from storage_core.base.errors import (
    CommitConflict,
    CommitUnknown,
    Corrupt,
    Fenced,
    NotFound,
    TidemarkError,
    Unavailable,
)
from storage_core.data.formats.keys import last_checkpoint_key
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, Txn
from storage_core.log.commit import CommitResult
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.history import restore
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from tests.simulation.seeds import naming, run_until_met, seed_blocks
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import contents
from tests.support.fault_store import Crash, CrashFault, FaultStore, GetFault, HeadFault, ListFault, PutFault, Rates
from tests.support.ids import SeededIds
from tests.support.log_oracle import LogOracle, State, state_of
from tests.support.log_tables import INDEX, metadata
from tests.support.log_work import PLANNERS, Planner, Work

WRITERS = 3
MOVES = 16
INTERLEAVED = 0.06
LOOKED_AT = 0.2
NOWHERE = -1
RESTORE = "RESTORE"

T = TypeVar("T")

LOST_REPLIES: Rates = {
    PutFault.APPLIED_THEN_CONFLICT: 0.06,
    PutFault.APPLIED_THEN_UNKNOWN: 0.08,
    PutFault.APPLIED_THEN_UNAVAILABLE: 0.04,
    PutFault.DROPPED_THEN_UNKNOWN: 0.06,
    PutFault.DELAYED_THEN_UNKNOWN: 0.08,
    PutFault.CONFLICT_WITH_NOTHING: 0.05,
    PutFault.REFUSED: 0.05,
}
STORM: Rates = {
    PutFault.APPLIED_THEN_UNKNOWN: 0.05,
    PutFault.DROPPED_THEN_UNKNOWN: 0.3,
    PutFault.DELAYED_THEN_UNKNOWN: 0.3,
    PutFault.REFUSED: 0.3,
    GetFault.REFUSED: 0.1,
}
OUTAGES: Rates = {
    **LOST_REPLIES,
    GetFault.REFUSED: 0.02,
    GetFault.TIMED_OUT: 0.01,
    HeadFault.REFUSED: 0.03,
    HeadFault.TIMED_OUT: 0.02,
    ListFault.REFUSED: 0.05,
    ListFault.TIMED_OUT: 0.05,
    ListFault.REORDERED: 0.3,
    ListFault.DOUBLED: 0.2,
    ListFault.START_INCLUDED: 0.1,
}
CUT_LISTINGS: Rates = {**OUTAGES, ListFault.CUT: 0.3}
DAMAGED_READS: Rates = {
    **OUTAGES,
    GetFault.TORN: 0.02,
    GetFault.EMPTY: 0.01,
    GetFault.SWAPPED: 0.02,
    GetFault.FLIPPED: 0.03,
}

PROFILES = (LOST_REPLIES, STORM, OUTAGES, CUT_LISTINGS, DAMAGED_READS)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence the warnings. A simulation has many failed checkpoints."""
    caplog.set_level(logging.CRITICAL, logger="storage_core")


@dataclass(slots=True)
class World:
    """A table, its writers, and the results that they got.

    `acknowledged` maps each commit ID to its version and work, and `refused` contains the IDs of refused commits.
    """

    seed: int
    random: Random = field(init=False)
    objects: MemoryStore = field(init=False)
    oracle: LogOracle = field(init=False)
    writers: list[Writer] = field(default_factory=list)
    stores: list[FaultStore] = field(default_factory=list)
    acknowledged: dict[str, tuple[int, Work]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    moves: int = 0
    names: int = 0
    hinted: int = -1
    doubts: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.objects = MemoryStore("table", clock=ManualClock())
        self.oracle = LogOracle(self.objects)
        interval = self.random.choice((0, 2, 5, 10))
        log = TransactionLog(self.objects, clock=ManualClock(), ids=SeededIds(self.seed))
        log.create(metadata(TableConfig(checkpoint_interval=interval, indexes=(INDEX,))))
        self.writers = [Writer(self, number) for number in range(WRITERS)]

    @property
    def rates(self) -> Rates:
        return PROFILES[self.seed % len(PROFILES)]

    @property
    def reads_are_true(self) -> bool:
        return self.rates is not DAMAGED_READS

    def run(self) -> None:
        """Let the writers work, then deliver all delayed puts, and check."""
        while self.moves < MOVES:
            self.let_somebody_work()
        for store in self.stores:
            store.deliver()
        self.check()

    def let_somebody_work(self) -> None:
        free = [writer for writer in self.writers if not writer.busy]
        if free:
            self.moves += 1
            self.random.choice(free).work()
            self.check_hint()

    def between_requests(self) -> None:
        """Let other processes act before a request goes through."""
        if threading.current_thread() is not threading.main_thread():
            return  # the seed does not determine the order of parallel reads
        if self.moves < MOVES and self.random.random() < INTERLEAVED:
            self.let_somebody_work()
        if self.random.random() < INTERLEAVED:
            self.random.choice(self.stores).deliver(1)

    def connect(self, clock: ManualClock) -> FaultStore:
        """Return the table as a new process sees it."""
        store = FaultStore(
            self.objects,
            watch=lambda _kind, _key: self.between_requests(),
            seed=self.seed * 1000 + len(self.stores),
            rates=self.rates,
            clock=clock,
            page_keys=3,
        )
        self.stores.append(store)
        return store

    def plan(self, snapshot: Snapshot) -> Work | None:
        """Return random work, planned on `snapshot`, that a writer can commit. Return None if there is no work."""
        self.names += 1
        planners, weights = zip(*PLANNERS, strict=True)
        planner: Planner = self.random.choices(planners, weights)[0]
        return planner(self.random, f"w{self.names}", snapshot)

    def write_splits(self, work: Work) -> None:
        """Write the split files of the work. A writer writes the files before the commit."""
        for action in work.actions:
            if isinstance(action, Add):
                self.objects.put(action.path, b"rows", Overwrite())

    def acknowledge(self, commit_id: str, version: int, work: Work) -> None:
        assert commit_id not in self.refused, "a commit that was refused is there after all"
        assert self.acknowledged.get(commit_id, (version, None))[0] == version, "a commit has two versions"
        self.acknowledged[commit_id] = (version, work)

    def refuse(self, commit_id: str) -> None:
        assert commit_id not in self.acknowledged, "a commit that was acknowledged was refused later"
        self.refused.add(commit_id)

    def check_hint(self) -> None:
        """Assert that the hint never goes backwards, unless a writer read a damaged hint."""
        try:
            version = json.loads(self.objects.get(last_checkpoint_key()).data)["version"]
        except NotFound:
            self.hinted = -1
            return
        assert version >= self.hinted or not self.reads_are_true, f"the hint went from {self.hinted} to {version}"
        self.hinted = version

    def check(self) -> None:
        """Check the log against the writers' results. Compare each way to open the log with the version files."""
        self.oracle.check_versions()
        pending = {work.commit_id: work for writer in self.writers for work in writer.pending}
        for version in self.oracle.read()[1:]:
            work = pending.get(version.commit_id)
            if work is not None:
                self.acknowledge(version.commit_id, version.version, work)
            assert version.commit_id in self.acknowledged, f"nobody was told that version {version.version} is there"
        for commit_id, (number, work) in self.acknowledged.items():
            assert self.oracle.find(commit_id) == number, f"the {work.kind} acknowledged at version {number} is lost"
            if work.kind == RESTORE:
                self.check_restored(number, work)
            else:
                work.check(self.oracle.read()[number].actions)
        log = TransactionLog(self.objects, clock=ManualClock(), ids=SeededIds(0))
        self.oracle.check_opening(log)
        if self.random.random() < LOOKED_AT:
            self.oracle.check_travel(log, self.random.randrange(len(self.oracle.read())))
        for commit_id in list(self.acknowledged)[-2:]:
            assert log.find_commit(commit_id) == self.acknowledged[commit_id][0]

    def check_restored(self, version: int, work: Work) -> None:
        """Assert that the restored version has the content of the version that the restore selected."""
        versions = self.oracle.read()
        assert rows_of(versions[version].state) == rows_of(versions[work.planned.version].state)
        assert versions[version].state["table"]["metadata"] == versions[work.planned.version].state["table"]["metadata"]


class Writer:
    """A process that commits, reads and checkpoints.

    After a crash, the next process resolves the commits with unknown outcome.
    """

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.random = world.random
        self.clock = ManualClock(START_MS + world.random.choice((0, 0, -3_600_000, 5_000)), step_ms=number)
        self.busy = False
        self.planned_for_deletion = False
        self.pending: list[Work] = []
        self.number = number
        self.start()
        self.snapshot = TransactionLog(world.objects).snapshot()

    def start(self) -> None:
        """Begin a new process."""
        self.store = self.world.connect(self.clock)
        self.log = TransactionLog(self.store, clock=self.clock, ids=SeededIds(self.random.getrandbits(64)))

    def work(self) -> None:
        """Do one piece of work, or crash during it."""
        self.busy = True
        self.clock.now += self.random.choice((-60_000, 0, 0, 1, 700))
        self.planned_for_deletion = self.random.random() < 0.1
        if self.planned_for_deletion:
            self.store.at(len(self.store.trace) + self.random.randrange(8), self.random.choice([*CrashFault]))
        try:
            self.do()
        except Crash:
            self.start()
            # A snapshot of the killed process would still send its requests to the `FaultStore` that raises `Crash`.
            self.snapshot = TransactionLog(self.world.objects).snapshot()
        finally:
            self.store.clear_script()
            self.busy = False

    def do(self) -> None:
        """Resolve a commit with unknown outcome, or do new work."""
        if self.pending and self.random.random() < 0.7:
            self.resolve(self.random.choice(self.pending))
            return
        chores = (self.commit, self.open, self.travel, self.checkpoint, self.restore, self.lose_the_hint)
        self.random.choices(chores, (12, 4, 2, 2, 1, 0.5))[0]()

    def commit(self) -> None:
        """Commit work. The snapshot on which the work was planned may be old."""
        if self.random.random() < 0.5:
            self.open()
        work = self.reading(lambda: self.world.plan(self.snapshot))
        if work is None:
            return
        self.world.write_splits(work)
        named = replace(work, commit_id=SeededIds(self.random.getrandbits(64)).uuid())
        # After a crash or a damaged read, only a commit whose caller chose the ID can be found again.
        anonymous = self.world.reads_are_true and not self.planned_for_deletion and self.random.random() < 0.4
        self.attempt(work if anonymous else named)

    def attempt(self, work: Work) -> None:
        """Commit, and record the result."""
        known = work.commit_id
        again = known in {each.commit_id for each in self.pending}
        if known is not None and not again:
            self.pending.append(work)
        try:
            result = self.execute(work)
        except (CommitConflict, Fenced) as error:
            if not again:
                self.check_refusal(work, error)
            self.refused(known)
        except Unavailable:
            if not again:
                self.refused(known)
        except CommitUnknown as error:
            self.world.doubts += 1
            if known is None:
                self.pending.append(replace(work, commit_id=str(error.context["commit_id"])))
        except Corrupt:
            assert not self.world.reads_are_true
        else:
            self.committed(work, result)

    def execute(self, work: Work) -> CommitResult:
        if work.kind != RESTORE:
            return self.log.commit(
                work.planned,
                work.actions,
                operation=work.kind,
                requirements=work.requirements,
                commit_id=work.commit_id,
            )
        done = restore(self.log, work.planned, commit_id=work.commit_id)
        return CommitResult(
            done.snapshot.version,
            done.commit_id or work.commit_id or "",
            done.snapshot,
            already_committed=not done.commit_id,
            attempts=0,
        )

    def restore(self) -> None:
        """Restore an older version."""
        version = self.random.choice(self.world.oracle.read()).version
        target = self.seen(lambda: self.log.snapshot(version=version))
        if target is not None:
            commit_id = SeededIds(self.random.getrandbits(64)).uuid()
            self.attempt(Work(kind=RESTORE, planned=target, actions=(), commit_id=commit_id))

    def committed(self, work: Work, result: CommitResult) -> None:
        """Record a success. The version exists, or all transactions of the commit were already recorded."""
        version = self.world.oracle.find(result.commit_id)
        if version is None:
            assert result.already_committed, "acknowledged, but not there"
            self.refused(work.commit_id)
            if work.kind == RESTORE:
                self.world.check_restored(result.version, work)
                return
            recorded = self.world.oracle.read()[-1].state["txns"]
            txns = [action for action in work.actions if isinstance(action, Txn)]
            assert txns
            assert all(recorded[txn.appId] >= txn.version for txn in txns), "acknowledged, but not recorded"
        else:
            assert result.version == version or (result.already_committed and result.version > version)
            self.settled(work.commit_id)
            self.world.acknowledge(result.commit_id, version, work)
        self.snapshot = result.snapshot
        self.check_seen(result.snapshot)

    def check_refusal(self, work: Work, error: TidemarkError) -> None:
        """Assert that a conflict is correct.

        Either an object that the work needs was removed, or the commit lost ten races.
        """
        if "other writers committed first during each of" not in str(error) and work.kind in {
            "APPEND",
            "COMPACT",
            "REMOVE",
            "DELETE",
        }:
            assert work.is_outdated(self.world.oracle.read()[-1].state), f"a false conflict: {error}"

    def refused(self, commit_id: str | None) -> None:
        if commit_id is not None:
            self.settled(commit_id)
            self.world.refuse(commit_id)

    def settled(self, commit_id: str | None) -> None:
        self.pending = [each for each in self.pending if each.commit_id != commit_id]

    def resolve(self, work: Work) -> None:
        """Find the outcome of a commit. If no version contains the commit, commit it again under the same ID."""
        known = work.commit_id
        assert known is not None
        found = self.reading(lambda: self.log.find_commit(known) or NOWHERE)
        if found == NOWHERE:
            self.open()
            self.attempt(work if work.kind == RESTORE else replace(work, planned=self.snapshot))
        elif found is not None:
            self.settled(known)
            self.world.acknowledge(known, found, work)

    def open(self) -> None:
        """Continue from the newest snapshot that can be read."""
        self.snapshot = self.seen(self.log.snapshot) or self.snapshot
        refreshed = self.seen(lambda: self.log.refresh(self.snapshot)) or self.snapshot
        assert refreshed.version >= self.snapshot.version
        self.snapshot = refreshed

    def travel(self) -> None:
        """Open an older version by number and by time."""
        version = self.random.choice(self.world.oracle.read())
        opened = [
            self.seen(lambda: self.log.snapshot(version=version.version)),
            self.seen(lambda: self.log.snapshot(timestamp_ms=version.timestamp)),
        ]
        assert {found.version for found in opened if found is not None} <= {version.version}

    def seen(self, read: Callable[[], Snapshot]) -> Snapshot | None:
        """Return the snapshot that a read returns, after a check that it is correct."""
        snapshot = self.reading(read)
        if snapshot is not None:
            self.check_seen(snapshot)
        return snapshot

    def check_seen(self, snapshot: Snapshot) -> None:
        """Assert that the readable part of a snapshot is correct. A snapshot reads its splits only on use."""
        assert snapshot.timestamp == self.world.oracle.read()[snapshot.version].timestamp
        if self.random.random() > LOOKED_AT:
            return
        state = self.reading(lambda: state_of(snapshot))
        assert state is None or state == self.world.oracle.read()[snapshot.version].state, "a snapshot lies"

    def reading(self, read: Callable[[], T]) -> T | None:
        """Return the result of a read, or None if the store was unreachable or returned damaged bytes."""
        try:
            return read()
        except Unavailable:
            return None
        except Corrupt:
            assert not self.world.reads_are_true, "the log takes good bytes for damaged ones"
            return None

    def checkpoint(self) -> None:
        """Checkpoint the snapshot of the writer, which may be old."""
        try:
            self.log.checkpoint(self.snapshot)
        except (Unavailable, CommitUnknown):
            pass
        except Corrupt:
            assert not self.world.reads_are_true

    def lose_the_hint(self) -> None:
        """Delete the hint from another process."""
        self.world.objects.delete([last_checkpoint_key()])


def simulate(seed: int) -> World:
    """Run one seed. The message of a failure contains the seed."""
    world = World(seed)
    with naming(seed):
        world.run()
    return world


@seed_blocks(400)
def test_what_was_acknowledged_is_there_once_and_nothing_else_whatever_the_store_does(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_replays_every_request_and_every_byte(seed: int) -> None:
    first, again = simulate(seed), simulate(seed)
    assert [history(store) for store in first.stores] == [history(store) for store in again.stores]
    assert contents(first.objects) == contents(again.objects)
    assert (first.acknowledged.keys(), first.refused) == (again.acknowledged.keys(), again.refused)


def test_the_seeds_meet_every_fault_and_every_kind_of_commit() -> None:
    faults = {f"{type(fault).__name__}.{fault.name}" for rates in PROFILES for fault in rates}
    crashes = {f"CrashFault.{fault.name}" for fault in CrashFault}
    kinds = {
        "APPEND", "COMPACT", "REMOVE", "DELETE", "CHANGE", "TRANSACT", "MERGE", "INDEX", "DROP", "SKIP", "RESTORE",
    }  # fmt: skip

    def met(seed: int) -> Counter[str]:
        world = simulate(seed)
        steps = {happening.step for store in world.stores for happening in store.trace if happening.step is not None}
        assert steps <= faults | crashes
        worked = {work.kind for _, work in world.acknowledged.values()}
        assert worked <= kinds
        return Counter({**dict.fromkeys(steps | worked, 1), "refused": len(world.refused), "in doubt": world.doubts})

    run_until_met(met, faults | crashes | kinds | {"refused", "in doubt"})


def rows_of(state: State) -> dict[str, int]:
    """Return the number of deleted rows in each live split."""
    vectors = {path: add.deletionVector for path, add in state["live"].items()}
    return {path: 0 if vector is None else vector.cardinality for path, vector in vectors.items()}


def history(store: FaultStore) -> list[tuple[str, str, int, str]]:
    """Return the requests with their outcomes, sorted, because the order of parallel reads varies."""
    return sorted((each.request.kind, each.request.key, each.request.repeat, each.step or "") for each in store.trace)
