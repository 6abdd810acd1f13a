"""Texts of the repository and names in the product do not use words that the project no longer allows."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SELF = "tests/unit/test_words.py"

RETIRED = {
    r"(?i:\b(?:un)?deal[ts]?\b(?! with)|\bdealers?\b|\bdealing\b|_deal\b|\bdeal_)": "distribute",
    r"(?i:\btide marks?\b)": "offset",
    r"(?i:\b(?:un)?seal(?:s|ed|ing)?\b)|_seal(?:ed)?\b|\bseal_|SEAL": "checksum, close or finalize, by what is meant",
    r"(?i:\b_?(?:late|unmerged)?_?figures?\b)": "metrics",
    r"\bSpent\b": "RunCosts",
    r"\bLateDoor\b|\blate[ _]door\b": "LateRowFilter, late-row filter",
    r"(?i:\bdemands?_for\b)|\bper demand\b|\bDemands?\b": "DueRuns",
    r"\b_?worn\b|\bWORN\b": "high delete ratio",
    r"\b_?crowded\b": "many small files",
    r"\bdoomed\b": "planned for deletion",
    r"\bOvertaken\b": "CasLost",
    r"(?i:\bwitness(?:es)?\b)": "version evidence",
    r"(?i:\bemission\b)": "rolling writer",
    r"\bchange_and_exchange\b|\bexchange\b": "compare-and-swap",
    r"(?<!\.)\b_?reshape\b|\breshaped\b": "repartition",
    r"\bBell\b": "stop event",
    r"\bas_they_end\b": "as completed",
    r"\bMergeOperation\b": "compaction task",
    r"(?i:\bset[ _-]aside\b|\bsets aside\b)": "quarantine",
    r"(?i:\blet(?:s|ting)? go of\b)": "release",
}
"""Patterns that no text may match, and the replacement words."""

RETIRED_NAMES = {
    "ahead": "prefetch",
    "asked": "requested",
    "figure": "metric",
    "figures": "metrics",
    "gone": "deleted",
    "moment": "instant, or read position",
    "told": "what it holds: output, message, answer",
}
"""Words that no function, class, field or module of the product may have in its name, and the replacement words."""


def _listed() -> list[str]:
    found = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in found.split("\0") if name and (ROOT / name).is_file()]


def _texts() -> Iterator[tuple[str, str]]:
    for name in _listed():
        if name.endswith((".py", ".md", ".proto", ".yaml", ".toml", "Makefile")) and not name.startswith(SELF):
            yield name, (ROOT / name).read_text(encoding="utf-8")


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return the definitions and fields, which are the names that a caller writes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield node.lineno, name


def test_no_text_has_a_retired_word() -> None:
    any_retired = re.compile("|".join(f"(?:{pattern})" for pattern in RETIRED))
    found = [
        f"{name}:{number}: {line.strip()[:100]}: write {_instead(line)}"
        for name, text in _texts()
        if any_retired.search(text)
        for number, line in enumerate(text.splitlines(), start=1)
        if any_retired.search(line) and '"seal"' not in line and "`seal`" not in line  # a key of stored metadata
    ]
    assert found == []


def _instead(line: str) -> str:
    return next(word for pattern, word in RETIRED.items() if re.search(pattern, line))


def test_no_name_of_the_product_is_a_retired_word() -> None:
    found = []
    for file in (name for name in _listed() if name.endswith(".py") and not name.startswith(("tests/", "benchmarks/"))):
        words = [(1, Path(file).stem), *_names(ast.parse((ROOT / file).read_text(encoding="utf-8")))]
        found += [f"{file}:{line}: {name}" for line, name in words if name.strip("_").lower() in RETIRED_NAMES]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "tidemark deal all",
        "a dealt row",
        "the region is sealed",
        "undealt",
        "seal_spec",
        "class Demands:",
        "def reshape(",
        "lets go of its lease",
    ],
)
def test_a_retired_word_would_be_found(text: str) -> None:
    assert any(re.search(pattern, text) for pattern in RETIRED)
