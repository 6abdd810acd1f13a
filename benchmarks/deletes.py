"""A delete and an update of 1 % of the rows, scattered over every split, and the cost of later reads.

The peers are delta-rs, DuckLake, and Delta Lake on Spark in a warm session. delta-rs rewrites the files. DuckLake
writes delete files. Delta Lake uses deletion vectors. All systems have tables of the same rows in the same number of
files. Each statement gets a new table. Queries run on our unchanged table and on tables with deleted rows. The deleted
rows are scattered, or they are one contiguous group of rows per split. The queries run in turns, and the unit of all
metrics is processor time. `python -m benchmarks.deletes --rows 1000000` uses another number of rows.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tidemark as tm
from benchmarks.metrics import Metric, command, in_turns, median, seconds
from benchmarks.peers import NotMeasuredError, ducklake_python, printed, start_with_delta
from benchmarks.processor import processor_seconds
from jobs.spark.spark import Spark

FILES = 10
ROWS = 10_000_000
SCHEMA = pa.schema(
    [("at", pa.timestamp("us", "UTC")), ("kind", pa.int32()), ("x", pa.float64()), ("text", pa.string())]
)
CONDITION = "kind = 42"
AGGREGATE = "select kind % 7 as k, count(*), sum(x) from t group by 1"
QUERIES: Mapping[str, str] = {
    "count": "select count(*), count(x) from t",
    "filter": "select count(*), sum(x) from t where kind = 7",
    "aggregate": AGGREGATE,
    "texts": "select max(length(text)), sum(x) from t",
    "all rows": "from t",
}
STATEMENTS: Mapping[str, str] = {
    "delete": "delete from t where kind = 42",
    "update": "update t set x = x + 1 where kind = 42",
}
DELTA_RS, DUCKLAKE, DELTA = "delta-rs", "DuckLake", "Delta on Spark"
CALLS = 3
"""Calls of a query per measurement.

One call is too short for a measurement. The processor time of another process is measured in steps of 10 ms.
"""

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of each statement, and milliseconds of the aggregate before and after the first statement."""

    statements: Sequence[float]
    before: float
    after: float


def measure(*, small: bool, rows: int = ROWS) -> Iterator[Metric]:
    """Yield the seconds of each statement, with the ratio to the seconds of delta-rs, DuckLake and Delta Lake.

    Also yield how much longer reads take after the delete.
    """
    count, runs = (100_000, 1) if small else (rows, 3)
    given = _rows(count)
    peers = {
        DELTA_RS: partial(_delta_rs, given, runs),
        DUCKLAKE: partial(_ducklake, given, runs, make=not small),
        DELTA: partial(_delta, given, runs, make=not small),
    }
    own = {name: _statement(_ours, given, runs, work) for name, work in OURS.items()}
    for peer, work in peers.items():
        try:
            taken, missing = work(), ""
        except NotMeasuredError as error:
            taken, missing = None, f" (not measured: {error})"
        for number, (name, value) in enumerate(own.items()):
            label = f"{name} of 1 % of {count:,} rows, beside {peer}"
            ratio = taken.statements[number] / value if taken else 0
            yield Metric(name=label, value=value, unit="s", against=f"{peer}{missing}", ratio=ratio, aim=2)
        if taken:
            label = f"aggregate after a delete, {peer}"
            yield Metric(name=label, value=taken.after, unit="ms", against="before", ratio=taken.before / taken.after)
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        yield from _reads(Path(folder), given, 1 if small else 9)


def _reads(root: Path, rows: pa.Table, turns: int) -> Iterator[Metric]:
    count = rows.num_rows
    whole, scattered, clustered = (_ours(root / name, rows) for name in ("whole", "scattered", "clustered"))
    of_split = f'epoch("at") % {count // FILES}'
    gone = {
        "scattered": (scattered, scattered.delete(CONDITION)),
        "clustered": (
            clustered,
            clustered.delete(f"{of_split} >= {count // 30} and {of_split} < {count // 30 + count // 1000}"),
        ),
    }
    for how, (table, done) in gone.items():
        for name, query in QUERIES.items():
            before, after = _processor([partial(_asked, each, query) for each in (whole, table)], turns)
            label = f"{name}, {done.rows:,} of {count:,} rows gone, {how}"
            ratio = 1.2 * before / after
            yield Metric(name=label, value=after, unit="cpu ms", against="1.2 x before", ratio=ratio, aim=1)
    table = _ours(root / "by time", rows)
    end = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=count // FILES)
    taken = seconds(lambda: table.delete(tm.col("at") < end))
    yield Metric(name=f"delete of 10 % of {count:,} rows by time", value=taken, unit="s")


