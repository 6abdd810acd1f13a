"""After a collection, `fsck` reports no warning, even if earlier collections were killed.

When all processes have ended and every horizon has passed, no unneeded object is left.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from storage_core.base.clock import HOUR_MS
from storage_core.data.settings.table import TableConfig
from storage_core.log.log import read_tags, remove_tag
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Finding, Kind
from storage_core.maintain.history import set_tag
from storage_core.store.memory import MemoryStore
from tests.simulation.seeds import naming, seed_blocks
from tests.support.clock import ManualClock
from tests.support.fault_store import Crash, CrashFault, FaultStore
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

STEPS = 25
LAST_REQUEST = 120
HORIZONS_MS = (None, None, 0, HOUR_MS // 2, 3 * HOUR_MS)


class Life:
    """A keyed table, and the random operations on it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = ManualClock(step_ms=1)
        self.table = KeyedTable(MemoryStore("life", clock=self.clock), SeededIds(seed), self.clock)
        config = TableConfig(
            primary_key=("tailnum",),
            checkpoint_interval=self.random.choice([0, 3]),
            version_retention_ms=self.random.choice([0, HOUR_MS]),
            gc_horizon_ms=self.random.choice([0, HOUR_MS]),
        )
        self.table.create(config=config)
        self.acts: tuple[Callable[[], object], ...] = (
            self.write,
            self.write,
            self.merge,
            self.merge,
            self.table.sort,
            self.table.compact,
            self.checkpoint,
            self.tag,
            self.wait,
            self.wait,
            self.collect,
            self.collect,
            self.collect_and_crash,
        )

    def write(self) -> None:
        with self.table.writer() as writer:
            for _ in range(self.random.randint(1, 3)):
                name = self.random.choice("abcd")
                if self.random.random() < 0.2:
                    writer.delete([name])
                else:
                    writer.put({"tailnum": name, "seats": self.random.randint(1, 9), "model": None})
                if self.random.random() < 0.7:
                    writer.flush()

    def merge(self) -> None:
        self.table.merge()

    def checkpoint(self) -> None:
        self.table.log.checkpoint(self.table.snapshot)

    def tag(self) -> None:
        name = self.random.choice("tu")
        if name in read_tags(self.table.store).by_name:
            remove_tag(self.table.log, name)
        else:
            set_tag(self.table.log, name, self.table.snapshot)

    def wait(self) -> None:
        self.clock.sleep_ms(self.random.randint(0, 2 * HOUR_MS))

    def collect(self) -> None:
        collect(self.table.store, self.table.log, clock=self.clock, horizon_ms=self.random.choice(HORIZONS_MS))

    def collect_and_crash(self) -> None:
        store = FaultStore(self.table.store)
        store.at(self.random.randint(0, LAST_REQUEST), self.random.choice(list(CrashFault)))
        log = KeyedTable(store, self.table.ids, self.clock).log
        with suppress(Crash):
            collect(store, log, clock=self.clock, horizon_ms=self.random.choice(HORIZONS_MS))

    def findings(self) -> tuple[Finding, ...]:
        report = fsck(self.table.store, clock=self.clock, deep=True)
        assert report.clean, [each for each in report.findings if each.severity != "note"]
        return report.findings

    def quiet(self) -> None:
        """Let a long time pass in which only the collector runs."""
        for name in read_tags(self.table.store).by_name:
            remove_tag(self.table.log, name)
        self.merge()
        self.checkpoint()
        for _ in range(6):
            self.clock.sleep_ms(4 * HOUR_MS)
            collect(self.table.store, self.table.log, clock=self.clock)


@seed_blocks(20)
def test_after_any_life_a_deep_check_warns_of_nothing_and_in_the_end_nothing_is_left(seeds: range) -> None:
    for seed in seeds:
        with naming(seed):
            life = Life(seed)
            for _ in range(STEPS):
                act = life.random.choice(life.acts)
                act()
                if act in (life.collect, life.collect_and_crash):
                    life.findings()
            rows = life.table.rows()
            life.quiet()
            # Version files older than the retained versions stay, because the second newest checkpoint needs them. The
            # splits of these old versions do not stay.
            assert [each for each in life.findings() if each.kind is not Kind.OLDER_SPLIT_MISSING] == []
            assert life.table.rows() == rows
