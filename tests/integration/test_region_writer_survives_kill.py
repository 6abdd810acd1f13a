"""`kill -9` between acknowledgements: every acknowledged row is there afterwards, and none twice (design page 03)."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage_core.clock import SystemClock
from storage_core.ids import SystemIds
from storage_core.objectstore.local import LocalStore
from storage_core.region import tail
from storage_core.region.writer import RegionWriter
from storage_core.testkit.keyed_table import KeyedTable

REPOSITORY = Path(__file__).parents[2]

# Appends for ever, and says so after each acknowledgement; flushes now and then, so that kills hit flushes as well.
WRITER = """
import os, sys
from pathlib import Path
from storage_core.clock import SystemClock
from storage_core.ids import SystemIds
from storage_core.log.log import TransactionLog
from storage_core.objectstore.local import LocalStore
from storage_core.region.writer import RegionWriter

root, name = sys.argv[1:]
store = LocalStore(Path(root))
with RegionWriter.open(store, TransactionLog(store).snapshot(), clock=SystemClock(), ids=SystemIds()) as writer:
    for number in range(1_000_000):
        keys = [f"{name}-{number}-{part}" for part in range(1 + number % 3)]
        writer.put([{"tailnum": key, "seats": number} for key in keys])
        os.write(1, "".join(key + "\\n" for key in keys).encode())
        if number % 7 == 6:
            writer.flush()
"""


@pytest.mark.parametrize("rounds", [4])
def test_every_acknowledged_row_survives_kills_and_none_is_there_twice(tmp_path: Path, rounds: int) -> None:
    chance = random.Random(20_240_229)
    table = KeyedTable(LocalStore(tmp_path / "planes"), ids=SystemIds()).create()
    acknowledged: set[str] = set()
    for number in range(rounds):
        acknowledged |= _append_until_killed(tmp_path / "planes", f"round{number}", chance.uniform(0.0, 0.12))
        found = tail.unmerged(table.store, table.snapshot, include_wal=True).column("tailnum").to_pylist()
        _check(acknowledged, found)
        if number % 2:
            with RegionWriter.open(table.store, table.snapshot, clock=SystemClock(), ids=SystemIds()) as writer:
                writer.flush()
    assert set(table.rows()) >= acknowledged
    table.merge()
    merged = [str(row["tailnum"]) for row in table.base_rows()]
    _check(acknowledged, merged)
    assert tail.unmerged(table.store, table.snapshot, include_wal=True).num_rows == 0


def _check(acknowledged: set[str], found: list[str]) -> None:
    assert len(found) == len(set(found))
    assert acknowledged <= set(found)
    # What nobody was told about may be there as well, but only whole: all rows of one call or none.
    calls = {key.rsplit("-", 1)[0] for key in set(found) - acknowledged}
    for call in calls:
        number = int(call.rsplit("-", 1)[1])
        assert {f"{call}-{part}" for part in range(1 + number % 3)} <= set(found)


def _append_until_killed(root: Path, name: str, seconds: float) -> set[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), name], stdout=subprocess.PIPE, cwd=REPOSITORY, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(seconds)
    process.kill()
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait() != 0
    assert first
    return set((first + rest[: rest.rfind("\n") + 1]).split())
