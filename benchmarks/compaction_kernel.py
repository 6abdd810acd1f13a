"""One merge of sorted splits, against what it could be replaced by: a plain copy by Arrow, and DuckDB's `ORDER BY`.

Every side reads the same 16 files of 250,000 rows, on one thread, in one warm process, and writes one sorted file (the
copy: 16 in the same settings) with zstd 3. Ours checks MC-1 to MC-4 besides, computes statistics and row keys, and
writes through the store. Done for 8 and for 60 columns; the memory is measured in a process of its own each. Last come
the strategies, on the sort columns alone.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import Figure, command, median, peak_mib, seconds
from storage_core.compaction.execute import execute
from storage_core.compaction.kernel import merge_order
from storage_core.compaction.planner import MergeOperation
from storage_core.compaction.strategies import Strategy
from storage_core.config import TableConfig
from storage_core.ids import SystemIds
from storage_core.log.actions import Add
from storage_core.objectstore.local import LocalStore
from storage_core.rows.sort_order import bind
from storage_core.split.context import SplitContext
from storage_core.split.encodings import ROWS_PER_PAGE, ZSTD_LEVEL
from storage_core.split.read import read_split
from storage_core.split.write import sort_and_write

SPLITS = 16
KEY = ("metric", "host")
DUCKDB_KEY = 'metric NULLS LAST, host NULLS LAST, "at" DESC NULLS LAST'
TARGET_BYTES = 2**30
"""Above every input together, so that all sides write one file."""


def measure(*, small: bool) -> Iterator[Figure]:
    """Yield seconds, bytes and memory of each width, then the seconds of each strategy."""
    rows, repeats = (4_000, 1) if small else (250_000, 5)
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        for width in (8, 60):
            root = Path(folder) / str(width)
            operation = _operation(root, rows, width)
            yield from _against_peers(root, operation, width, repeats if width == 8 else min(repeats, 3))
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                grown = pool.submit(_grown_mib, str(root), operation.to_json()).result()
            yield Figure(name=f"{width} columns, growth of the process", value=grown, unit="MiB")
        root = Path(folder) / "order"
        yield from _strategies(root, _operation(root, rows, 8))


def _operation(root: Path, rows: int, width: int) -> MergeOperation:
    schema = _rows(0, 1, width).schema
    config = TableConfig(time_column="at", sort_schema="metric|host|timestamp/V2")
    order = bind(config, schema)
    context = SplitContext(table_id="kernel", schema=schema, order=order, time_column="at", target_bytes=TARGET_BYTES)
    store, adds = LocalStore(root), list[Add]()
    for number in range(SPLITS):
        adds += sort_and_write(store, _rows(number, rows, width), context=context, ids=SystemIds(), now_ms=number)
    return MergeOperation(None, tuple(adds), context)


def _rows(number: int, rows: int, width: int) -> pa.Table:
    """Points of 40 metrics on 200 hosts, one split a quarter of an hour, as a fleet of agents would send them."""
    chance = np.random.default_rng(number)
    names = [f"service.{name % 8}.metric-{name:03d}" for name in range(40)]
    at = (number * 900 + np.sort(chance.random(rows)) * 900) * 1e6
    columns: dict[str, pa.Array] = {
        "metric": pa.array(np.array(names)[chance.integers(0, 40, rows)], pa.string()),
        "host": pa.array([f"host-{host:04d}.example.org" for host in chance.integers(0, 200, rows)], pa.string()),
        "at": pa.array(at.astype(np.int64)).cast(pa.timestamp("us", tz="UTC")),
        "region": pa.array(np.array(["eu-west", "eu-north", "us-east"])[chance.integers(0, 3, rows)], pa.string()),
    }
    for index in range(width - len(columns)):
        if index % 2:
            columns[f"count{index}"] = pa.array(np.cumsum(chance.integers(0, 50, rows)))
        else:
            columns[f"value{index}"] = pa.array(np.round(chance.normal(50, 10, rows), 2))
    return pa.table(columns)


def _against_peers(root: Path, operation: MergeOperation, width: int, repeats: int) -> Iterator[Figure]:
    store = LocalStore(root)
    files = [str(root / add.path) for add in operation.inputs]
    ours: list[float] = []
    sizes: list[int] = []

    def merge() -> None:
        sizes.append(execute(store, operation, ids=SystemIds(), now_ms=1).bytes_out)

    merge()
    ours = [seconds(merge) for _ in range(repeats)]
    copied = root / "copied"
    copied.mkdir()
    copies = [seconds(lambda: _copy(files, copied)) for _ in range(repeats)]
    sorted_file = root / "sorted.parquet"
    sorts = [seconds(lambda: _sort(files, sorted_file)) for _ in range(repeats)]
    name = f"merge of {SPLITS} splits, {width} columns"
    yield Figure(
        name=name, value=median(ours), unit="s", against="Arrow copy", ratio=median(copies) / median(ours), aim=1.25
    )
    ratio = median(sorts) / median(ours)
    yield Figure(name=name, value=median(ours), unit="s", against="DuckDB ORDER BY", ratio=ratio, aim=2.2)
    peers = {"Arrow copy": sum(path.stat().st_size for path in copied.iterdir()), "DuckDB": sorted_file.stat().st_size}
    for peer, size in peers.items():
        yield Figure(
            name=f"{width} columns, output", value=sizes[0], unit="B", against=peer, ratio=size / sizes[0], aim=1
        )


def _copy(files: list[str], target: Path) -> None:
    """Each file decoded and written again as it is, in the settings of a split but Arrow's own encodings."""
    for index, file in enumerate(files):
        table = pq.ParquetFile(file).read()
        pq.write_table(
            table,
            target / f"{index}.parquet",
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            write_page_index=True,
            write_page_checksum=True,
            max_rows_per_page=ROWS_PER_PAGE,
            store_schema=False,
        )


def _sort(files: list[str], target: Path) -> None:
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(
            f"COPY (SELECT * FROM read_parquet({files}) ORDER BY {DUCKDB_KEY}) TO '{target}' "  # noqa: S608  # our own
            f"(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL {ZSTD_LEVEL})"
        )


def _grown_mib(root: str, operation: str) -> float:
    """By how many MiB a fresh process grows over one merge, the first of its life."""
    pa.set_cpu_count(1)
    store, planned = LocalStore(root), MergeOperation.from_json(operation)
    before = peak_mib()
    execute(store, planned, ids=SystemIds(), now_ms=2)
    return peak_mib() - before


def _strategies(root: Path, operation: MergeOperation) -> Iterator[Figure]:
    store = LocalStore(root)
    for fan_in in (4, 8, 16):
        inputs = [
            read_split(store, add, [*KEY, "at"], verify=True, as_dictionary=True) for add in operation.inputs[:fan_in]
        ]
        for strategy in Strategy:
            sort = partial(merge_order, inputs, operation.context.order, strategy)
            taken = median([seconds(sort) for _ in range(3)])
            yield Figure(name=f"order of {fan_in} splits, {strategy}", value=taken, unit="s")


if __name__ == "__main__":
    sys.exit(command(measure, __doc__ or ""))
