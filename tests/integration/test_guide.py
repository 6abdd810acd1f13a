"""Run every code block of the guide in an empty folder.

A shell runs the shell blocks, and one session runs the Python blocks.

The block of `text` after a code block contains the output that the reader sees, including errors. A `…` within a line
matches any text. A line of only `…` matches any number of lines.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support import quick_java
from tests.support.s3_server import S3Server

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide"
PAGES = ("1-first-table", "2-own-data", "3-keyed-tables")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LANGUAGES = {"sh", "python", "text"}

# Reads blocks as lines of JSON, runs each block in the same namespace, and reports the end of each block. The session
# is like interactive `python`, but prints no prompts.
SESSION = """
import json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    exec(compile(json.loads(line), "guide", "exec"), names)
    print("\\N{END OF TRANSMISSION}", flush=True)
"""
DONE = "\N{END OF TRANSMISSION}\n"


@dataclass(frozen=True)
class Block:
    """A fenced block and the output that the page shows below it, or None without output."""

    language: str
    text: str
    line: int
    shown: str | None


def blocks(page: Path) -> Iterator[Block]:
    """Return the blocks to run, in the order of the page."""
    text = page.read_text(encoding="utf-8")
    found = list(FENCED.finditer(text))
    for number, each in enumerate(found):
        assert each[1] in LANGUAGES, f"{page.name}: a block of {each[1]!r}, which nothing runs"
        if each[1] == "text":
            continue
        after = found[number + 1] if number + 1 < len(found) else None
        below = after is not None and after[1] == "text" and not text[each.end() : after.start()].strip()
        yield Block(each[1], each[2], text.count("\n", 0, each.start()) + 1, after[2] if below and after else None)


class Reader:
    """A user with `tidemark` and `python` on the PATH, in one folder, with one shell and one Python session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "work"
        self._folder.mkdir()
        self._exports = folder / "exports.sh"
        self._exports.touch()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        deleted = {"PYTHONPATH", "DAGSTER_HOME", "TIDEMARK_TABLES", "DAGSTER_DISABLE_TELEMETRY"} | {*quick_java.NAMES}
        self._environment = {name: value for name, value in os.environ.items() if name not in deleted} | {"PATH": path}
        self._python: subprocess.Popen[str] | None = None

    def shell(self, text: str) -> str:
        """Run a shell block and return its output. Exported variables stay for the next block."""
        script = f". '{self._exports}'\n{text}\nexport -p > '{self._exports}'\n"
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    def python(self, text: str) -> str:
        """Run a Python block in the session and return its output."""
        if self._python is None:
            self._python = subprocess.Popen(
                [Path(sys.executable).parent / "python", "-c", SESSION],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(text) + "\n")
        self._python.stdin.flush()
        printed: list[str] = []
        for line in self._python.stdout:
            if line == DONE:
                return "".join(printed)
            printed.append(line)
        raise AssertionError("".join(printed))

    def close(self) -> None:
        """End the session."""
        if self._python is not None:
            self._python.communicate()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    someone = Reader(tmp_path)
    yield someone
    someone.close()


def plain(text: str) -> list[str]:
    """Return the lines without colours and without trailing blanks."""
    return [line.rstrip() for line in COLOURS.sub("", text).rstrip().split("\n")]


def matches(shown: str, printed: str) -> bool:
    """Return True if the output that a page shows matches the printed output."""
    pattern = ""
    for line in plain(shown):
        pattern += r"(?:.*\n)*?" if line.strip() == "…" else ".*?".join(map(re.escape, line.split("…"))) + r"\n"
    return re.fullmatch(pattern, "\n".join(plain(printed)) + "\n") is not None


def follow(page: str, reader: Reader) -> None:
    """Run every block of a page, and compare its output with the page."""
    for block in blocks(GUIDE / f"{page}.md"):
        where = f"{page}.md, line {block.line}"
        try:
            printed = reader.shell(block.text) if block.language == "sh" else reader.python(block.text)
        except AssertionError as error:
            raise AssertionError(f"{where} failed:\n{error}") from None
        assert block.shown is not None or not printed, f"{where} prints what the page does not show:\n{printed}"
        assert block.shown is None or matches(block.shown, printed), (
            f"{where} shows\n{block.shown}\nand it printed\n{printed}"
        )


def test_every_page_is_followed_here_and_listed() -> None:
    listed = re.findall(
        r"^\d\. \[[^\]]+\]\((.+?)\.md\)", (GUIDE / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert listed == [*PAGES, "4-scheduling", "5-s3", "6-your-own-assets", "7-spark"]
    assert sorted(listed) == sorted(page.stem for page in GUIDE.glob("*.md") if page.stem != "README")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_for_the_core_does_what_it_shows(page: str, reader: Reader) -> None:
    follow(page, reader)


def test_the_example_of_the_readme_runs_in_an_empty_folder(reader: Reader) -> None:
    (example,) = (each for each in blocks(ROOT / "README.md") if each.language == "python")
    shown = re.findall(r"^print\(.*\)  # (.+)$", example.text, re.MULTILINE)
    assert len(shown) == example.text.count("print(")
    assert reader.python(example.text).splitlines() == shown


@pytest.mark.spark
@pytest.mark.dagster
def test_the_page_on_scheduling_does_what_it_shows(reader: Reader) -> None:
    follow("4-scheduling", reader)


@pytest.mark.dagster
def test_the_page_on_assets_does_what_it_shows(reader: Reader) -> None:
    follow("6-your-own-assets", reader)


@pytest.mark.spark
def test_the_page_on_spark_does_what_it_shows(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # Java needs half the CPU time
    follow("7-spark", request.getfixturevalue("reader"))


def test_the_page_on_s3_does_what_it_shows(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("BUCKET", urlsplit(s3_server.uri("guide")).netloc)
    follow("5-s3", request.getfixturevalue("reader"))  # the environment contains the location of S3 by now


@pytest.mark.parametrize(
    ("shown", "printed"),
    [("1\n", "2\n"), ("a …\n", "b c\n"), ("a\n…\nz\n", "a\n"), ("a\n", "a\nb\n"), ("", "a\n")],
)
def test_an_output_that_differs_from_what_is_shown_is_found(shown: str, printed: str) -> None:
    assert not matches(shown, printed)
