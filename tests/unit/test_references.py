"""Every reference in code and documentation leads to something in the repository."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SELF = "tests/unit/test_references.py"
LESSONS = ROOT / "docs" / "architecture" / "lessons.md"
SPEC = ROOT / "docs" / "spec.md"

PAGE = re.compile(r'docs/[\w/-]+\.md(?:(?:,| in) "([^"\n]+)")?')
NUMBERS = r"(\d{2}(?:(?:, | and | to | or |-)\d{2})*)\b"
LESSON = re.compile(rf"\b[Ll]essons? {NUMBERS}")
DECISION = re.compile(r"\b[Dd]ecisions? (\d{4}(?:(?:, | and | to | or )\d{4})*)\b")
SECTION = re.compile(r"\b(?:spec(?:ification)?,? |spec\.md`?,? )(?:sections? )?(\d+(?:\.\d+)*)\b")
BARE_SECTION = re.compile(r'^(?:"""|[A-Z]).*[a-z,] \("[A-Z][A-Za-z -]+"[;,)]')
NOWHERE = re.compile(r"design page|\b[Pp]ages? (?:0\d|1[0-2])\b|`00[0-4]`|\bshared/(?:design|seeds|data)")


def _texts() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.split("\0"):
        is_text = name.endswith((".py", ".md", ".proto", ".toml", ".yaml", "Makefile"))
        if is_text and name != SELF and (ROOT / name).is_file():
            yield name, (ROOT / name).read_text(encoding="utf-8")


def _found(pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    for name, text in _texts():
        for line, content in enumerate(text.splitlines(), start=1):
            for match in pattern.finditer(content):
                yield f"{name}:{line}: {match[0]}", match


def _headings(path: Path) -> set[str]:
    return {each.strip("*` ") for each in re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)}


def _emphasised(path: Path) -> set[str]:
    """Return the emphasised texts of a page, which include the names of sections in lists."""
    return set(re.findall(r"\*+([^*\n]+)\*+", path.read_text(encoding="utf-8")))


def _numbers(text: str) -> list[str]:
    """Return the numbers in a text such as `01, 05 and 07 to 09`. For a range, return only its two ends."""
    return re.findall(r"\d+", text)


def test_no_text_refers_to_pages_that_are_not_in_the_repository() -> None:
    assert [where for where, _ in _found(NOWHERE)] == []


def test_every_section_that_is_named_says_of_which_page() -> None:
    summaries = ((name, text) for name, text in _texts() if name.endswith(".py"))
    assert [name for name, text in summaries if BARE_SECTION.match(text.partition("\n")[0])] == []


def test_every_page_that_is_named_exists_and_so_does_its_section() -> None:
    lost = []
    for where, match in _found(PAGE):
        path = ROOT / match[0].partition(".md")[0]
        page = path.with_name(f"{path.name}.md")
        section = match[1]
        if not page.is_file() or (section is not None and section not in _headings(page) | _emphasised(page)):
            lost.append(where)
    assert lost == []


def test_every_lesson_that_is_named_is_one() -> None:
    known = set(re.findall(r"^\| (\d{2}) \|", LESSONS.read_text(encoding="utf-8"), re.MULTILINE))
    assert known
    assert [where for where, match in _found(LESSON) if not set(_numbers(match[1])) <= known] == []


def test_every_decision_that_is_named_is_one() -> None:
    known = {path.name[:4] for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}
    assert known
    assert [where for where, match in _found(DECISION) if not set(_numbers(match[1])) <= known] == []


def test_every_section_of_the_specification_that_is_named_is_one() -> None:
    known = {heading.split(" ")[0].rstrip(".") for heading in _headings(SPEC)}
    assert {"1", "1.1", "20"} <= known
    assert [where for where, match in _found(SECTION) if match[1] not in known] == []


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("as the design page says", NOWHERE),
        ("(page 04, SS-4)", NOWHERE),
        ("Page 02 wants a checkpoint", NOWHERE),
        ("source `001`", NOWHERE),
        ('"""What the regions of a table keep alive ("Regions").', BARE_SECTION),
        ("lessons 01, 02 and 04", LESSON),
        ("decisions 0010 and 0042", DECISION),
        ("spec section 10.2", SECTION),
        ('docs/architecture/reads.md, "Lookups"', PAGE),
    ],
)
def test_a_reference_would_be_found(text: str, pattern: re.Pattern[str]) -> None:
    assert pattern.search(text)
