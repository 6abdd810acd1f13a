"""Planning a compaction of very many splits: time and memory of the plan, and of what `tidemark debt` says.

Every case runs in a process of its own, which has made the columns of its snapshot before the clock starts.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from benchmarks.figures import Figure, command, peak_mib, seconds
from storage_core.compaction.planner import debt, plan
from storage_core.compaction.policy import Mode
from storage_core.testkit.many_splits import snapshot_of_many

CASES = ((921_600, 1), (1_000_000, 10_000))
MOST_SECONDS, MOST_MIB = 2.0, 1024.0


def measure(*, small: bool) -> Iterator[Figure]:
    """Yield the figures of one case after the other; as ratios, how far below the bound they are."""
    for splits, windows in CASES:
        count = splits // 100 if small else splits
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            plan_s, debt_s, memory = process.submit(_case, count, min(windows, count)).result()
        case = f"{count:,} splits in {windows:,} windows"
        yield _bounded(f"plan of {case}", plan_s, "s", MOST_SECONDS)
        yield _bounded(f"debt of {case}", debt_s, "s", MOST_SECONDS)
        yield _bounded(f"peak memory, {case}", memory, "MiB", MOST_MIB)


def _case(splits: int, windows: int) -> tuple[float, float, float]:
    snapshot = snapshot_of_many(splits, windows)
    planned = seconds(lambda: plan(snapshot, mode=Mode.POLICY))
    return planned, seconds(lambda: debt(snapshot, mode=Mode.POLICY)), peak_mib()


def _bounded(name: str, value: float, unit: str, most: float) -> Figure:
    return Figure(name=name, value=value, unit=unit, against="the bound", ratio=most / max(value, 1e-9), aim=1.0)


if __name__ == "__main__":
    sys.exit(command(measure, "Plan compactions of very many splits."))
