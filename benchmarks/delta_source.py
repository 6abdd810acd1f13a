"""Rows per second of a Delta table that lands: first as it is, then version by version, beside Spark reading the same.

One warm Spark session of two cores with Delta Lake. Ours is the ingest job with its commits: rows are read, sorted and
written as splits, or routed to regions and written as generations. The peer is Spark that reads the same rows with
Delta Lake and drops them. Behind them come versions that add rows, each followed by one that deletes half of
them; a row that was added or deleted counts as one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import deltalake
import numpy as np

from benchmarks.events import events
from benchmarks.metrics import Metric, command, seconds
from jobs import ingest
from jobs.requests.request import JobRequest
from jobs.spark.spark import Spark

_COLUMNS = "columns: {id: long!, time: timestamp, service: string, message: string, latency: double}"
_TABLES = {
    "an append table": "changes: apply}",
    "a keyed table": "}\nprimary_key: id",
}
_VERSIONS = 20


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield rows per second of the first read and of the versions behind it, into both kinds of tables."""
    rows = 20_000 if small else 1_000_000
    with tempfile.TemporaryDirectory() as folder, Spark("local[2]") as spark:
        place = Path(folder) / "delta"
        deltalake.write_deltalake(str(place), events(np.arange(rows), 1))
        reading = partial(_read, spark, place)
        reading()
        peer = rows / seconds(reading)
        runs = {kind: _run_of(Path(folder), number) for number, kind in enumerate(_TABLES)}
        for kind, request in runs.items():
            taken = seconds(partial(ingest.run, request, spark))
            yield _metric(f"a Delta table of {rows:,} rows lands in {kind}", rows / taken, peer)
        changed = _change(place, rows)
        for kind, request in runs.items():
            taken = seconds(partial(ingest.run, request, spark))
            yield _metric(f"{_VERSIONS} versions of {changed:,} changed rows land in {kind}", changed / taken, peer)


def _run_of(folder: Path, number: int) -> JobRequest:
    """Declare a table that lands from the Delta table, and return what its job is asked for."""
    name, more = f"table_{number}", [*_TABLES.values()][number]
    landing = f"landing: {{uri: {folder}/delta, format: delta, {more}"
    (folder / f"{name}.yaml").write_text(f"name: {name}\nuri: {folder}/{name}\n{_COLUMNS}\n{landing}\n")
    return JobRequest(table_uri=str(folder / name), declaration=str(folder / f"{name}.yaml"))


def _read(spark: Spark, place: Path) -> None:
    spark.session(with_delta=True).read.format("delta").load(str(place)).write.format("noop").mode("append").save()


def _change(place: Path, rows: int) -> int:
    """Add versions of new rows, each followed by one that deletes half of them; return how many rows changed."""
    each = rows // 10 // _VERSIONS
    first = rows
    for version in range(_VERSIONS // 2):
        deltalake.write_deltalake(str(place), events(np.arange(first, first + 2 * each), version + 2), mode="append")
        deltalake.DeltaTable(str(place)).delete(f"id >= {first} AND id < {first + each}")
        first += 2 * each
    return 3 * each * _VERSIONS // 2


def _metric(name: str, rate: float, peer: float) -> Metric:
    return Metric(name=name, value=rate, unit="rows/s", against="Spark reading the table", ratio=rate / peer)


if __name__ == "__main__":
    sys.exit(command(measure, __doc__ or ""))
