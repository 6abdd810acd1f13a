"""Tests of `tidemark fsck` and `tidemark repair`, with output for people and with output for programs."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.cli import main
from tidemark import Table

SCHEMA = pa.schema([pa.field("time", pa.timestamp("us", "UTC"), nullable=False), ("value", pa.int64())])
START = dt.datetime(2015, 5, 17, tzinfo=dt.UTC)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(str(tmp_path / "table"), SCHEMA, time_column="time", window="1h")
    for hour in range(3):
        made.append([{"time": START + dt.timedelta(hours=hour), "value": hour}])
    return made


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def split_file(table: Table) -> Path:
    path = table.store.local_path(min(table.snapshot.splits))
    assert path is not None
    return path


def test_a_sound_table_ends_with_zero(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fsck", table.uri, "--deep"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert main(["fsck", table.uri, "--json"]) == 0
    (last,) = lines(capsys)
    assert last["summary"].items() >= {"status": "clean", "version": 3, "errors": 0, "warnings": 0}.items()


def test_a_flipped_bit_is_found_deep_and_ends_with_four(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    file = split_file(table)
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(bytes(data))
    assert main(["fsck", table.uri]) == 0
    capsys.readouterr()
    assert main(["fsck", table.uri, "--deep", "--json"]) == 4
    finding, last = lines(capsys)
    assert finding["kind"] == "split_damaged"
    assert finding["severity"] == "error"
    assert finding["key"] == min(table.snapshot.splits)
    assert "tidemark repair" in finding["advice"]
    assert last["summary"]["status"] == "damaged"


def test_a_table_that_does_not_open_is_repaired_into_another_place(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split_file(table).unlink()
    for file in (tmp_path / "table" / "_transaction_log").iterdir():
        file.unlink()
    into = str(tmp_path / "repaired")
    assert main(["fsck", table.uri]) == 4
    assert "does not open" in capsys.readouterr().out
    assert main(["repair", table.uri, "--into", into, "--dry-run", "--json"]) == 0
    *_, planned = lines(capsys)
    assert planned["summary"].items() >= {"status": "planned", "rows": 2, "clean": None}.items()
    assert not Path(into).exists() or not any(Path(into).rglob("*.json"))
    assert main(["repair", table.uri, "--into", into]) == 0
    assert "found nothing wrong" in capsys.readouterr().out
    repaired = Table.open(into)
    assert sorted(row["value"] for row in repaired.scan().to_arrow().to_pylist()) == [1, 2]
    assert repaired.schema == SCHEMA
    repaired.append([{"time": START, "value": 9}])
    assert repaired.refresh().scan().to_arrow().num_rows == 3


def test_a_place_that_is_taken_is_an_error_of_the_call(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repair", table.uri, "--into", table.uri, "--json"]) == 2
    (failed,) = lines(capsys)
    assert failed["error"] == "invalid_input"


def test_there_has_to_be_something_to_look_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fsck", str(tmp_path / "nothing"), "--json"]) == 2
    (failed,) = lines(capsys)
    assert failed["error"] == "not_found"
