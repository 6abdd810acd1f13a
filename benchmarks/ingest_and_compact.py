"""Ingest and compaction of a year of flights, compared to a sort and a rewrite with plain Spark.

The two systems share one warm Spark session. Tidemark and plain Spark read the same CSV files, two per month.
Tidemark ingests the files into sorted daily splits. Tidemark then compacts the splits of each day into one split. The
measured time includes the commits and the checks (MC-1 to MC-4). Plain Spark reads the same files and writes Parquet,
partitioned by day and sorted within each day. Plain Spark then rewrites every day into one sorted file. Plain Spark has
no log, no checks and no statistics of its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from benchmarks.metrics import Metric, command, median, seconds
from examples.datasets import flights
from jobs.spark.spark import Spark
from storage_core.data.steps import Compact, Ingest
from storage_core.log.job_run import run
from tidemark import Table

SORT = ["carrier", "origin", "dest"]
DECLARATION = """
name: flights
uri: {uri}
columns: {columns}
time_column: time_hour
window: 24h
coarse_window: true
sort_schema: carrier|origin|dest|timestamp/V2
landing: {{uri: {landing}, format: csv}}
"""


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield seconds and rows per second of both steps for Tidemark and Spark, and the resulting bytes."""
    months = (1,) if small else tuple(range(1, 13))
    repeats = 1 if small else 3
    with tempfile.TemporaryDirectory() as folder, Spark() as spark:
        root = Path(folder)
        rows = _land(root / "landing", months)
        _warm_up(spark.session())
        ours = [_tidemark(root, root / f"tidemark{run}", spark) for run in range(repeats)]
        peers = [_plain_spark(root, root / f"spark{run}", spark.session()) for run in range(repeats)]
    for position, step in enumerate(("ingest", "compaction")):
        own, peer = (median([run[position] for run in runs]) for runs in (ours, peers))
        yield Metric(
            name=f"{step} of {rows:,} flights", value=own, unit="s", against="plain Spark", ratio=peer / own, aim=1
        )
        yield Metric(name=f"{step}, rows per second", value=rows / own, unit="rows/s")
    own_bytes, peer_bytes = ours[0][2], peers[0][2]
    yield Metric(
        name="bytes after compaction", value=own_bytes, unit="B", against="plain Spark", ratio=peer_bytes / own_bytes
    )


def _land(landing: Path, months: tuple[int, ...]) -> int:
    """Write each month as two CSV files, each with half of the month's rows. Return the number of rows."""
    landing.mkdir(parents=True)
    table = flights()
    total = 0
    for month in months:
        part = table.filter(pc.equal(table["month"], month))
        half = part.num_rows // 2
        for name, piece in (("early", part.slice(0, half)), ("late", part.slice(half))):
            pa_csv.write_csv(piece, landing / f"{month:02}-{name}.csv")
        total += part.num_rows
    return total


def _warm_up(session: SparkSession) -> None:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    session.range(0, 4, 1, 2).mapInArrow(same, "id long").collect()


def _tidemark(root: Path, target: Path, spark: Spark) -> tuple[float, float, int]:
    columns = {field.name: _declared(field.type) for field in flights().schema}
    declaration = root / "flights.yaml"
    text = DECLARATION.format(
        uri=json.dumps(str(target)), columns=json.dumps(columns), landing=json.dumps(str(root / "landing"))
    )
    declaration.write_text(text)
    ingest = Ingest(table_uri=str(target), declaration=str(declaration))
    ingested = seconds(lambda: run(ingest, spark))
    compacted = seconds(lambda: run(Compact(table_uri=str(target)), spark))
    return ingested, compacted, Table.open(str(target)).snapshot.bytes


def _declared(column: pa.DataType) -> str:
    return {"int64": "long", "double": "double", "string": "string"}.get(str(column), "timestamp")


def _plain_spark(root: Path, target: Path, session: SparkSession) -> tuple[float, float, int]:
    def write(frame: DataFrame, path: Path) -> None:
        by_day = frame.repartition(2, "day").sortWithinPartitions("day", *SORT, sf.col("time_hour").desc())
        by_day.write.partitionBy("day").option("compression", "zstd").parquet(str(path))

    def read_landed() -> DataFrame:
        frame = session.read.csv(str(root / "landing"), header=True, inferSchema=True, nullValue="")
        return frame.withColumnRenamed("day", "day_of_month").withColumn("day", sf.to_date("time_hour"))

    ingested = seconds(lambda: write(read_landed(), target / "ingested"))
    compacted = seconds(lambda: write(session.read.parquet(str(target / "ingested")), target / "compacted"))
    return ingested, compacted, sum(path.stat().st_size for path in (target / "compacted").rglob("*.parquet"))


if __name__ == "__main__":
    sys.exit(command(measure, __doc__ or ""))
