"""Each planted fault has one location in the product, one documented promise, and tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.planted_faults import FAULTS, Fault, Sources

ROOT = Path(__file__).resolve().parents[2]


def test_every_planted_fault_has_its_one_place_and_its_tests() -> None:
    sources = Sources(ROOT)
    assert len({fault.promise for fault in FAULTS}) == len(FAULTS) >= 60
    for fault in FAULTS:
        file, changed = sources.planted(fault)
        assert changed != sources.sound(file), fault.promise
        for test in fault.tests:
            path, _, name = test.partition("::")
            assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8"), test


def test_every_guarantee_has_a_planted_fault_and_every_law_is_there() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    numbers = [int(each) for each in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 17
    laws = {fault.law for fault in FAULTS}
    guarantees = {f"guarantee {number}" for number in numbers}
    assert guarantees <= laws
    spec, lessons = (ROOT / "docs" / name for name in ("spec.md", "architecture/lessons.md"))
    sections = re.findall(r"^#+ ([0-9.]*[0-9])\.? ", spec.read_text(encoding="utf-8"), re.MULTILINE)
    rows = re.findall(r"^\| ([0-9]{2}) \|", lessons.read_text(encoding="utf-8"), re.MULTILINE)
    known = {*(f"spec {each}" for each in sections), *(f"lesson {each}" for each in rows)}
    assert laws <= known | guarantees


def test_a_fault_is_found_by_the_names_around_its_place_and_only_there(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    code = "LIMIT = 1\n\n\nclass A:\n    def go(self):\n        return 1\n\n\ndef go():\n    return 1\n"
    (tmp_path / "jobs" / "a.py").write_text(code)
    sources = Sources(tmp_path)
    file, changed = sources.planted(_fault("A.go", "return 1"))
    assert (file, changed) == (tmp_path / "jobs" / "a.py", code.replace("return 1", "return 2", 1))
    assert sources.planted(_fault("LIMIT", "1"))[1] == code.replace("1", "2", 1)
    for within, before in (("go", "return 1"), ("A", "return 3"), ("B.go", "return 1")):
        with pytest.raises(ValueError, match=f"{within} has [02] places"):
            sources.planted(_fault(within, before))


def _fault(within: str, before: str) -> Fault:
    return Fault("spec 1", "a promise", within, before, before.replace("1", "2"), ())
