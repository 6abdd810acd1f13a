"""Ingest of many small landed files, compared to DuckDB with delta-rs, and compared to plain Spark.

The input has one file per producer and hour. 0.3 % of the rows arrive up to a day late, in the file of another hour.
The table has windows of a day. Each system reads the same files and commits once:

- Tidemark runs on the driver, in this process. The peer reads the files with DuckDB and writes the rows with delta-rs.
- Tidemark runs in a Spark session that was already started. The peer is a warm session of plain Spark that writes
  Delta.
- Tidemark runs in a new process with its own Spark. The peer is a new process of plain Spark.

The peers write Delta tables partitioned by day. The dirty input has one percent of bad lines. The peers, DuckDB with
delta-rs and plain Spark, skip bad lines. Tidemark puts each bad line into the quarantine, with the reason. The systems
run in turns. For the smaller input, a value is the median of three runs. The runs with the larger input, and the runs
in new processes, are measured only once. On Spark, the larger input is NDJSON. New processes read the smaller NDJSON
input without bad lines. Other programs may load the machine, so the benchmark sets targets only for ratios of processor
time. The processor time of a system includes the time of all processes that this system starts.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, cast

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from deltalake import write_deltalake

from benchmarks.metrics import Metric, command, median, seconds
from benchmarks.peers import NotMeasuredError, delta_jars
from benchmarks.processor import adopt_orphans, processor_seconds
from jobs.spark import java, warm
from jobs.spark.spark import SmallWork, Spark, SparkUse
from storage_core.change.declaration import load
from storage_core.data.steps import Ingest
from storage_core.log.job_run import InProcessExecutor, JobReport, run
from tidemark import Table

ROOT = Path(__file__).resolve().parents[1]
START_S = 1_767_225_600
"""2026-01-01T00:00:00Z."""
HOUR_S = 3600
LATE_SHARE = 0.003
BAD_EVERY = 100
COLUMNS = {
    "time": "timestamp",
    "host": "string",
    "service": "string",
    "level": "string",
    "status": "int",
    "bytes": "long",
    "seconds": "double",
    "message": "string",
}
_DUCKDB_COLUMNS = {
    name: {"timestamp": "TIMESTAMPTZ", "string": "VARCHAR", "int": "INTEGER", "long": "BIGINT", "double": "DOUBLE"}[
        kind
    ]
    for name, kind in COLUMNS.items()
}
BAD_LINES = ('{"time": "2026-01-01T00:00:00Z", "host": "h1", ', "not a line", '{"time": "yesterday", "host": "h1"}')
KINDS = (("ndjson", False), ("ndjson", True), ("csv", False), ("csv", True), ("parquet", False))
"""The formats of the input, and whether the input has bad lines."""

FEW_FILES = 72
DUCKDB, SPARK = "DuckDB + delta-rs", "plain Spark"
AIMS = {DUCKDB: 1 / 3, SPARK: 1 / 1.2}


@dataclass(frozen=True, slots=True)
class Input:
    """Landed files of one format."""

    landing: Path
    kind: str
    files: int
    rows: int
    dirty: bool = False

    @property
    def name(self) -> str:
        """The name of the input in metrics."""
        bad = ", 1 % bad lines" if self.dirty else ""
        return f"{self.files} {self.kind} files, {self.files * self.rows:,} rows{bad}"


Side = Callable[[Input, Path], object]
"""A function that ingests the input into a new table in the folder."""


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the processor and wall-clock times for each input and format.

    Also yield splits per window and PUTs per split.
    """
    sizes = ((6, 1_000),) if small else ((FEW_FILES, 6_000), (336, 6_000))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        root = Path(folder)
        driver = _Pair("driver", _on_driver, _duckdb_and_delta, DUCKDB)
        warm_spark, cold_spark = _on_spark(root, closing, make=not small)
        for kind, dirty in () if small else KINDS:
            warm_spark.warm_up(_landed(root, kind, 6, 1_000, dirty=dirty))
        for files, rows in sizes:
            runs = 3 if files == FEW_FILES else 1
            for kind, dirty in KINDS:
                given = _landed(root / str(rows), kind, files, rows, dirty=dirty)
                yield from driver.compared(given, runs=runs)
                if kind == "ndjson" or files <= FEW_FILES:
                    yield from warm_spark.compared(given, runs=runs)
                if (kind, dirty) == KINDS[0] and files <= FEW_FILES:
                    yield from cold_spark.compared(given, runs=1)
                shutil.rmtree(given.landing)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two systems to compare: Tidemark and a peer. If the peer is not available on this machine, `peer` is None."""

    where: str
    own: Side
    peer: Side | None
    against: str

    def warm_up(self, given: Input) -> None:
        """Run Tidemark and the peer once each."""
        for work in (self.own, self.peer):
            if work:
                _new_table(work, given)

    def compared(self, given: Input, *, runs: int) -> Iterator[Metric]:
        """Run Tidemark and the peer in turns, and yield the metrics of the input."""
        reports: list[object] = []
        ours, peers = [], []
        for _ in range(runs):
            ours.append(_both(lambda: reports.append(_new_table(self.own, given))))
            if self.peer:
                peers.append(_both(partial(_new_table, self.peer, given)))
        name = f"{given.name}, {self.where}"
        for at, what in ((1, "processor"), (0, "wall")):
            value = median([each[at] for each in ours])
            ratio = median([each[at] for each in peers]) / value if peers else 0
            aim = AIMS[self.against.partition(" (")[0]] if what == "processor" else None
            yield Metric(name=f"{name}, {what}", value=value, unit="s", against=self.against, ratio=ratio, aim=aim)
        if isinstance(reports[-1], JobReport):
            yield from _counts(name, reports[-1])


def _counts(name: str, report: JobReport) -> Iterator[Metric]:
    windows = len(cast("list[int]", report.details["windows"]))
    splits, puts = report.metrics.splits_out, report.requests["put"] - 1  # one PUT creates the table
    yield Metric(
        name=f"{name}, splits", value=splits, unit="splits", against="windows", ratio=windows / splits, aim=1 / 1.2
    )
    yield Metric(
        name=f"{name}, PUTs into the table", value=puts, unit="PUTs", against="splits", ratio=splits / puts, aim=1 / 1.5
    )


def _on_spark(root: Path, closing: ExitStack, *, make: bool) -> tuple[_Pair, _Pair]:
    """Return two pairs: one pair for the warm Spark, and one pair for the cold Spark."""
    adopt_orphans()
    java.make()
    own = closing.enter_context(_Warm(root)).ingest
    cold = partial(_cold, root)
    try:
        jars = delta_jars(root / "jars", make=make)
    except NotMeasuredError as error:
        against = f"{SPARK} (not measured: {error})"
        return _Pair("warm Spark", own, None, against), _Pair("cold Spark", cold, None, against)
    peer = closing.enter_context(_Peer(jars)).write
    return _Pair("warm Spark", own, peer, SPARK), _Pair("cold Spark", cold, partial(_cold_peer, jars), SPARK)


def _new_table(work: Side, given: Input) -> object:
    with tempfile.TemporaryDirectory(dir=given.landing.parent) as folder:
        return work(given, Path(folder))


def _both(work: Callable[[], object]) -> tuple[float, float]:
    """Return the wall-clock seconds and the processor seconds of one call."""
    wall: list[float] = []
    cost = processor_seconds(lambda: wall.append(seconds(work)))
    return wall[0], cost


def _options(given: Input, folder: Path) -> Ingest:
    declaration = folder / "events.yaml"
    declaration.write_text(
        f"name: events\nuri: {json.dumps(str(folder / 'table'))}\ncolumns: {json.dumps(COLUMNS)}\n"
        "time_column: time\nwindow: 24h\ncoarse_window: true\nsort_schema: service|host|timestamp/V2\n"
        f"landing: {{uri: {json.dumps(str(given.landing))}, format: {given.kind}}}\n"
    )
    return Ingest(table_uri=str(folder / "table"), declaration=str(declaration))


def _on_driver(given: Input, folder: Path) -> JobReport:
    options = _options(given, folder)
    table = Table.declare(load(options.declaration or ""), options.table_uri)
    return run(options, InProcessExecutor(table.log), table)


def _duckdb_and_delta(given: Input, folder: Path) -> None:
    files = str(given.landing / f"*.{given.kind}")
    read = {
        "ndjson": f"read_json('{files}', format='newline_delimited', columns={_DUCKDB_COLUMNS}, ignore_errors=true)",
        "csv": f"read_csv('{files}', header=true, columns={_DUCKDB_COLUMNS}, ignore_errors=true)",
        "parquet": f"read_parquet('{files}')",
    }[given.kind]
    with duckdb.connect() as connection:
        rows = connection.sql(f"SELECT *, time::DATE AS day FROM {read} WHERE time IS NOT NULL").to_arrow_table()  # noqa: S608
        write_deltalake(str(folder), rows, partition_by=["day"])


class _Warm:
    """A warm Spark. This process runs jobs on this Spark."""

    def __init__(self, root: Path) -> None:
        self._file = root / "spark" / "server.json"
        self._spark = Spark(small=SmallWork(use=SparkUse.ALWAYS))
        self._before = os.environ.get(warm.SERVER)

    def __enter__(self) -> Self:
        os.environ[warm.SERVER] = str(self._file)
        _run("tidemark", "spark", "up")
        self._spark.session()
        if self._spark.place == "spark (own session)":
            raise RuntimeError("the warm Spark takes no session")
        return self

    def __exit__(self, *_: object) -> None:
        self._spark.stop()
        _run("tidemark", "spark", "down")
        os.environ.pop(warm.SERVER)
        if self._before is not None:
            os.environ[warm.SERVER] = self._before

    def ingest(self, given: Input, folder: Path) -> JobReport:
        """Ingest the input in the Spark session that was already started."""
        return run(_options(given, folder), self._spark)


def _cold(root: Path, given: Input, folder: Path) -> None:
    options = _options(given, folder)
    words = ("--table-uri", options.table_uri, "--declaration", options.declaration or "", "--spark", "always")
    _run("jobs", "ingest", *words, server=str(root / "none" / "server.json"))


def _run(*words: str, server: str | None = None) -> None:
    """Run a module until it ends.

    The function reads the output to the end, so it also waits for the Java process of the module.
    """
    environment = _environment() | ({warm.SERVER: server} if server else {})
    subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env=environment, check=True, capture_output=True)


def _environment() -> dict[str, str]:
    """Return the environment without the variables that a session on a running Spark server sets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}


