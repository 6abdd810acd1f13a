"""Reads with our Spark data source, compared to Spark's own Parquet reader over the same files.

Tidemark's data source and Spark's reader get the files of one local table, the columns of a query, and the same
aggregates. Each query loads a new data frame. The measurements of reads of a whole table use splits of the size that
compaction creates. The start of a read is measured separately, because it does not depend on the number of rows. One
query selects one hour of a table with many hours, so pruning makes it faster.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import tidemark as tm
import tidemark.spark
from benchmarks.metrics import Metric, command, in_turns
from jobs.spark.spark import Spark

SCHEMA = pa.schema(
    [
        *(("time", pa.timestamp("us", "UTC")), ("host", pa.string()), ("path", pa.string())),
        *(("status", pa.int32()), ("bytes", pa.int64()), ("seconds", pa.float64())),
    ]
)
PEER = "Spark's Parquet reader"
NUMBERS, EVERY = ("status", "bytes", "seconds"), tuple(SCHEMA.names)


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the milliseconds of full reads, with some columns and with all columns.

    Also yield the milliseconds of reads that select one hour out of many.
    """
    rows, hours, turns = (8_000, 8, 1) if small else (16_000_000, 1_000, 7)
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder, Spark("local[2]") as spark:
        session = spark.session()
        tidemark.spark.register(session)
        few, large = (_large(Path(folder) / str(count), count) for count in (800, rows))
        for columns in (NUMBERS, EVERY):
            label = f"whole read of {len(columns)} of {len(EVERY)} columns, {rows:,} rows, {len(large.files())} splits"
            start = _compared(f"{label}, its start", session, few, columns=columns, turns=turns)
            whole = _compared(label, session, large, columns=columns, turns=turns, aim=0.5)
            yield from (whole, start, _beyond(start, whole))
        many = _many(Path(folder) / "many", hours)
        hour = "time >= '2026-01-01T05:00:00Z' and time < '2026-01-01T06:00:00Z'"
        label = f"one hour of {hours:,} splits"
        yield _compared(label, session, many, columns=NUMBERS, condition=hour, turns=turns, aim=3)


def _compared(
    label: str,
    session: SparkSession,
    table: tm.Table,
    *,
    columns: Sequence[str],
    condition: str | None = None,
    turns: int,
    aim: float | None = None,
) -> Metric:
    paths = [str(Path(table.uri.removeprefix("file://")) / str(each["path"])) for each in table.files()]

    def ours() -> list[object]:
        options = {"columns": ",".join(columns)} | ({} if condition is None else {"filter": condition})
        return _asked(session.read.format("tidemark").options(**options).load(table.uri), columns)

    def theirs() -> list[object]:
        frame = session.read.parquet(*paths)
        return _asked(frame if condition is None else frame.where(condition), columns)

    if ours() != theirs():
        raise AssertionError(f"{label}: the readers disagree")
    own, peer = in_turns([partial(ours), partial(theirs)], turns)
    return Metric(name=label, value=own, unit="ms", against=PEER, ratio=peer / own, aim=aim)


def _beyond(start: Metric, whole: Metric) -> Metric:
    """Return the duration of a whole read minus the duration of the read's start."""
    own = max(whole.value - start.value, 0.001)
    peer = max(whole.value * (whole.ratio or 0) - start.value * (start.ratio or 0), 0.001)
    return Metric(name=f"{whole.name}, beyond its start", value=own, unit="ms", against=PEER, ratio=peer / own)


def _asked(frame: DataFrame, columns: Sequence[str]) -> list[object]:
    """Run an aggregate that reads every value in the columns."""
    kinds = dict(frame.dtypes)
    sums = [f"sum({'length(' if kinds[each] == 'string' else '('}{each}))" for each in columns if each != "time"]
    times = ["min(time)", "max(time)"] if "time" in columns else []
    found = frame.selectExpr("count(*)", *sums, *times).collect()
    return [round(each, 3) if isinstance(each, float) else each for each in found[0]]


def _rows(first: int, count: int, step_us: int) -> pa.Table:
    drawn = np.random.default_rng(first)
    number = np.arange(first, first + count)
    start = 1_767_225_600_000_000  # 2026-01-01
    columns = [
        pa.array(start + number * step_us).cast(SCHEMA.field("time").type),
        pa.array(drawn.integers(0, 500, count)).cast(pa.string()),
        pa.array(drawn.integers(0, 20_000, count)).cast(pa.string()),
        pa.array(drawn.choice([200, 304, 404, 500], count).astype(np.int32)),
        pa.array(drawn.integers(0, 1_000_000, count)),
        pa.array(drawn.random(count)),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _large(folder: Path, rows: int) -> tm.Table:
    table = tm.Table.create(str(folder), SCHEMA, time_column="time", window="24h", coarse_window=True)
    for part in range(8):
        table.append(_rows(part * rows // 8, rows // 8, 8 * 86_400_000_000 // rows))
    return table


def _many(folder: Path, hours: int) -> tm.Table:
    table = tm.Table.create(str(folder), SCHEMA, time_column="time", window="1h")
    table.append(_rows(0, hours * 500, 3_600_000_000 // 500))
    return table


if __name__ == "__main__":
    sys.exit(command(measure, __doc__ or ""))
