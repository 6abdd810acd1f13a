"""Measures queries of a DuckLake. The Python of `peers.ducklake_python` runs this program.

Usage: `python -m benchmarks.programs.ducklake_reads FOLDER RUNS QUERIES_AS_JSON FILE...`. The program registers the
files in a new lake as the table `t`. The program runs each query once as a warm-up, and then RUNS times. The program
prints the median milliseconds of each query as JSON, in the order of the queries.
"""

import json
import statistics
import sys
import time

from benchmarks.programs.ducklake import add_files, attached, create_like


def main(folder: str, runs: str, queries: str, *files: str) -> None:
    """Print the times of the queries."""
    connection = attached(folder, threads=2)
    create_like(connection, "t", files[0])
    add_files(connection, "t", files)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("USE lake")
    medians = []
    for query in json.loads(queries):
        taken = []
        for _ in range(int(runs) + 1):
            started = time.perf_counter()
            connection.sql(query).execute()  # type: ignore[operator]  # the stubs have it for a property
            taken.append((time.perf_counter() - started) * 1000)
        medians.append(statistics.median(taken[1:]))
    print(json.dumps(medians))


if __name__ == "__main__":
    main(*sys.argv[1:])
