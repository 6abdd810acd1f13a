"""The compaction of a window that is too large for one task (decision 0015).

The result is a set of splits that do not overlap.

The measurements of many time series arrive in splits of one window. Every split contains all series. The job `compact`
merges the splits into one sorted run, on Spark with two cores. Each merge reads at most one eighth of the rows. To know
what the merges read, the benchmark observes the calls from the job to Spark. The memory is the largest peak of a Python
worker. A worker runs one task at a time. DuckDB reads only the files. DuckDB computes the number of rows, a checksum,
and the order of the files.
"""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.metrics import Metric, command
from benchmarks.processor import descendants
from jobs.spark.spark import Spark
from storage_core.compact.work import CompactionTask
from storage_core.data.steps import Compact
from storage_core.log.job_run import Answer, Item, run
from tidemark import Table

SERIES = 5_000
PARTS = 8
SPLIT_ROWS = 500_000
WINDOW_SECONDS = 3_600
TARGET = "16MiB"
_PEAK = re.compile(r"VmHWM:\s*(\d+) kB")
_ENDS = """
SELECT min(key) AS first, max(key) AS last
FROM (
    SELECT filename, series::HUGEINT * 1000000000000000000 - epoch_us(seen) AS key
    FROM read_parquet($files, filename = true)
)
GROUP BY filename ORDER BY first, last
"""
"""The first and the last key of each file, as numbers. The numbers sort by series, then by descending time."""


class Watched(Spark):
    """Records how many rows each merge reads, and the peak memory of the Python workers in MiB."""

    def __init__(self) -> None:
        """Start nothing yet."""
        super().__init__("local[2]")
        self.merges: list[int] = []
        self.peak_mib = 0.0

    def map(
        self, execute: Callable[[Item], Answer], items: Sequence[Item], *, input_bytes: float = math.inf
    ) -> list[Answer]:
        """Return the same result as `Spark.map`."""
        if execute.__name__ == "compact":
            self.merges += [_rows(CompactionTask.from_json(each["task"])) for each in items]
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=[done])
        watcher.start()
        try:
            return super().map(execute, items, input_bytes=input_bytes)
        finally:
            done.set()
            watcher.join()

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(0.1):
            self.peak_mib = max([self.peak_mib, *map(_peak_mib, descendants(os.getpid()))])


def measure(*, small: bool, rows: int = 20_000_000) -> Iterator[Metric]:
    """Yield the window before and after the compaction, the cost of its merges, and whether the rows are the same."""
    rows, each = (20_000, 2_000) if small else (rows, SPLIT_ROWS)
    most = rows // PARTS
    with tempfile.TemporaryDirectory() as folder, Watched() as spark:
        table = _arrived(folder, rows, each, most)
        before = _checksum(_files(table))
        name = f"a window of {rows:,} rows"
        yield Metric(name=f"{name}, splits before", value=len(_files(table)), unit="splits")
        started = time.perf_counter()
        run(Compact(table_uri=table.uri), spark)
        seconds = time.perf_counter() - started
        files = _files(table.refresh())
        yield Metric(name=f"{name}, splits after", value=len(files), unit="splits")
        yield Metric(name=f"{name}, merges", value=len(spark.merges), unit="merges")
        yield Metric(
            name=f"{name}, rows of the largest merge",
            value=max(spark.merges),
            unit="rows",
            against="bound of a merge",
            ratio=most / max(spark.merges),
            aim=1.0,
        )
        yield Metric(name=f"{name}, peak memory of a task", value=spark.peak_mib, unit="MiB")
        apart = 1 + sum(first > last for last, first in _ends(files))
        yield Metric(
            name=f"{name}, splits that begin behind the one before",
            value=apart,
            unit="splits",
            against="splits",
            ratio=apart / len(files),
            aim=1.0,
        )
        after = _checksum(files)
        yield Metric(
            name=f"{name}, rows of the checksum that they had",
            value=after[0],
            unit="rows",
            against="rows before",
            ratio=float(after == before and after[0] == rows),
            aim=1.0,
        )
        yield Metric(name=f"{name}, job, wall", value=seconds, unit="s")


def _arrived(folder: str, rows: int, each: int, most: int) -> Table:
    """Create a table with all rows in one window. The parameters set the sizes of splits and of merges."""
    table = Table.create(
        folder,
        _readings(0, 1).schema,
        time_column="seen",
        sort_schema="series|timestamp/V2",
        window="60m",
        settings={"compaction.run_rows": most, "splits.target_size": TARGET},
    )
    for number in range(rows // each):
        table.append(_readings(number, each))
    return table.refresh()


def _readings(number: int, rows: int) -> pa.Table:
    chance = np.random.default_rng(number)
    seen = chance.integers(0, WINDOW_SECONDS * 1_000_000, rows)
    columns = {
        "series": pa.array(chance.integers(0, SERIES, rows), pa.int32()),
        "seen": pa.array(seen).cast(pa.timestamp("us", "UTC")),
        "level": pa.array(chance.integers(0, 1_000, rows), pa.int32()),
    }
    return pa.table(columns)


def _rows(task: CompactionTask) -> int:
    """Return the number of rows that a merge reads.

    If a task is only a part of a merge, count only the rows of this part.
    """
    places = [task.row_range(number) for number in range(len(task.inputs))]
    return sum(end - first for first, end in places)


def _files(table: Table) -> list[str]:
    return [f"{table.uri}/{path}" for path in table.snapshot.splits]


def _checksum(files: Sequence[str]) -> tuple[int, int]:
    """Return the number of rows, and the sum of a hash of each row.

    The sum does not depend on the order of the rows.
    """
    query = "SELECT count(*), sum(hash(series, seen, level)::HUGEINT) FROM read_parquet($files)"
    ((count, total),) = duckdb.execute(query, {"files": list(files)}).fetchall()
    return int(count), int(total)


def _ends(files: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of keys: the last key of a file, and the first key of the next file."""
    found = duckdb.execute(_ENDS, {"files": list(files)}).fetchall()
    return [(last, first) for (_, last), (first, _) in pairwise(found)]


def _peak_mib(process: int) -> float:
    """Return the peak memory of a Python process. Return 0 for the JVM, and for a process that has ended."""
    try:
        is_java = Path(f"/proc/{process}/comm").read_text().strip() == "java"
        found = _PEAK.search(Path(f"/proc/{process}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return 0.0 if is_java or found is None else int(found[1]) / 1024


if __name__ == "__main__":
    sys.exit(command(measure, __doc__ or ""))
