"""Rows per second of an ingest from a Delta table, compared to Spark.

One measurement ingests all rows at once. Another measurement ingests later versions one by one.

All systems share one Spark session with Delta Lake and two cores. Before the measurement, a small table is ingested.
The first ingest of a session needs about four more processor seconds than later ingests. In this time, Python starts in
the tasks and Java compiles code.

Tidemark runs the complete ingest job, including its commits. For an append table, the job reads and sorts rows and
writes splits. For a keyed table, the job routes rows to regions and writes generations. One peer is Spark. Spark reads
the same rows with Delta Lake and drops the rows. The other peer sorts the rows and writes Parquet with the same
compression. The work of this peer is comparable to an ingest into an append table.

Then the Delta table gets further versions. A version adds rows, and the next version deletes half of these rows. Each
added or deleted row counts as one row. The processor seconds include all processes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import deltalake
import numpy as np

from benchmarks.events import events
from benchmarks.metrics import Metric, command
from benchmarks.processor import processor_seconds
from jobs.spark.spark import Spark
from storage_core.data.steps import Ingest
from storage_core.log.job_run import run

_COLUMNS = "columns: {id: long!, time: timestamp, service: string, message: string, latency: double}"
_TABLES = {
    "an append table": "changes: apply}",
    "a keyed table": "}\nprimary_key: id",
}
_VERSIONS = 20


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield rows per second of the first read and of the later versions, for both kinds of tables."""
    rows = 20_000 if small else 1_000_000
    with tempfile.TemporaryDirectory() as folder, Spark("local[2]") as spark:
        for _ in _landed(Path(folder) / "warming up", spark, 1_000):
            pass
        yield from _landed(Path(folder) / "measured", spark, rows)


def _landed(folder: Path, spark: Spark, rows: int) -> Iterator[Metric]:
    place = folder / "delta"
    deltalake.write_deltalake(str(place), events(np.arange(rows), 1))
    peers = {name: partial(work, spark, place) for name, work in _PEERS.items()}
    for work in peers.values():
        work()
    taken = {name: _taken(work, rows) for name, work in peers.items()}
    runs = {kind: _run_of(folder, number) for number, kind in enumerate(_TABLES)}
    for kind, request in runs.items():
        own = _taken(partial(run, request, spark), rows)
        yield from _metrics(f"a Delta table of {rows:,} rows lands in {kind}", own, taken)
    changed = _change(place, rows)
    for kind, request in runs.items():
        own = _taken(partial(run, request, spark), changed)
        yield from _metrics(f"{_VERSIONS} versions of {changed:,} changed rows land in {kind}", own, taken)


@dataclass(frozen=True, slots=True)
class _Rates:
    """Rows per wall-clock second, and rows per processor second."""

    wall: float
    processor: float


def _taken(work: Callable[[], object], rows: int) -> _Rates:
    started = time.perf_counter()
    processor = processor_seconds(work)
    return _Rates(rows / (time.perf_counter() - started), rows / processor)


def _run_of(folder: Path, number: int) -> Ingest:
    """Declare a table that ingests the Delta table, and return the options of its job."""
    name, more = f"table_{number}", [*_TABLES.values()][number]
    landing = f"landing: {{uri: {folder}/delta, format: delta, {more}"
    (folder / f"{name}.yaml").write_text(f"name: {name}\nuri: {folder}/{name}\n{_COLUMNS}\n{landing}\n")
    return Ingest(table_uri=str(folder / name), declaration=str(folder / f"{name}.yaml"))


def _read(spark: Spark, place: Path) -> None:
    frame = spark.session(with_delta=True).read.format("delta").load(str(place))
    frame.write.format("noop").mode("append").save()


def _sort_and_write(spark: Spark, place: Path) -> None:
    frame = spark.session(with_delta=True).read.format("delta").load(str(place)).sortWithinPartitions("time", "id")
    frame.write.option("compression", "zstd").mode("overwrite").parquet(f"{place}-sorted")


_PEERS: Mapping[str, Callable[[Spark, Path], None]] = {
    "Spark reading the table": _read,
    "Spark reading, sorting and writing it": _sort_and_write,
}


def _change(place: Path, rows: int) -> int:
    """Add versions with new rows. After each of these versions, add a version that deletes half of its rows.

    Return the number of changed rows.
    """
    each = rows // 10 // _VERSIONS
    first = rows
    for version in range(_VERSIONS // 2):
        deltalake.write_deltalake(str(place), events(np.arange(first, first + 2 * each), version + 2), mode="append")
        deltalake.DeltaTable(str(place)).delete(f"id >= {first} AND id < {first + each}")
        first += 2 * each
    return 3 * each * _VERSIONS // 2


def _metrics(name: str, own: _Rates, peers: Mapping[str, _Rates]) -> Iterator[Metric]:
    for against, peer in peers.items():
        yield Metric(name=name, value=own.wall, unit="rows/s", against=against, ratio=own.wall / peer.wall)
        ratio = own.processor / peer.processor
        yield Metric(name=f"{name}, processor", value=own.processor, unit="rows/cpu s", against=against, ratio=ratio)


if __name__ == "__main__":
    sys.exit(command(measure, __doc__ or ""))
