"""The start time of the library and of commands, on a small table with a checkpoint, compared to bare Python.

Each program is a separate process. The programs run in turns, and a metric is the median of a program's runs. The first
run of a program may compile modules and fill caches, so the first turn of all programs does not count. The processor
seconds include the threads of libraries.
"""

from __future__ import annotations

import datetime as dt
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

import tidemark as tm
from benchmarks.metrics import Metric, command

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("path", pa.string()), ("status", pa.int64())])

# The target in seconds on a machine without other load.
IMPORT_AIM = 0.4
COMMAND_AIM = 0.7
BARE = "bare Python"
LIBRARIES_OF_A_QUERY = "import pyarrow, duckdb"

LIBRARIES: Mapping[str, str] = {
    BARE: "pass",
    "import pyarrow": "import pyarrow",
    LIBRARIES_OF_A_QUERY: "import pyarrow, duckdb",
    "tm.Table": "import tidemark as tm; tm.Table",
}
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "tidemark --help": ("--help",),
    "tidemark describe": ("describe", "./logs"),
    "tidemark files": ("files", "./logs"),
    "tidemark history": ("history", "./logs"),
    "tidemark sql": ("sql", "./logs", "select count(*) from t"),
    "tidemark search": ("search", "./logs", "hello", "--index", "words"),
    "tidemark get": ("get", "./people", "1"),
}


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the wall-clock seconds and processor seconds of each program."""
    with tempfile.TemporaryDirectory() as folder:
        _make_tables(Path(folder))
        programs = {name: [sys.executable, "-c", text] for name, text in LIBRARIES.items()}
        programs |= {name: [sys.executable, "-m", "tidemark", *words] for name, words in COMMANDS.items()}
        seconds = _seconds(programs, Path(folder), runs=1 if small else 10)
    for name, (wall, processor) in seconds.items():
        aim = IMPORT_AIM if name == "tm.Table" else COMMAND_AIM if name in COMMANDS else None
        against = None if aim is None else f"{aim} s"
        yield Metric(
            name=name, value=wall, unit="s", against=against, ratio=None if aim is None else aim / wall, aim=aim and 1
        )
        peer = None if name == BARE else BARE if name in LIBRARIES else LIBRARIES_OF_A_QUERY
        ratio = None if peer is None else seconds[peer][1] / processor
        yield Metric(name=f"{name}, processor", value=processor, unit="s", against=peer, ratio=ratio)


def _make_tables(folder: Path) -> None:
    """Create the table `logs` with a checkpoint and a full-text index, and the table `people` with a key."""
    words = {"name": "words", "kind": "fulltext", "columns": ["path"]}
    logs = tm.Table.create(str(folder / "logs"), SCHEMA, time_column="at", indexes=[words])
    while logs.snapshot.checkpoint_version is None:
        logs.append({"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "path": "hello world", "status": 200})
        logs = tm.Table.open(logs.uri)
    people = tm.Table.create(str(folder / "people"), pa.schema([("id", pa.int64())]), primary_key="id")
    people.append({"id": 1})


def _seconds(programs: Mapping[str, Sequence[str]], folder: Path, *, runs: int) -> dict[str, tuple[float, float]]:
    """Return the median wall-clock seconds and processor seconds of each program."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for turn in range(runs + 1):
        for name, program in programs.items():
            before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(program, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
            wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
            if turn:
                used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
                measured[name].append((wall, used))
    return {
        name: (statistics.median(wall for wall, _ in each), statistics.median(used for _, used in each))
        for name, each in measured.items()
    }


if __name__ == "__main__":
    sys.exit(command(measure, __doc__ or ""))
