"""A table in memory whose clock the test moves, for collectors that wait for hours."""

from __future__ import annotations

from storage_core.base.clock import HOUR_MS
from storage_core.maintain.collect import collect
from storage_core.store.memory import MemoryStore
from storage_core.table import Table
from tests.support.changed_rows import opened
from tests.support.clock import ManualClock


class Dated(MemoryStore):
    """A store whose clock the test moves."""

    def __init__(self) -> None:
        self.time = ManualClock(step_ms=1)
        super().__init__("dated", clock=self.time)


def opened_at(store: Dated, now_ms: int, seed: int) -> Table:
    """Open the table as a process that starts at the time `now_ms`."""
    store.time.now = now_ms
    table = opened(store, seed)
    table.log.clock.now = now_ms  # type: ignore[attr-defined]  # a clock of tests
    return table


def collect_at(store: Dated, now_ms: int, seed: int, horizon_ms: int | None = None) -> None:
    """Collect once."""
    store.time.now = now_ms
    collect(store, opened(store, seed).log, clock=ManualClock(now_ms, step_ms=1), horizon_ms=horizon_ms)


def collect_twice(store: Dated, now_ms: int) -> None:
    """Collect twice, two hours apart. The second run deletes the numbered objects that the first run recorded."""
    for seed, late_ms in ((50, 0), (51, 2 * HOUR_MS)):
        collect_at(store, now_ms + late_ms, seed, horizon_ms=0)
