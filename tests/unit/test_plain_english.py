"""The texts of the project stay in plain English: the patterns of hard sentences are rare.

`python -m scripts.plain_english PATH --places` prints each place. The patterns only help to find hard sentences. The
aim is a sentence that a reader understands at the first reading.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from scripts.plain_english import LIMITS, PATTERNS, files, sentences

PRODUCT = ("assets", "jobs", "pipelines", "scripts", "storage_core", "tidemark")
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "docs")


def _shares(paths: tuple[str, ...], *, messages: bool) -> tuple[dict[str, float], list[str]]:
    """Return the patterns that occur too often per 1,000 sentences, with their shares and their places."""
    counted, places = Counter[str](), list[str]()
    for each in (found for path in files([*paths]) for found in sentences(path)):
        if each.is_message == messages:
            counted.update(["all", *each.patterns])
            places += [f"{name}: {each.path}:{each.line}: {each.text}" for name in each.patterns]
    assert counted["all"] > 1000, "the texts were found"
    above = {name: round(1000 * counted[name] / counted["all"], 1) for name in LIMITS}
    above = {name: share for name, share in above.items() if share > LIMITS[name]}
    return above, sorted(each for each in places if each.partition(":")[0] in above)


@pytest.mark.parametrize(
    ("paths", "messages"), [(PRODUCT, False), (PRODUCT, True), (PAGES, False)], ids=["docstrings", "messages", "pages"]
)
def test_hard_sentences_are_rare(paths: tuple[str, ...], messages: bool) -> None:
    above, places = _shares(paths, messages=messages)
    assert above == {}, "\n".join(places)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("semicolon", "The merge ends; the next one begins."),
        ("opening", "What no segment covers is read from the split."),
        ("is no", "The name is no column of the table."),
        ("word", "The step builds the index anew."),
        ("pronoun", "They have no index."),
        ("long", f"A sentence {'with more and more words ' * 6}ends."),
    ],
)
@pytest.mark.parametrize("form", ['"""{}"""\n', "# {}\n", 'raise ValueError(f"{}")\n', 'raise ValueError("{}")\n'])
def test_a_hard_sentence_is_found_in_every_kind_of_text(tmp_path: Path, name: str, text: str, form: str) -> None:
    (tmp_path / "module.py").write_text(form.format(text))
    (tmp_path / "page.md").write_text(f"| {text} | `a; b` |\n|---|---|\n\n```\n{text}\n```\n")
    for path in (tmp_path / "module.py", tmp_path / "page.md"):
        assert [each.patterns for each in sentences(path, tmp_path)] == [[name]]


def test_each_pattern_has_a_limit() -> None:
    assert LIMITS.keys() == {*PATTERNS, "long"}
