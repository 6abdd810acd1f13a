"""Quarantined late rows return to the table by the command in `docs/operations.md`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.cli import main
from tidemark import Table

DECLARATION = """\
name: clicks
uri: warehouse/clicks
columns: {time: timestamp!, n: long, path: string, price: "decimal(10,2)", load: double, day: date}
time_column: time
window: 1h
late_data: {policy: quarantine, acceptance_window: 1h}
"""
# More digits than a float can store, a text that looks like a number, and a text that is not a number.
ROWS = [
    '{"time": "2015-05-17T10:00:00.000001Z", "n": 9007199254740993, "path": "7", "price": "1.50", "load": "NaN"}',
    '{"time": "2015-05-17T11:00:00Z", "n": null, "path": "caf\\u00e9", "load": 0.1, "day": "2015-05-17"}',
]


def test_late_rows_come_back_whole_once_the_table_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tables" / "clicks.yaml"
    file.parent.mkdir()
    file.write_text(DECLARATION, encoding="utf-8")
    rows = tmp_path / "rows.ndjson"
    rows.write_text("\n".join(ROWS), encoding="utf-8")
    assert main(["init", "clicks"]) == 0
    assert main(["append", "clicks", str(rows)]) == 0
    assert Table.open("warehouse/clicks").snapshot.rows == 0

    file.write_text(DECLARATION.replace("policy: quarantine", "policy: accept"), encoding="utf-8")
    assert main(["init", "clicks"]) == 0
    capfd.readouterr()
    assert main(["quarantine", "clicks", "--retry", "--source", "append", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["rows_out"] == len(ROWS)

    direct = Table.create("expected", Table.open("warehouse/clicks").schema)
    assert main(["append", "expected", str(rows)]) == 0
    found, expected = (Table.open(each).scan().to_arrow().sort_by("time") for each in ("warehouse/clicks", direct.uri))
    assert [str(row) for row in found.to_pylist()] == [str(row) for row in expected.to_pylist()]
    assert found.num_rows == len(ROWS)
