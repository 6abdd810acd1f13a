"""A million upserts into a table of a million keys, compared to a Delta `MERGE` of the same rows.

All systems use one warm Spark session with two cores and the settings of Tidemark's jobs. Half of the upserts have
existing keys, and half have new keys, in random order.

Tidemark is measured in two ways, and both measurements include commits. The first measurement covers the distribute job
and then the merge job. The input of the distribute job is closed segments of a raw log. Each job runs until it has no
more work. The second measurement covers only the merge job. The input of the merge job is ten generations of rows that
a writer has flushed. For each other system, the benchmark measures one `MERGE` of all upserts. In Spark, the input of a
`MERGE` is a Parquet file. Outside Spark, the input is an Arrow table. Tidemark's first measurement needs more work per
record than a `MERGE`, because a raw log contains the records in the form in which producers sent them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.events import KEY, SCHEMA, events
from benchmarks.metrics import Metric, seconds
from benchmarks.peers import NotMeasuredError, start_with_delta
from jobs.spark.spark import Spark
from storage_core.data.steps import Distribute, Merge
from storage_core.log.job_run import run
from storage_core.write.raw_log.writer import RawLog
from storage_core.write.region.records import WriterOptions
from tidemark import Table

_GENERATIONS = 10
_PRODUCER_ROWS = 10_000
_CLOSED_S = 1.1
"""The number of seconds after which every segment counts as closed.

`_CLOSED_S` is the setting `closed_after` in `_RAW_LOG` plus a small margin.
"""
_TABLE = """
name: events
uri: table
columns: {id: long!, time: timestamp, service: string, message: string, latency: double}
primary_key: id
"""
_RAW_LOG = """
name: all
stores: [raw]
closed_after: 1s
"""
_MERGE = (
    f"MERGE INTO delta.`{{base}}` AS held USING parquet.`{{given}}` AS given ON held.{KEY} = given.{KEY} "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield rows per second of a distribution with a merge, of a merge of generations, and of the peers."""
    count = 2_000 if small else 1_000_000
    random = np.random.default_rng(1)
    base = events(random.permutation(count), 1)
    half = np.arange(count // 2)
    given = events(random.permutation(np.concatenate([half, half + count])), 2)
    with tempfile.TemporaryDirectory() as folder, Spark("local[2]") as spark:
        try:
            start_with_delta(spark, make=not small)
            missing = ""
        except NotMeasuredError as error:
            missing = f" (not measured: {error})"
        root = Path(folder)
        pq.write_table(given, root / "given.parquet")
        _warm_up(spark.session())
        distributed = _distribute_and_merge(root / "distributed", spark, base, given)
        merged = _merge(root / "merged", spark, base, given)
        on_spark = _delta_merge(root, spark.session(), base) if not missing else None
        without = _deltalake_merge(root, base, given)
    name = f"{count:,} upserts into {count:,} keys"
    for how, own, aim in (
        ("distribution and merging", distributed, 5),
        (f"merging {_GENERATIONS} generations", merged, None),
    ):
        for peer, taken, aimed in (
            (f"Delta MERGE on Spark{missing}", on_spark, aim),
            ("deltalake merge", without, None),
        ):
            yield Metric(
                name=f"{how}, {name}, to a {peer.partition(' (')[0]}",
                value=count / own,
                unit="rows/s",
                against=peer,
                ratio=0 if taken is None else taken / own,
                aim=aimed,
            )


def _warm_up(session: SparkSession) -> None:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    session.range(0, 4, 1, 2).mapInArrow(same, "id long").collect()


def _distribute_and_merge(root: Path, spark: Spark, base: pa.Table, given: pa.Table) -> float:
    _based(root, spark, base)
    (root / "events.yaml").write_text(_TABLE)
    (root / "all.yaml").write_text(_RAW_LOG)
    with RawLog([str(root / "raw")]) as log:
        for start in range(0, given.num_rows, _PRODUCER_ROWS):
            log.append("events", given.slice(start, _PRODUCER_ROWS))
    time.sleep(_CLOSED_S)
    request = Distribute(raw_log=str(root / "all.yaml"), tables=(str(root / "events.yaml"),), root=str(root))
    taken = seconds(partial(_exhaust, lambda: run(request, spark).status))
    return taken + seconds(partial(_merge_all, root, spark))


def _merge(root: Path, spark: Spark, base: pa.Table, given: pa.Table) -> float:
    table = _based(root, spark, base)
    _flush(table, given, _GENERATIONS)
    return seconds(partial(_merge_all, root, spark))


def _based(root: Path, spark: Spark, base: pa.Table) -> Table:
    """Create a table that contains the base rows in merged form."""
    root.mkdir()
    table = Table.create(str(root / "table"), SCHEMA, primary_key=[KEY])
    _flush(table, base, 1)
    _merge_all(root, spark)
    return table


def _flush(table: Table, rows: pa.Table, generations: int) -> None:
    size = -(-rows.num_rows // generations)
    with table.writer(options=WriterOptions(flush_rows=10**9, flush_bytes=10**11)) as writer:
        for start in range(0, rows.num_rows, size):
            writer.put(rows.slice(start, size))
            writer.flush()


def _merge_all(root: Path, spark: Spark) -> None:
    _exhaust(lambda: run(Merge(table_uri=str(root / "table")), spark).status)


def _exhaust(work: Callable[[], str]) -> None:
    """Run a job repeatedly until it reports no more work, as the schedule of the job does."""
    while work() == "committed":
        continue


def _delta_merge(root: Path, session: SparkSession, base: pa.Table) -> float:
    target = str(root / "delta-on-spark")
    pq.write_table(base, root / "base.parquet")
    session.read.parquet(str(root / "base.parquet")).write.format("delta").save(target)
    statement = _MERGE.format(base=target, given=root / "given.parquet")
    return seconds(lambda: session.sql(statement).collect())


def _deltalake_merge(root: Path, base: pa.Table, given: pa.Table) -> float:
    target = str(root / "delta")
    deltalake.write_deltalake(target, base)
    table = deltalake.DeltaTable(target)
    merging = table.merge(given, f"held.{KEY} = given.{KEY}", source_alias="given", target_alias="held")
    everything = merging.when_matched_update_all().when_not_matched_insert_all()
    return seconds(everything.execute)
