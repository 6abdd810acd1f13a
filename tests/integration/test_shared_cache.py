"""Threads and processes that share one damaged cache get correct answers, and the cache stays below its limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage_core.store.pieces import BoundedFolder
from tests.support.elsewhere import open_elsewhere
from tests.support.scale import scaled
from tidemark import Table

ROOT = Path(__file__).resolve().parents[2]
SPLITS = 40
ROWS = 3_000
COLUMNS = 8
MIB = 6
"""The size limit of the cache in MiB. The table is larger than this limit."""
READS = scaled(2)
CROWD = (16, 1, 1, 1, 1)
"""The number of threads of each process."""
KILLED = """
import os, signal, sys
from pathlib import Path
from storage_core.store import pieces
from tests.support.elsewhere import open_elsewhere
left, write = [int(sys.argv[2])], pieces._write_at
def torn(file, data, start):
    left[0] -= 1
    if left[0] < 0:
        write(file, data[: len(data) // 2], start)
        os.kill(os.getpid(), signal.SIGKILL)
    write(file, data, start)
pieces._write_at = torn
open_elsewhere(Path(sys.argv[1])).scan(["c0"]).to_arrow()
"""
"""A process that reads through the cache and is killed during one of its writes."""


def make_table(folder: Path) -> None:
    random = np.random.default_rng(1)
    times = np.repeat(np.arange(SPLITS) * 3_600_000_000, ROWS)
    columns = {f"c{each}": pa.array(random.integers(0, 2**62, len(times))) for each in range(COLUMNS)}
    rows = pa.table({"time": pa.array(times, pa.timestamp("us", "UTC")), **columns})
    table = Table.create(str(folder), rows.schema, time_column="time", window="1h")
    assert table.append(rows).splits == SPLITS
    table.log.checkpoint(table.snapshot)


def test_a_crowd_reads_right_answers_through_one_cache_that_is_damaged(tmp_path: Path) -> None:
    table, cache = tmp_path / "table", tmp_path / "cache"
    make_table(table)
    environment = {**os.environ, "TIDEMARK_CACHE_DIR": str(cache), "TIDEMARK_CACHE_MIB": str(MIB)}
    command = [sys.executable, "-m", "tests.integration.cache_reader", str(table)]
    processes = [
        subprocess.Popen(
            [*command, str(threads), str(READS * (4 if threads == 1 else 1)), str(number)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, threads in enumerate(CROWD)
    ]
    found = [json.loads(process.communicate()[0]) for process in processes]
    largest = max(each.pop("largest") for each in found)
    seen = sum(map(Counter, found), Counter[str]())
    sys.stdout.write(f"{dict(seen)}, at most {largest:,} of {MIB * 2**20:,} bytes\n")
    assert [process.returncode for process in processes] == [0] * len(CROWD)
    assert seen["reads"] == READS * (16 + 4 * 4)
    assert (seen["wrong"], seen["retried"], seen["over"]) == (0, 0, 0)
    assert min(seen["hits"], seen["misses"], seen["damaged"]) > 0
    assert largest <= MIB * 2**20
    assert BoundedFolder(cache, 1).entries()


@pytest.mark.parametrize("writes", [0, 1, 5])
def test_a_process_that_is_killed_while_it_writes_leaves_nothing_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """The first write of the process is a manifest, and later writes are splits."""
    table, cache = tmp_path / "table", tmp_path / "cache"
    make_table(table)
    monkeypatch.setenv("TIDEMARK_CACHE_DIR", str(cache))
    monkeypatch.setenv("TIDEMARK_CACHE_MIB", "64")
    ended = subprocess.run([sys.executable, "-c", KILLED, str(table), str(writes)], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(BoundedFolder(cache, 1).entries()) > 0
    expected = Table.open(str(table)).scan(["c0"]).to_arrow()
    for is_whole in (False, True):
        opened = open_elsewhere(table)
        assert opened.scan(["c0"]).to_arrow().equals(expected)
        assert (opened.cache_counts.misses == 0) == is_whole
