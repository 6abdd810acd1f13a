"""What answers cost beside the engines that are inside: the same queries over the same files, in turns, in one process.

Three tables on a local disk: flights by day (365 splits), the same flights in one split, and 60 columns in one split.
The peers read the files of the splits themselves, know no log, and verify nothing. "First" is the first query of a
table that was just opened, "warm" the median of those that follow. A
search has tantivy alone beside it, with the same lines in memory, which returns addresses and no rows. Lookups are in
`benchmarks.unmerged`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import tantivy

import tidemark as tm
from benchmarks.metrics import Metric, command, median, seconds
from examples import datasets
from storage_core.index import catch_up
from storage_core.settings.index import IndexDefinition

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
WIDE_COLUMNS = 60
WORDS = ("tide", "ebb", "flood", *(f"word{each}" for each in range(500)))
# Of many columns or splits a query may take 1.3 times as long as DuckDB, of one split so many milliseconds longer.
MANY_AIM, ONE_AIM_MS, SEARCH_AIM_MS = 1 / 1.3, 5.0, 5.0


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the metrics of queries and searches."""
    runs = 3 if small else 15
    flights = datasets.flights()
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        root = Path(folder)
        of_flights = {"text": "carrier", "value": "AA", "number": "dep_delay", "constant": "20"}
        by_day = _table(root / "days", flights.slice(0, 20_000) if small else flights, time_column="time_hour")
        yield from _queries("flights by day", by_day, of_flights, runs)
        yield from _queries("flights in one split", _table(root / "one", flights), of_flights, runs)
        of_wide = {"text": "c1", "value": "name 7", "number": "c0", "constant": "5"}
        columns = _table(root / "wide", wide(20_000 if small else 4_000_000))
        yield from _queries("60 columns", columns, of_wide, runs)
        yield from _searches(root / "search", 5_000 if small else 200_000, runs)


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


def _queries(name: str, table: tm.Table, words: Mapping[str, str], runs: int) -> Iterator[Metric]:
    files = [str(table.store.local_path(str(each["path"]))) for each in table.files()]
    splits = f"{len(files)} splits" if len(files) > 1 else "1 split"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET threads = 2")
        connection.execute("SET parquet_metadata_cache = true")
        connection.read_parquet(files).create_view("t")
        polars = pl.SQLContext(t=pl.scan_parquet(files))
        for query, template in QUERIES.items():
            text = template.format(**words)
            opened = tm.Table.open(table.uri)
            first = 1000 * seconds(partial(opened.sql, text))
            ours, duck, frame = _in_turns(
                (
                    partial(opened.sql, text),
                    partial(_duckdb, connection, text),
                    partial(polars.execute, text, eager=True),
                ),
                runs,
            )
            label = f"{name}, {splits}, {query}"
            yield Metric(name=f"{label}, first", value=first, unit="ms")
            allowed = duck + ONE_AIM_MS if name == "flights in one split" else duck
            against = "DuckDB read_parquet" + (f" + {ONE_AIM_MS:g} ms" if allowed > duck else "")
            aim = 1.0 if allowed > duck else MANY_AIM
            yield Metric(name=label, value=ours, unit="ms", against=against, ratio=allowed / ours, aim=aim)
            yield Metric(name=f"{label}, Polars", value=frame, unit="ms", against="ours", ratio=ours / frame)


def _duckdb(connection: duckdb.DuckDBPyConnection, text: str) -> pa.Table:
    return connection.sql(text).to_arrow_table()


def _in_turns(works: Sequence[Callable[[], object]], runs: int) -> list[float]:
    """Medians in milliseconds; each turn runs all of them, and the first turn does not count."""
    taken: list[list[float]] = [[] for _ in works]
    for turn in range(runs + 1):
        for work, times in zip(works, taken, strict=True):
            time = 1000 * seconds(work)
            if turn:
                times.append(time)
    return [median(times) for times in taken]


def _searches(path: Path, rows: int, runs: int) -> Iterator[Metric]:
    texts = [" ".join(words) for words in np.random.default_rng(5).choice(WORDS, (rows, 12)).tolist()]
    index = IndexDefinition(name="words", kind="fulltext", columns=("line",))
    table = tm.Table.create(str(path), pa.schema([("line", pa.string())]), indexes=[index])
    table.append(pa.table({"line": texts}))
    plan = catch_up.plan(table.snapshot, "words")
    built = [catch_up.execute(table.store, work, ids=table.log.ids) for work in plan.work]
    table.log.commit(table.snapshot, plan.actions(built), operation="INDEX")
    table.refresh()
    alone = _tantivy(texts)
    for query in ("tide", "tide AND ebb", "tide OR flood"):
        parsed, searcher = alone.parse_query(query, ["line"]), alone.searcher()
        ours, theirs = _in_turns(
            (
                partial(table.search, query, index="words", limit=10, cache_dir=path.with_name("cache")),
                partial(searcher.search, parsed, limit=10),
            ),
            runs,
        )
        name = f"search of {rows:,} lines, {query}, 10 rows"
        aimed = f"{SEARCH_AIM_MS:g} ms"
        yield Metric(name=name, value=ours, unit="ms", against=aimed, ratio=SEARCH_AIM_MS / ours, aim=1)
        yield Metric(name=f"{name}, tantivy alone", value=theirs, unit="ms", against="ours", ratio=ours / theirs)


def _tantivy(texts: Sequence[str]) -> tantivy.Index:
    """An index in memory of the same lines, which returns addresses and no rows."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("line", stored=False)
    index = tantivy.Index(builder.build())
    writer = index.writer(num_threads=1)
    for text in texts:
        writer.add_document(tantivy.Document(line=text))
    writer.commit()
    index.reload()
    return index


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
