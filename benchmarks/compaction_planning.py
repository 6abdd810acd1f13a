"""Planning a compaction of very many splits: time and memory of the plan, and of what `tidemark debt` says.

A plan starts from a snapshot that is open: its state has been read, which is measured as well and on its own lines.
Every case is opened from a checkpoint in a process of its own. Two times are given of each step: as the clock on the
wall has it, and of the processor, all threads together, which does not depend on who else uses the machine. Memory is
the most that the process has while it plans, the open snapshot included.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.metrics import Metric, command, peak_mib, reset_peak
from storage_core.compaction.debt import window_debts
from storage_core.compaction.merges import MOST_INPUTS
from storage_core.compaction.planner import choose
from storage_core.compaction.policy import Mode
from storage_core.log.checkpoints.write import write_checkpoint
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.local import LocalStore
from tests.support.many_splits import snapshot_of_many

CASES = ((921_600, 1, 0), (1_000_000, 100, 10_000), (1_000_000, 10_000, 0))
"""Splits, windows, and partitions in each window."""
MOST_SECONDS, MOST_MIB = 2.0, 1024.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one step: on the wall, and of the processor."""

    wall: float
    cpu: float


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the metrics of one case after the other; as ratios, how far below the bound they are."""
    for splits, some, partitions in CASES[-1:] if small else CASES:
        count, windows = (splits // 100, min(100, some)) if small else (splits, some)
        case = f"{count:,} splits in {windows:,} window{'s' * (windows > 1)}"
        case += f" of {partitions:,} partitions" if partitions else ""
        with tempfile.TemporaryDirectory() as folder:
            with _process() as process:
                process.submit(_write, folder, count, windows, partitions).result()
            with _process() as process:
                opened, planned, owed, before, peak = process.submit(_plan, folder, count * 1000).result()
        yield Metric(name=f"open {case}", value=opened.wall, unit="s")
        yield Metric(name=f"open {case}, processor", value=opened.cpu, unit="s")
        for name, cost in (("plan of", planned), ("debt of", owed)):
            yield _bounded(f"{name} {case}", cost.wall, "s", MOST_SECONDS)
            yield _bounded(f"{name} {case}, processor", cost.cpu, "s", MOST_SECONDS)
        yield Metric(name=f"memory that planning adds, {case}", value=peak - before, unit="MiB")
        yield _bounded(f"peak memory, {case}", peak, "MiB", MOST_MIB)


def _write(folder: str, splits: int, windows: int, partitions: int) -> None:
    """Make a table whose checkpoint lists the splits; none of them was committed one by one."""
    log = TransactionLog(LocalStore(Path(folder)))
    many = snapshot_of_many(splits, windows, partitions=partitions)
    head = log.create(many.metadata)
    write_checkpoint(log.store, replace(head, splits=many.splits), log.ids.uuid, compact=True)


def _plan(folder: str, now_ms: int) -> tuple[Cost, Cost, Cost, float, float]:
    snapshots: list[Snapshot] = []
    opened = _cost(lambda: snapshots.append(_opened(folder)))
    (snapshot,) = snapshots
    reset_peak()
    before = peak_mib()
    planned = _cost(lambda: _planned(snapshot, now_ms))
    owed = _cost(lambda: window_debts(choose(snapshot, now_ms=now_ms, mode=Mode.POLICY)))
    return opened, planned, owed, before, peak_mib()


def _planned(snapshot: Snapshot, now_ms: int) -> None:
    """Plan as the job does: all merges at once, their records part by part."""
    for _ in choose(snapshot, now_ms=now_ms, mode=Mode.POLICY).first(MOST_INPUTS).parts():
        pass


def _opened(folder: str) -> Snapshot:
    snapshot = TransactionLog(LocalStore(Path(folder))).snapshot()
    snapshot.splits.table()
    return snapshot


def _cost(work: Callable[[], object]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def _process() -> ProcessPoolExecutor:
    """A process of its own, that has what it was told and nothing else in its memory."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def _bounded(name: str, value: float, unit: str, most: float) -> Metric:
    return Metric(name=name, value=value, unit=unit, against="the bound", ratio=most / max(value, 1e-9), aim=1.0)


if __name__ == "__main__":
    sys.exit(command(measure, __doc__))
