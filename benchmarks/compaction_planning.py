"""Time and memory to plan a compaction of very many splits, and to run `tidemark debt`.

A plan starts from an open snapshot. The time to read the snapshot's state is measured separately. Every case has its
own process, which opens the snapshot from a checkpoint. Each step has a wall-clock time and a processor time of all
threads. The processor time does not depend on other load. The memory is the peak of the process during planning,
including the open snapshot.
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
from storage_core.compact.pending_work import group_by_window
from storage_core.compact.planner import choose
from storage_core.compact.work import MOST_INPUTS
from storage_core.data.settings.layout import Mode
from storage_core.log.checkpoint_writing import write_checkpoint
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.local import LocalStore
from tests.support.many_splits import snapshot_of_many

CASES = ((921_600, 1, 0), (1_000_000, 100, 10_000), (1_000_000, 10_000, 0))
"""The number of splits, the number of windows, and the number of partitions in each window."""
MOST_SECONDS, MOST_MIB = 2.0, 1024.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The wall-clock seconds and the processor seconds of one step."""

    wall: float
    cpu: float


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the metrics of all cases. Each ratio is the bound divided by the measured value."""
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
    """Create a table with a checkpoint that contains all splits. No split has a commit of its own."""
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
    owed = _cost(lambda: group_by_window(choose(snapshot, now_ms=now_ms, mode=Mode.POLICY)))
    return opened, planned, owed, before, peak_mib()


def _planned(snapshot: Snapshot, now_ms: int) -> None:
    """Plan in the same way as the job. Choose all merges at once, and build their records in parts."""
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
    """Return a new process. The new process has no data except the data sent to it."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def _bounded(name: str, value: float, unit: str, most: float) -> Metric:
    return Metric(name=name, value=value, unit=unit, against="the bound", ratio=most / max(value, 1e-9), aim=1.0)


if __name__ == "__main__":
    sys.exit(command(measure, __doc__))
