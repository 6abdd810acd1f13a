"""Scans, queries and lookups without files to open or address space answer or are `Unavailable`; no process dies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pytest

from tests.unit.poor_machine import READS

MIB_STEPS = (0, 1, 4, 32, 64, 128, 256, 400, 600, 766, 770, 800, 900, 8000)
FILES = "Too many open files; raise the number of files that the process may open (ulimit -n)"
MEMORY = "Cannot allocate memory; give the process more memory (ulimit -v)"


@pytest.mark.parametrize(
    ("condition", "steps", "cause", "table"),
    [
        ("open-files", (*range(10), 12, 15, 20, 40), FILES, "reads"),
        ("address-space", MIB_STEPS, MEMORY, "reads"),
        ("open-files", (0, 1, 2, 3, 4, 8, 100), FILES, "checkpointed"),
        ("address-space", (10, 300, 400, 950, 1100, 1200, 1400, 8000), MEMORY, "checkpointed"),
    ],
)
def test_a_read_without_what_it_needs_is_unavailable_and_no_process_dies(
    condition: str, steps: Iterable[int], cause: str, table: str
) -> None:
    listed = [*steps]
    command = [sys.executable, "-m", "tests.unit.poor_machine", condition, ",".join(map(str, listed)), table]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    said = ended.stdout.splitlines()
    assert ended.returncode == 0, f"{ended.returncode} after {said}: {ended.stderr[-2000:]}"
    assert len(said) == len(listed) * len(READS)
    refused = [line for line in said if not line.endswith(" answered")]
    assert [line for line in refused if line.split()[2] != "Unavailable" or cause not in line] == []
    assert {line.split()[1] for line in refused} == set(READS)
    assert all(line.endswith(" answered") for line in said[-len(READS) :]), said[-len(READS) :]
