"""Two processes append to one local table concurrently. Every commit becomes one version, and no row is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from tidemark import Table

COMMITS = 100
APPENDER = """
import sys
from tidemark import Table
table = Table.open(sys.argv[1])
for number in range(int(sys.argv[3])):
    table.append([{"writer": sys.argv[2], "number": number}])
"""


def test_two_processes_of_a_hundred_appends_make_two_hundred_versions(tmp_path: Path) -> None:
    uri = str(tmp_path / "events")
    Table.create(uri, pa.schema([("writer", pa.string()), ("number", pa.int64())]))
    appenders = [
        subprocess.Popen([sys.executable, "-c", APPENDER, uri, name, str(COMMITS)]) for name in ("first", "second")
    ]
    assert [appender.wait() for appender in appenders] == [0, 0]

    table = Table.open(uri)
    assert table.version == 2 * COMMITS
    entries = table.history()
    assert [entry.version for entry in entries] == list(range(2 * COMMITS, -1, -1))
    assert len({entry.commit_id for entry in entries}) == 2 * COMMITS + 1
    times = [entry.timestamp for entry in entries]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)
    rows = sorted((row["writer"], row["number"]) for row in table.scan().to_arrow().to_pylist())
    assert rows == sorted((writer, number) for writer in ("first", "second") for number in range(COMMITS))
