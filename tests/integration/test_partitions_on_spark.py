"""On Spark, landed files are ingested into partitions, and each partition is compacted separately."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.spark.spark import Spark
from storage_core.data.steps import Compact, Ingest
from storage_core.log.job_run import run
from storage_core.maintain.audit import audit
from storage_core.maintain.check import fsck
from storage_core.table import Table
from tests.support.clock import ManualClock

pytestmark = pytest.mark.spark

DECLARATION = """
name: events
uri: {root}/events
columns: {{at: timestamp!, tenant: string, n: long!}}
time_column: at
window: 1h
partition_by: [tenant, "bucket[2](n)"]
landing: {{uri: {root}/landing, format: ndjson}}
"""


def land(root: Path, name: str, tenants: tuple[str | None, ...]) -> None:
    rows = ({"at": f"2024-02-29T1{n % 2}:00:00Z", "tenant": tenants[n % len(tenants)], "n": n} for n in range(40))
    (root / "landing").mkdir(exist_ok=True)
    (root / "landing" / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_landed_files_are_ingested_into_partitions_and_compacted_in_each(tmp_path: Path, spark: Spark) -> None:
    declaration = tmp_path / "events.yaml"
    declaration.write_text(DECLARATION.format(root=tmp_path), encoding="utf-8")
    uri, file = str(tmp_path / "events"), str(declaration)
    for name in ("a.ndjson", "b.ndjson", "c.ndjson"):
        land(tmp_path, name, ("x/y", None, "é"))
        run(Ingest(table_uri=uri, declaration=file, master="local[2]"), spark)
    table = Table.open(uri)
    assert table.describe()["partition_by"] == ["tenant", "bucket[2](n)"]
    assert table.snapshot.rows == 120
    partitions = {add.partitionId for add in table.snapshot.splits.values()}
    tenants = ("x%2Fy", "__HIVE_DEFAULT_PARTITION__", "%C3%A9")
    assert partitions == {f"tenant={tenant}/n_bucket={bucket}" for tenant in tenants for bucket in (0, 1)}

    run(Compact(table_uri=uri, master="local[2]"), spark)
    table.refresh()
    groups = {(add.partitionId, add.windowStart) for add in table.snapshot.splits.values()}
    assert len(groups) == len(table.snapshot.splits) == 12
    assert table.snapshot.rows == 120
    assert audit(table.store, table.snapshot).violations == ()
    assert fsck(table.store, clock=ManualClock(1), deep=True).clean
