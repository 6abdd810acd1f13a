"""A job on a table with manual regions merges either the regions of the spec or one manual region."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from jobs.spark.spark import Spark
from storage_core.data.steps import Merge, Sort
from storage_core.log.job_run import run
from storage_core.maintain.check import fsck
from tidemark import Table

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("text", pa.string())])
REGIONS = [{"transform": "bucket", "source": "n", "n": 2}]
GENERATIONS = 31


def _put(table: Table, region: str | None, numbers: range, *, flush: bool = True) -> None:
    with table.writer(region=region) as writer:
        writer.put([{"n": n, "text": f"{n} of {region}"} for n in numbers])
        if flush:
            writer.flush()


def _rows(table: Table, level: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = table.refresh().scan(consistency=level).to_arrow().sort_by("n").to_pylist()
    return found


def test_each_run_of_the_merge_job_takes_its_turn_until_every_region_is_merged(tmp_path: Path, spark: Spark) -> None:
    settings = {"regions_by_hand": True}
    table = Table.create(str(tmp_path / "t"), SCHEMA, primary_key="n", regions=REGIONS, settings=settings)
    _put(table, None, range(20))
    _put(table, "import-a", range(100, 130))
    _put(table, "import-b", range(200, 205))
    expected = _rows(table, "latest")
    merge = Merge(table_uri=table.uri)
    reports = [run(merge, spark) for _ in range(4)]
    assert [each.status for each in reports] == ["committed"] * 3 + ["nothing_to_do"]
    assert sorted(each.metrics.rows_in for each in reports[:3]) == [5, 20, 30]
    assert _rows(table, "snapshot") == _rows(table, "latest") == expected
    for number in range(GENERATIONS):
        _put(table, "import-a", range(number, number + 2))
    expected = _rows(table, "latest")
    done = run(Sort(table_uri=table.uri), spark)
    assert (done.status, done.metrics.rows_in) == ("committed", 2 * GENERATIONS)
    assert run(merge, spark).status == "committed"
    assert _rows(table, "snapshot") == _rows(table, "latest") == expected
    assert fsck(table.store, clock=table.log.clock).findings == ()
