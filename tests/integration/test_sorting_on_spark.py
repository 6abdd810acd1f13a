"""The step `sort` and `tidemark sort` give each region with pending work its own task and lease.

Reads return the same rows before and after the sort.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.spark.spark import Spark
from pipelines.cli import main as tidemark
from storage_core.base.errors import Held
from storage_core.base.process import holder_of
from storage_core.data.steps import Merge, Sort
from storage_core.log.job_run import run
from storage_core.log.lease import acquire
from storage_core.write.region.manifest import read_latest
from storage_core.write.region.spec import read_registry
from tidemark import Table

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("text", pa.string())])
GENERATIONS = 31


def due(root: Path) -> Table:
    """Make a table of two regions that both have more unsorted generations than allowed."""
    regions = [{"transform": "bucket", "source": "n", "n": 2}]
    table = Table.create(str(root / "t"), SCHEMA, primary_key="n", regions=regions)
    with table.writer() as writer:
        for number in range(GENERATIONS):
            writer.put([{"n": n, "text": f"{n} of {number}"} for n in range(number, number + 9)])
            writer.flush()
    return table.refresh()


def rows(table: Table, level: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = table.scan(consistency=level).to_arrow().sort_by("n").to_pylist()
    return found


def generations(table: Table) -> list[int]:
    manifests = [read_latest(table.store, region) for region in sorted(read_registry(table.store).regions)]
    return [len(each.flushed_generations) for each in manifests if each is not None]


def test_the_job_sorts_every_region_that_is_due_and_rows_stay_what_they_were(
    tmp_path: Path, spark: Spark, capsys: pytest.CaptureFixture[str]
) -> None:
    table = due(tmp_path)
    before, several = rows(table, "latest"), generations(table)
    request = Sort(table_uri=table.uri, run_id="run-1")
    planned = run(Sort(table_uri=table.uri, dry_run=True), spark)
    assert (planned.status, planned.details) == ("planned", {"generations": sum(several), "regions": 2})
    assert generations(table) == several
    lease = acquire(table.log, table.snapshot, "sort", holder_of("another run"))
    with pytest.raises(Held):
        run(request, spark)
    lease.release()
    done = run(request, spark)
    assert (done.status, done.metrics.rows_in, done.metrics.rows_out, done.commit_id) == (
        "committed",
        9 * GENERATIONS,
        GENERATIONS + 8,
        None,
    )
    assert generations(table) == [1, 1]
    assert rows(table, "latest") == before
    assert tidemark(["sort", table.uri, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "nothing_to_do"
    assert run(Merge(table_uri=table.uri), spark).status == "committed"
    assert rows(table.refresh(), "snapshot") == before
