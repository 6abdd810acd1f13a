"""A killed compaction job leaves the table unchanged or complete. The collector removes the job's other files."""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.spark.spark import Spark, SparkUse
from storage_core.data.steps import Collect, Compact
from storage_core.log.job_run import run
from tidemark import Table

SCHEMA = pa.schema(
    [
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("status", pa.int32()),
        pa.field("path", pa.string()),
    ]
)
START = dt.datetime(2015, 5, 17, 10, tzinfo=dt.UTC)

# The real job in a real process. The process kills itself at the commit, before or after it writes the version file.
KILLED_JOB = """
import os, signal, sys
from storage_core.log.log import TransactionLog
commit = TransactionLog.commit
def killed(self, *arguments, **named):
    if sys.argv[2] == "after":
        commit(self, *arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)
TransactionLog.commit = killed
from jobs.command import main
main("compact", ["--table-uri", sys.argv[1], "--spark", sys.argv[3]])
"""


def rows_of(table: Table) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())


def stored_splits(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in (root / "splits").rglob("*.parquet")}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    created = Table.create(
        str(tmp_path / "events"),
        SCHEMA,
        time_column="timestamp",
        sort_schema="status__i|path|timestamp/V2",
        window="1h",
    )
    for batch in range(3):
        created.append(
            [
                {"timestamp": START + dt.timedelta(minutes=7 * number), "status": 200 + number % 3, "path": f"/{batch}"}
                for number in range(20)
            ]
        )
    return created


@pytest.mark.spark
@pytest.mark.parametrize("use", SparkUse)  # small work runs on Spark, or in the process that the test kills
@pytest.mark.parametrize("instant", ["before", "after"])
def test_a_compaction_killed_around_its_commit_is_finished_by_the_next_run(
    table: Table, spark: Spark, instant: str, use: SparkUse
) -> None:
    root = Path(table.uri.removeprefix("file://"))
    expected, inputs = rows_of(table), stored_splits(root)
    command = [sys.executable, "-c", KILLED_JOB, table.uri, instant, use]
    killed = subprocess.run(command, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    written = stored_splits(root) - inputs
    assert written, "the job was killed after it wrote its files"
    assert rows_of(Table.open(table.uri)) == expected

    report = run(Compact(table_uri=table.uri), spark)
    assert report.status == ("committed" if instant == "before" else "nothing_to_do")
    compacted = Table.open(table.uri)
    live = set(compacted.snapshot.splits)
    assert rows_of(compacted) == expected
    assert Counter(add.windowStart for add in compacted.snapshot.splits.values()).most_common(1)[0][1] == 1
    assert len(live) == 3
    for path in live:
        rows = pq.ParquetFile(root / path).read().to_pylist()
        keys = [(row["status"], row["path"].encode(), -row["timestamp"].timestamp()) for row in rows]
        assert keys == sorted(keys)

    orphans = written - live
    assert (instant == "before") == bool(orphans)
    first = run(Collect(table_uri=table.uri, horizon_ms=0), spark)
    again = run(Collect(table_uri=table.uri, horizon_ms=0), spark)
    assert [first.details["deleted_keys"], again.details["deleted_keys"]] == [sorted(orphans), []]
    assert stored_splits(root) == inputs | live
    assert rows_of(Table.open(table.uri)) == expected
    assert rows_of(Table.open(table.uri, at=3)) == expected
