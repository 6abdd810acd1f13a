"""One merge of sorted splits, compared to a copy, to sorts, and to the merges of other systems.

All programs read the same files in one run and write zstd level 3. `sorters` and `programs.ducklake_merge` describe
each program. The unit is processor seconds on one thread. Each program has its own process. This process merges small
files first, so the measured time does not include its start. The programs run in turns. DuckLake needs a different
Python interpreter than the other programs, so DuckLake does not take turns with them and runs last. The cases are a
table with 8 columns, a table with 60 columns, and four times as many splits.

The memory metric is the growth of a new process's memory during the first merge in this process. Memory-mapped files do
not count. The memory metric is measured for 8 and for 60 columns. The memory of a merge must not depend on the number
of columns.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks import points, sorters
from benchmarks.metrics import Metric, command, grown_mib, median
from benchmarks.peers import NotMeasuredError, ducklake_python, printed
from benchmarks.points import SQL_KEY, Given
from benchmarks.sorters import PEERS, Side

SPLITS = 16
TIME_AIMS = {"Arrow copy": 1.25, "DuckDB ORDER BY": 2.2, "DuckLake's merge": 2.0}
SIZE_AIMS = {"Arrow copy": 1.0, "DuckLake's merge": 1 / 0.85}
FLAT = 0.8
"""The minimum ratio at which the memory of a merge counts as independent of the number of columns.

The ratio is the memory for 8 columns divided by the memory for 60 columns.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """The size of the files of one case, the systems that merge the files, and the number of repetitions."""

    splits: int
    width: int
    repeats: int
    peers: Sequence[str]
    lake: bool = False

    @property
    def name(self) -> str:
        """The name of the case in the metrics."""
        return f"{self.splits} splits, {self.width} columns"


CASES = (
    Case(SPLITS, 8, 3, tuple(PEERS), lake=True),
    Case(SPLITS, 60, 1, ("Arrow copy", "DuckDB ORDER BY")),
    Case(4 * SPLITS, 8, 1, ("Arrow copy", "DuckDB ORDER BY")),
)

SIDES: Mapping[str, Side] = {"ours": sorters.ours, **PEERS}
Processes = Mapping[str, ProcessPoolExecutor]


@dataclass(frozen=True, slots=True)
class Taken:
    """The processor seconds of each merge of one program, and the number of bytes that it wrote."""

    seconds: Sequence[float]
    bytes: int


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the metrics of all cases, and then the metrics of memory."""
    rows = 1_000 if small else 250_000
    grown: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        processes = {name: stack.enter_context(_one_thread()) for name in SIDES}
        for case in CASES:
            root = Path(folder) / case.name
            given = points.given(root / "given", case.splits, rows, case.width)
            if not small:
                _taken_by(processes, case, points.given(root / "small", case.splits, 1_000, case.width), 1)
            taken = _taken_by(processes, case, given, 1 if small else case.repeats)
            yield from _case(case, given, taken, _lake(root, case, given, small=small))
            if case.splits == SPLITS:
                with _one_thread() as fresh:
                    grown[case.width] = fresh.submit(grown_by_merge, given).result()
            shutil.rmtree(root)
    narrow, *_, wide = grown.values()
    yield Metric(name=f"{SPLITS} splits, {min(grown)} columns, growth of a fresh process", value=narrow, unit="MiB")
    name = f"{SPLITS} splits, {max(grown)} columns, growth of a fresh process"
    against = f"{min(grown)} columns"
    yield Metric(name=name, value=wide, unit="MiB", against=against, ratio=narrow / wide, aim=FLAT)


def _case(case: Case, given: Given, taken: dict[str, Taken], lake: Taken | str | None) -> Iterator[Metric]:
    own = taken.pop("ours")
    yield Metric(name=f"{case.name}, rows per second", value=given.rows / median(own.seconds), unit="rows/s")
    for peer, found in taken.items():
        yield from _against(case, own, peer, found)
    if lake is not None:
        yield from _against(case, own, "DuckLake's merge", lake)


def _against(case: Case, own: Taken, peer: str, found: Taken | str) -> Iterator[Metric]:
    """Return the metrics compared to a peer. If the peer was not measured, the metrics contain the reason."""
    seconds = median(own.seconds)
    if isinstance(found, str):
        against, faster, smaller = f"{peer} (not measured: {found})", 0.0, 0.0
    else:
        against, faster, smaller = peer, median(found.seconds) / seconds, found.bytes / own.bytes
    name, aim = f"{case.name}, to {peer}", TIME_AIMS.get(peer)
    yield Metric(name=name, value=seconds, unit="cpu s", against=against, ratio=faster, aim=aim)
    name, aim = f"{case.name}, output to {peer}", SIZE_AIMS.get(peer)
    yield Metric(name=name, value=own.bytes, unit="B", against=against, ratio=smaller, aim=aim)


def _taken_by(processes: Processes, case: Case, given: Given, repeats: int) -> dict[str, Taken]:
    """Run each program in its own process. The processes merge in turns.

    Other load on the machine then affects all programs equally.
    """
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in ("ours", *case.peers)}
    for _ in range(repeats):
        for name, runs in found.items():
            runs.append(processes[name].submit(_taken, SIDES[name], given).result())
    return {name: Taken([each[0] for each in runs], runs[-1][1]) for name, runs in found.items()}


def _one_thread() -> ProcessPoolExecutor:
    """Return a new process in which every library uses one thread."""
    os.environ.update(sorters.ONE_THREAD)  # libraries read these variables when they are imported
    return ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn"), initializer=pa.set_cpu_count, initargs=(1,)
    )


def _taken(side: Side, given: Given) -> tuple[float, int]:
    folder = given.root / "output"
    folder.mkdir()
    started = time.process_time()
    side(given, folder)
    taken = time.process_time() - started
    written = sum(path.stat().st_size for path in folder.iterdir())
    shutil.rmtree(folder)
    return taken, written


def _lake(root: Path, case: Case, given: Given, *, small: bool) -> Taken | str | None:
    """Return the measurement of DuckLake, or the reason for a missing one. Return None for a case without DuckLake."""
    if not case.lake:
        return None
    try:
        return _ducklake(root, given, ducklake_python(make=not small), 1 if small else case.repeats)
    except NotMeasuredError as error:
        return str(error)


def _ducklake(root: Path, given: Given, python: Path, repeats: int) -> Taken:
    lake = root / "lake"
    lake.mkdir()
    taken = printed(python, "ducklake_merge", str(lake), SQL_KEY, str(repeats), *given.files)
    return Taken(taken["seconds"], taken["bytes"])


def grown_by_merge(given: Given) -> float:
    """Return the growth of this process in MiB during one merge. This merge must be the first merge of the process."""
    folder = Path(tempfile.mkdtemp(dir=given.root))
    return grown_mib(lambda: sorters.ours(given, folder))


if __name__ == "__main__":
    sys.exit(command(measure, __doc__ or ""))
