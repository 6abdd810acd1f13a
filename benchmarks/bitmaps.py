"""The benefit of a bitmap index. Queries for rare values of a wide table run with and without the index.

For the table on a local disk, DuckDB also runs these queries, over the files of the table without an index. For remote
storage, the same queries use an S3 API that answers after 20 ms. Each query starts with empty caches. The metrics are
milliseconds, requests and bytes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import duckdb
import numpy as np
import pyarrow as pa

import tidemark as tm
from benchmarks.metrics import Metric, beside, command, in_turns
from benchmarks.read_servers import ENVIRONMENT, Place, serving
from benchmarks.remote_reads import Ours, asked
from storage_core.data.settings.index import IndexDefinition
from tests.support.upkeep import catch_up

SPLITS, COLUMNS, HOSTS = 8, 40, 1_000
RARE = "host 5 that is rare"
QUERIES: Mapping[str, str] = {
    "whole rows with a rare value": "select * from t where host = 'host 5 that is rare'",
    "rows without a value": "select * from t where host is null",
    "count of a value that is nowhere": "select count(*) from t where host = 'host 5x'",
    "sum over one value of a thousand": "select sum(c1) from t where host = 'host 5'",
    "sum over half of the values": "select sum(c1) from t where host < 'host 5'",
}
"""The values in these queries, except null, lie between each split's minimum and maximum. Statistics prune no split."""
INDEX = IndexDefinition(name="hosts", kind="bitmap", columns=("host",))


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield milliseconds, requests and MiB of every query, with and without the index."""
    rows = 2_000 if small else 250_000
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        yield from _local(Path(folder), rows, 3 if small else 9)
        yield from _remote(Path(folder), rows, dict([*QUERIES.items()][: 2 if small else None]))


def _local(root: Path, rows: int, runs: int) -> Iterator[Metric]:
    indexed, plain = (_written(str(root / name), rows, is_indexed=name == "indexed") for name in ("indexed", "plain"))
    with duckdb.connect() as connection:
        connection.read_parquet([str(root / "plain" / str(each["path"])) for each in plain.files()]).create_view("t")
        for name, query in QUERIES.items():
            ask = (partial(_arrow, indexed, query), partial(_arrow, plain, query), partial(_duck, connection, query))
            ours, without, theirs = in_turns(ask, runs)
            label = f"{SPLITS * rows:,} rows on disk, {name}"
            yield Metric(name=label, value=ours, unit="ms", against="DuckDB read_parquet", ratio=theirs / ours)
            yield beside(f"{label}, without the index", without, ours)


def _remote(root: Path, rows: int, queries: Mapping[str, str]) -> Iterator[Metric]:
    os.environ.update(ENVIRONMENT)
    with ExitStack() as stack:
        server = urlsplit(stack.enter_context(serving("s3")))
        endpoint = parse_qs(server.query)["endpoint"][0]
        slow = stack.enter_context(serving("slow", str(urlsplit(endpoint).port)))
        for name in ("indexed", "plain"):
            table = _written(Place(server.netloc, name, endpoint).uri, rows, is_indexed=name == "indexed")
            table.sql("select count(*) from t").to_arrow()  # starts the query process
        for name, query in queries.items():
            with_index, without = (
                asked(Ours(Place(server.netloc, each, slow), root), query, slow) for each in ("indexed", "plain")
            )
            label, against = f"{SPLITS * rows:,} rows on S3, cold, {name}", "without the index"
            pairs = {
                "ms": (with_index.taken_ms, without.taken_ms),
                "requests": (with_index.requests, without.requests),
                "MiB": (with_index.bytes / 2**20, without.bytes / 2**20),
            }
            for unit, (ours, theirs) in pairs.items():
                yield Metric(name=f"{label}, {unit}", value=ours, unit=unit, against=against, ratio=theirs / ours)


def _written(uri: str, rows: int, *, is_indexed: bool) -> tm.Table:
    """Make a table of `SPLITS` splits.

    One split has a few rows with a rare value, and another has a few rows without a value.
    """
    chance = np.random.default_rng(11)
    table: tm.Table | None = None
    for split in range(SPLITS):
        hosts = np.array([f"host {each}" for each in range(HOSTS)], object)[chance.integers(0, HOSTS, rows)]
        for place, value in ((3, RARE), (5, None)):
            if split == place:
                hosts[rows // 2 : rows // 2 + 3] = value
        columns = {f"c{each}": chance.integers(0, 1_000 * (each + 1), rows) for each in range(COLUMNS - 1)}
        batch = pa.table({"host": pa.array(hosts, pa.string()), **columns})
        if table is None:
            table = tm.Table.create(uri, batch.schema, indexes=[INDEX] if is_indexed else [])
        table.append(batch)
    if table is None:
        raise AssertionError("there are splits")
    if is_indexed:
        catch_up(table)
    return table.refresh()


def _arrow(table: tm.Table, query: str) -> pa.Table:
    return table.sql(query).to_arrow()


def _duck(connection: duckdb.DuckDBPyConnection, query: str) -> pa.Table:
    return connection.sql(query).to_arrow_table()


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
