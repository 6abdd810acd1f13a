"""A delete and an update of one row in a hundred, scattered over every split, and what reads take after it.

Against delta-rs, which rewrites the files. Both sides delete from tables of the same rows in as many files, made anew;
an aggregate over all rows is asked of ours before and after. Beside it a delete of a tenth of the rows by the time that
they are ordered by, which no file has to be read for.
"""

from __future__ import annotations

import datetime as dt
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa

import tidemark as tm
from benchmarks.metrics import Metric, command, in_turns, median, seconds

FILES = 10
SCHEMA = pa.schema(
    [("at", pa.timestamp("us", "UTC")), ("kind", pa.int32()), ("x", pa.float64()), ("text", pa.string())]
)
CONDITION = "kind = 42"
PEER = "delta-rs"


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield seconds of each statement beside the peer, and how much longer reads take after the delete."""
    count, runs = (100_000, 1) if small else (10_000_000, 3)
    rows = _rows(count)
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        root = Path(folder)
        for name, ours, theirs in (
            ("delete of 1 %", lambda table: table.delete(CONDITION), lambda table: table.delete(CONDITION)),
            (
                "update of 1 %",
                lambda table: table.update({"x": tm.expr("x + 1")}, CONDITION),
                lambda table: table.update(updates={"x": "x + 1"}, predicate=CONDITION),
            ),
        ):
            own = [_taken(partial(_ours, root / f"ours {name} {run}", rows), ours) for run in range(runs)]
            peer = [_taken(partial(_theirs, root / f"theirs {name} {run}", rows), theirs) for run in range(runs)]
            ratio = median(peer) / median(own)
            label = f"{name} of {count:,} rows"
            yield Metric(name=label, value=median(own), unit="s", against=PEER, ratio=ratio, aim=2)
        yield from _reads(_ours(root / "whole", rows), _ours(root / "deleted", rows), count, runs)
        table = _ours(root / "by time", rows)
        end = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=count // FILES)
        taken = seconds(lambda: table.delete(tm.col("at") < end))
        yield Metric(name=f"delete of 10 % of {count:,} rows by time", value=taken, unit="s")


def _reads(whole: tm.Table, deleted: tm.Table, count: int, runs: int) -> Iterator[Metric]:
    done = deleted.delete(CONDITION)
    query = "select kind % 7 as k, count(*), sum(x) from t group by k"
    before, after = in_turns([partial(_asked, table, query) for table in (whole, deleted)], 2 + 2 * runs)
    yield Metric(
        name=f"aggregate after a delete of {done.rows:,} of {count:,} rows",
        value=after,
        unit="ms",
        against="1.2 x before",
        ratio=1.2 * before / after,
        aim=1,
    )


def _asked(table: tm.Table, query: str) -> None:
    table.sql(query).to_arrow()


def _taken(make: Callable[[], object], work: Callable[[object], object]) -> float:
    table = make()
    return seconds(lambda: work(table))


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


def _theirs(place: Path, rows: pa.Table) -> deltalake.DeltaTable:
    for part in _parts(rows):
        deltalake.write_deltalake(str(place), part, mode="append")
    return deltalake.DeltaTable(str(place))


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    size = rows.num_rows // FILES
    return (rows.slice(first, size) for first in range(0, rows.num_rows, size))


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
