"""What people read on a terminal and through a pipe."""

from __future__ import annotations

import pytest

from pipelines.commands import output

COLUMNS = ("path", "bytes")
LINES = (("/a", "12"), ("/" + "b" * 30, ""))


def test_a_table_has_no_space_at_the_end_of_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.grid(COLUMNS, [("/abc", "12"), ("/", "3")])
    assert capsys.readouterr().out.split("\n") == [
        "",
        " path   bytes",
        " ────────────",
        " /abc      12",
        " /          3",
        "",
    ]


def test_rows_that_fit_the_terminal_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    output.answer(COLUMNS, LINES, width=80)
    assert capsys.readouterr().out.splitlines()[1].split() == ["path", "bytes"]


def test_rows_that_do_not_fit_the_terminal_are_a_line_per_value(capsys: pytest.CaptureFixture[str]) -> None:
    output.answer(COLUMNS, LINES, width=30)
    assert capsys.readouterr().out.splitlines() == [
        "row 1", "  path   /a", "  bytes  12",
        "row 2", "  path   /" + "b" * 30, "  bytes",
    ]  # fmt: skip
