"""The cost of queries, compared to other engines. All engines run the same queries on the same files in one process.

The engines run in turns. There are three tables on a local disk: flights by day (365 splits), the same flights in one
split, and 60 columns in one split. DuckDB and Polars read the files of the splits directly, without a log and without
verification. delta-rs (with its DataFusion) and DuckLake read the same files, which are registered as a Delta table and
as a DuckLake table. "First" is the first query of a table that was just opened. "Warm" is the median of the following
queries. `benchmarks.searches` measures searches, and `benchmarks.unmerged` measures lookups.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

import tidemark as tm
from benchmarks import log_search, searches
from benchmarks.metrics import Metric, beside, command, in_turns, seconds
from benchmarks.peers import NotMeasuredError
from benchmarks.read_peers import delta_queries, ducklake_queries
from examples import datasets

QUERIES: Mapping[str, str] = {
    "count": "select count(*) from t",
    "one column": "select sum({number}) from t",
    "group": "select {text}, avg({number}) as mean from t group by {text}",
    "top": "select {text}, {number} from t order by {number} desc nulls last limit 10",
    "two equalities": "select * from t where {text} = '{value}' and {number} = {constant}",
    "range": "select count({number}) from t where {number} between {constant} and {constant} + 10",
    "in": "select count({text}) from t where {text} in ('{value}', 'none')",
    "like": "select count({text}) from t where {text} like '{value}%'",
    "null": "select count(*) from t where {number} is null",
    "distinct": "select count(distinct {text}) from t",
}
OF_FLIGHTS: Mapping[str, str] = {"text": "carrier", "value": "AA", "number": "dep_delay", "constant": "20"}
OF_WIDE: Mapping[str, str] = {"text": "c1", "value": "name 7", "number": "c0", "constant": "5"}
"""The column names and values in the queries for flights, and in the queries for the table `wide`."""

WIDE_COLUMNS = 60
# With many columns or splits, a query may take 1.3 times as long as in DuckDB. With one split, a query may take
# `ONE_AIM_MS` longer than in DuckDB.
MANY_AIM, ONE_AIM_MS = 1 / 1.3, 5.0


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the metrics of queries."""
    flights = datasets.flights()
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        root = Path(folder)
        by_day = flights.slice(0, 20_000) if small else flights
        for case in (
            _Case("flights by day", root / "days", OF_FLIGHTS, _table(root / "days", by_day, time_column="time_hour")),
            _Case("flights in one split", root / "one", OF_FLIGHTS, _table(root / "one", flights)),
            _Case("60 columns", root / "wide", OF_WIDE, _table(root / "wide", wide(20_000 if small else 4_000_000))),
        ):
            yield from case.asked(3 if small else 15, small=small)
    yield from searches.measure(small=small)
    yield from log_search.measure(small=small)


def _table(path: Path, rows: pa.Table, time_column: str | None = None) -> tm.Table:
    daily = time_column is not None
    table = tm.Table.create(
        str(path), rows.schema, time_column=time_column, window="1d" if daily else "auto", coarse_window=daily
    )
    table.append(rows)
    return table


def wide(rows: int) -> pa.Table:
    """Return random numbers and words in 60 columns."""
    chance = np.random.default_rng(7)
    numbers = [pa.array(chance.integers(0, 1_000 + 50 * column, rows)) for column in range(WIDE_COLUMNS // 2)]
    names = pa.array([f"name {each}" for each in range(500)])
    texts = [names.take(pa.array(chance.integers(0, 500, rows))) for _ in range(WIDE_COLUMNS // 2)]
    columns = [each for pair in zip(numbers, texts, strict=True) for each in pair]
    return pa.table(columns, names=[f"c{index}" for index in range(WIDE_COLUMNS)])


@dataclass(frozen=True, slots=True)
class _Case:
    """A table, and the names and values in its queries."""

    name: str
    path: Path
    words: Mapping[str, str]
    table: tm.Table

    def asked(self, runs: int, *, small: bool) -> Iterator[Metric]:
        """Yield the times of each query for Tidemark and for the peers."""
        paths = [self.path / str(each["path"]) for each in self.table.files()]
        files, texts = [*map(str, paths)], {name: each.format(**self.words) for name, each in QUERIES.items()}
        label = f"{self.name}, {f'{len(files)} splits' if len(files) > 1 else '1 split'}"
        ours = dict[str, float]()
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("SET threads = 2")
            connection.execute("SET parquet_metadata_cache = true")
            connection.read_parquet(files).create_view("t")
            polars = pl.SQLContext(t=pl.scan_parquet(files))
            by_delta = delta_queries(paths, self.path.with_name(f"{self.path.name}-delta"))
            for query, text in texts.items():
                opened = tm.Table.open(self.table.uri)
                first = 1000 * seconds(partial(opened.sql, text))
                ours[query], duck, frame, delta = in_turns(
                    (
                        partial(opened.sql, text),
                        partial(_duckdb, connection, text),
                        partial(polars.execute, text, eager=True),
                        partial(by_delta, text),
                    ),
                    runs,
                )
                yield Metric(name=f"{label}, {query}, first", value=first, unit="ms")
                yield self._judged(f"{label}, {query}", ours[query], duck)
                yield beside(f"{label}, {query}, Polars", frame, ours[query])
                yield beside(f"{label}, {query}, delta-rs", delta, ours[query])
        try:
            folder = self.path.with_name(f"{self.path.name}-lake")
            lake = ducklake_queries(paths, folder, [*texts.values()], runs, make=not small)
        except NotMeasuredError as error:
            yield Metric(name=f"{label}, DuckLake (not measured: {error})", value=len(texts), unit="queries")
            return
        for query, taken in zip(texts, lake, strict=True):
            yield beside(f"{label}, {query}, DuckLake", taken, ours[query])

    def _judged(self, name: str, ours: float, duck: float) -> Metric:
        if self.name == "flights in one split":
            ratio, against = (duck + ONE_AIM_MS) / ours, f"DuckDB read_parquet + {ONE_AIM_MS:g} ms"
            return Metric(name=name, value=ours, unit="ms", against=against, ratio=ratio, aim=1.0)
        return Metric(name=name, value=ours, unit="ms", against="DuckDB read_parquet", ratio=duck / ours, aim=MANY_AIM)


def _duckdb(connection: duckdb.DuckDBPyConnection, text: str) -> pa.Table:
    return connection.sql(text).to_arrow_table()


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