class _Peer:
    """A process of plain Spark that writes Delta tables."""

    def __init__(self, jars: Path) -> None:
        words = [sys.executable, "-m", "benchmarks.programs.spark_landing", str(jars)]
        self._process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def write(self, given: Input, folder: Path) -> None:
        """Write the input as a Delta table."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise AssertionError(self._process.args)  # stdin and stdout are pipes
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        stdin.write(json.dumps([str(given.landing), given.kind, columns, str(folder)]) + "\n")
        stdin.flush()
        if stdout.readline() != "\n":
            raise RuntimeError("plain Spark did not write the table")


def _cold_peer(jars: Path, given: Input, folder: Path) -> None:
    with _Peer(jars) as peer:
        peer.write(given, folder)


def _landed(root: Path, kind: str, files: int, rows: int, *, dirty: bool) -> Input:
    landing = root / f"{files} {kind}{' dirty' if dirty else ''}"
    land(landing, kind, files, rows, dirty=dirty)
    return Input(landing, kind, files, rows, dirty)


def land(landing: Path, kind: str, files: int, rows: int, *, dirty: bool) -> None:
    """Write the files. The same arguments write the same rows."""
    landing.mkdir(parents=True)
    for number in range(files):
        table = events(number, rows)
        path = landing / f"{number:05}.{kind}"
        if kind == "parquet":
            pq.write_table(table, path)
        elif kind == "csv":
            pa_csv.write_csv(_as_text(table), path)
            _spoil(path, dirty=dirty)
        else:
            lines = (json.dumps(each, separators=(",", ":")) for each in _as_text(table).to_pylist())
            path.write_text("\n".join(lines) + "\n")
            _spoil(path, dirty=dirty)


def _spoil(path: Path, *, dirty: bool) -> None:
    if dirty:
        chosen = random.Random(path.name)
        lines = path.read_text().split("\n")
        for at in range(BAD_EVERY, len(lines), BAD_EVERY):
            lines.insert(at, chosen.choice(BAD_LINES))
        path.write_text("\n".join(lines))


def _as_text(table: pa.Table) -> pa.Table:
    return table.set_column(0, "time", pc.strftime(table.column("time"), "%Y-%m-%dT%H:%M:%SZ"))


def events(number: int, rows: int) -> pa.Table:
    """Return the rows of one file in arrival order."""
    chance = np.random.default_rng(number)
    times = START_S + number * HOUR_S + np.sort(chance.integers(0, HOUR_S, rows))
    late = chance.random(rows) < LATE_SHARE
    times = np.where(late, times - chance.integers(0, 24 * HOUR_S, rows), times)
    words = np.array(["timeout", "connected", "retry", "accepted", "refused", "closed", "slow", "healthy"])
    text = chance.choice(words, (rows, 6))
    return pa.table(
        {
            "time": pa.array(times * 1_000_000, pa.timestamp("us", "UTC")),
            "host": pa.array([f"host-{each:03}" for each in chance.integers(0, 200, rows)]),
            "service": pa.array(chance.choice(np.array(["api", "web", "search", "billing"]), rows)),
            "level": pa.array(chance.choice(np.array(["INFO", "WARN", "ERROR"]), rows)),
            "status": pa.array(chance.choice(np.array([200, 204, 404, 500]), rows).astype(np.int32)),
            "bytes": pa.array(chance.integers(0, 1 << 20, rows)),
            "seconds": pa.array(np.round(chance.random(rows), 6)),
            "message": pa.array([" ".join(each) for each in text]),
        }
    )


if __name__ == "__main__":
    sys.exit(command(measure, __doc__))
