"""Maintenance commands on a declared table apply its declaration first.

The ingest command also reports its landing location.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli import main
from pipelines.commands.maintenance import COMMANDS
from storage_core.data.steps import OTHER_STEPS, TABLE_STEPS, TableOptions
from storage_core.table import Table

CLICKS = "name: clicks\nuri: warehouse/clicks\ncolumns: {time: timestamp!, n: long}\ntime_column: time\nwindow: 1h\n"
PLANES = "name: planes\nuri: warehouse/planes\ncolumns: {id: long!, n: long}\nprimary_key: id\n"
LANDING = "landing: {uri: drop, format: ndjson}\n"
OLD = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
DAY_MS = 86_400_000
CHANGING = [
    each.command
    for each in (*TABLE_STEPS, *OTHER_STEPS)
    if each.command in COMMANDS and issubclass(each.options, TableOptions) and each.command != "ingest"
]

Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Declare and create two tables. Return a function that runs a command with `--json`.

    The function returns the exit code, the last object of standard output, and standard error.
    """
    monkeypatch.chdir(tmp_path)
    Path("tables").mkdir()
    for name, text in (("clicks", CLICKS), ("planes", PLANES)):
        Path(f"tables/{name}.yaml").write_text(text)
        assert main(["init", name]) == 0

    def call(*arguments: str) -> tuple[int, dict[str, Any], str]:
        capfd.readouterr()
        code = main([*arguments, "--json"])
        out, err = capfd.readouterr()
        return code, json.loads(out.splitlines()[-1]), err

    return call


def versions_kept_ms(name: str) -> int:
    return Table.open(f"warehouse/{name}").config.version_retention_ms


def retention_of(name: str) -> int | None:
    return Table.open(f"warehouse/{name}").config.retention_ms


def test_an_expiry_by_hand_uses_the_retention_of_the_file(run: Run) -> None:
    table = Table.open("warehouse/clicks")
    table.append([{"time": OLD, "n": 1}, {"time": dt.datetime.now(dt.UTC), "n": 2}])
    Path("tables/clicks.yaml").write_text(f"{CLICKS}retention: 30d\n")

    code, done, err = run("expire", "clicks", "--dry-run")
    assert (code, done["status"], done["rows_in"]) == (0, "planned", 1)
    assert "tables/clicks.yaml differs from the table. Without --dry-run, the run first changes the table" in err
    assert (Table.open("warehouse/clicks").version, retention_of("clicks")) == (table.version, None)

    code, done, err = run("expire", "clicks")
    assert (code, done["status"]) == (0, "committed")
    assert "tables/clicks.yaml was applied to the table" in err
    assert Table.open("warehouse/clicks").scan(["n"]).to_arrow().to_pylist() == [{"n": 2}]
    assert retention_of("clicks") == 30 * DAY_MS
    assert "was applied" not in run("expire", "clicks")[2]


@pytest.mark.parametrize("command", [*CHANGING, "publish"])
def test_each_maintenance_command_applies_the_file_and_a_location_has_its_own_settings(run: Run, command: str) -> None:
    name, text = ("planes", PLANES) if command in ("merge", "sort") else ("clicks", CLICKS)
    Path(f"tables/{name}.yaml").write_text(f"{text}gc: {{retention: 77d}}\n")
    assert run(command, f"./warehouse/{name}")[0] == 0
    assert versions_kept_ms(name) != 77 * DAY_MS
    if command != "publish":
        assert run(command, name, "--dry-run")[0] == 0
        assert versions_kept_ms(name) != 77 * DAY_MS
    assert run(command, name)[0] == 0
    assert versions_kept_ms(name) == 77 * DAY_MS


