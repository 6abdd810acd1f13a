"""The gain from a primary-key index. `get` and a merge of a few changes run with and without the index.

Keys are random, and rows are ordered by time. The rows of one key can be at any time. A condition on the key therefore
excludes no split and no row group. Requests and bytes are measured for a table on remote storage. Milliseconds are
measured for a table on a local disk. No data is cached between calls.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

import numpy as np
import pyarrow as pa

import tidemark as tm
from benchmarks.metrics import Metric, command, in_turns
from storage_core.data.settings.index import IndexDefinition
from storage_core.split.context import context_of
from storage_core.split.writer import sort_and_write
from storage_core.store.meter import RequestMeter
from storage_core.write.region import merge
from tests.support.upkeep import catch_up

SPLITS = 5
INDEX = IndexDefinition(name="keys", kind="primary_key", columns=("id",))
_NAMES = ("indexed", "plain")
AGAINST = "without the index"


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield requests, MiB and milliseconds of each kind of lookup and of merges, with and without the index."""
    rows = 20_000 if small else 200_000
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        local = [_written(f"{folder}/{name}", rows, is_indexed=name == "indexed") for name in _NAMES]
        distant = [_written(f"memory://{name}-{folder}", rows, is_indexed=name == "indexed") for name in _NAMES]
        for name, keys in (
            ("get of a row", [_key(1, 7)]),
            ("get of none", [_key(0, rows)]),
            ("get_many of 10", _some(10)),
        ):
            label = f"{SPLITS * rows:,} keys, cold {name}"
            yield from _compared(label, [_asked(table, _lookup(table, keys)) for table in distant])
            taken = in_turns([_lookup(table, keys) for table in local], 3 if small else 7)
            yield Metric(name=f"{label}, local", value=taken[0], unit="ms", against=AGAINST, ratio=taken[1] / taken[0])
        for count in (2,) if small else (2, 20, 10_000):
            meters = [_asked(table, _merge(table, count)) for table in distant]
            yield from _compared(f"{SPLITS * rows:,} keys, merge of {count:,} changes", meters)
    size = sum(each.size for each in distant[0].snapshot.segments.values())
    yield Metric(name="index, a key", value=size / (SPLITS * rows), unit="bytes")


def _compared(label: str, meters: Sequence[RequestMeter]) -> Iterator[Metric]:
    ours, theirs = meters
    for unit, pair in {
        "requests": (ours.requests["get"], theirs.requests["get"]),
        "MiB": (ours.bytes_read / 2**20, theirs.bytes_read / 2**20),
    }.items():
        ratio = pair[1] / pair[0] if pair[0] else None
        yield Metric(name=f"{label}, {unit}", value=pair[0], unit=unit, against=AGAINST, ratio=ratio)


def _asked(table: tm.Table, work: Callable[[], object]) -> RequestMeter:
    meter = RequestMeter()
    with table.store.counted_by(meter):
        work()
    return meter


def _lookup(table: tm.Table, keys: Sequence[str]) -> Callable[[], object]:
    return lambda: tm.Table(table.store, table.log, table.snapshot).get_many(keys, consistency="snapshot")


def _merge(table: tm.Table, count: int) -> Callable[[], object]:
    with table.writer() as writer:
        writer.patch([{"id": each, "n": -1} for each in _some(count)])
        writer.flush()
    works = merge.plan(table.store, table.refresh().snapshot)
    return lambda: [merge.execute(table.store, each, ids=table.log.ids, now_ms=1) for each in works]


def _some(count: int) -> list[str]:
    return [_key(number % SPLITS, number) for number in range(count)]


def _key(split: int, number: int) -> str:
    return str(UUID(int=(number * SPLITS + split) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128))


def _written(uri: str, rows: int, *, is_indexed: bool) -> tm.Table:
    fields = [pa.field("id", pa.string(), nullable=False), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64())]
    schema = pa.schema([*fields, *((f"c{each}", pa.float64()) for each in range(7))])
    indexes = [INDEX] if is_indexed else []
    table = tm.Table.create(uri, schema, primary_key="id", time_column="at", window=None, indexes=indexes)
    for split in range(SPLITS):
        chance = np.random.default_rng(split)
        ids = pa.array([_key(split, number) for number in range(rows)])
        at = pa.array(chance.permutation(rows) * 1_000_000, pa.timestamp("us", "UTC"))
        columns = [ids, at, pa.array(np.arange(rows)), *(pa.array(chance.random(rows)) for _ in range(7))]
        context, found = context_of(table.snapshot), pa.table(columns, schema=schema)
        adds = sort_and_write(table.store, found, context=context, ids=table.log.ids, now_ms=1)
        table.log.commit(table.snapshot, adds, operation="APPEND")
        table.refresh()
    if is_indexed:
        catch_up(table)
    return table.refresh()


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
