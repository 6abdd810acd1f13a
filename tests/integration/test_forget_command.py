"""`tidemark forget` and its job on tables in a folder, with a check of every file at the end."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from jobs.command import main as job_main
from pipelines.cli import main
from storage_core.change.declaration import load
from storage_core.maintain import forget as landed
from storage_core.store.local import LocalStore
from storage_core.write.ingest.batch import parse_blocks
from tests.support.forgetting import CANARY, WHERE, places_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("person", pa.string())])
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Make a table with zero retention and the person's rows in two of its splits."""
    table = tm.Table.create(
        str(tmp_path / "people"), SCHEMA, settings={"gc.retention": "0s", "gc.horizon": "0s"}, time_column=None
    )
    for number in range(3):
        person = CANARY if number else "ann"
        table.append([{"id": 10 * number, "person": person}, {"id": 10 * number + 1, "person": "bob"}])
    return str(tmp_path / "people")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command with `--json`, check that it ends with `code`, and return its output lines as objects."""

    def run(*words: str, code: int = 0) -> list[dict[str, Any]]:
        capsys.readouterr()
        found = main([*words, "--json"])
        printed = capsys.readouterr()
        assert found == code, printed
        return [json.loads(line) for line in printed.out.splitlines()]

    return run


def _files(uri: str) -> set[tuple[str, str]]:
    return places_of(LocalStore(Path(uri)), [CANARY.encode()])


def test_it_says_what_holds_the_rows_until_the_collector_has_taken_it(run: Run, uri: str) -> None:
    (done,) = run("forget", uri, "--where", WHERE)
    assert (done["status"], done["rows"], done["splits_rewritten"], done["is_clean"]) == ("committed", 2, 2, False)
    held = {each["key"] for each in done["held"]}
    assert {key for _, key in _files(uri)} <= held
    (found,) = run("forget", uri, "--where", WHERE, "--report", code=5)
    assert {each["key"] for each in found["held"]} == held
    for _ in range(3):
        run("gc", uri, "--horizon", "0s")
    (clean,) = run("forget", uri, "--where", WHERE, "--report")
    assert (clean["is_clean"], clean["held"], _files(uri)) == (True, [], set())
    rows = run("sql", uri, "select id from t order by id")
    assert [each["id"] for each in rows] == [0, 1, 11, 21]


@pytest.mark.parametrize("command", ["forget", "delete"])
def test_a_condition_of_no_text_is_none(run: Run, uri: str, command: str) -> None:
    (failed,) = run(command, uri, "--where", "", code=2)
    assert f"{command} needs a condition. Give a condition. The condition `true` matches every row" in failed["message"]


def test_people_are_told_why_each_object_is_there(run: Run, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("tag", uri, "audit")
    capsys.readouterr()
    assert main(["forget", uri, "--where", WHERE]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("2 rows deleted (version ")
    assert "the tag 'audit' keeps version 3" in shown


def test_people_get_a_summary_by_reason_and_day_and_the_landed_files_that_hold_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("tables", "landing"):
        (tmp_path / folder).mkdir()
    landing = "landing: {uri: landing, format: ndjson}\n"
    text = f"name: people\nuri: warehouse\ncolumns: {{id: long!, person: string}}\n{landing}"
    (tmp_path / "tables" / "people.yaml").write_text(text)
    lines = {"ann": '{"id": 1, "person": "ann"}', "both": f'{{"id": 2, "person": "{CANARY}"}}', "bad": f"{CANARY} {{"}
    for name, line in lines.items():
        (tmp_path / "landing" / f"{name}.ndjson").write_text(f"{line}\n")
    table = tm.Table.declare(load(Path("tables/people.yaml")))
    for number in range(40):
        table.append([{"id": number, "person": CANARY}])
    assert main(["forget", "people", "--where", WHERE]) == 0
    shown = capsys.readouterr().out
    assert "retained versions need these objects" in shown
    assert "landing/both.ndjson" in shown
    assert "landing/bad.ndjson" in shown
    assert "landing/ann.ndjson" not in shown
    assert len(shown.splitlines()) < 15
    assert main(["forget", "people", "--where", WHERE, "--report", "--paths"]) == 5
    assert capsys.readouterr().out.count("warehouse/") >= 40


def test_a_landed_file_with_the_rows_is_named_for_them_also_if_a_later_block_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(landed, "parse_blocks", partial(parse_blocks, block_bytes=64))
    for folder in ("tables", "landing"):
        (tmp_path / folder).mkdir()
    landing = "landing: {uri: landing, format: ndjson}\n"
    text = f"name: people\nuri: warehouse\ncolumns: {{id: long!, person: string}}\n{landing}"
    (tmp_path / "tables" / "people.yaml").write_text(text)
    tm.Table.declare(load(Path("tables/people.yaml"))).append([{"id": 1, "person": "ann"}])
    others = '{"id": 1, "person": "ann"}\n' * 20
    for name, lines in (("found", f'{{"id": 2, "person": "{CANARY}"}}\n{others}'), ("not_found", others)):
        (tmp_path / "landing" / f"{name}.ndjson.gz").write_bytes(gzip.compress(lines.encode())[:-8])
    assert main(["forget", "people", "--where", WHERE, "--report", "--json"]) == 5
    held = json.loads(capsys.readouterr().out)["held"]
    by = {each["key"]: each["by"] for each in held if each["kind"] == "landed_file"}
    assert by == {"found.ndjson.gz": "landing", "not_found.ndjson.gz": "not_read"}


def test_landed_changes_of_a_keyed_table_are_searched_with_the_rows_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("tables", "op", "debezium"):
        (tmp_path / folder).mkdir()
    ann, canary = {"id": 1, "person": "ann"}, {"id": 2, "person": CANARY}
    files: dict[str, dict[str, list[dict[str, object]]]] = {
        "op": {"ann": [{**ann, "_op": "u"}], "found": [{"id": 3, "_op": "d"}, {**canary, "_op": "patch"}, canary]},
        "debezium": {
            "ann": [{"op": "c", "after": ann}],
            "after": [{"op": "c", "after": canary}],
            "before": [{"op": "u", "before": canary, "after": {**canary, "person": "ann"}}],
        },
    }
    found = {"op": {"found.ndjson"}, "debezium": {"after.ndjson", "before.ndjson"}}
    for name, setting in (("op", "op: _op"), ("debezium", "envelope: debezium")):
        landing = f"primary_key: id\nlanding: {{uri: {name}, format: ndjson, {setting}}}\n"
        text = f"name: {name}\nuri: warehouse/{name}\ncolumns: {{id: long!, person: string}}\n{landing}"
        (tmp_path / "tables" / f"{name}.yaml").write_text(text)
        for file, records in files[name].items():
            (tmp_path / name / f"{file}.ndjson").write_text("".join(json.dumps(each) + "\n" for each in records))
        tm.Table.declare(load(Path(f"tables/{name}.yaml")))
        assert main(["forget", name, "--where", WHERE, "--report", "--json"]) == 5
        held = json.loads(capsys.readouterr().out)["held"]
        assert {each["key"] for each in held if each["kind"] == "landed_file"} == found[name]


def test_the_job_reports_what_it_did_and_what_is_left(uri: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert job_main("forget", ["--table-uri", uri, "--where", WHERE, "--json"]) == 0
    report = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (report["job"], report["status"], report["rows_in"], report["splits_in"]) == ("forget", "committed", 2, 2)
    assert report["details"]["held"]
    assert job_main("forget", ["--table-uri", uri, "--where", WHERE, "--report", "--json"]) == 0
    again = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (again["status"], again["details"]["is_clean"]) == ("planned", False)


def test_a_raw_log_is_given_with_what_it_calls_the_table(run: Run, uri: str, tmp_path: Path) -> None:
    with tm.RawLog([str(tmp_path / "raw")]) as log:
        log.append("people", {"id": 7, "person": CANARY})
    (failed,) = run("forget", uri, "--where", WHERE, "--raw", str(tmp_path / "raw"), code=2)
    assert "--raw-table" in failed["message"]
    given = ("--raw", str(tmp_path / "raw"), "--raw-table", "people")
    (done,) = run("forget", uri, "--where", WHERE, *given)
    (chunk,) = [each for each in done["held"] if each["kind"] == "raw_chunk"]
    assert chunk["by"] == "raw_log"
    assert "Distribute, then forget again" in chunk["why"]
