"""Measures inserts into a DuckLake. The Python of `peers.ducklake_python` runs this program. This Python has no Arrow.

Usage: `python -m benchmarks.programs.ducklake_inserts FOLDER ROWS_AS_PARQUET INSERTS WARM_UP`. The program prints the
milliseconds of each insert as JSON.
"""

import json
import sys
import time

from benchmarks.programs.ducklake import attached


def main(folder: str, rows: str, inserts: str, warm_up: str) -> None:
    """Print the milliseconds of each insert."""
    connection = attached(folder, threads=2)
    connection.execute(f"CREATE TABLE given AS SELECT * FROM '{rows}'")  # noqa: S608 -- our own path
    connection.execute("CREATE TABLE lake.events AS SELECT * FROM given LIMIT 0")
    taken = []
    for _ in range(int(warm_up) + int(inserts)):
        started = time.perf_counter()
        connection.execute("INSERT INTO lake.events SELECT * FROM given")
        taken.append((time.perf_counter() - started) * 1000)
    print(json.dumps(taken[int(warm_up) :]))


if __name__ == "__main__":
    main(*sys.argv[1:])
