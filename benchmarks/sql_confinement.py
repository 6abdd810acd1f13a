"""What one `sql` costs, by the number of splits: run it on two releases in turn to see what a change of one costs.

    python -m benchmarks.sql_confinement [seconds]

Each round asks three queries of a table of one split and of one of 200; printed are the medians.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time

import pyarrow as pa

from tidemark import Table

QUERIES = {
    "count": "select count(*) from t where n between 10 and 20",
    "group": "select s, count(*), avg(n) from t group by s order by s",
    "cte": "with x as (select s, max(n) as top from t group by s) select * from x join t on t.n = x.top limit 5",
}
SPLITS = (1, 200)
ROWS = 1_000


def tables(folder: str) -> dict[int, Table]:
    """Return a table of each number of splits, verified by a first query."""
    made = {}
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("s", pa.string())])
    for count in SPLITS:
        table = Table.create(f"{folder}/{count}", schema, time_column="at", window="1h")
        total = count * ROWS
        hour = 3_600_000_000
        at = pa.array([each // ROWS * hour for each in range(total)], pa.int64()).cast(schema.field("at").type)
        table.append(pa.table([at, list(range(total)), [f"host{each % 50}" for each in range(total)]], schema=schema))
        table.sql("select count(*) from t")
        made[count] = table
    return made


def main(seconds: float) -> None:
    """Print one line per table and query: median milliseconds, and how often it was asked."""
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        taken: dict[tuple[int, str], list[float]] = {}
        made, end = tables(folder), time.monotonic() + seconds
        while time.monotonic() < end:
            for count, table in made.items():
                for name, query in QUERIES.items():
                    start = time.perf_counter()
                    table.sql(query)
                    taken.setdefault((count, name), []).append(1000 * (time.perf_counter() - start))
        for (count, name), all_ms in taken.items():
            print(f"{count} splits, {name}: {statistics.median(all_ms):.1f} ms ({len(all_ms)} times)")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
