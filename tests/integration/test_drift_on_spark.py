"""Tasks on Spark that find different new fields agree on one schema. No row is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.spark.spark import Spark
from storage_core.data.steps import Ingest
from storage_core.log.job_run import run
from tests.support.drifting import Project

pytestmark = pytest.mark.spark


def test_tasks_on_spark_agree_on_the_columns_of_new_fields(
    tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_core.write.ingest.batch.BATCH_BYTES", (1, 1))  # a task per file
    monkeypatch.setattr(spark, "is_needed_for", lambda *_: True)
    project = Project(tmp_path).declare("format: ndjson, on_new_field: add, on_type_conflict: widen")
    project.land("0", {"id": 0})
    project.land("1", {"id": 1, "size": 1, "n": 5})
    project.land("2", {"id": 2, "size": 2.5, "city": "Rome"})
    project.land("3", {"id": 3, "city": 7, "n": 2**40})
    report = run(Ingest(table_uri=project.uri, declaration=str(project.file)), spark)
    assert report.ran != "driver"
    assert report.details["columns_added"] == {"city": "string", "size": "double"}
    assert report.details["columns_widened"] == {"n": "long"}
    assert project.rows("n", "size", "city") == [
        (0, None, None, None),
        (1, 5, 1.0, None),
        (2, None, 2.5, "Rome"),
        (3, 2**40, None, "7"),
    ]
