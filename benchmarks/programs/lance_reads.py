"""Lookups by key and full text of a Lance dataset, timed: a program for the Python that `peers.lance_python` returns.

python -m benchmarks.programs.lance_reads FOLDER ROWS_AS_PARQUET COLUMN REQUESTS_AS_JSON writes the rows into a dataset
with an index on the column, an inverted one of text and a B-tree of anything else, asks for each key or for ten rows
of each text, and prints the milliseconds of each request, in their order, as JSON.
"""

import json
import sys
import time

import lance
import pyarrow as pa
import pyarrow.parquet as pq


def main(folder: str, rows: str, column: str, requests: str) -> None:
    """Print what the requests took."""
    table = pq.read_table(rows)
    is_text = pa.types.is_string(table.schema.field(column).type)
    dataset = lance.write_dataset(table, f"{folder}/{column}.lance")
    dataset.create_scalar_index(column, "INVERTED" if is_text else "BTREE")
    asked = json.loads(requests)
    taken = []
    for request in [asked[0], *asked]:  # the first opens the index
        wanted = {"full_text_query": request, "limit": 10} if is_text else {"filter": f"{column} = {request}"}
        started = time.perf_counter()
        found = dataset.to_table(**wanted)
        taken.append((time.perf_counter() - started) * 1000)
        if not found.num_rows:
            sys.exit(f"Lance finds no {request}")
    print(json.dumps(taken[1:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
