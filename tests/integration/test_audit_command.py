"""`tidemark audit` and the job `audit`, as a person, a program and Dagster use them."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.command import from_arguments, to_arguments
from jobs.command import main as job_main
from jobs.spark.spark import Spark
from pipelines.cli import main
from storage_core.base.clock import SystemIds
from storage_core.compact.execute import execute
from storage_core.data.rows.window_range import WindowRange
from storage_core.data.steps import Audit
from storage_core.log.actions import Remove
from storage_core.log.job_run import run
from storage_core.split.context import context_of
from storage_core.split.metadata import Lineage
from storage_core.split.read import read_split
from storage_core.split.writer import sort_and_write
from tests.support.events import SCHEMA
from tests.support.merge_plan import plan
from tidemark import Table

START = dt.datetime(2015, 5, 17, tzinfo=dt.UTC)
WINDOW = int(START.timestamp())


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Make a table with two windows of two splits each, compacted by two commits."""
    made = Table.create(
        str(tmp_path / "table"), SCHEMA, time_column="at", window="1h", sort_schema="service|timestamp/V2"
    )
    for batch in range(2):
        made.append(
            [
                {"at": START + dt.timedelta(minutes=20 * row), "service": f"s{row}", "host": "h", "count": batch}
                for row in range(6)
            ]
        )
    for operation in plan(made.snapshot):
        result = execute(made.store, operation, ids=SystemIds(), now_ms=1)
        made.log.commit(made.refresh().snapshot, result.actions, operation="COMPACT")
    return made.refresh()


def lose_a_row(table: Table) -> None:
    """Commit a compaction of the second window that drops its first row."""
    snapshot = table.refresh().snapshot
    (add,) = (each for each in snapshot.splits.values() if each.windowStart == WINDOW + 3600)
    lineage = Lineage(operation="compact", operation_id="by-hand", replaces={add.path: add.numRecords or 0})
    rows = read_split(table.store, add).slice(1)
    outputs = sort_and_write(
        table.store, rows, context=context_of(snapshot), ids=SystemIds(), now_ms=1, lineage=lineage
    )
    table.log.commit(snapshot, [Remove(path=add.path, dataChange=False), *outputs], operation="COMPACT")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_sound_table_ends_with_zero(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    before = {info.key for info in table.store.list("")}
    assert main(["audit", table.uri]) == 0
    out = capsys.readouterr().out
    assert "no invariant is violated" in out
    assert "2 splits and 2 merges checked, 0 not checkable, 0 violations" in out
    assert main(["audit", table.uri, "--json"]) == 0
    (last,) = lines(capsys)
    metrics = {"status": "clean", "version": 4, "splits": 2, "merges": 2, "violated": {}, "not_checkable": 0}
    assert last["summary"].items() >= metrics.items()
    assert {info.key for info in table.store.list("")} == before


def test_a_violation_is_named_with_what_to_do_and_ends_with_four(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    lose_a_row(table)
    assert main(["audit", table.uri, "--json"]) == 4
    found, last = lines(capsys)
    assert (found["violation"], found["version"]) == ("MC-1", 5)
    assert found["path"] in table.refresh().snapshot.splits
    assert "read 6 rows and wrote 5" in found["message"]
    assert "tidemark restore" in found["advice"]
    assert last["summary"].items() >= {"status": "violated", "violated": {"MC-1": 1}, "merges": 3}.items()
    assert main(["audit", table.uri]) == 4
    assert "1 violation\n" in capsys.readouterr().out


def test_what_cannot_be_judged_is_named_and_no_violation(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    live = set(table.snapshot.splits)
    deleted = next(info.key for info in table.store.list("splits/") if info.key not in live)
    table.store.delete([deleted])
    assert main(["audit", table.uri, "--json"]) == 0
    unchecked, last = lines(capsys)
    assert unchecked["not_checkable"] in live
    assert f"{deleted} has been collected" in unchecked["reason"]
    assert last["summary"].items() >= {"status": "clean", "merges": 1, "not_checkable": 1}.items()
    assert main(["audit", table.uri]) == 0
    assert "1 not checkable" in capsys.readouterr().out


def test_an_audit_of_less_looks_at_less(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    lose_a_row(table)

    def looked(*options: str) -> tuple[int, int, int]:
        code = main(["audit", table.uri, *options, "--json"])
        summary = lines(capsys)[-1]["summary"]
        return code, summary["splits"], summary["merges"]

    assert looked() == (4, 2, 3)
    assert looked("--window", str(WINDOW)) == (0, 1, 1)
    assert looked("--from", "2015-05-17T01:00") == (4, 1, 2)
    assert looked("--commits", "1") == (4, 1, 1)
    assert looked("--since", "4") == (4, 1, 1)
    assert looked("--since", "5") == (0, 0, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--commits", "0"], "Give 1 or more"), (["--commits", "1", "--since", "2"], "Give only one of these options")],
)
def test_limits_that_make_no_sense_are_refused(
    table: Table, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["audit", table.uri, *options]) == 2
    assert message in capsys.readouterr().err


def test_the_job_reports_findings_and_succeeds(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    lose_a_row(table)
    assert job_main("audit", ["--table-uri", table.uri, "--last-run", "--json"]) == 0
    (report,) = lines(capsys)
    assert (report["job"], report["status"], report["splits_in"]) == ("audit", "audited", 1)
    assert report["details"]["violated"] == {"MC-1": 1}
    assert report["spark_seconds"] == 0  # the driver reads small data itself
    assert report["requests"].get("put", 0) == 0


@pytest.mark.parametrize("limit", [{"since": 0}, {"commits": 3}, {"last_run": True}])
def test_a_request_travels_as_arguments(limit: dict[str, Any]) -> None:
    request = replace(Audit(table_uri="t", windows=WindowRange(1, 2)), **limit)
    assert from_arguments("audit", to_arguments(request)) == request


@pytest.mark.parametrize(
    ("job", "option"),
    [("audit", "--dry-run"), ("audit", "--policy"), ("compact", "--last-run"), ("sort", "--quarantine")],
)
def test_a_job_refuses_what_only_others_know(job: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        job_main(job, ["--table-uri", "nowhere", option])
    assert f"unrecognized arguments: {option}" in capsys.readouterr().err


@pytest.mark.spark
def test_spark_finds_what_this_process_finds(table: Table, spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    lose_a_row(table)
    request = Audit(table_uri=table.uri)
    here = run(request, spark)
    monkeypatch.setattr("storage_core.maintain.audit.DRIVER_BYTES", 0)
    there = run(request, spark)
    assert (here.spark_seconds == 0, there.spark_seconds > 0) == (True, True)
    assert there.details == here.details
    assert there.details["violated"] == {"MC-1": 1}
    assert there.requests["get"] == here.requests["get"]
