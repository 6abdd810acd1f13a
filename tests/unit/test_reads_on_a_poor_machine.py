"""Without file descriptors or address space, scans, queries and lookups answer or raise `Unavailable`.

No process dies.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.poor_machine import READS

FILES = "Too many open files. Raise the limit of open files (ulimit -n)"
MEMORY = "Cannot allocate memory. Give the process more memory (ulimit -v)"


@pytest.mark.parametrize(
    ("condition", "most", "within", "cause", "table"),
    [
        ("open-files", 40, 1, FILES, "reads"),
        ("address-space", 8000, 64, MEMORY, "reads"),
        ("open-files", 100, 2, FILES, "checkpointed"),
        ("address-space", 8000, 64, MEMORY, "checkpointed"),
    ],
)
def test_a_read_without_what_it_needs_is_unavailable_and_no_process_dies(
    condition: str, most: int, within: int, cause: str, table: str
) -> None:
    command = [sys.executable, "-m", "tests.unit.poor_machine", condition, f"0:{most}:{within}", table]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    said = ended.stdout.splitlines()
    assert ended.returncode == 0, f"{ended.returncode} after {said}: {ended.stderr[-2000:]}"
    refused = [line for line in said if not line.endswith(" answered")]
    assert [line for line in refused if line.split()[2] != "Unavailable" or cause not in line] == []
    assert {line.split()[1] for line in refused} == set(READS)
    assert {line.split()[1] for line in said if line.startswith(f"{most} ")} == set(READS)
    assert [line for line in said if line.startswith(f"{most} ") and not line.endswith(" answered")] == []
