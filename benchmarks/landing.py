"""Landed files: ingest of many small files, compared to DuckDB and delta-rs.

The input has one file per producer and hour. Of the rows, 0.3 percent arrive up to a day late, in the file of another
hour. The table has windows of a day. Each side reads the same files and commits once:

- Tidemark on the driver, in this process
- DuckDB reads the files, and delta-rs writes the rows partitioned by day

The dirty input has one percent of bad lines. DuckDB skips them. Tidemark quarantines each with its reason.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from deltalake import write_deltalake

from benchmarks.metrics import Metric, command, seconds
from benchmarks.processor import processor_seconds
from storage_core.change.declaration import load
from storage_core.data.steps import Ingest
from storage_core.log.job_run import Here, JobReport, run
from tidemark import Table

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


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the processor and wall times of each input and format, the splits per window, and the PUTs per split."""
    sizes = ((6, 1_000),) if small else ((72, 6_000), (336, 6_000))
    for files, rows in sizes:
        for kind in ("ndjson", "csv", "parquet"):
            for dirty in (False, True) if kind != "parquet" else (False,):
                with tempfile.TemporaryDirectory() as folder:
                    yield from _measured(Path(folder), kind, files, rows, dirty=dirty)


def _measured(root: Path, kind: str, files: int, rows: int, *, dirty: bool) -> Iterator[Metric]:
    land(root / "landing", kind, files, rows, dirty=dirty)
    name = f"{files} {kind} files, {files * rows:,} rows{', 1 % bad lines' if dirty else ''}"
    reports: list[JobReport] = []
    ours = _both(lambda: reports.append(_tidemark(root, kind)))
    peer = _both(lambda: _duckdb_and_delta(root, kind))
    for what, own, other, aim in (("processor", ours[1], peer[1], 1 / 3), ("wall", ours[0], peer[0], None)):
        yield Metric(
            name=f"{name}, {what}", value=own, unit="s", against="DuckDB + delta-rs", ratio=other / own, aim=aim
        )
    (report,) = reports
    windows = len(cast("list[int]", report.details["windows"]))
    splits, puts = report.metrics.splits_out, report.requests.get("put", 0)
    yield Metric(name=f"{name}, splits", value=splits, unit="splits", against="windows", ratio=windows / splits)
    yield Metric(name=f"{name}, PUTs", value=puts, unit="PUTs", against="splits", ratio=splits / max(1, puts))


def _both(work: Callable[[], object]) -> tuple[float, float]:
    """Return the wall and the processor seconds of one call."""
    wall: list[float] = []
    cost = processor_seconds(lambda: wall.append(seconds(work)))
    return wall[0], cost


def _tidemark(root: Path, kind: str) -> JobReport:
    declaration = root / "events.yaml"
    declaration.write_text(
        f"name: events\nuri: {json.dumps(str(root / 'tidemark'))}\ncolumns: {json.dumps(COLUMNS)}\n"
        "time_column: time\nwindow: 24h\ncoarse_window: true\nsort_schema: service|host|timestamp/V2\n"
        f"landing: {{uri: {json.dumps(str(root / 'landing'))}, format: {kind}}}\n"
    )
    options = Ingest(table_uri=str(root / "tidemark"), declaration=str(declaration))
    table = Table.declare(load(str(declaration)), options.table_uri)
    return run(options, Here(table.log), table)


def _duckdb_and_delta(root: Path, kind: str) -> None:
    files = str(root / "landing" / f"*.{kind}")
    read = {
        "ndjson": f"read_json('{files}', format='newline_delimited', columns={_DUCKDB_COLUMNS}, ignore_errors=true)",
        "csv": f"read_csv('{files}', header=true, columns={_DUCKDB_COLUMNS}, ignore_errors=true)",
        "parquet": f"read_parquet('{files}')",
    }[kind]
    with duckdb.connect() as connection:
        rows = connection.sql(f"SELECT *, time::DATE AS day FROM {read} WHERE time IS NOT NULL").to_arrow_table()  # noqa: S608
        write_deltalake(str(root / "delta"), rows, partition_by=["day"])


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
    """Return the rows of one file, in the order of arrival."""
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
