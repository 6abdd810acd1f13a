"""Long compactions that run concurrently with writers, merges, deletes and each other.

Any of these processes may end at any request.

The simulation uses one thread. A seed determines the order of events. A compaction begins, other processes act, and the
compaction commits much later or never. After every event, the table must match a dictionary. A compaction may conflict
only if another compaction rewrote its inputs first, or if no input split is live any more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from random import Random

from storage_core.base.errors import CommitConflict, CommitUnknown, Unavailable
from storage_core.compact.carry_over import CarryOver
from storage_core.compact.execute import execute
from storage_core.compact.work import CompactionTask
from storage_core.data.settings.layout import CompactionSettings
from storage_core.data.settings.table import TableConfig
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Kind
from storage_core.split.writer import Rewrite
from storage_core.store.memory import MemoryStore
from tests.simulation.seeds import naming, run_until_met, seed_blocks
from tests.support import merge_plan
from tests.support.clock import START_MS, ManualClock
from tests.support.deleted_rows import delete_where
from tests.support.fault_store import Crash, CrashFault, FaultStore, PutFault
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

EVENTS = 40
CONFIG = TableConfig(
    primary_key=("tailnum",),
    target_split_bytes=1_000,
    checkpoint_interval=7,
    version_retention_ms=10**9,
    gc_horizon_ms=0,
)
FEW_ROWS = CompactionSettings(run_rows=50)
"""Settings under which a compaction of many rows merges in parts. Every second table uses these settings."""


@dataclass(frozen=True, slots=True)
class Running:
    """A compaction that has written its splits but is not committed yet. The compaction's process uses `store`."""

    table: KeyedTable
    store: FaultStore
    snapshot: Snapshot
    merges: list[tuple[CompactionTask, Rewrite]]

    @property
    def inputs(self) -> set[str]:
        return {add.path for operation, _ in self.merges for add in operation.inputs}

    def commit(self) -> Snapshot:
        carry = CarryOver(self.store, self.merges, ids=self.table.ids)
        actions = [action for _, result in self.merges for action in result.actions]
        return self.table.log.commit(self.snapshot, actions, operation="COMPACT", rebase=carry).snapshot


