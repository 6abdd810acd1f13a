"""The command line explains which arguments and environment variables have invalid values."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipelines.cli import main

REFUSED = [
    (["sql", "t", "select 1", "--jsn"], "unknown option --jsn. Did you mean '--json'? See tidemark sql --help"),
    (["files", "t", "--limit", "3"], "unknown option --limit. See tidemark files --help"),
    (["--json", "status"], "--json must follow the command. Write tidemark status --json. See tidemark --help"),
    (["sqll", "t"], "unknown command 'sqll'. Did you mean 'sql'? See tidemark --help"),
    (
        ["append", "t", "f", "--format", "xml"],
        "--format is 'xml'. Give ndjson, csv or parquet. See tidemark append --help",
    ),
    (
        ["sql", "t", "select 1", "--consistency", "lates"],
        "--consistency is 'lates'. Give snapshot, committed or latest. Did you mean 'latest'? See tidemark sql --help",
    ),
    (["history", "t", "--limit", "-1"], "--limit is -1. Give 1 or more. See tidemark history --help"),
    (["history", "t", "--limit", "x"], "--limit is 'x'. Give a whole number. See tidemark history --help"),
    (["ui", "--port", "70000"], "--port is 70000. Give 1 to 65535. See tidemark ui --help"),
    (["forget", "t"], "--where is missing. Give --where CONDITION. See tidemark forget --help"),
    (["sql"], "URI is missing. Give one. See tidemark sql --help"),
    (["history", "t", "--limit"], "--limit has no value. Give one. See tidemark history --help"),
    (["history", "t", "--json=1"], "--json takes no value. Leave the value out. See tidemark history --help"),
    (
        ["history", "t", "u"],
        "unexpected argument 'u'. The command takes 1 argument. See tidemark history --help",
    ),
]


def test_a_value_of_the_environment_is_explained_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_SQL_SECONDS", "soon")
    assert main(["sql", "t", "select 1"]) == 2
    assert "TIDEMARK_SQL_SECONDS is 'soon'. Give a number. See" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(each) for each, _ in REFUSED])
def test_an_argument_that_cannot_be_used_is_explained_in_our_words(
    arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(arguments)) == 2
    assert capsys.readouterr().err == f"tidemark: invalid_input: {message}\n"
