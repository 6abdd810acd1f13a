"""Foreign text in messages is bounded and escaped by one module, and the message contains the omitted length."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from storage_core.base.errors import InvalidInput
from storage_core.base.text import escaped, fitted, quoted, shortened, without_locations
from storage_core.store.resolve import check_location

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("tidemark", "storage_core", "jobs", "assets", "pipelines")

# Text truncated inside a quotation: `text[:80]!r`, `str(error)[:500]`, `{value!r:.80}`, `f"{text[:80]}…"`.
CUT = re.compile(r"\[:\s?\w+\]!r|\b(?:str|repr)\((?:[^()]|\([^()]*\))*\)\[:|\{[^{}]*:\.\d+\}|\[:[^\]]*\]\}…")


def test_text_is_cut_escaped_and_says_what_is_left_out() -> None:
    assert shortened("as it is") == "as it is"
    assert shortened("x" * 5, 5) == "xxxxx"
    assert shortened("x" * 6, 5) == "xxxxx… and 1 more character"
    assert shortened("x" * 2005, 5) == "xxxxx… and 2,000 more characters"
    assert shortened("a\x1b[2J\nb\ud800") == "a\\x1b[2J\\nb\\ud800"


@pytest.mark.parametrize("text", ["x" * 10, "\x1b" * 10, "xy\x1b" + "é" * 100, "", "x" * 9 + "\n"])
def test_a_fitted_text_is_never_longer_and_stays_as_it_is_when_it_is_fitted_again(text: str) -> None:
    once = fitted(text, 10)
    assert len(once) <= 10
    assert once.isprintable()
    assert fitted(once, 10) == once


def test_a_fitted_text_shows_that_it_was_cut() -> None:
    assert fitted("x" * 10, 10) == "x" * 10
    assert fitted("x" * 11, 10) == "x" * 9 + "…"


def test_values_are_quoted_without_a_walk_through_them() -> None:
    assert quoted("it's\x1b") == '"it\'s\\x1b"'
    assert quoted("x" * 81) == f"'{'x' * 80}'… and 1 more character"
    assert quoted(b"\0" * 3, 2) == "b'\\x00\\x00'… and 1 more byte"
    assert quoted({"a": 1}) == "an object of 1 field"
    assert quoted([1, 2]) == "a list of 2 values"
    assert quoted(10**5000) == f"a whole number of {(10**5000).bit_length()} bits"
    assert quoted(None) == "None"


def test_a_kept_character_is_not_escaped() -> None:
    assert escaped("a\nb\x1b", keep="\n") == "a\nb\\x1b"


@pytest.mark.parametrize(
    "location",
    ["s3:/bucket/x", "gs://a/b", " s3://b/x", "file://b/x", "memory://a b", "s3://k:s@b/x", "s3://b/x", "n:s@x"],
)
def test_what_is_wrong_with_a_location_is_said_whole_where_locations_are_left_out(location: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_location(location)
    assert without_locations(str(refused.value)) == str(refused.value)


def test_of_a_location_nothing_but_its_scheme_is_shown() -> None:
    for written in (
        "s3://bucket/prefix?key=secret",
        "s3://…secret",
        "//secret",
        "https://…@secret)",
        "s3://bucket/prefixsecret",
    ):
        assert "secret" not in without_locations(f"found {written}, which is wrong")
        assert "secret" not in without_locations(written)


def test_no_other_module_cuts_what_it_quotes() -> None:
    files = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        if path != ROOT / "storage_core/base/text.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if CUT.search(line)
    ]
    assert files
    assert found == []