@pytest.mark.parametrize(
    "command",
    [
        ["append", "{}", "rows.ndjson"],
        ["overwrite", "{}", "rows.ndjson", "--where", "n = 1"],
        ["upsert", "{}", "rows.ndjson", "--on", "time"],
        ["update", "{}", "--where", "n = 1", "--set", "n = 1"],
        ["delete", "{}", "--where", "n = 7"],
        ["forget", "{}", "--where", "n = 7"],
    ],
    ids=lambda command: command[0],
)
def test_each_change_of_rows_applies_the_file_and_a_location_has_its_own_settings(run: Run, command: list[str]) -> None:
    Path("rows.ndjson").write_text('{"time": "2026-01-01T00:00:00Z", "n": 1}\n')
    Path("tables/clicks.yaml").write_text(f"{CLICKS}gc: {{retention: 77d}}\n")
    assert run(*(each.format("./warehouse/clicks") for each in command))[0] == 0
    if command[0] == "forget":
        assert run(*(each.format("clicks") for each in command), "--report")[0] == 0
    assert versions_kept_ms("clicks") != 77 * DAY_MS
    assert run(*(each.format("clicks") for each in command))[0] == 0
    assert versions_kept_ms("clicks") == 77 * DAY_MS


def test_no_command_of_a_table_is_left_out() -> None:
    """The commands `ingest` and `distribute` apply the declarations in their own code."""
    assert {*COMMANDS} - {*CHANGING} == {"ingest", "distribute"}


def test_a_file_that_a_table_cannot_follow_stops_the_command_by_name_only(run: Run) -> None:
    Path("tables/clicks.yaml").write_text(CLICKS.replace("n: long", "n: string"))
    for more in ([], ["--dry-run"]):
        code, said, _ = run("compact", "clicks", *more)
        assert (code, said["error"]) == (2, "invalid_input")
        assert "the declaration of 'clicks' differs from the existing table in column 'n'" in said["message"]
    assert run("compact", "./warehouse/clicks")[0] == 0


def test_a_table_that_does_not_exist_yet_is_not_created_by_maintenance(run: Run) -> None:
    Path("tables/later.yaml").write_text("name: later\nuri: warehouse/later\ncolumns: {n: long}\n")
    for command in ("compact", "publish"):
        code, said, _ = run(command, "later")
        assert (code, said["error"]) == (2, "not_found")
        assert "Run: tidemark init later" in said["message"]
    assert not Path("warehouse/later").exists()


def test_an_ingest_without_work_names_the_landing_location_and_says_if_it_does_not_exist(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("tables/clicks.yaml").write_text(CLICKS + LANDING)
    where = Path("drop").resolve().as_uri()
    note = f"{where} does not exist. Create the folder, or correct `landing` in the declaration"
    for more in (["--dry-run"], []):
        code, done, _ = run("ingest", "clicks", *more)
        assert (code, done["status"], done["details"]) == (0, "nothing_to_do", {"landing": "drop", "note": note})
    assert main(["ingest", "clicks"]) == 0
    shown = capfd.readouterr().out
    assert "  landing: drop\n" in shown
    assert f"  note: {note}\n" in shown

    Path("tables/later.yaml").write_text(f"name: later\nuri: warehouse/later\ncolumns: {{n: long}}\n{LANDING}")
    planned = run("ingest", "later", "--dry-run")[1]
    assert planned["details"] == {"files": 0, "creates_table": True, "landing": "drop", "note": note}

    Path("drop").mkdir()
    assert run("ingest", "clicks")[1]["details"] == {"landing": "drop"}
    Path("drop/1.ndjson").write_text('{"time": "2020-01-01T00:00:00Z", "n": 1}\n')
    done = run("ingest", "clicks")[1]
    assert (done["status"], done["details"]["landing"], done["details"]["files"]) == ("committed", "drop", 1)
    assert run("ingest", "clicks")[1]["details"] == {"landing": "drop"}


def test_a_dry_run_of_an_ingest_plans_with_the_declared_columns(run: Run) -> None:
    Path("drop").mkdir()
    Path("drop/1.ndjson").write_text('{"time": "2020-01-01T00:00:00Z", "n": 1, "m": 2}\n')
    Path("tables/clicks.yaml").write_text(CLICKS.replace("n: long", "n: long, m: long") + LANDING)
    assert run("ingest", "clicks", "--dry-run")[1]["status"] == "planned"
    assert Table.open("warehouse/clicks").schema.names == ["time", "n"]
    assert run("ingest", "clicks")[1]["rows_out"] == 1
    assert Table.open("warehouse/clicks").scan(["m"]).to_arrow().to_pylist() == [{"m": 2}]
