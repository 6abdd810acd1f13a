"""A Lance dataset that grows, with indexes: a program for the Python that `peers.lance_python` returns.

python -m benchmarks.programs.lance_upkeep FOLDER FILES EVERY appends each Parquet file of a folder, runs
`compact_files` after every so many and `optimize_indices` after each, and prints the processor seconds of the latter.
"""

import json
import sys
import time
from pathlib import Path

import lance
import pyarrow.parquet as pq


def main(folder: str, files: str, every: str) -> None:
    """Print what keeping the indexes took."""
    first, *others = sorted(Path(files).iterdir())
    dataset = lance.write_dataset(pq.read_table(first), folder)
    started = time.process_time()
    dataset.create_scalar_index("line", "INVERTED")
    dataset.create_scalar_index("level", "BITMAP")
    taken = time.process_time() - started
    for number, file in enumerate(others, 2):
        dataset = lance.write_dataset(pq.read_table(file), folder, mode="append")
        if number % int(every) == 0:
            dataset.optimize.compact_files()
        started = time.process_time()
        dataset.optimize.optimize_indices()
        taken += time.process_time() - started
    found = dataset.to_table(full_text_query="tide", limit=10).num_rows
    if not found:
        sys.exit("Lance finds no tide")
    print(json.dumps({"seconds": taken}))


if __name__ == "__main__":
    main(*sys.argv[1:])
