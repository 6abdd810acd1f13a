"""A growing Lance dataset with indexes. The Python of `peers.lance_python` runs this program.

Usage: `python -m benchmarks.programs.lance_maintenance FOLDER FILES EVERY`. The program appends each Parquet file of a
folder. The program runs `optimize_indices` after each file, and `compact_files` after every EVERY files. The program
prints the processor seconds of `optimize_indices`.
"""

import json
import sys
import time
from pathlib import Path

import lance
import pyarrow.parquet as pq


def main(folder: str, files: str, every: str) -> None:
    """Print the cost of the indexes."""
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
