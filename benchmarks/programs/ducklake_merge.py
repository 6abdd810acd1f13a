"""Measures merges of sorted files in a DuckLake. The Python of `peers.ducklake_python` runs this program.

Usage: `python -m benchmarks.programs.ducklake_merge FOLDER ORDER REPEATS FILE...`. Each repeat uses a new lake. The
program registers the files in a table of this lake. The table is SORTED BY the order. The program merges the files into
one file with zstd level 3 on one thread. The program prints JSON: the processor seconds of each merge, the resulting
bytes, and the path of the file. The first merge is a warm-up and does not count.
"""

import json
import sys
import time
from pathlib import Path

import duckdb

from benchmarks.programs.ducklake import add_files, attached, create_like


def main(folder: str, order: str, repeats: str, *files: str) -> None:
    """Print the times of the merges."""
    taken, merged = [], []
    for run in range(int(repeats) + 1):
        lake = Path(folder) / str(run)
        lake.mkdir()
        connection = _lake(lake, order, files)
        started = time.process_time()
        connection.execute("CALL lake.merge_adjacent_files()")
        taken.append(time.process_time() - started)
        merged = connection.execute(
            "SELECT data_file, data_file_size_bytes FROM ducklake_list_files('lake', 'points')"
        ).fetchall()
        connection.close()
        if len(merged) != 1:
            sys.exit(f"DuckLake left {len(merged)} files instead of one")
    print(json.dumps({"seconds": taken[1:], "path": merged[0][0], "bytes": merged[0][1]}))


def _lake(folder: Path, order: str, files: tuple[str, ...]) -> duckdb.DuckDBPyConnection:
    connection = attached(folder, threads=1)
    for option, value in (("parquet_compression", "zstd"), ("parquet_compression_level", 3)):
        connection.execute(f"CALL lake.set_option('{option}', '{value}')")
    connection.execute("CALL lake.set_option('target_file_size', '8GB')")
    create_like(connection, "points", files[0])
    connection.execute(f"ALTER TABLE lake.points SET SORTED BY ({order})")
    add_files(connection, "points", files)
    return connection


if __name__ == "__main__":
    main(*sys.argv[1:])
