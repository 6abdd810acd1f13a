"""The job `compact`, compared to Spark and Delta Lake. Each system makes one sorted file from a table of sorted splits.

The benchmark measures the whole job in one warm Spark session. The session has two cores and the settings of Tidemark's
jobs. Tidemark's job plans the compaction, merges the splits in a task, checks the result and commits. Spark and Delta
Lake get the same input files as Tidemark. Spark reads, sorts and writes the files. Delta runs `OPTIMIZE` on tables that
consist of these files. Delta also runs `OPTIMIZE ZORDER BY` with the columns of Tidemark's order. All systems write
their files with zstd level 3. Ratios compare processor seconds. The processor seconds include the session's JVM, its
Python workers and this process. The wall time is printed, too. Before the measurement, a warm-up processes a tenth of
the rows.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from benchmarks import points
from benchmarks.compaction_kernel import SPLITS
from benchmarks.metrics import Metric, command
from benchmarks.peers import NotMeasuredError, start_with_delta
from benchmarks.points import KEY, Given
from benchmarks.processor import processor_seconds
from jobs.spark.spark import Spark
from storage_core.data.steps import Compact
from storage_core.log.job_run import run
from tidemark import Table

AIMS = {"Spark sort": 5.0, "Delta OPTIMIZE": 10.0, "Delta OPTIMIZE ZORDER BY": 10.0}
WIDTH = 8


@dataclass(frozen=True, slots=True)
class Taken:
    """The processor seconds and the wall-clock seconds of a measurement."""

    processor: float
    wall: float


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the processor time and the wall-clock time of the job, compared to each peer."""
    rows = 1_000 if small else 250_000
    with tempfile.TemporaryDirectory() as folder, Spark("local[2]") as spark:
        try:
            start_with_delta(spark, make=not small)
            missing = ""
        except NotMeasuredError as error:
            missing = f" (not measured: {error})"
        spark.session().conf.set("spark.sql.parquet.compression.codec", "zstd")  # the default is level 3
        if not small:
            _all(Path(folder) / "small", spark, rows // 10, delta=not missing)
        taken = _all(Path(folder) / "large", spark, rows, delta=not missing)
    own = taken.pop("ours")
    yield Metric(name="compact job, wall", value=own.wall, unit="s")
    for peer, aim in AIMS.items():
        found = taken.get(peer)
        against = peer if found else f"{peer}{missing}"
        ratio = found.processor / own.processor if found else 0
        yield Metric(
            name=f"compact job, to a {peer}", value=own.processor, unit="cpu s", against=against, ratio=ratio, aim=aim
        )
        ratio = found.wall / own.wall if found else 0
        yield Metric(name=f"compact job, wall, to a {peer}", value=own.wall, unit="s", against=against, ratio=ratio)


def _all(root: Path, spark: Spark, rows: int, *, delta: bool) -> dict[str, Taken]:
    given = points.given(root / "given", SPLITS, rows, WIDTH)
    session = spark.session()
    work: dict[str, Callable[[], object]] = {
        "ours": _table(root / "table", spark, rows),
        "Spark sort": partial(_sort, session, given, root / "sorted"),
    }
    if delta:
        z_order = f" ZORDER BY ({', '.join(KEY)})"
        work["Delta OPTIMIZE"] = _optimize(session, given, root / "optimized", "")
        work["Delta OPTIMIZE ZORDER BY"] = _optimize(session, given, root / "z-ordered", z_order)
    taken = {name: _taken(each) for name, each in work.items()}
    shutil.rmtree(root)
    return taken


def _taken(work: Callable[[], object]) -> Taken:
    started = time.perf_counter()
    processor = processor_seconds(work)
    return Taken(processor, time.perf_counter() - started)


def _table(root: Path, spark: Spark, rows: int) -> Callable[[], object]:
    """Create a table with one split per file. Return a function that runs the job and merges these splits."""
    schema = points.points(0, 1, WIDTH).schema
    table = Table.create(str(root), schema, time_column="observed", sort_schema=points.SORT_SCHEMA, window=None)
    for number in range(SPLITS):
        table.append(points.points(number, rows, WIDTH))

    def compacted() -> None:
        report = run(Compact(table_uri=str(root)), spark)
        if report.status != "committed":
            raise RuntimeError(f"the compaction did not commit but is {report.status}")

    return compacted


def _sort(session: SparkSession, given: Given, target: Path) -> None:
    *what, when = KEY
    order = [*(sf.col(name).asc_nulls_last() for name in what), sf.col(when).desc_nulls_last()]
    session.read.parquet(*given.files).orderBy(order).write.parquet(str(target))


def _optimize(session: SparkSession, given: Given, target: Path, how: str) -> Callable[[], object]:
    target.mkdir()
    for index, file in enumerate(given.files):
        shutil.copy(file, target / f"{index:03}.parquet")
    deltalake.convert_to_deltalake(str(target))
    return lambda: session.sql(f"OPTIMIZE delta.`{target}`{how}").collect()


if __name__ == "__main__":
    sys.exit(command(measure, __doc__ or ""))
