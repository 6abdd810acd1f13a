"""The rows for benchmarks of compaction: measurements of a fleet of hosts, in splits that are already sorted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage_core.base.clock import SystemIds
from storage_core.compact.work import CompactionTask
from storage_core.data.rows.sort_order import bind
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add
from storage_core.split.context import SplitContext
from storage_core.split.writer import sort_and_write
from storage_core.store.local import LocalStore

KEY = ("metric", "host", "observed")
SQL_KEY = "metric ASC NULLS LAST, host ASC NULLS LAST, observed DESC NULLS LAST"
SORT_SCHEMA = "metric|host|timestamp/V2"
NAMES = [f"service.{name % 8}.metric-{name:03d}" for name in range(40)]
MOST_BYTES = 2**32
"""A target size larger than all inputs together. Every system therefore writes one file."""


@dataclass(frozen=True, slots=True)
class Given:
    """The input of every system: the split files under `root`, and a Tidemark compaction of these splits as JSON."""

    root: Path
    files: tuple[str, ...]
    operation: str
    rows: int


def config(sort_schema: str = SORT_SCHEMA) -> TableConfig:
    """Return the settings of a table of points. The table has no windows."""
    return TableConfig(time_column="observed", sort_schema=sort_schema)


def points(number: int, rows: int, width: int, *, null_hosts: float = 0.0) -> pa.Table:
    """Return points of 40 metrics on 200 hosts, ordered by time.

    The points cover 15 minutes. `number` is the position of these 15 minutes in the table, counted from 0.

    Four columns contain the metric, the host, the time and the region. In the remaining columns, columns of
    measurements and columns of counters alternate.
    """
    chance = np.random.default_rng(number)
    seen = (number * 900 + np.sort(chance.random(rows)) * 900) * 1e6
    hosts = pa.array([f"host-{host:04d}.example.org" for host in range(200)])
    host = pa.array(chance.integers(0, 200, rows), mask=chance.random(rows) < null_hosts)
    columns: dict[str, pa.Array] = {
        "metric": pa.array(NAMES).take(pa.array(chance.integers(0, len(NAMES), rows))),
        "host": hosts.take(host),
        "observed": pa.array(seen.astype(np.int64)).cast(pa.timestamp("us", tz="UTC")),
        "region": pa.array(["eu-west", "eu-north", "us-east"]).take(pa.array(chance.integers(0, 3, rows))),
    }
    for index in range(width - len(columns)):
        if index % 2:
            columns[f"count{index}"] = pa.array(np.cumsum(chance.integers(0, 50, rows)))
        else:
            columns[f"value{index}"] = pa.array(np.round(chance.normal(50, 10, rows), 2))
    return pa.table(columns)


def context(schema: pa.Schema, *, sort_schema: str = SORT_SCHEMA, target_bytes: int = MOST_BYTES) -> SplitContext:
    """Return a split context for a table of points. New splits have about `target_bytes`."""
    order = bind(config(sort_schema), schema)
    return SplitContext(
        table_id="points", schema=schema, order=order, time_column="observed", target_bytes=target_bytes
    )


def operation(
    root: Path, splits: int, rows: int, width: int, *, sort_schema: str = SORT_SCHEMA, null_hosts: float = 0.0
) -> CompactionTask:
    """Write `splits` sorted splits of `rows` rows under `root`, and return the operation that merges them."""
    described = context(points(0, 1, width).schema, sort_schema=sort_schema)
    store, adds = LocalStore(root), list[Add]()
    for number in range(splits):
        arrived = points(number, rows, width, null_hosts=null_hosts)
        adds += sort_and_write(store, arrived, context=described, ids=SystemIds(), now_ms=number)
    return CompactionTask(None, tuple(adds), described)


def given(root: Path, splits: int, rows: int, width: int) -> Given:
    """Write the splits of `operation`, and return these splits as the input of every system."""
    made = operation(root, splits, rows, width)
    return Given(root, tuple(str(root / add.path) for add in made.inputs), made.to_json(), splits * rows)
