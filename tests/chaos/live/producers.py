"""Programs that produce rows and journal them: `python -m tests.chaos.live.producers land|write|log FOLDER`.

Each program writes a line to its journal before a call and after it. The line is on disk before the program continues.
So if a program is killed, only the outcome of its last call can be unknown. All programs end when the folder contains a
file `stop`.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from storage_core.table import Table
from storage_core.write.raw_log.history import RawStore
from storage_core.write.raw_log.records import RawLimits
from storage_core.write.raw_log.writer import RawLog
from storage_core.write.region.records import WriterOptions
from tests.chaos.live.tables import LANDED

ROWS = 20
LATE_ROWS = 2
"""The number of late rows in a landed file of `visits`."""

SECONDS_BETWEEN = {"land": 10.0, "write": 0.5, "log": 0.5}
FLUSH_ROWS = 100


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a producer: its rows, its start (seconds since the epoch), and whether it was acknowledged."""

    at: float
    number: int
    rows: list[dict[str, object]]
    is_acknowledged: bool


@dataclass(slots=True)
class Journal:
    """The calls of one producer."""

    folder: Path
    name: str

    def call(self, number: int, rows: list[dict[str, object]], act: Callable[[], object]) -> None:
        """Write a line, make the call, and write a second line."""
        self._write({"at": time.time(), "number": number, "rows": rows})
        act()
        self._write({"done": number})

    def calls(self) -> list[Call]:
        """Return all calls. The last line of the journal may be incomplete."""
        lines = (self._file.read_text(encoding="utf-8") if self._file.exists() else "").split("\n")[:-1]
        read = [json.loads(line) for line in lines]
        done = {each["done"] for each in read if "done" in each}
        return [Call(**each, is_acknowledged=each["number"] in done) for each in read if "rows" in each]

    @property
    def _file(self) -> Path:
        return self.folder / f"{self.name}.journal"

    def _write(self, line: dict[str, object]) -> None:
        file = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, json.dumps(line).encode() + b"\n")
        os.fsync(file)
        os.close(file)


def numbers(folder: Path, name: str) -> Iterator[int]:
    """Yield the number of each call when the call is due. End when the program must stop."""
    first = len(Journal(folder, name).calls())
    for number in count(first):
        if (folder / "stop").exists():
            return
        yield number
        time.sleep(SECONDS_BETWEEN[name])


def land(folder: Path) -> None:
    """Land a file of rows in each table that ingests files. A file appears as a whole or not at all."""
    for number in numbers(folder, "land"):
        now = dt.datetime.now(dt.UTC)
        late = now - dt.timedelta(hours=5)
        rows: list[dict[str, object]] = [
            {"id": f"{number:04}-{row:02}", "time": (late if row < LATE_ROWS else now).isoformat(), "batch": number}
            for row in range(ROWS)
        ]
        text = "".join(f"{json.dumps(row)}\n" for row in rows)

        def act(text: str = text, number: int = number) -> None:
            for table in LANDED:
                made = folder / f"{table}.landing"
                made.write_text(text, encoding="utf-8")
                made.rename(folder / "landing" / table / f"{number:04}.ndjson")

        Journal(folder, "land").call(number, rows, act)


def write(folder: Path) -> None:
    """Put a new row and an earlier row into the keyed table. Acknowledged rows are durable without a close."""
    writer = Table.open(str(folder / "warehouse" / "accounts")).writer(options=WriterOptions(flush_rows=FLUSH_ROWS))
    for number in numbers(folder, "write"):
        rows: list[dict[str, object]] = [{"id": f"a{each}", "n": number} for each in sorted({number, number // 2})]
        Journal(folder, "write").call(number, rows, lambda rows=rows: writer.put(rows))  # type: ignore[misc]
    os._exit(0)


def log(folder: Path) -> None:
    """Append to the raw log."""
    stores = [RawStore(folder / "raw" / "main"), RawStore(folder / "raw" / "copy", mandatory=False)]
    with RawLog(stores, limits=RawLimits(segment_ms=1_000)) as raw_log:
        for number in numbers(folder, "log"):
            rows: list[dict[str, object]] = [{"id": f"r{number}-{row}", "n": number} for row in range(ROWS)]
            Journal(folder, "log").call(number, rows, lambda rows=rows: raw_log.append("readings", rows))  # type: ignore[misc]


PROGRAMS = {"land": land, "write": write, "log": log}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
