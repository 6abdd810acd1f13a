"""Guarantees of the process that runs a job. For example, the process reports every failure.

A dry run changes nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, DAGSTER_PIPES_MESSAGES_ENV_VAR, encode_param

from jobs.command import main
from jobs.spark.java import ROOT
from jobs.spark.spark import Spark
from storage_core.base.errors import InvalidInput, TidemarkError, Unavailable
from storage_core.change.declaration import load
from storage_core.data.rows.window_range import WindowRange
from storage_core.data.steps import CatchUp, Compact, Ingest
from storage_core.log.job_run import Answer, Item, JobReport, JobRun, run
from tidemark import Table

DECLARATION = """\
name: events
uri: {root}/events
columns:
  at: timestamp!
  text: string
time_column: at
window: 15m
landing:
  uri: {root}/landing
  format: ndjson
"""

_ABSENT = (
    "asset_keys",
    "job_name",
    "code_version_by_asset_key",
    "provenance_by_asset_key",
    "partition_key",
    "partition_key_range",
    "partition_time_window",
)


@pytest.fixture
def declared(tmp_path: Path) -> Ingest:
    """Return the options of a dry run for a declared table with one landed file. The table does not exist yet."""
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.ndjson").write_text('{"at": "2024-02-29T00:00:00Z", "text": "a"}\n')
    path = tmp_path / "events.yaml"
    path.write_text(DECLARATION.format(root=tmp_path))
    return Ingest(table_uri=str(tmp_path / "events"), declaration=str(path), dry_run=True)


def listing(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_dry_run_of_a_declared_table_that_does_not_exist_makes_none(tmp_path: Path, declared: Ingest) -> None:
    before = listing(tmp_path)
    report = run(declared, Spark())
    assert (report.status, report.metrics.bytes_in) == ("planned", 44)
    assert report.details == {"files": 1, "creates_table": True}
    assert listing(tmp_path) == before


def test_a_dry_run_leaves_a_table_that_was_declared_otherwise_as_it_is(tmp_path: Path, declared: Ingest) -> None:
    path = tmp_path / "events.yaml"
    Table.declare(load(path))
    path.write_text(path.read_text() + "indexes:\n  - {name: text, kind: fulltext, columns: [text]}\n")
    before = listing(tmp_path)
    report = run(declared, Spark())
    assert (report.status, report.version, report.details) == ("planned", 0, {"files": 1})
    assert listing(tmp_path) == before


def test_a_dry_run_refuses_what_the_run_would_refuse(tmp_path: Path, declared: Ingest) -> None:
    with pytest.raises(InvalidInput, match="both --from and --to"):
        run(replace(declared, windows=WindowRange(0, None)), Spark())
    path = tmp_path / "events.yaml"
    Table.declare(load(path))
    text = path.read_text()
    path.write_text(text.replace("  text: string", "  text: int"))
    with pytest.raises(InvalidInput, match="differs from the existing table in column"):
        run(declared, Spark())
    path.write_text(text.replace("window: 15m", ""))
    with pytest.raises(InvalidInput, match="Windows cannot be added or removed later"):
        run(declared, Spark())
    path.write_text(text.replace("window: 15m", "window: 30m"))
    assert run(declared, Spark()).status == "planned"


def test_catch_up_counts_segments_by_index(tmp_path: Path) -> None:
    indexes = [{"name": each, "kind": "fulltext", "columns": [each]} for each in ("a", "b")]
    table = Table.create(str(tmp_path / "t"), pa.schema([("a", pa.string()), ("b", pa.string())]), indexes=indexes)
    table.append([{"a": "x", "b": "y"}])
    table.append([{"a": "x", "b": "y"}])
    report = run(CatchUp(table_uri=table.uri, dry_run=True), Spark())
    assert report.details == {"segments_built": {"a": 2, "b": 2}}


FAR_AND_DONE = """
from jobs.process import progress_to_dagster, report_to_dagster
say = progress_to_dagster()
say(3, 10)
report_to_dagster({"status": "committed"})
say(10, 10)
"""


def test_the_log_of_a_run_says_how_far_its_job_is_until_it_has_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = in_a_run(tmp_path, monkeypatch)
    subprocess.run([sys.executable, "-c", FAR_AND_DONE], cwd=ROOT, check=True)
    sent = [json.loads(line) for line in messages.read_text().splitlines()]
    assert [each["method"] for each in sent] == ["opened", "log", "report_custom_message", "closed"]
    assert sent[1]["params"]["message"].endswith("3 of 10 work items done")


def in_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make processes of the test look like processes of a Dagster run. Return the file with the sent messages."""
    context: dict[str, object] = {**dict.fromkeys(_ABSENT), "run_id": "1", "retry_number": 0, "extras": {}}
    (folder / "context").write_text(json.dumps(context))
    monkeypatch.setenv(DAGSTER_PIPES_CONTEXT_ENV_VAR, encode_param({"path": str(folder / "context")}))
    monkeypatch.setenv(DAGSTER_PIPES_MESSAGES_ENV_VAR, encode_param({"path": str(folder / "messages")}))
    return folder / "messages"


