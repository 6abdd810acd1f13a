"""Retention for users: the command, the asset, its schedule, and time travel to expired windows."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli import main
from storage_core.change.declaration import TableDeclaration, load
from storage_core.index import catch_up
from storage_core.log.actions import MergeSkip
from tidemark import Table

HOUR = 3600
NOW = int(dt.datetime.now(dt.UTC).timestamp())
OPEN = NOW // HOUR * HOUR
LEFT = OPEN - 100 * HOUR
EVENTS = """\
name: events
uri: warehouse/events
columns: {time: timestamp!, status: int}
time_column: time
window: 1h
retention: 3d
"""
KEPT_FOR_EVER = "retention: 3d\n"

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a declared table of three windows, two of which are expired."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "events.yaml").write_text(EVENTS, encoding="utf-8")
    table = Table.declare(declared())
    for status in (200, 404):
        instants = (LEFT, LEFT + HOUR, OPEN)
        table.append([{"time": dt.datetime.fromtimestamp(each, dt.UTC), "status": status} for each in instants])
    return tmp_path


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> list[dict[str, Any]]:
        capfd.readouterr()
        code = main([*arguments, "--json"])
        out, err = capfd.readouterr()
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    return call


def declared() -> TableDeclaration:
    return load("tables/events.yaml")


def redeclare(change: str, to: str = "") -> TableDeclaration:
    file = Path("tables/events.yaml")
    file.write_text(file.read_text(encoding="utf-8").replace(change, to), encoding="utf-8")
    return declared()


def rows(at: int | None = None) -> int:
    return int(Table.open("warehouse/events", at=at).scan().to_arrow().num_rows)


@pytest.mark.usefixtures("place")
def test_expire_says_what_would_leave_and_then_takes_it_out_once(run: Run) -> None:
    (dry,) = run("expire", "events", "--dry-run")
    assert (dry["status"], dry["splits_in"], dry["rows_in"], rows()) == ("planned", 4, 4, 6)
    (done,) = run("expire", "events")
    assert (done["status"], done["version"], done["rows_in"], done["rows_out"]) == ("committed", 3, 4, 0)
    assert (done["spark_seconds"], done["bytes_in"], done["bytes_out"]) == (0, dry["bytes_in"], 0)
    assert done["details"] == dry["details"]
    assert [(each["window_start"], each["splits"], each["rows"]) for each in done["details"]["windows"]] == [
        (LEFT, 2, 2),
        (LEFT + HOUR, 2, 2),
    ]
    assert (rows(), rows(at=2)) == (2, 6)
    assert run("history", "events", "--limit", "1")[0]["operation"] == "EXPIRE"
    assert run("expire", "events")[0]["status"] == "nothing_to_do"


@pytest.mark.usefixtures("place")
def test_the_changes_of_an_expiry_are_the_rows_that_left(run: Run) -> None:
    run("expire", "events")
    found = run("changes", "events", "--from", "2")
    assert {(each["_change_type"], each["_commit_version"]) for each in found} == {("delete", 3)}
    assert len(found) == 4


@pytest.mark.usefixtures("place")
def test_the_job_runs_on_its_own_and_reports(capfd: pytest.CaptureFixture[str]) -> None:
    from jobs.command import main

    job = partial(main, "expire")

    assert job(["--table-uri", "warehouse/events", "--dry-run", "--run-id", "r", "--json"]) == 0
    assert job(["--table-uri", "warehouse/events", "--run-id", "r", "--json"]) == 0
    planned, done = (json.loads(line) for line in capfd.readouterr().out.splitlines())
    assert (planned["job"], planned["status"]) == ("expire", "planned")
    assert (done["status"], done["splits_in"]) == ("committed", 4)
    assert job(["--table-uri", "nowhere", "--json"]) == 2


@pytest.mark.usefixtures("place")
def test_a_search_finds_no_row_that_has_left_whether_its_index_is_caught_up_or_not() -> None:
    index = "indexes: [{name: words, kind: fulltext, columns: [text]}]\n"
    declaration = redeclare("status: int}\n", "status: int, text: string}\n" + index)
    table = Table.declare(declaration.model_copy(update={"uri": "warehouse/texts"}))
    for instant, text in ((LEFT, "old word"), (OPEN, "new word")):
        table.append([{"time": dt.datetime.fromtimestamp(instant, dt.UTC), "status": 1, "text": text}])
    work = catch_up.plan(table.snapshot, "words").work
    built = [catch_up.execute(table.store, each, ids=table.log.ids) for each in work]
    table.log.commit(table.snapshot, built, operation="CATCH UP")
    assert main(["expire", "warehouse/texts"]) == 0
    assert table.refresh().search("word", index="words")["text"].to_pylist() == ["new word"]
    stale = catch_up.plan(table.snapshot, "words")
    assert (len(stale.work), len(stale.stale)) == (0, 1)


@pytest.mark.usefixtures("place")
def test_people_see_the_windows_that_leave(capfd: pytest.CaptureFixture[str]) -> None:
    def shown(*arguments: str) -> str:
        capfd.readouterr()
        assert main(["expire", "events", *arguments]) == 0
        return capfd.readouterr().out

    first = f"{dt.datetime.fromtimestamp(LEFT, dt.UTC):%Y-%m-%dT%H:%M}"
    assert first in shown("--dry-run")
    assert "expire: committed (version 3" in shown()
    assert "no window was removed" in shown()
    Table.declare(redeclare(KEPT_FOR_EVER))
    assert "the table has no retention, so all rows are kept" in shown()


@pytest.mark.usefixtures("place")
def test_what_left_by_mistake_comes_back_with_a_longer_retention_and_a_restore(run: Run) -> None:
    run("expire", "events")
    redeclare("retention: 3d", "retention: 30d")
    run("restore", "events", "--to", "2")
    run("init", "events")  # a restore also restores the settings of the older version
    assert run("expire", "events")[0]["status"] == "nothing_to_do"
    assert rows() == 6


@pytest.mark.usefixtures("place")
def test_debt_says_of_every_window_what_is_to_be_done_why_and_what_it_costs(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    table = Table.open("warehouse/events")
    instants = [dt.datetime.fromtimestamp(OPEN - 2 * HOUR + second, dt.UTC) for second in (0, 1)]
    for status, instant in enumerate(instants):
        table.append([{"time": instant, "status": status}])
    torn = next(add for add in table.snapshot.splits.values() if add.windowStart == OPEN - 2 * HOUR)
    until = NOW * 1000 + 30 * 24 * 3_600_000
    reason = f"{torn.path}: is torn"
    skip = MergeSkip(path=torn.path, skipTimestamp=1, reason=reason, operation="compact", retryAfter=until, skipCount=3)
    table.log.commit(table.snapshot, [skip], operation="COMPACT")

    found = run("debt", "events")

    assert [(each["window_start"], each["task"], each["reasons"], each["splits"]) for each in found] == [
        (LEFT, "expire", ["retention"], 2),
        (LEFT + HOUR, "expire", ["retention"], 2),
        (OPEN - 2 * HOUR, "wait", ["skipped"], 1),
        (OPEN, "compact", ["requested"], 2),
    ]
    assert found[2]["skipped"] == [{"path": torn.path, "reason": reason, "count": 3, "until": until}]
    assert found[3]["next_run"]["read_bytes"] == found[3]["bytes"] > 0
    assert [each["next_run"]["read_bytes"] for each in found[:3]] == [0, 0, 0]
    assert main(["debt", "events"]) == 0
    shown = capfd.readouterr().out
    assert all(text in shown for text in ("expire", "wait", "compact", "is torn", "retention"))
    run("expire", "events")
    assert [each["task"] for each in run("debt", "events")] == ["wait", "compact"]


@pytest.mark.dagster
@pytest.mark.usefixtures("place")
def test_the_asset_expires_before_the_compaction_and_is_asked_for_only_when_a_window_has_left() -> None:
    from dagster import DagsterInstance

    from assets.launcher import InProcessLauncher
    from jobs.due_runs import TableInputs, due_run
    from jobs.spark.spark import Spark
    from pipelines.catalog import build_definitions
    from pipelines.tables import load_tables

    defs = build_definitions(load_tables(Path("tables")), InProcessLauncher(Spark()))
    repository = defs.get_repository_def()
    keys = {key.to_user_string(): key for key in repository.asset_graph.get_all_asset_keys()}
    assert keys["events/expired"] in repository.asset_graph.get(keys["events/compacted"]).parent_keys

    Table.open("warehouse/events").append([{"time": dt.datetime.fromtimestamp(LEFT, dt.UTC), "status": 1}])
    with DagsterInstance.ephemeral() as instance:
        assert due_run("expire", TableInputs.of(declared())) is not None
        result = defs.resolve_job_def("expire").execute_in_process(instance=instance)
        (event,) = result.asset_materializations_for_node("events__expired")
        metrics = {name: value.value for name, value in event.metadata.items()}
        assert (metrics["status"], metrics["rows_in"], metrics["splits_in"]) == ("committed", 5, 5)
    assert due_run("expire", TableInputs.of(declared())) is None
    assert rows() == 2


@pytest.mark.dagster
@pytest.mark.usefixtures("place")
def test_a_retention_that_is_only_declared_is_asked_for_and_without_one_there_is_no_asset() -> None:
    from assets.steps import steps_of
    from jobs.due_runs import TableInputs, due_run

    without = declared().model_copy(update={"retention": None})
    Table.declare(without)
    assert due_run("expire", TableInputs.of(declared())) is not None
    assert due_run("expire", TableInputs.of(without)) is None
    assert "expired" not in {step.name for step in steps_of(without)}


def test_ingest_counts_the_rows_that_retention_takes_out_and_those_from_the_future(place: Path, run: Run) -> None:
    declaration = f"{EVENTS}landing: {{uri: landing, format: ndjson}}\n"
    (place / "tables" / "events.yaml").write_text(declaration, encoding="utf-8")
    (place / "landing").mkdir()
    times = [LEFT, LEFT + 1, OPEN, OPEN + 20 * HOUR, OPEN + 10_000 * HOUR]
    lines = [json.dumps({"time": dt.datetime.fromtimestamp(each, dt.UTC).isoformat(), "status": 1}) for each in times]
    (place / "landing" / "a.ndjson").write_text("\n".join(lines))
    [done] = run("ingest", "events")
    details = done["details"]
    assert (details["rows_older_than_retention"], details["rows_over_a_day_ahead"]) == (2, 1)


def test_a_table_below_its_landing_place_ingests_nothing(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    declaration = f"{EVENTS}landing: {{uri: warehouse, format: parquet}}\n"
    (place / "tables" / "events.yaml").write_text(declaration, encoding="utf-8")
    for command in (["tables"], ["init", "events"], ["ingest", "events"], ["ingest", "events", "--dry-run"]):
        assert main(command) == 2
        assert "the landing location and the table overlap" in capfd.readouterr().err
