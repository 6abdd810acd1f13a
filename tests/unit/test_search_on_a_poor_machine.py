"""If file handles, memory or disk space run out, a search is correct or raises `Unavailable` with a reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from storage_core.base.errors import Unavailable
from storage_core.store.local import LocalStore
from storage_core.table import Table
from tests.unit.poor_machine import QUERIES, half_indexed


@pytest.mark.parametrize(
    ("condition", "steps", "cause"),
    [
        ("open-files", "0,1,2,3,4,5,6,8,12,100", "Too many open files"),
        ("file-size", "0,1,4,8,16,100000", "File too large"),
        ("address-space", "0,16,64,100,130,256,260,280,300,350,400,4000", "Cannot allocate memory"),
    ],
)
def test_a_search_without_what_it_needs_is_unavailable_with_the_cause(condition: str, steps: str, cause: str) -> None:
    command = [sys.executable, "-m", "tests.unit.poor_machine", condition, steps]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    said = ended.stdout.splitlines()
    assert ended.returncode == 0, f"{ended.returncode} after {said}: {ended.stderr[-2000:]}"
    assert len(said) == len(steps.split(",")) * len(QUERIES)
    refused = [line for line in said if not line.endswith(" answered")]
    assert [line for line in refused if line.split()[2] != "Unavailable"] == []
    assert any(cause in line for line in refused)
    assert said[-1].endswith(" answered"), "with room again the same process answers"


@pytest.mark.parametrize("index", QUERIES)
def test_a_cache_that_is_no_folder_is_unavailable(tmp_path: Path, index: str) -> None:
    half_indexed(LocalStore(tmp_path / "table"))
    (tmp_path / "cache").write_text("a file")
    table = Table.open(str(tmp_path / "table"))
    for folder in (tmp_path / "cache", tmp_path / "cache" / "inside"):
        with pytest.raises(Unavailable, match="cache"):
            table.search("x", index=index, cache_dir=folder)


def test_a_temporary_folder_that_is_none_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half_indexed(LocalStore(tmp_path / "table"))
    (tmp_path / "scratch").write_text("a file")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    with pytest.raises(Unavailable, match="scratch"):
        Table.open(str(tmp_path / "table")).search("x", index="words")
