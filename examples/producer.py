"""A demo producer that appends the first departures of one airport in 2013 to the raw log, a few rows at a time.

    python -m examples.producer JFK

The producer writes the id of each acknowledged row to a file next to the stores. The demo compares this file with the
table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from examples.datasets import flights
from storage_core.change.declaration import load_raw_log
from storage_core.write.raw_log.history import RawStore
from storage_core.write.raw_log.records import RawLimits
from storage_core.write.raw_log.writer import RawLog

RAW_LOG = Path("raw_logs/departures.yaml")
ROWS = 2_000
ROWS_AT_ONCE = 10
PAUSE_SECONDS = 0.01
SEGMENT_MS = 1_000


def acknowledged_file(airport: str) -> Path:
    """Return the path of the file that contains one line per acknowledged row."""
    return Path("raw/departures") / f"{airport}.acknowledged"


def departures(airport: str) -> pa.Table:
    """Return the rows that a producer writes for an airport. The rows have the columns of `tables/departures.yaml`."""
    found = flights()
    found = found.filter(pc.equal(found.column("origin"), airport)).slice(0, ROWS)
    ids = pa.array([f"{airport}-{number:04}" for number in range(found.num_rows)])
    names = {"time_hour": "time", "carrier": "carrier", "flight": "flight", "tailnum": "tailnum", "dest": "dest"}
    columns = [found.column(name) for name in names]
    return pa.Table.from_arrays([ids, *columns, found.column("dep_delay")], ["id", *names.values(), "delay"])


def main(arguments: Sequence[str]) -> int:
    """Append all rows, and return the exit code."""
    (airport,) = arguments
    rows = departures(airport)
    stores = [RawStore(each.uri, mandatory=each.mandatory) for each in load_raw_log(RAW_LOG).stores]
    file = acknowledged_file(airport)
    file.parent.mkdir(parents=True, exist_ok=True)
    with RawLog(stores, limits=RawLimits(segment_ms=SEGMENT_MS)) as log, file.open("w", encoding="utf-8") as told:
        for start in range(0, rows.num_rows, ROWS_AT_ONCE):
            some = rows.slice(start, ROWS_AT_ONCE)
            log.append("departures", some)
            told.writelines(f"{each}\n" for each in some.column("id").to_pylist())
            told.flush()
            time.sleep(PAUSE_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
