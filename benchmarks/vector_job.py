"""The memory of a vector index job, and its recovery after a kill: 1,000,000 × 256 on Spark.

The job is a separate process, in the same way as under Dagster. The benchmark kills the job and its tasks when storage
contains the first segment. The benchmark then restarts the job repeatedly until the lease of the killed job has ended.
The last job runs until it is complete. The memory is the highest peak of a Python process that runs a task (`VmHWM`),
on Linux.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import tidemark as tm
from benchmarks.metrics import Metric, command
from storage_core.data.rows.vectors import column_of, vector_type
from storage_core.data.settings.index import IndexDefinition

BOUND_MIB = 1_536
_APPENDS = 10
_LOOK_SECONDS = 0.05
_RETRY_SECONDS = 5.0


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the peak memory of the tasks, the duration of the job, and how many splits the index covers."""
    rows, dimensions = (4_000, 32) if small else (1_000_000, 256)
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        uri = str(Path(folder) / "table")
        table = _written(uri, rows, dimensions)
        label, splits = f"index of {rows:,} × {dimensions} on Spark", len(table.files())
        killed = _Job(uri, Path(folder) / "killed.log")
        killed.watch(until_stored=True)
        killed.kill()
        before, started = tm.Table.open(uri), time.perf_counter()
        if before.snapshot.segments:
            raise AssertionError("the job was over before it was killed")
        again, runs = None, 0
        while again is None or again.process.returncode:
            time.sleep(_RETRY_SECONDS if again else 0)
            again, runs = _Job(uri, Path(folder) / "again.log"), runs + 1
            again.watch()
            if again.process.returncode and b"Held" not in again.log.read_bytes():
                raise AssertionError(again.log.read_text()[-2_000:])
        after = tm.Table.open(uri)
        covered = splits - len(after.explain_search(index="near").indexes[0].scanned)
        yield Metric(name=f"{label}, splits covered when run again", value=covered, unit="splits")
        yield Metric(name=f"{label}, runs after the kill, until its lease ended", value=runs, unit="runs")
        yield Metric(name=f"{label}, from the kill to the end", value=time.perf_counter() - started, unit="s")
        yield Metric(name=f"{label}, the last run", value=again.seconds, unit="s")
        peak = max(killed.peak_mib, again.peak_mib)
        yield Metric(
            name=f"{label}, most memory of a task",
            value=peak,
            unit="MiB",
            against=f"{BOUND_MIB} MiB",
            ratio=BOUND_MIB / peak,
            aim=1,
        )
        measured = after.recall("near", queries=20)
        yield Metric(name=f"{label}, recall@10", value=measured.recall, unit="share")
        if covered != splits:
            raise AssertionError(f"{covered} of {splits} splits are covered")


class _Job:
    """The process of an index catch-up and its tasks, in their own session of the operating system."""

    def __init__(self, uri: str, log: Path) -> None:
        self.log, self._stored = log, Path(uri) / "_indices"
        self.peak_mib, self.seconds = 0.1, 0.0
        arguments = [sys.executable, "-m", "jobs", "catch_up", "--table-uri", uri, "--index", "near"]
        with log.open("wb") as file:
            self.process = subprocess.Popen(arguments, stdout=file, stderr=file, start_new_session=True)

    def watch(self, *, until_stored: bool = False) -> None:
        """Read the memory of the job's tasks until the job ends or storage contains a segment."""
        started = time.perf_counter()
        while self.process.poll() is None:
            for each in self._of_session():
                self.peak_mib = max(self.peak_mib, _task_mib(each))
            if until_stored and self._stored.exists() and any(self._stored.rglob("*.seg")):
                return
            time.sleep(_LOOK_SECONDS)
        self.seconds = time.perf_counter() - started

    def kill(self) -> None:
        """Kill the job and its tasks at the same time."""
        for each in self._of_session():
            try:
                os.kill(int(each.name), signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def _of_session(self) -> Iterator[Path]:
        for each in Path("/proc").iterdir():
            if each.name.isdecimal():
                try:
                    session = (each / "stat").read_text().rpartition(")")[2].split()[3]
                except OSError:
                    continue
                if session == str(self.process.pid):
                    yield each


def _task_mib(process: Path) -> float:
    """Return the peak memory of a Python process of Spark, or 0 for any other process."""
    try:
        if b"pyspark" not in (process / "cmdline").read_bytes():
            return 0.0
        (line,) = (each for each in (process / "status").read_text().splitlines() if each.startswith("VmHWM"))
    except (OSError, ValueError):
        return 0.0
    return int(line.split()[1]) / 1024


def _written(uri: str, rows: int, dimensions: int) -> tm.Table:
    """Create a table of embeddings that are close to 1,000 random points. Each split has some tens of megabytes."""
    chance = np.random.default_rng(6)
    points = chance.standard_normal((1_000, dimensions), np.float32)
    schema = pa.schema([("id", pa.int64()), ("v", vector_type(dimensions))])
    index = IndexDefinition("near", "vector", ("v",), {"metric": "cosine"})
    table = tm.Table.create(uri, schema, indexes=[index])
    for first in range(0, rows, rows // _APPENDS):
        vectors = points[chance.integers(0, len(points), rows // _APPENDS)]
        vectors += np.float32(0.6) * chance.standard_normal(vectors.shape, np.float32)
        table.append(pa.table([pa.array(range(first, first + len(vectors))), column_of(vectors)], schema=schema))
    return table.refresh()


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