def broken(job: JobRun[Compact]) -> JobReport:
    del job
    raise ValueError("a bug\nin two lines")


def test_a_bug_is_reported_as_every_other_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = in_a_run(tmp_path, monkeypatch)

    monkeypatch.setattr("storage_core.compact.steps.run_compact", broken)
    assert main("compact", ["--table-uri", "nowhere", "--json"]) == 1

    written = capsys.readouterr()
    failure = {"job": "compact", "status": "failed", "error": "error", "message": "ValueError: a bug\nin two lines"}
    assert json.loads(written.out) == failure
    assert "Traceback (most recent call last)" in written.err
    assert "in broken" in written.err
    sent = [json.loads(line) for line in messages.read_text().splitlines()]
    assert [each["params"]["payload"] for each in sent if each["method"] == "report_custom_message"] == [failure]


def stopped(job: JobRun[Compact]) -> JobReport:
    del job
    raise KeyboardInterrupt


def test_a_job_that_a_signal_stops_reports_it_as_every_other_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_core.compact.steps.run_compact", stopped)
    assert main("compact", ["--table-uri", "nowhere", "--json"]) == 130
    written = capsys.readouterr()
    message = "stopped by a signal. Run the same command again."
    assert json.loads(written.out) == {"job": "compact", "status": "failed", "error": "interrupted", "message": message}
    assert written.err == f"compact: interrupted: {message}\n"


def partition(item: Item) -> Answer:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return {"item": item["number"], "partition": context.partitionId()}


@pytest.mark.spark
def test_each_item_is_a_task_of_its_own_however_few_there_are(spark: Spark) -> None:
    for count in (2, 5):
        answers = spark.map(partition, [{"number": each} for each in range(count)])
        assert [each["item"] for each in answers] == [*range(count)]
        assert {each["partition"] for each in answers} == {*range(count)}


def raises(item: Item) -> Answer:
    raise ValueError(f"no task for {item['table_uri']}")


@pytest.mark.spark
def test_a_defect_in_a_task_is_an_error_that_no_retry_heals_and_names_the_cause(spark: Spark) -> None:
    with pytest.raises(TidemarkError) as refused:
        spark.map(raises, [{"table_uri": "here"}])
    assert (refused.value.kind, refused.value.exit_code) == ("error", 1)
    assert str(refused.value).splitlines()[0].endswith("ValueError: no task for here")
    assert len(str(refused.value).splitlines()) == 1


def dies(item: Item) -> Answer:
    del item
    os._exit(9)


@pytest.mark.spark
def test_a_worker_that_dies_is_unavailable_and_names_the_cause(spark: Spark) -> None:
    with pytest.raises(Unavailable, match="Python worker exited unexpectedly") as refused:
        spark.map(dies, [{}])
    assert len(str(refused.value).splitlines()) == 1
