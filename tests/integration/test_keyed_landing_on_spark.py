"""Debezium files land in a keyed table with regions.

The result with Spark equals the result in the process of the job.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from jobs.spark.spark import Spark
from storage_core.data.steps import Ingest, Merge
from storage_core.log.job_run import run
from tests.property.test_keyed_landing import Dictionary, envelope
from tidemark import Table

pytestmark = pytest.mark.spark

DECLARATION = """
name: people
uri: {root}/people
columns: {{id: long!, name: string, price: double, lsn: long}}
primary_key: id
regions: [{{transform: bucket, source: id, n: 2}}]
landing: {{uri: {root}/landing, format: ndjson, envelope: debezium, order_by: source.lsn}}
"""


def test_a_history_in_shuffled_files_equals_a_dictionary(tmp_path: Path, spark: Spark) -> None:
    random = Random(3)
    history = [(random.choice(["c", "u", "patch", "d"]), random.randrange(40)) for _ in range(600)]
    changes = [
        (op, lsn, key, {"name": f"{op} {lsn}", "price": lsn / 2}) for lsn, (op, key) in enumerate(history, start=1)
    ]
    random.shuffle(changes)
    (tmp_path / "landing").mkdir()
    declared = tmp_path / "people.yaml"
    declared.write_text(DECLARATION.format(root=tmp_path))
    options = Ingest(table_uri=str(tmp_path / "people"), declaration=str(declared))
    expected = Dictionary()
    for part in range(2):
        arriving = changes[part::2]
        for file in range(4):
            lines = [json.dumps(envelope(*each)) + "\n" for each in arriving[file::4]]
            (tmp_path / "landing" / f"{part}-{file}.json").write_text("".join(lines) + "null\nno envelope\n")
        report = run(options, spark)
        expected.apply(arriving)
        assert (report.ran, report.metrics.rows_in, report.metrics.rows_rejected) == (spark.place, 304, 4)
        assert report.details["tombstones"] == 4
        table = Table.open(str(tmp_path / "people"))
        assert {row["id"]: row for row in table.scan(consistency="latest").to_arrow().to_pylist()} == expected.rows
    assert run(options, spark).status == "nothing_to_do"
    run(Merge(table_uri=str(tmp_path / "people")), spark)
    table = Table.open(str(tmp_path / "people"))
    assert {row["id"]: row for row in table.scan().to_arrow().to_pylist()} == expected.rows
