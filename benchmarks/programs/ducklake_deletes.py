"""Measures the times of DuckLake statements. The Python of `peers.ducklake_python` runs this program.

Usage: `python -m benchmarks.programs.ducklake_deletes FOLDER RUNS STATEMENTS_AS_JSON QUERY FILE...`. Each run of a
statement uses a new lake. The program registers the files in this lake as the table `t`. The program prints JSON with
the median seconds of each statement, in the order of the statements. The JSON also contains the median milliseconds of
the query before and after the first statement.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import duckdb

from benchmarks.programs.ducklake import add_files, attached, create_like


def main(folder: str, runs: str, statements: str, query: str, *files: str) -> None:
    """Print the times of the statements and of the query."""
    lakes = (Path(folder) / str(number) for number in range(1_000_000))
    taken = [
        statistics.median(_seconds(_lake(next(lakes), files), statement) for _ in range(int(runs)))
        for statement in json.loads(statements)
    ]
    connection = _lake(next(lakes), files)
    before = _milliseconds(connection, query)
    _seconds(connection, json.loads(statements)[0])
    print(json.dumps([taken, before, _milliseconds(connection, query)]))


def _lake(folder: Path, files: tuple[str, ...]) -> duckdb.DuckDBPyConnection:
    folder.mkdir(parents=True)
    connection = attached(folder, threads=2)
    create_like(connection, "t", files[0])
    add_files(connection, "t", files)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("USE lake")
    return connection


def _seconds(connection: duckdb.DuckDBPyConnection, statement: str) -> float:
    return _taken(lambda: connection.execute(statement))


def _milliseconds(connection: duckdb.DuckDBPyConnection, query: str) -> float:
    times = [_taken(lambda: connection.sql(query).execute()) for _ in range(10)]  # type: ignore[operator]
    return 1000 * statistics.median(times[1:])


def _taken(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main(*sys.argv[1:])
