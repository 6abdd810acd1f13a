"""A merge on a Spark standalone cluster of two workers that share only an S3 store with the job."""

from __future__ import annotations

import subprocess
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from storage_core.base.clock import SystemIds
from storage_core.data.steps import Merge
from storage_core.store.resolve import open_store
from tests.integration.job_command import run_command
from tests.support.keyed_table import KeyedTable
from tests.support.s3_server import S3Server
from tests.support.standalone_cluster import StandaloneCluster
from tidemark import Table

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
REGIONS = 4


def filled(uri: str) -> dict[int, str]:
    """Make a table of four regions whose rows are merged, superseded, deleted and new. Return the expected rows."""
    table = Table.create(uri, SCHEMA, primary_key="id", regions=[{"transform": "bucket", "source": "id", "n": REGIONS}])
    with table.writer() as writer:
        writer.put([{"id": each, "name": f"first {each}"} for each in range(200)])
        writer.flush()
        writer.put([{"id": each, "name": f"second {each}"} for each in range(150, 250)])
        writer.delete(list(range(0, 200, 10)))
        writer.flush()
    expected = {each: f"{'first' if each < 150 else 'second'} {each}" for each in range(250)}
    return {each: name for each, name in expected.items() if each >= 200 or each % 10}


def merge_here(uri: str) -> None:
    merger = KeyedTable(open_store(uri), ids=SystemIds())
    merger.merge_all()


def rows(uri: str) -> dict[int, str]:
    found = Table.open(uri).scan().to_arrow().to_pylist()
    by_id = {row["id"]: row["name"] for row in found}
    assert len(found) == len(by_id), "one live row per key, without deduplication"
    return by_id


def test_two_workers_that_know_no_checkout_merge_as_this_machine_does(s3_server: S3Server, tmp_path: Path) -> None:
    on_cluster, here = (s3_server.uri(f"tables/{uuid4()}") for _ in range(2))
    expected = filled(on_cluster)
    assert filled(here) == expected
    with StandaloneCluster(tmp_path / "cluster", workers=2, environment=s3_server.environment) as cluster:
        alone = subprocess.run(
            [cluster.worker_python, "-c", "import pyarrow; import storage_core"],
            cwd=tmp_path,
            env=cluster.worker_environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "No module named 'storage_core'" in alone.stderr, "what a worker imports was sent to it"
        report = run_command(
            Merge(table_uri=on_cluster, master=cluster.master), cluster.driver_environment, "jobs", "merge"
        )
        tasks = cluster.tasks()
    merge_here(here)
    assert rows(on_cluster) == rows(here) == expected
    assert (report["details"]["regions"], report["rows_out"], report["splits_out"]) == (REGIONS, len(expected), REGIONS)
    assert len(Table.open(here).files()) == len(Table.open(on_cluster).files()) == REGIONS
    assert sum(tasks.values()) == REGIONS, "a task per region, and none besides"
