"""`tidemark catalog`, its job, and the asset `catalog/refreshed`."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey, DagsterInstance

from assets.launcher import InProcessLauncher
from jobs.command import from_arguments, to_arguments
from jobs.spark.spark import Spark
from pipelines.catalog import build_definitions
from pipelines.cli import main
from pipelines.tables import read_tables
from storage_core.catalog.opening import CATALOG_URL
from storage_core.data.steps import RefreshCatalog
from storage_core.table import Table

EVENTS = """\
name: events
uri: warehouse/events
columns: {time: timestamp!, n: long}
time_column: time
window: 1h
retention: 1d
"""
LATER = "name: later\nuri: warehouse/later\ncolumns: {n: long}\n"
URL = "sqlite:///catalog.db"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with two declared tables, one of which exists, and make it the working directory."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "events.yaml").write_text(EVENTS)
    (tmp_path / "tables" / "later.yaml").write_text(LATER)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "events", "--json"]) == 0
    table = Table.open("warehouse/events")
    for n in range(3):
        table.append({"time": dt.datetime(2026, 1, 1, n // 2, 30, tzinfo=dt.UTC), "n": n})
    return tmp_path


def asked(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    capfd.readouterr()
    assert main(["catalog", *arguments, "--json"]) == code, capfd.readouterr()
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


@pytest.mark.usefixtures("place")
def test_declared_tables_come_in_are_checked_and_made_again(capfd: pytest.CaptureFixture[str]) -> None:
    first, second = asked(capfd, "refresh", "--url", URL)
    assert (first["name"], first["outcome"], first["version"]) == ("events", "loaded", 3)
    assert second == {"name": "later", "uri": "warehouse/later", "outcome": "not_made"}
    (again,) = asked(capfd, "refresh", "events", "--url", URL)
    assert (again["outcome"], again["versions"]) == ("current", 0)
    (checked,) = asked(capfd, "check", "--url", URL)
    assert asked(capfd, "check", "./warehouse/events", "--url", URL) == [checked]
    assert (checked["version"], checked["splits"], checked["differences"]) == (3, 3, 0)
    (rebuilt,) = asked(capfd, "rebuild", "warehouse/events", "--url", URL)
    assert (rebuilt["outcome"], rebuilt["reason"]) == ("loaded", "a rebuild was requested")
    failed = asked(capfd, "refresh", "later", "events", "--url", URL, code=2)
    assert [each.get("outcome") for each in failed] == ["failed", "current", None]
    assert main(["catalog", "refresh", "--url", URL]) == 0
    assert "not_made" in capfd.readouterr().out


@pytest.mark.usefixtures("place")
def test_sql_asks_the_four_questions_and_anything_that_changes_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CATALOG_URL, URL)
    asked(capfd, "refresh")
    assert len(asked(capfd, "sql", "candidates", "events")) == 2
    found = asked(capfd, "sql", "between", "events", "--from", "2026-01-01T00:00", "--to", "2026-01-01T01:00")
    assert [each["min_values"]["n"] for each in found if each["min_values"]["n"] == "1"] == ["1"]
    assert len(found) == 2
    (one,) = asked(capfd, "sql", "between", "events", "--where", "n > 1")
    assert one["max_values"]["n"] == "2"
    assert [each["splits"] for each in asked(capfd, "sql", "expired")] == [2, 1]
    assert {each["version"] for each in asked(capfd, "sql", "changes", "events", "--since", "3")} == set()
    (rows,) = asked(capfd, "sql", "SELECT name, live_rows FROM tables")
    assert rows == {"name": "events", "live_rows": 3}
    (refused,) = asked(capfd, "sql", "DELETE FROM splits", code=2)
    assert refused["error"] == "invalid_input"
    assert len(asked(capfd, "sql", "SELECT split_id FROM splits")) == 3
    assert main(["catalog", "sql", "candidates", "events", "--explain"]) == 0
    assert "splits_live_by_scope" in capfd.readouterr().out


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["refresh"], "the URL of the catalog is missing"),
        (["check", "--url", URL], "the catalog does not exist"),
        (["sql", "--url", "sqlite:///made.db"], "Give one of"),
        (["sql", "candidates", "--url", "sqlite:///made.db"], "the table is missing"),
        (["sql", "changes", "events", "--url", "sqlite:///made.db"], "--since VERSION"),
        (["sql", "between", "events", "--from", "soon", "--url", "sqlite:///made.db"], "is not a time"),
        (["sql", "SELECT", "--url", "sqlite:///made.db"], "is not valid SQL"),
    ],
)
def test_a_wrong_call_is_told_what_to_do(capfd: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    asked(capfd, "refresh", "events", "--url", "sqlite:///made.db")
    *_, refused = asked(capfd, *arguments, code=2)
    assert says in refused["message"]


@pytest.mark.usefixtures("place")
def test_a_catalogue_that_differs_ends_with_what_to_do(capfd: pytest.CaptureFixture[str]) -> None:
    asked(capfd, "refresh", "events", "--url", URL)
    with sqlite3.connect("catalog.db") as connection:
        connection.execute("UPDATE splits SET rows = 7")
    connection.close()
    *_, refused = asked(capfd, "check", "--url", URL, code=4)
    assert "the catalog has 3 differences from the log" in refused["message"]
    assert "tidemark catalog rebuild" in refused["message"]


def test_a_request_travels_as_arguments() -> None:
    request = RefreshCatalog(tables=("a=b=c", "d=e"), url="sqlite:///x", run_id="run", master="local[1]")
    assert from_arguments("refresh_catalog", to_arguments(request)) == request
    assert request.places == {"a": "b=c", "d": "e"}


def test_the_asset_is_there_where_a_catalogue_is_set_and_refreshes_every_table(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = read_tables(place / "tables")
    refreshed = AssetKey(["catalog", "refreshed"])
    plain = build_definitions(declared, InProcessLauncher(Spark()))
    assert refreshed not in plain.resolve_all_asset_keys()
    found = build_definitions(declared, InProcessLauncher(Spark()), catalog=True)
    assert {*found.resolve_all_asset_keys()} - {*plain.resolve_all_asset_keys()} == {refreshed}
    monkeypatch.setenv(CATALOG_URL, f"sqlite:///{place}/catalog.db")
    with DagsterInstance.ephemeral() as instance:
        run = found.resolve_job_def("catalog_refresh").execute_in_process(instance=instance)
    (event,) = run.asset_materializations_for_node("catalog__refreshed")
    assert event.metadata["status"].value == "committed"
    details: Any = event.metadata["details"].value
    assert details["tables"] == {"events": 3}
