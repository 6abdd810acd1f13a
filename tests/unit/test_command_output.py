"""What people read on a terminal and through a pipe."""

from __future__ import annotations

import pytest

from pipelines.commands import output

COLUMNS = ("path", "bytes")
LINES = (("/a", "12"), ("/" + "b" * 30, ""))


def test_a_table_has_no_space_at_the_end_of_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.grid(COLUMNS, [("/abc", "12"), ("/", "3")], width=None)
    assert capsys.readouterr().out.split("\n") == [
        "",
        " path   bytes",
        " ────────────",
        " /abc      12",
        " /          3",
        "",
    ]


def test_rows_that_fit_the_terminal_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    output.grid(COLUMNS, LINES, width=80)
    assert capsys.readouterr().out.splitlines()[1].split() == ["path", "bytes"]


def test_rows_that_do_not_fit_the_terminal_are_a_line_per_value(capsys: pytest.CaptureFixture[str]) -> None:
    output.grid(COLUMNS, LINES, width=30)
    assert capsys.readouterr().out.splitlines() == [
        "row 1", "  path   /a", "  bytes  12",
        "row 2", "  path   /" + "b" * 30, "  bytes",
    ]  # fmt: skip


def test_every_table_of_figures_keeps_them_whole_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    shown = {"window_start": output.window, "bytes": output.figure, "reasons": output.cell}
    debt = {"window_start": 0, "bytes": 12_370_000, "reasons": "count, size"}
    output.records([debt], shown, as_json=False, nothing="")
    assert capsys.readouterr().out.splitlines() == [
        "row 1", "  window_start  1970-01-01T00:00", "  bytes         12,370,000", "  reasons       count, size",
    ]  # fmt: skip
