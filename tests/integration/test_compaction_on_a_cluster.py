"""Compaction on a cluster of one master and two workers that share only an S3 store with the job.

The compaction runs in this process, on the cluster, and through a Spark Connect server on the cluster. The three
results are equal to the byte, except for random values. Each split has three random values: its name, the id that the
splits of one operation share, and a checksum of both. These values have a fixed length. Therefore the test compares all
remaining bytes of the pages and the footer at their positions. In the log's actions the test ignores the name, the time
of writing and the checksum of the whole file.

Then a second attempt of a task runs concurrently with the first attempt, and an executor is killed.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.spark import delta
from jobs.spark.java import ROOT
from jobs.spark.spark import Spark
from storage_core.change.declaration import load
from storage_core.data.steps import Collect, Compact, Ingest
from storage_core.interop.delta_import import to_deltalake_location
from storage_core.log.actions import Add
from storage_core.log.job_run import run
from storage_core.split.metadata import PREFIX
from storage_core.store.memory import MemoryStore
from storage_core.store.resolve import open_store
from storage_core.write.ingest.progress import DeltaProgress, progress_txns
from tests.integration.job_command import run_command
from tests.integration.troubled_compaction import lose_the_executor, side_by_side, straggle
from tests.support.copies import copy_into
from tests.support.s3_server import S3Server
from tests.support.standalone_cluster import StandaloneCluster
from tests.support.uneven_windows import LARGE, WINDOWS, create, live_splits, rows_of, stored_splits
from tidemark import Table

pytestmark = pytest.mark.spark

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.8",  # all small windows end before a second attempt at the large one
    "spark.speculation.minTaskRuntime": "1s",
}
DRAWN = ("path", "operation_id", "seal")


@pytest.fixture(scope="module")
def original() -> MemoryStore:
    store = MemoryStore("original")
    create(store)
    return store


@pytest.fixture(scope="module")
def s3(_s3_server: S3Server) -> Iterator[S3Server]:
    """Return the S3 server of all tests, with its credentials in the environment for the tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _s3_server.environment.items():
            patch.setenv(name, value)
        _s3_server.front.reset()
        yield _s3_server


@pytest.fixture
def uri(original: MemoryStore, s3: S3Server) -> str:
    return copied(original, s3.uri(f"tables/{uuid4()}"))


