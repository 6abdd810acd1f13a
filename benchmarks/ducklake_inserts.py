"""Inserts into a DuckLake, timed: a program for the Python that `peers.ducklake_python` returns, which has no Arrow.

python ducklake_inserts.py FOLDER ROWS_AS_PARQUET INSERTS WARM_UP prints the milliseconds of each insert as JSON.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

import duckdb  # an older one than the project's


def main(folder: str, rows: str, inserts: str, warm_up: str) -> None:
    """Print the milliseconds of each insert."""
    package = importlib.util.find_spec("duckdb_extension_ducklake")
    if package is None or package.origin is None:
        sys.exit("this Python has no DuckLake")
    (extension,) = Path(package.origin).parent.rglob("*.duckdb_extension")
    connection = duckdb.connect()
    connection.execute(f"LOAD '{extension}'")
    connection.execute(f"ATTACH 'ducklake:{folder}/catalog.ducklake' AS lake (DATA_PATH '{folder}/data/')")
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
