"""Threads and processes that share one cache, while what is in it is damaged: right answers, below the bound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage_core.cache.bounded_folder import BoundedFolder
from tests.support.scale import scaled
from tidemark import Table

ROOT = Path(__file__).resolve().parents[2]
SPLITS = 40
ROWS = 3_000
COLUMNS = 8
MIB = 6
"""What the cache may take, which is less than the table has."""
READS = scaled(2)
CROWD = (16, 1, 1, 1, 1)
"""How many threads the processes have."""


def make_table(folder: Path) -> None:
    random = np.random.default_rng(1)
    times = np.repeat(np.arange(SPLITS) * 3_600_000_000, ROWS)
    columns = {f"c{each}": pa.array(random.integers(0, 2**62, len(times))) for each in range(COLUMNS)}
    rows = pa.table({"time": pa.array(times, pa.timestamp("us", "UTC")), **columns})
    table = Table.create(str(folder), rows.schema, time_column="time", window="1h")
    assert table.append(rows).splits == SPLITS


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
