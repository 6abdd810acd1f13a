"""The time to start a job. The job is one compaction of 4,000 rows with the command that Dagster runs.

- Cold: the job starts its own Spark. The first job also creates files on disk, and later jobs use these files.
- Warm: the job uses the Spark that `tidemark spark up` started.
- Through a Connect server: the job uses the Spark Connect server at a given address.
- In the process of the job, without Spark.

Each job compacts a copy of the same table. Ratios compare measurements of the same run of the benchmark. The last lines
of `make demo` contain the time of a whole pipeline. To compare two versions, remove `.dagster/` and `warehouse/`, and
run the demo in both.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import pyarrow as pa

import tidemark as tm
from benchmarks.metrics import Metric, command, median
from jobs.spark import java
from jobs.spark.warm import SERVER, read

ROOT = Path(__file__).resolve().parents[1]
ROWS = 4_000
COLD_AIM, WARM_AIM = 8.0, 1.5
"""The target in seconds on a machine without other load."""

DRIVER = "compaction in the job's own process"


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the seconds of the first job and of later jobs for each kind of start.

    `small` omits the kinds that start a new Spark for each job.
    """
    repeats = 1 if small else 5
    with tempfile.TemporaryDirectory() as folder:
        jobs = _Jobs(Path(folder))
        jobs.seconds("--spark", "auto")  # the very first job reads the libraries from disk
        driver = median([jobs.seconds("--spark", "auto") for _ in range(repeats)])
        yield Metric(name=DRIVER, value=driver, unit="s")
        java.make()
        if not small:
            yield from _first_and_later(
                "with a Spark of its own", [jobs.seconds("--spark", "always") for _ in range(4)], COLD_AIM
            )
        with jobs.warm_spark() as started:
            yield Metric(name="tidemark spark up", value=started.seconds, unit="s")
            warm = [jobs.seconds("--spark", "always", ran="warm Spark") for _ in range(1 + repeats)]
            yield from _first_and_later("on a warm Spark", warm, WARM_AIM)
            yield Metric(
                name="small work, on a warm Spark",
                value=median(warm[1:]),
                unit="s",
                against="in the job's own process",
                ratio=driver / median(warm[1:]),
            )
            if not small:
                named = [jobs.seconds("--master", started.address, ran="spark at") for _ in range(1 + repeats)]
                yield from _first_and_later("through a Connect server", named, WARM_AIM)


def _first_and_later(where: str, seconds: Sequence[float], aim: float) -> Iterator[Metric]:
    for which, value in (("first job", seconds[0]), ("later jobs", median(seconds[1:]))):
        name = f"compaction {where}, {which}"
        yield Metric(name=name, value=value, unit="s", against=f"{aim} s", ratio=aim / value, aim=1)


class _WarmSpark:
    """A running Spark process for a `with` block, with its start duration, address and token."""

    def __init__(self, file: Path, environment: Mapping[str, str]) -> None:
        self._environment = environment
        before = time.perf_counter()
        self._run("up")
        self.seconds = time.perf_counter() - before
        if (server := read(file)) is None:
            raise RuntimeError(f"{file} names no warm Spark, though one is up")
        self.address = f"sc://localhost:{server.port}/;token={server.token}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run("down")

    def _run(self, action: str) -> None:
        words = [sys.executable, "-m", "tidemark", "spark", action]
        subprocess.run(words, cwd=ROOT, env=self._environment, check=True, capture_output=True)


class _Jobs:
    """Runs compactions of copies of one table. Each compaction has its own process."""

    def __init__(self, folder: Path) -> None:
        self._made = folder / "made"
        self._table = folder / "table"
        self._file = folder / "spark" / "server.json"
        self._environment = {**os.environ, SERVER: str(self._file)}
        schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("name", pa.string()), ("n", pa.int64())])
        table = tm.Table.create(str(self._made), schema, time_column="at", window="1h", sort_schema="name|timestamp/V2")
        start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        for first in range(0, ROWS, ROWS // 4):
            numbers = range(first, first + ROWS // 4)
            rows = [
                {"at": start + dt.timedelta(seconds=n % 3_600), "name": f"name {n * 7 % 97}", "n": n} for n in numbers
            ]
            table.append(pa.Table.from_pylist(rows, schema=schema))

    def warm_spark(self) -> _WarmSpark:
        """Return a warm Spark that the jobs of this object use."""
        return _WarmSpark(self._file, self._environment)

    def seconds(self, *options: str, ran: str = "") -> float:
        """Return the seconds of one compaction with these options, from the start to the end of its process."""
        shutil.rmtree(self._table, ignore_errors=True)
        shutil.copytree(self._made, self._table)
        words = [sys.executable, "-m", "jobs", "compact", "--table-uri", str(self._table), "--json", *options]
        before = time.perf_counter()
        ended = subprocess.run(words, cwd=ROOT, env=self._environment, check=True, capture_output=True)
        took = time.perf_counter() - before
        report = json.loads(ended.stdout)
        if (report["status"], report["rows_out"]) != ("committed", ROWS) or not report["ran"].startswith(ran):
            raise RuntimeError(f"not what was to be measured: {report}")
        return took


if __name__ == "__main__":
    sys.exit(command(measure, __doc__ or ""))
