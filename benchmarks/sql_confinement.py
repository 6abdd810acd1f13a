"""The time of one `sql` call for several numbers of splits, compared to another release.

Each query runs in both releases in turn.

    python -m benchmarks.sql_confinement [seconds] [folder of another release]

Each release has its own process, so other load affects both releases equally. After each pair of measurements, the two
releases change their order. The output contains the medians of the times. A pair contains one measurement of each
release and gives one difference. The output also contains the medians of these differences.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

QUERIES = {
    "count": "select count(*) from t where n between 10 and 20",
    "group": "select s, count(*), avg(n) from t group by s order by s",
    "cte": "with x as (select s, max(n) as top from t group by s) select * from x join t on t.n = x.top limit 5",
}
SPLITS = (1, 200)
ROWS = 1_000


def answer(folder: str) -> None:
    """Answer the queries that arrive one per line. Each answer contains the milliseconds that the query took."""
    from storage_core.table import Table  # this import loads the code of the measured release

    tables = {}
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("s", pa.string())])
    for count in SPLITS:
        table = Table.create(f"{folder}/{count}", schema, time_column="at", window="1h")
        total = count * ROWS
        hour = 3_600_000_000
        at = pa.array([each // ROWS * hour for each in range(total)], pa.int64()).cast(schema.field("at").type)
        table.append(pa.table([at, list(range(total)), [f"host{each % 50}" for each in range(total)]], schema=schema))
        table.sql("select count(*) from t")
        tables[count] = table
    for line in sys.stdin:
        number, name = line.split()
        start = time.perf_counter()
        tables[int(number)].sql(QUERIES[name])
        print(1000 * (time.perf_counter() - start), flush=True)


def main(seconds: float, other: str | None) -> None:
    """Print one line for each table and query."""
    here = str(Path(__file__).resolve().parents[1])
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        processes = [_started(each, f"{folder}/{at}") for at, each in enumerate([here, other] if other else [here])]
        questions = [(count, name) for count in SPLITS for name in QUERIES]
        taken: dict[tuple[int, str], list[list[float]]] = {each: [[] for _ in processes] for each in questions}
        end, turn = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            for question, pairs in taken.items():
                turn += 1
                for at in range(len(processes))[:: 1 if turn % 2 else -1]:
                    pairs[at].append(_ask(processes[at], question))
        for each in processes:
            each.communicate()
    for (count, name), pairs in taken.items():
        print(f"{count} splits, {name}: {_shown(pairs)} ({len(pairs[0])} times)")


def _started(release: str, folder: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--answer", folder]
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": release}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _ask(process: subprocess.Popen[str], question: tuple[int, str]) -> float:
    questions, answered = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
    questions.write(f"{question[0]} {question[1]}\n")
    questions.flush()
    return float(answered.readline())


def _shown(taken: Sequence[Sequence[float]]) -> str:
    mine, *others = taken
    shown = f"{statistics.median(mine):.1f} ms"
    for theirs in others:
        more = statistics.median(one - other for one, other in zip(mine, theirs, strict=True))
        shown += f", the other {statistics.median(theirs):.1f} ms, pairs differ by {more:+.1f} ms"
    return shown


if __name__ == "__main__":
    if sys.argv[1:2] == ["--answer"]:
        answer(sys.argv[2])
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0, sys.argv[2] if len(sys.argv) > 2 else None)
