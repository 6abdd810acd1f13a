"""A step does the work that its plan predicted, and the prediction sends no request to storage."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest

from assets.metadata import PREDICTED, PREDICTED_BYTES, metadata_of
from jobs.spark.spark import Spark
from storage_core.data.settings.layout import Mode
from storage_core.data.steps import CatchUp, Checkpoint, Collect, Compact, Expire, Ingest, Merge, Sort
from storage_core.log.job_run import JobReport, run
from storage_core.table import Table

pytestmark = pytest.mark.spark

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([pa.field("at", pa.timestamp("us", "UTC"), nullable=False), ("text", pa.string())])
WORDS = {"name": "words", "kind": "fulltext", "columns": ["text"]}


def predicted(report: JobReport) -> tuple[int, int | None, int | None]:
    assert report.predicted is not None
    found = report.predicted
    assert report.requests["get"] >= found.gets
    assert report.requests["put"] >= found.puts
    return found.benefit, found.bytes_in, found.bytes_out


def done(report: JobReport) -> tuple[int, int]:
    return report.benefit, report.metrics.bytes_in


def windowed(uri: str) -> Table:
    table = Table.create(uri, SCHEMA, time_column="at", window="1h", indexes=[WORDS])
    for minute in range(6):
        table.append([{"at": NOON + dt.timedelta(hours=hour, minutes=minute), "text": "tide"} for hour in range(2)])
    return table


def test_steps_of_an_append_table_do_what_they_predicted(tmp_path: Path, spark: Spark) -> None:
    table = windowed(str(tmp_path / "events"))
    opening = sum(Table.open(table.uri).store.requests.values())
    planned = run(Compact(table_uri=table.uri, dry_run=True), spark)
    assert sum(planned.requests.values()) == opening  # the plan makes no request after the table is open
    debts = table.debt(Mode.FINALIZE)
    caught_up = run(CatchUp(table_uri=table.uri), spark)
    benefit, bytes_in, _ = predicted(caught_up)
    assert benefit == caught_up.benefit == 12
    assert bytes_in == sum(each.size for each in table.snapshot.splits.values()) <= caught_up.metrics.bytes_in
    compacted = run(Compact(table_uri=table.uri, by_window=True), spark)
    assert planned.predicted == compacted.predicted
    assert predicted(compacted)[:2] == done(compacted) == (10, sum(each.next_run.read_bytes for each in debts))
    assert compacted.details["predicted_by_window"] == [
        {"window": each.window_start, "benefit": 5, "bytes_in": each.bytes, "bytes_out": each.next_run.written_bytes}
        for each in debts
    ]
    written = run(Checkpoint(table_uri=table.uri), spark)
    assert predicted(written)[0] == written.benefit == table.refresh().version + 1
    table.alter({"retention": "1d"})
    expired = run(Expire(table_uri=table.uri), spark)
    assert predicted(expired)[:2] == done(expired)
    assert expired.benefit == 2


def test_merge_and_sort_do_what_they_predicted(tmp_path: Path, spark: Spark) -> None:
    table = Table.create(
        str(tmp_path / "people"), pa.schema([("id", pa.int64()), ("name", pa.string())]), primary_key="id"
    )
    table.append([{"id": number, "name": "somebody"} for number in range(1000)])
    first = run(Merge(table_uri=table.uri), spark)
    assert predicted(first) == (*done(first), None)  # the base has no rows, so the size of a row is unknown
    for number in range(31):  # the limit is 30 unsorted generations
        table.append([{"id": 10_000 + 100 * number + each, "name": "somebody"} for each in range(100)])
    tidied = run(Sort(table_uri=table.uri), spark)
    assert predicted(tidied)[:2] == done(tidied)
    assert tidied.benefit == 30
    merged = run(Merge(table_uri=table.uri), spark)
    benefit, bytes_in, bytes_out = predicted(merged)
    assert (benefit, bytes_in) == done(merged)
    assert bytes_out is not None
    assert merged.metrics.bytes_out / 2 < bytes_out < merged.metrics.bytes_out * 2


def test_an_ingest_predicts_its_files_and_a_collection_what_a_former_one_noted(tmp_path: Path, spark: Spark) -> None:
    folder = tmp_path / "landing"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.ndjson").write_text(json.dumps({"at": NOON.isoformat(), "text": "tide"}) + "\n")
    file = tmp_path / "events.yaml"
    file.write_text(
        f"name: events\nuri: {tmp_path}/events\ncolumns: {{at: timestamp!, text: string}}\ntime_column: at\n"
        f"window: 1h\nlanding: {{uri: {folder}, format: ndjson}}\n"
    )
    request = Ingest(table_uri=str(tmp_path / "events"), declaration=str(file))
    report = run(request, spark)
    assert predicted(report) == (*done(report), None)
    assert report.benefit == 3
    split = next(iter(Table.open(request.table_uri).snapshot.splits))
    (tmp_path / "events" / split).with_name("00000000-0000-4000-8000-000000000000.parquet").write_bytes(b"x" * 100)
    noted = run(Collect(table_uri=request.table_uri), spark)
    assert (predicted(noted)[0], noted.benefit) == (0, 0)
    swept = run(Collect(table_uri=request.table_uri, horizon_ms=0), spark)
    assert predicted(swept)[0] == swept.benefit == 100
    shown = metadata_of(json.loads(report.to_json()), 0)
    assert shown.keys() >= PREDICTED
    assert shown.keys() & PREDICTED_BYTES == {"predicted_bytes_in"}
    assert shown["price"].value == pytest.approx(
        (report.requests["put"] + report.requests["list"]) * 5e-6
        + (report.requests["get"] + report.requests["head"]) * 4e-7
    )
