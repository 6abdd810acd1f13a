"""Measures lookups by key and by full text in a Lance dataset.

The Python of `peers.lance_python` runs this program.

Usage: `python -m benchmarks.programs.lance_reads FOLDER ROWS_AS_PARQUET COLUMN REQUESTS_AS_JSON`. The program writes
the rows into a dataset with an index on the column. The index is an inverted index for text, and a B-tree for any other
type. For a B-tree, a request finds the row of one key. For text, a request finds ten rows that contain the text. The
program prints the milliseconds of each request as JSON, in the order of the requests.
"""

import json
import sys
import time

import lance
import pyarrow as pa
import pyarrow.parquet as pq


def main(folder: str, rows: str, column: str, requests: str) -> None:
    """Print the times of the requests."""
    table = pq.read_table(rows)
    is_text = pa.types.is_string(table.schema.field(column).type)
    dataset = lance.write_dataset(table, f"{folder}/{column}.lance")
    dataset.create_scalar_index(column, "INVERTED" if is_text else "BTREE")
    asked = json.loads(requests)
    taken = []
    for request in [asked[0], *asked]:  # the first request opens the index
        wanted = {"full_text_query": request, "limit": 10} if is_text else {"filter": f"{column} = {request}"}
        started = time.perf_counter()
        found = dataset.to_table(**wanted)
        taken.append((time.perf_counter() - started) * 1000)
        if not found.num_rows:
            sys.exit(f"Lance finds no {request}")
    print(json.dumps(taken[1:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