@pytest.fixture(scope="module")
def cluster(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    folder = tmp_path_factory.mktemp("spark") / "cluster"
    with StandaloneCluster(folder, workers=2, environment=s3.environment) as running:
        yield running


def on_both(folder: Path) -> tuple[object, ...]:
    """Return the program that runs the job with one task per merge. The first two tasks run concurrently.

    Each executor has one core.
    """
    folder.mkdir()
    return ("tests.integration.troubled_compaction", side_by_side.__name__, folder, LARGE)


@dataclass(frozen=True, slots=True)
class Compacted:
    """A table after its compaction, the compaction's report, and the number of tasks per executor."""

    uri: str
    report: Mapping[str, Any]
    tasks: Mapping[str, int]


@pytest.fixture(scope="module")
def on_cluster(
    cluster: StandaloneCluster, original: MemoryStore, s3: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Compacted:
    """Compact the table with a separate driver, which ends before the Connect server takes the cluster's cores."""
    uri = copied(original, s3.uri(f"tables/{uuid4()}"))
    request = Compact(table_uri=uri, master=cluster.master)
    job = on_both(tmp_path_factory.mktemp("on") / "cluster")
    return Compacted(uri, run_command(request, cluster.driver_environment, *job), cluster.tasks())


@pytest.fixture(scope="module")
def copy_on_cluster(cluster: StandaloneCluster, on_cluster: Compacted, s3: S3Server) -> str:
    """Copy the compacted table with a session on the cluster.

    The session ends before the Connect server takes the cluster's cores.
    """
    libraries = cluster.worker_environment["PYTHONPATH"]  # the planning code of the driver uses the workers' Python
    return copied_in_spark(cluster.master, on_cluster.uri, s3, {**cluster.driver_environment, "PYTHONPATH": libraries})


@pytest.fixture(scope="module")
def server(cluster: StandaloneCluster, on_cluster: Compacted, copy_on_cluster: str) -> str:
    assert on_cluster.tasks
    assert copy_on_cluster
    return cluster.start_connect_server({**SPECULATION, **delta.settings(on_s3=True)})


def copied(original: MemoryStore, uri: str) -> str:
    copy_into(open_store(uri), original)
    return uri


def copied_in_spark(master: str, uri: str, s3: S3Server, environment: Mapping[str, str]) -> str:
    """Copy a table with the Spark data source."""
    table = Table.open(uri)
    copy = Table.create(s3.uri(f"tables/{uuid4()}"), table.schema, time_column=table.config.time_column)
    program = [sys.executable, "-m", "tests.integration.copy_in_spark", master, uri, copy.uri]
    found = {name: value for name, value in environment.items() if name != "PYTHONSAFEPATH"}  # excludes `tests`
    ended = subprocess.run(program, cwd=ROOT, env=found, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4_000:]
    assert int(ended.stdout.splitlines()[-1]) == table.snapshot.rows
    return copy.uri


def through_connect(server: str) -> dict[str, str]:
    """Return the environment of a job that has a Connect server and no Java."""
    return {**os.environ, "SPARK_REMOTE": server, "JAVA_HOME": "/nowhere"}


def outputs(uri: str) -> list[tuple[bytes, Add]]:
    """Return the bytes and the `Add` action of each live split. Random values are replaced."""
    store = open_store(uri)
    return [nameless(store.get(add.path).data, add) for add in live_splits(Table.open(uri))]


def nameless(data: bytes, add: Add) -> tuple[bytes, Add]:
    described = pq.read_metadata(io.BytesIO(data)).metadata
    for name in DRAWN:
        value = described[f"{PREFIX}{name}".encode()]
        data = data.replace(value, b"*" * len(value))
    return data, replace(add, path="", modificationTime=0, xxh3="", footerXxh3="")


def executors_by_application(tasks: Mapping[str, int]) -> dict[str, int]:
    applications = [each.split("/")[0] for each in tasks]
    return {each: applications.count(each) for each in applications}


def test_the_same_splits_come_out_here_on_a_cluster_and_through_spark_connect(
    cluster: StandaloneCluster, on_cluster: Compacted, server: str, original: MemoryStore, uri: str, tmp_path: Path
) -> None:
    here = copied(original, (tmp_path / "here").as_uri())
    expected = rows_of(Table.open(here))
    reports = [
        on_cluster.report,
        run_command(Compact(table_uri=uri), through_connect(server), *on_both(tmp_path / "connect")),
        run_command(Compact(table_uri=here, master="local[2]"), os.environ, "jobs", "compact"),
    ]
    results = [outputs(each) for each in (on_cluster.uri, uri, here)]
    assert len(results[0]) == WINDOWS
    assert results[0] == results[1] == results[2]
    assert all(rows_of(Table.open(each)) == expected for each in (on_cluster.uri, uri, here))
    assert {report["rows_out"] for report in reports} == {expected.total()}
    assert sum(on_cluster.tasks.values()) == WINDOWS, "a task per merge, and none besides"
    # The large window's task waits for a small window's task, so tasks start on both executors. If Spark attempts a
    # task a second time, the task may end on the other executor. The test does not require two executors for the copy
    # between the compactions, because one executor may run all tasks of the copy.
    spread = executors_by_application(cluster.begun_tasks())
    first, *between, last = sorted(spread)
    assert len(between) == 1
    assert (spread[first], spread[last]) == (2, 2), f"both executors of each compaction: {spread}"


def test_tables_are_read_and_written_by_sessions_of_the_cluster_and_of_connect(
    on_cluster: Compacted, copy_on_cluster: str, server: str, s3: S3Server
) -> None:
    through = copied_in_spark(server, on_cluster.uri, s3, through_connect(server))
    expected = rows_of(Table.open(on_cluster.uri))
    assert rows_of(Table.open(copy_on_cluster)) == rows_of(Table.open(through)) == expected


def test_versions_of_a_delta_table_on_s3_land_through_connect(server: str, s3: S3Server, tmp_path: Path) -> None:
    lake, file = s3.uri("lake"), tmp_path / "landed.yaml"
    landing = f'{{uri: "{lake}", format: delta, changes: apply}}'
    file.write_text(f"name: landed\nuri: {s3.uri('landed')}\ncolumns: {{id: long}}\nlanding: {landing}\n")
    place, options = to_deltalake_location(lake)
    columns = deltalake.Schema([deltalake.Field("id", deltalake.schema.PrimitiveType("long"))])
    there = deltalake.DeltaTable.create(place, columns, storage_options=options)
    table = Table.declare(load(str(file)))
    reached = DeltaProgress(table_id=str(there.metadata().id), next_version=1)  # version 0 has no rows to land
    table.log.commit(table.snapshot, progress_txns(reached, 1), operation="INGEST")
    for first in (0, 4):
        rows = pa.table({"id": range(first, first + 4)})
        deltalake.write_deltalake(place, rows, mode="append", storage_options=options)
    deltalake.DeltaTable(place, storage_options=options).delete("id < 2 OR id = 5")
    request = Ingest(table_uri=table.uri, declaration=str(file))
    assert run_command(request, through_connect(server), "jobs", "ingest")["details"]["versions"] == [1, 3]
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [2, 3, 4, 6, 7]


def test_of_two_attempts_at_a_task_that_both_end_one_is_committed(server: str, uri: str, tmp_path: Path) -> None:
    expected, inputs = rows_of(Table.open(uri)), stored_splits(uri)
    trouble = ("tests.integration.troubled_compaction", straggle.__name__, tmp_path, LARGE)
    report = run_command(Compact(table_uri=uri), through_connect(server), *trouble)
    second = (tmp_path / "attempt 2").read_text(encoding="utf-8").splitlines()
    assert (tmp_path / "attempt 1").exists(), "both wrote their files"
    assert len(second) == WINDOWS, "the small windows did not wait for the large one"
    assert_one_commit_and_orphans_for_the_collector(uri, expected, inputs, report)


def test_a_task_whose_executor_is_lost_is_done_again(
    cluster: StandaloneCluster, server: str, uri: str, tmp_path: Path
) -> None:
    expected, inputs = rows_of(Table.open(uri)), stored_splits(uri)
    lost = sum(cluster.tasks("ExecutorLostFailure").values())
    trouble = ("tests.integration.troubled_compaction", lose_the_executor.__name__, tmp_path, LARGE)
    report = run_command(Compact(table_uri=uri), through_connect(server), *trouble)
    assert sum(cluster.tasks("ExecutorLostFailure").values()) > lost, "an executor was lost with a task"
    assert_one_commit_and_orphans_for_the_collector(uri, expected, inputs, report)


def assert_one_commit_and_orphans_for_the_collector(
    uri: str, expected: object, inputs: set[str], report: Mapping[str, Any]
) -> None:
    table = Table.open(uri)
    assert [entry.operation for entry in table.history()].count("COMPACT") == 1
    assert (table.version, rows_of(table)) == (report["version"], expected)
    live = {add.path for add in live_splits(table)}
    assert len(live) == WINDOWS
    orphans = stored_splits(uri) - inputs - live
    assert orphans, "what the other attempt wrote"
    collected = run(Collect(table_uri=uri, horizon_ms=0), Spark())
    assert collected.details["deleted_keys"] == sorted(orphans)
    assert rows_of(Table.open(uri)) == expected
