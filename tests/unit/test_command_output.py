"""Output of commands on a terminal and through a pipe."""

from __future__ import annotations

import io
import logging
import re

import pyarrow as pa
import pytest

from pipelines.commands import output
from pipelines.commands.services import progress
from storage_core.base.errors import InvalidInput
from storage_core.base.text import PrintableFormatter, counted

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


def test_every_table_of_metrics_keeps_them_whole_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    shown = {"window_start": output.window, "bytes": output.number, "reasons": output.cell}
    debt = {"window_start": 0, "bytes": 12_370_000, "reasons": "count, size"}
    output.records([debt], shown, as_json=False, nothing="")
    assert capsys.readouterr().out.splitlines() == [
        "row 1", "  window_start  1970-01-01T00:00", "  bytes         12,370,000", "  reasons       count, size",
    ]  # fmt: skip


def test_a_long_value_is_cut_and_says_how_much_more_there_is() -> None:
    assert output.excerpt("x" * 30_000_000) == "x" * output.LONGEST_EXCERPT + "… and 29,999,800 more characters"
    assert output.excerpt(["x" * 300]).endswith("… and 104 more characters")
    assert output.cell("p" * 1_000) == "p" * 1_000
    assert output.whole("x" * 3_000) == "x" * 3_000


def test_a_tab_is_a_space_and_no_escape() -> None:
    assert output.cell("a\tb") == "a   b"
    assert output.excerpt("200\tGET\t\x1b") == "200 GET \\x1b"


def test_rows_are_bounded_unless_everything_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    rows = pa.table({"n": range(1_200), "text": ["y" * 201] * 1_200})
    output.rows(rows, as_json=False)
    cut = capsys.readouterr().out.splitlines()
    assert cut[-2:] == ["1,200 rows", "… and 200 more. --all prints all"]
    assert "y" * 201 not in "".join(cut)
    output.rows(rows, as_json=False, everything=True)
    printed = capsys.readouterr().out
    assert printed.count("y" * 201) == 1_200
    assert printed.endswith("\n1,200 rows\n")


def test_a_list_of_objects_is_bounded_for_people_and_whole_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    found = [{"path": str(n)} for n in range(3_000)]
    output.records(found, {"path": output.cell}, as_json=False, nothing="", most=10, more="--all")
    assert capsys.readouterr().out.endswith(" 9\n… and 2,990 more. --all prints all\n")
    output.records(iter(found), {"path": output.cell}, as_json=False, nothing="")
    assert capsys.readouterr().out.endswith("… and 2,000 more. --json prints all\n")
    output.records(found, {"path": output.cell}, as_json=True, nothing="", most=10)
    assert len(capsys.readouterr().out.splitlines()) == 3_000


def test_one_row_is_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    output.rows(pa.table({"n": [1]}), as_json=False)
    assert capsys.readouterr().out.endswith("\n1 row\n")
    assert (counted(1, "row"), counted(0, "row"), counted(2_000, "row")) == ("1 row", "0 rows", "2,000 rows")


class Terminal(io.StringIO):
    """A text stream whose `isatty` returns True, like a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_line_beside_a_bar_has_the_line_of_the_terminal_to_itself() -> None:
    screen = Terminal()
    with progress("clicks", screen) as advance:
        for number in (1, 2):
            with advance(number, 2):
                screen.write(f"{number}/2 done\n")
    drawn = re.split(r"[\r\n]|\x1b\[2K", screen.getvalue())
    assert [each for each in drawn if "/2 done" in each] == ["1/2 done", "2/2 done"]
    assert any("clicks" in each and "50%" in each for each in drawn)


def test_beside_no_terminal_nothing_but_the_lines_is_written() -> None:
    file = io.StringIO()
    with progress("clicks", file) as advance, advance(1, 1):
        file.write("1/1 done\n")
    assert file.getvalue() == "1/1 done\n"


def test_no_name_or_value_of_storage_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "rows\x1b]0;title\x07\x1b[31m\u202e\r\x9b"
    output.line(f"{hostile} 1")
    output.records([{"metrics": {hostile: 1}}], {"metrics": str}, as_json=False, nothing="none")
    output.error(InvalidInput(hostile), as_json=False)
    record = logging.LogRecord("tidemark", logging.WARNING, "", 1, "of %s", (hostile,), None)
    printed = capsys.readouterr()
    for shown in (printed.out, printed.err, PrintableFormatter("%(message)s").format(record)):
        assert "title" in shown
        assert all(each.isprintable() or each == "\n" for each in shown), ascii(shown)