def _processor(works: Sequence[Callable[[], object]], turns: int) -> list[float]:
    """Return the median processor milliseconds per call of each function.

    One turn calls all functions. The first turn only warms up the caches, so the median does not include this turn.
    """

    def calls(work: Callable[[], object]) -> None:
        for _ in range(CALLS):
            work()

    taken = [[1000 * processor_seconds(partial(calls, work)) / CALLS for work in works] for _ in range(turns + 1)]
    return [median(times) for times in zip(*taken[1:], strict=True)]


def _asked(table: tm.Table, query: str) -> None:
    table.sql(query).to_arrow()


OURS: Mapping[str, Callable[[tm.Table], object]] = {
    "delete": lambda table: table.delete(CONDITION),
    "update": lambda table: table.update({"x": tm.expr("x + 1")}, CONDITION),
}


def _statement(
    make: Callable[[Path, pa.Table], _Made], rows: pa.Table, runs: int, work: Callable[[_Made], object]
) -> float:
    """Return the median seconds of a statement on new tables."""
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        tables = (make(Path(folder) / str(run), rows) for run in range(runs))
        return median([seconds(partial(work, table)) for table in tables])


def _delta_rs(rows: pa.Table, runs: int) -> Taken:
    def asked(table: deltalake.DeltaTable) -> None:
        pa.table(deltalake.QueryBuilder().register("t", table).execute(AGGREGATE).read_all())

    taken = [
        _statement(_delta_table, rows, runs, lambda table: table.delete(CONDITION)),
        _statement(_delta_table, rows, runs, lambda table: table.update(updates={"x": "x + 1"}, predicate=CONDITION)),
    ]
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        whole, deleted = (_delta_table(Path(folder) / name, rows) for name in ("whole", "deleted"))
        deleted.delete(CONDITION)
        return Taken(taken, *in_turns([partial(asked, each) for each in (whole, deleted)], 2 + 2 * runs))


def _ducklake(rows: pa.Table, runs: int, *, make: bool) -> Taken:
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        files = [Path(folder) / f"{number}.parquet" for number in range(FILES)]
        for file, part in zip(files, _parts(rows), strict=True):
            pq.write_table(part, file, compression="zstd")
        statements = json.dumps([*STATEMENTS.values()])
        program = ("ducklake_deletes", f"{folder}/lakes", str(runs), statements, AGGREGATE, *map(str, files))
        return Taken(*printed(ducklake_python(make=make), *program))


def _delta(rows: pa.Table, runs: int, *, make: bool) -> Taken:
    """Run the statements on Spark with two cores. Before the measurement, run the statements once on a few rows."""
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder, Spark("local[2]") as spark:
        start_with_delta(spark, make=make)
        root, session = Path(folder), spark.session()

        def table(place: Path, rows: pa.Table) -> str:
            _delta_table(place, rows)
            name = f"delta.`{place}`"
            session.sql(f"alter table {name} set tblproperties ('delta.enableDeletionVectors' = true)")
            return name

        def run(text: str, name: str) -> None:
            session.sql(text.replace("from t ", f"from {name} ").replace("update t ", f"update {name} ")).collect()

        for text in STATEMENTS.values():
            run(text, table(root / text[:6], rows.slice(0, 10_000)))
        taken = [_statement(table, rows, runs, partial(run, text)) for text in STATEMENTS.values()]
        whole, deleted = (table(root / name, rows) for name in ("whole", "deleted"))
        run(STATEMENTS["delete"], deleted)
        return Taken(taken, *in_turns([partial(run, AGGREGATE, each) for each in (whole, deleted)], 2 + 2 * runs))


def _rows(count: int) -> pa.Table:
    chance = np.random.default_rng(1)
    words = pa.array([f"a text of kind {number}, more or less" for number in range(1_000)])
    return pa.table(
        [
            pa.array(np.arange(count) * 1_000_000).cast(SCHEMA.field("at").type),
            pa.array(chance.integers(0, 100, count), pa.int32()),
            pa.array(chance.random(count)),
            words.take(pa.array(chance.integers(0, 1_000, count))),
        ],
        schema=SCHEMA,
    )


def _ours(place: Path, rows: pa.Table) -> tm.Table:
    table = tm.Table.create(str(place), SCHEMA, time_column="at", window=None)
    for part in _parts(rows):
        table.append(part)
    return table


def _delta_table(place: Path, rows: pa.Table) -> deltalake.DeltaTable:
    for part in _parts(rows):
        deltalake.write_deltalake(str(place), part, mode="append")
    return deltalake.DeltaTable(str(place))


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    size = rows.num_rows // FILES
    return (rows.slice(first, size) for first in range(0, rows.num_rows, size))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rows", type=int, default=ROWS)
    chosen, others = parser.parse_known_args()
    sys.exit(command(partial(measure, rows=chosen.rows), str(__doc__), others))
