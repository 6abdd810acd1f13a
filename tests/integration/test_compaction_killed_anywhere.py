"""The driver of a compaction is killed at random moments, during its tasks and during its commits.

`tests/e2e/test_killed_compaction.py` kills the driver just before and just after a commit. This test kills the driver
at random moments. After a kill, every window is either unchanged or completely compacted, and the next run finishes the
work. The collector removes the leftover objects after the horizon. `TIDEMARK_SCALE` increases the number of kills.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from jobs.command import to_arguments
from jobs.spark.java import ROOT
from jobs.spark.spark import Spark
from storage_core.data.steps import Collect, Compact
from storage_core.log.job_run import run
from storage_core.store.memory import MemoryStore
from storage_core.store.resolve import open_store
from tests.support.copies import copy_into
from tests.support.scale import scaled
from tests.support.uneven_windows import WINDOWS, create, live_splits, rows_of, stored_splits
from tidemark import Table

pytestmark = pytest.mark.spark

KILLS = scaled(1)
LONGEST_S = 0.2
AN_HOUR_MS = 3_600_000


@contextmanager
def compaction(uri: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the job as a process, and end the process after the block."""
    command = [sys.executable, "-m", "jobs", "compact", *to_arguments(Compact(table_uri=uri, master="local[2]"))]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=output)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def wait_for_outputs(uri: str, wanted: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the given number of new splits is stored, or until the job has ended."""
    before = len(stored_splits(uri))
    while len(stored_splits(uri)) < before + wanted and process.poll() is None:
        time.sleep(0.005)


def compacted(table: Table, inputs: set[str]) -> bool:
    """Return True if the table is compacted, and False if it is unchanged. Fail for any other state."""
    live = {add.path for add in live_splits(table)}
    if live == inputs:
        return False
    assert not live & inputs, "every window in one step"
    assert len(live) == WINDOWS
    return True


def test_wherever_the_driver_is_killed_all_windows_are_compacted_or_none(tmp_path: Path) -> None:
    original = MemoryStore("original")
    create(original)

    def copy(name: str) -> str:
        uri = (tmp_path / name).as_uri()
        copy_into(open_store(uri), original)
        return uri

    random = Random(20_150_101)
    uri = copy("killed")
    expected, inputs = rows_of(Table.open(uri)), {add.path for add in live_splits(Table.open(uri))}
    for number in range(KILLS):
        with compaction(uri, tmp_path / f"{number}.log") as process:
            wait_for_outputs(uri, random.randint(1, WINDOWS), process)  # no fault is possible before the first output
            time.sleep(random.uniform(0.0, LONGEST_S))
        table = Table.open(uri)
        assert rows_of(table) == expected
        if compacted(table, inputs):
            uri = copy(f"killed-{number}")
    with compaction(uri, tmp_path / "last.log") as process:
        assert process.wait() == 0, (tmp_path / "last.log").read_text()
    table = Table.open(uri)
    assert compacted(table, inputs)
    assert rows_of(table) == expected
    assert [entry.operation for entry in table.history()].count("COMPACT") == 1
    assert_collected_after_the_horizon(table, inputs)


def assert_collected_after_the_horizon(table: Table, inputs: set[str]) -> None:
    expected = rows_of(table)
    live = {add.path for add in live_splits(table)}
    orphans = stored_splits(table.uri) - inputs - live
    run(Collect(table_uri=table.uri, horizon_ms=AN_HOUR_MS), Spark())
    assert stored_splits(table.uri) == inputs | live | orphans, "they may be the work of a run that is under way"
    run(Collect(table_uri=table.uri, horizon_ms=0), Spark())
    assert stored_splits(table.uri) == inputs | live
    assert rows_of(Table.open(table.uri)) == expected