class World:
    """One table, its processes, and its expected content. `met` counts how often each kind of event occurred."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = ManualClock(step_ms=1)
        self.objects = MemoryStore("world", clock=self.clock)
        config = CONFIG if seed % 2 else replace(CONFIG, compaction=FEW_ROWS)
        self.table = KeyedTable(self.objects, SeededIds(seed), self.clock).create(config=config)
        self.base: dict[object, object] = {}
        self.waiting: dict[object, object] = {}
        self.batch: list[str] = []
        self.running: list[Running] = []
        self.compacted: set[str] = set()
        self.met: Counter[str] = Counter()
        self._processes = 1_000 * seed

    def run(self) -> None:
        """Run random events, then let every process complete its work."""
        self.write()
        self.merge()
        chances = {self.write: 4, self.merge: 6, self.delete: 2, self.begin: 2, self.commit: 2}
        for event in self.random.choices(list(chances), list(chances.values()), k=EVENTS):
            event()
            self.check()
        while self.running:
            self.commit()
            self.check()
        self.end()

    def write(self) -> None:
        """Write one generation with new rows, replaced rows (sometimes the whole last batch) and deletes."""
        known = sorted(map(str, self.base.keys() | self.waiting.keys()))
        with self.table.writer() as writer:
            fresh = [f"n{self.random.randrange(10**6):06}" for _ in range(self.random.choice([1, 5, 60]))]
            again = self.random.sample(known, min(len(known), self.random.choice([0, 3, 40])))
            again += self.batch if self.random.random() < 0.4 else []
            self.batch = fresh
            values = {name: self.random.randrange(10**6) for name in [*fresh, *again]}
            writer.put([{"tailnum": name, "seats": value} for name, value in values.items()])
            deleted = self.random.sample(known, min(len(known), self.random.choice([0, 2, 20])))
            writer.delete(deleted)
            writer.flush()
        self.waiting.update(values)
        self.waiting.update(dict.fromkeys(deleted))

    def merge(self) -> None:
        table, store = self._process()
        self._endanger(store, 20)
        before = self._commits("MERGE")
        try:
            table.merge()
        except Crash:
            self.met["a merge ended"] += 1
        if self._commits("MERGE") > before:
            self.base = {name: value for name, value in {**self.base, **self.waiting}.items() if value is not None}
            self.waiting = {}

    def delete(self) -> None:
        """Delete random rows of the base, as a statement does. Skip rows that have unmerged changes."""
        known = sorted(map(str, self.base.keys() - self.waiting.keys()))
        deleted = set(self.random.sample(known, min(len(known), self.random.choice([1, 10, 50]))))
        if deleted:
            delete_where(self.table.log, lambda row: row["tailnum"] in deleted)
            self.base = {name: value for name, value in self.base.items() if name not in deleted}

    def begin(self) -> None:
        table, store = self._process()
        self._endanger(store, 30)
        try:
            snapshot = table.snapshot
            planned = merge_plan.plan(snapshot)
            operations = [part for each in planned for part in merge_plan.in_parts(store, each, ids=table.ids)]
            done = [(each, execute(store, each, ids=table.ids, now_ms=table.clock.now_ms())) for each in operations]
        except Crash:
            self.met["a compaction ended before its commit"] += 1
            return
        store.clear_script()
        if done:
            self.running.append(Running(table, store, snapshot, done))

    def commit(self) -> None:
        """Commit one of the running compactions, unless its process ends or a reply is lost."""
        if not self.running:
            return
        each = self.running.pop(self.random.randrange(len(self.running)))
        self._endanger(each.store, 12)
        if self.random.random() < 0.3:
            each.store.on_put("_transaction_log/0", self.random.choice(list(PutFault)))
        before, live = self._commits("COMPACT"), set(self.table.snapshot.splits)
        refused: CommitConflict | None = None
        try:
            each.commit()
        except Crash:
            self.met["a compaction ended in its commit"] += 1
        except (CommitUnknown, Unavailable):
            self.met["a compaction did not learn what became of it"] += 1
        except CommitConflict as error:
            refused = error
            self.met["a compaction was refused"] += 1
        each.store.deliver()
        committed = self._commits("COMPACT") - before
        assert committed <= (refused is None), "at most once, and never when it says no"
        assert refused is None or each.inputs & self.compacted or not each.inputs & live, f"who was first? {refused}"
        if committed:
            assert not each.inputs & self.compacted, "a split is compacted once"
            self.compacted |= each.inputs
            self._count(each, live)

    def check(self) -> None:
        """Assert that the table matches the dictionary, with each key once."""
        rows = self.table.base_rows()
        assert {row["tailnum"]: row["seats"] for row in rows} == self.base
        assert len(rows) == len(self.base)

    def end(self) -> None:
        """Merge, compact and collect everything. Assert that the rows are correct and that `fsck` finds no damage."""
        while self.waiting:
            self.merge()
        while self.table.compact() is not None:
            self.check()
        self.check()
        self.table.log.checkpoint(self.table.snapshot)
        late = ManualClock(START_MS + 10**10, step_ms=1)
        collect(self.objects, self.table.log, clock=late, horizon_ms=0)
        self.check()
        found = fsck(self.objects, clock=late, deep=True).findings
        assert [each for each in found if each.kind is not Kind.UNREFERENCED] == []

    def _process(self) -> tuple[KeyedTable, FaultStore]:
        self._processes += 1
        store = FaultStore(self.objects)
        return KeyedTable(store, SeededIds(self._processes), self.clock), store

    def _endanger(self, store: FaultStore, requests: int) -> None:
        """Sometimes let the process end at one of its next requests."""
        if self.random.random() < 0.25:
            number = len(store.trace) + self.random.randrange(requests)
            store.at(number, self.random.choice(list(CrashFault)))

    def _commits(self, operation: str) -> int:
        return sum(entry.operation == operation for entry in self.table.log.history())

    def _count(self, each: Running, live: set[str]) -> None:
        outputs = [add.path for _, result in each.merges for add in result.adds]
        splits = self.table.snapshot.splits
        self.met["a compaction committed"] += 1
        self.met["it had several outputs"] += len(outputs) > 1
        self.met["it was a merge in parts"] += any(operation.part is not None for operation, _ in each.merges)
        self.met["deleted rows were carried over"] += any(
            path in splits and splits[path].deleted_rows for path in outputs
        )
        self.met["an input had been ended by a merge"] += not each.inputs <= live
        self.met["an output had no row left"] += any(path not in splits for path in outputs)


@cache
def simulate(seed: int) -> World:
    with naming(seed):
        world = World(seed)
        world.run()
    return world


@seed_blocks(12)
def test_whatever_the_order_of_events_no_row_is_lost_and_none_comes_back(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


def test_the_seeds_meet_everything_that_can_happen_to_a_compaction() -> None:
    wanted = {
        "a compaction committed",
        "it had several outputs",
        "deleted rows were carried over",
        "an input had been ended by a merge",
        "a compaction was refused",
        "a compaction ended before its commit",
        "a compaction ended in its commit",
        "a merge ended",
    }
    run_until_met(lambda seed: simulate(seed).met, wanted)
