"""`tidemark restore`, `tag` and `changes`, and `--at` with a tag, on tables in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.cli import main
from storage_core.log.log import read_tags
from tidemark import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Make a table where each of the versions 1 to 3 appends a row."""
    table = Table.create(str(tmp_path / "people"), SCHEMA)
    for number, name in enumerate(["ann", "bob", "cy"], start=1):
        table.append([{"id": number, "name": name}])
    return str(tmp_path / "people")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command with `--json`, check that it ends with `code`, and return its output lines as objects."""

    def run(*words: str, code: int = 0) -> list[dict[str, Any]]:
        found = main([*words, "--json"])
        printed = capsys.readouterr()
        assert found == code, printed
        return [json.loads(line) for line in printed.out.splitlines()]

    return run


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(words) == 0
    return capsys.readouterr().out


def names(run: Run, uri: str, *more: str) -> list[str]:
    return [row["name"] for row in run("sql", uri, "select name from t order by name", *more)]


def test_restore_makes_the_table_what_it_was_and_says_so(run: Run, uri: str) -> None:
    (done,) = run("restore", uri, "--to", "1")
    commit_id = done.pop("commit_id")
    assert done == {
        "status": "committed",
        "version": 4,
        "restored_version": 1,
        "splits_added": 0,
        "splits_removed": 2,
    }
    assert names(run, uri) == ["ann"]
    newest, *_ = run("history", uri)
    assert (newest["operation"], newest["commit_id"]) == ("RESTORE", commit_id)
    (again,) = run("restore", uri, "--to", "1")
    assert (again["status"], again["version"], again["commit_id"]) == ("nothing_to_do", 4, None)


def test_restore_takes_a_tag_or_a_time_too(run: Run, uri: str) -> None:
    run("tag", uri, "good", "--version", "2")
    run("restore", uri, "--to", "1")
    (done,) = run("restore", uri, "--to", "good")
    assert (done["restored_version"], done["splits_added"]) == (2, 1)
    assert names(run, uri) == ["ann", "bob"]
    third = next(each["timestamp"] for each in run("history", uri) if each["version"] == 3)
    instant = pa.scalar(third, pa.timestamp("ms", tz="UTC")).as_py().isoformat()
    assert run("restore", uri, "--to", instant)[0]["restored_version"] == 3


def test_restore_text_is_a_sentence(capsys: pytest.CaptureFixture[str], uri: str) -> None:
    assert (
        said(capsys, "restore", uri, "--to", "2")
        == "version 4 has the content of version 2: 0 splits added, 1 removed\n"
    )
    assert (
        said(capsys, "restore", uri, "--to", "2")
        == "nothing to do, because the table already has the content of version 2\n"
    )


@pytest.mark.parametrize("to", ["99", "nightly", "0000-00-00", "1999-01-01"])
def test_a_version_that_is_not_there_is_bad_input(run: Run, uri: str, to: str) -> None:
    (failed,) = run("restore", uri, "--to", to, code=2)
    assert failed["status"] == "failed"
    assert len(run("history", uri)) == 4


def test_an_expired_version_is_exit_code_3(run: Run, uri: str) -> None:
    table = Table.open(uri)
    deleted = sorted(table.snapshot.splits)
    run("restore", uri, "--to", "0")
    table.store.delete(deleted)
    (failed,) = run("restore", uri, "--to", "3", code=3)
    assert failed["error"] == "snapshot_expired"
    assert deleted[0] in failed["message"]


def test_tags_are_set_listed_moved_read_and_removed(run: Run, uri: str) -> None:
    assert run("tag", uri) == run("tag", uri, "--list") == []
    (made,) = run("tag", uri, "nightly", "--version", "1")
    assert {**made, "created_at": 0} == {
        "status": "set",
        "name": "nightly",
        "version": 1,
        "created_at": 0,
        "expires_at": None,
    }
    assert names(run, uri, "--at", "nightly") == ["ann"]
    assert run("describe", uri, "--at", "nightly")[0]["version"] == 1
    (moved,) = run("tag", uri, "nightly", "--expires", "30d")
    assert (moved["version"], moved["expires_at"]) == (3, moved["created_at"] + 30 * 24 * 3_600_000)
    assert [(each["name"], each["version"]) for each in run("tag", uri, "--list")] == [("nightly", 3)]
    assert run("tag", uri, "nightly", "--delete")[0]["status"] == "removed"
    assert run("tag", uri) == []


def test_tag_text_is_for_people(capsys: pytest.CaptureFixture[str], uri: str) -> None:
    assert said(capsys, "tag", uri) == "no tags\n"
    assert said(capsys, "tag", uri, "v1.0", "--version", "1") == "tag v1.0 keeps version 1 until you delete the tag\n"
    assert said(capsys, "tag", uri, "brief", "--expires", "1h").startswith("tag brief keeps version 3 until 20")
    assert "v1.0" in said(capsys, "tag", uri, "--list")
    assert said(capsys, "tag", uri, "v1.0", "--delete") == "tag v1.0 of version 1 removed\n"


@pytest.mark.parametrize(
    "words",
    [
        ["NIGHTLY"],
        ["1st"],
        ["nightly", "--expires", "soon"],
        ["nightly", "--expires", "0s"],
        ["nightly", "--version", "99"],
        ["nightly", "--delete", "--expires", "1d"],
        ["nightly", "--delete"],
        ["nightly", "--list"],
        ["--delete"],
        ["--expires", "1d"],
    ],
)
def test_a_tag_that_makes_no_sense_changes_nothing(run: Run, uri: str, words: list[str]) -> None:
    run("tag", uri, *words, code=2)
    assert read_tags(Table.open(uri).store).by_name == {}


def test_changes_are_rows_with_what_happened_to_them(run: Run, uri: str) -> None:
    run("restore", uri, "--to", "1")
    found = run("changes", uri, "--from", "2")
    assert [(row["_commit_version"], row["_change_type"], row["name"]) for row in found[:1]] == [(3, "insert", "cy")]
    assert sorted((row["_commit_version"], row["_change_type"], row["name"]) for row in found[1:]) == [
        (4, "delete", "bob"),
        (4, "delete", "cy"),
    ]
    assert found[0].keys() == {"id", "name", "_change_type", "_commit_version", "_commit_timestamp"}
    run("tag", uri, "second", "--version", "2")
    assert [row["name"] for row in run("changes", uri, "--from", "1", "--to", "second")] == ["bob"]


def test_changes_as_text_count_their_rows(capsys: pytest.CaptureFixture[str], uri: str) -> None:
    text = said(capsys, "changes", uri, "--from", "0")
    assert "_change_type" in text
    assert text.endswith("3 rows\n")


def test_changes_go_to_an_arrow_stream(run: Run, uri: str, tmp_path: Path) -> None:
    file = tmp_path / "changes.arrows"
    assert run("changes", uri, "--from", "1", "--arrow", str(file)) == [
        {"status": "written", "file": str(file), "rows": 2}
    ]
    table = pa.ipc.open_stream(file.read_bytes()).read_all()
    assert table.column("name").to_pylist() == ["bob", "cy"]
    run("changes", uri, "--from", "1", "--arrow", str(tmp_path / "no" / "folder"), code=5)


def test_a_commit_that_is_lost_is_no_change_that_is_left_out(run: Run, uri: str) -> None:
    Table.open(uri).store.delete(["_transaction_log/00000000000000000002.json"])
    (failed,) = run("changes", uri, "--from", "1", "--to", "3", code=4)
    assert failed["error"] == "corrupt"
    assert "00000000000000000002.json" in failed["message"]
