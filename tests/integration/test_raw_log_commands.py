"""`tidemark append --table` reads input lines, and `tidemark raw` prints segments, copies and gaps.

Each input line is acknowledged, or it is in the list of rejected lines.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.cli import main
from storage_core.data.formats.raw_chunk import RawColumns
from storage_core.data.formats.raw_fields import decode_fields
from storage_core.store.resolve import open_store
from storage_core.write.raw_log.history import union

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command in an empty folder with `--json`, and return exit code, printed object and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, stdin: bytes = b"") -> tuple[int, Any, str]:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        capfd.readouterr()
        code = main([*arguments, "--json"])
        out, err = capfd.readouterr()
        return code, json.loads(out.splitlines()[0]), err

    return call


def fields(*places: str) -> list[dict[str, Any]]:
    chunks = [each for each in union(places).read() if isinstance(each, RawColumns)]
    return [decode_fields(text) for each in chunks for text in each.records.column("fields").to_pylist()]


def test_lines_of_standard_input_become_records_in_every_store(run: Run) -> None:
    lines = b'\xef\xbb\xbf{"id": 1, "name": "\xc3\xa4"}\r\n\n{"id": 9007199254740993, "price": {"$decimal": "1.50"}}'
    code, said, _ = run("append", "./a", "-", "--table", "users", "--also", "./b", "--optional", "./c", stdin=lines)
    assert (code, said["status"], said["records"]) == (0, "acknowledged", 2)
    assert [(each["mandatory"], each["acknowledged"], each["failed"]) for each in said["stores"]] == [
        (True, 2, 0),  # the last line has no newline, so it is complete only at the end of the input
        (True, 2, 0),
        (False, 2, 0),
    ]
    for place in ("a", "b", "c"):
        assert [each["id"] for each in fields(place)] == [1, 9007199254740993]
    assert str(fields("a")[1]["price"]) == "1.50"


def test_operation_and_key_are_those_of_the_options(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gone.ndjson").write_text('{"id": 7}\n')
    assert run("append", "./a", "gone.ndjson", "--table", "t", "--operation", "delete", "--key", "id")[0] == 0
    (chunk,) = union(["a"]).read()
    assert isinstance(chunk, RawColumns)
    (record,) = chunk.records.to_pylist()
    assert (record["table"], record["operation"], record["key"]) == ("t", "delete", "7")


def test_bad_lines_are_named_and_the_others_are_acknowledged(run: Run) -> None:
    lines = [b'{"id": 1}', b"nonsense", b"[1]", b'{"id": 2}', b"\xff", b'{"id": 99999999999999999999}', b'{"no": 1}']
    code, said, err = run("append", "./a", "-", "--table", "t", "--key", "id", stdin=b"\n".join(lines))
    assert (code, said["status"], said["error"]) == (2, "failed", "invalid_input")
    assert "5 lines are not valid rows. 2 rows of the other lines are acknowledged. Correct" in said["message"]
    assert [each["line"] for each in said["rejected"]] == [2, 3, 5, 6, 7]
    assert said["rejected"][2]["encoding"] == "base64"
    assert "-:2" in err
    assert [each["id"] for each in fields("a")] == [1, 2]


def test_the_raw_log_has_the_digits_that_were_written_and_no_number_or_name_that_would_be_lost(run: Run) -> None:
    kept = b'{"k":"1","d":12345678901234567.123,"e":0.10}'
    lines = [kept, b'{"f":1e400}', b'{"k":"6","k":"7"}', b'{"m":{"a":1,"a":2}}', b'{"d":NaN}']
    code, said, _ = run("append", "./a", "-", "--table", "t", stdin=b"\n".join(lines))
    assert code == 2
    assert [each["line"] for each in said["rejected"]] == [2, 3, 4, 5]
    assert "too large for a float" in said["rejected"][0]["reason"]
    assert "'k' is given twice" in said["rejected"][1]["reason"]
    (chunk,) = union(["a"]).read()
    assert isinstance(chunk, RawColumns)
    assert chunk.records.column("fields").to_pylist() == [kept.decode()]


def test_no_lines_are_nothing_to_do(run: Run) -> None:
    assert run("append", "./a", "-", "--table", "t", stdin=b"\n")[1]["status"] == "nothing_to_do"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["append", "./a", "-", "--table", "No Table"], "is not a valid table name"),
        (["append", "./a", "none.ndjson", "--table", "t"], "no such file"),
        (["append", "./a", ".", "--table", "t"], "is a folder"),
        (["append", "./a", "-", "--table", "t", "--format", "csv"], "NDJSON"),
        (["append", "./a", "-", "--table", "t", "--also", "./a"], "given twice"),
        (["append", "./a", "-", "--key", "id"], "Give the table of the raw log with --table"),
        (["append", "./a", "-", "--table", "t", "--operation", "upsert"], "upsert"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(run: Run, arguments: list[str], what: str) -> None:
    code, said, _ = run(*arguments, stdin=b'{"id": 1}\n')
    assert code == 2
    assert what in said["message"]
    assert union(["a"]).chunks == []


def test_a_store_that_cannot_be_written_says_how_far_the_rows_are_acknowledged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "live").write_text("no folder")
    code, said, _ = run("append", "./a", "-", "--table", "t", "--also", "./b", stdin=b'{"id": 1}\n')
    assert (code, said["error"]) == (5, "outcome_unknown")
    assert said["message"].startswith("0 rows of the lines up to 0 are acknowledged. Then: ")


def test_a_pipe_that_pauses_does_not_keep_back_what_it_delivered(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", "append", "./raw", "-", "--table", "t", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"id": 1}\n{"id"')
        process.stdin.flush()
        while not union([tmp_path / "raw"]).chunks:
            assert process.poll() is None
        out, _ = process.communicate(b": 2}\n")
    assert json.loads(out)["records"] == 2
    assert [each["id"] for each in fields(str(tmp_path / "raw"))] == [1, 2]


def test_raw_lists_segments_and_says_what_no_store_has(run: Run) -> None:
    for number in range(3):
        run("append", "./a", "-", "--table", "t", "--also", "./b", stdin=f'{{"id": {number}}}\n'.encode() * 2)
    code, said, _ = run("raw", "./a", "--also", "./b", "--verify")
    assert (code, said["writers"], said["records"], said["gaps"], said["damaged"]) == (0, 3, 6, [], [])
    assert [each["chunks"] for each in said["segments"]] == [1, 1, 1]
    assert {*said["segments"][0]["copies"].values()} == {1}

    key = union(["a"]).chunks[0].keys[0]
    open_store("a").delete([key])
    (Path("b") / key).write_bytes(b"torn")
    code, said, err = run("raw", "./a", "--also", "./b", "--verify")
    assert (code, said["records"]) == (4, 4)
    assert [(each["first"], each["last"]) for each in said["gaps"]] == [(1, None)]
    assert [each["key"] for each in said["damaged"]] == [key]
    assert "an undamaged copy of 1 chunk are missing" in err
    assert run("raw", "./a", "--also", "./b")[0] == 0


@pytest.mark.parametrize("more", [[], ["--verify"]])
def test_raw_prints_text_for_people(run: Run, more: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    run("append", "./a", "-", "--table", "t", stdin=b'{"id": 1}\n')
    assert main(["raw", "./a", *more]) == 0
    shown = capfd.readouterr().out
    assert "no chunk is missing" in shown
    assert ("no record is missing" in shown) == bool(more)
    assert "store: file://" in shown


def test_a_location_without_a_raw_log_is_an_error(run: Run) -> None:
    assert run("raw", "./nothing")[0] == 2


@pytest.mark.parametrize(("closed_after", "closed"), [("1ms", True), ("1h", False), (None, False)])
def test_a_segment_is_closed_after_the_declared_age(
    run: Run, tmp_path: Path, closed_after: str | None, closed: bool
) -> None:
    for folder in ("tables", "raw_logs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tables" / "t.yaml").write_text("name: t\nuri: warehouse/t\ncolumns: {id: long}\n")
    setting = "" if closed_after is None else f"closed_after: {closed_after}\n"
    (tmp_path / "raw_logs" / "all.yaml").write_text(f"name: all\nstores: [raw]\n{setting}")
    run("append", "./raw", "-", "--table", "t", stdin=b'{"id": 1}\n')
    code, said, _ = run("raw", "all")
    assert (code, [each["closed"] for each in said["segments"]]) == (0, [closed])
    assert [each["closed"] for each in run("raw", "./raw")[1]["segments"]] == [False]


def test_a_store_of_a_raw_log_that_is_a_file_is_refused_without_a_word_about_tables(run: Run, tmp_path: Path) -> None:
    (tmp_path / "raw").write_text("not a folder")
    for arguments in (["raw", "./raw"], ["append", "./raw", "-", "--table", "t"]):
        code, said, _ = run(*arguments, stdin=b'{"id": 1}\n')
        assert code != 0
        assert "/raw is not a folder. Give the location of a folder" in said["message"]
