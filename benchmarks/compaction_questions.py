"""Measurements for open design questions about merging. One table of metrics answers each question.

- How a merge finds the order (packed keys, column by column, k-way), for few and for many splits.
- How many splits one merge takes. For each number of splits per merge, the benchmark merges 64 splits until one split
  is left.
- How many rows a page has.
- How much the position of nulls costs.
- How large a split is.

All measurements run in one process on one thread, after a merge of small files. The unit is processor seconds. A short
measurement is the median of three runs. docs/architecture/compaction.md contains the conclusions.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks import points
from benchmarks.compaction_kernel import grown_by_merge
from benchmarks.compaction_sizes import write
from benchmarks.merge_strategies import Strategy, positions
from benchmarks.metrics import Metric, command, median
from benchmarks.page_reads import bytes_read
from benchmarks.points import KEY, NAMES, Given
from storage_core.base.clock import SystemIds
from storage_core.compact.execute import execute
from storage_core.compact.work import CompactionTask
from storage_core.split.encode import choose
from storage_core.split.read import read_split
from storage_core.split.writer import Rewrite
from storage_core.store.local import LocalStore

SPLITS = 64
WIDTH = 8
FAN_IN = (4, 8, 16, 64)
PAGE_ROWS = (1_024, 4_096, 16_384, 65_536)
SHARES = (1, 2, 4, 8)
NULL_HOSTS = 0.1
POINT = f"SELECT value0 FROM rows WHERE metric = '{NAMES[21]}' AND host = 'host-0077.example.org'"  # noqa: S608 -- our own


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the metrics of each question."""
    rows, repeats = (500, 1) if small else (100_000, 3)
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _merge(root / "warm", points.operation(root / "warm", 4, 500, WIDTH))
        operation = points.operation(root / "given", SPLITS, rows, WIDTH)
        yield from _strategies(root / "given", operation, repeats)
        yield from _fan_in(root / "given", operation)
        yield from _page_size(root / "given", operation, repeats)
        yield from _target_size(root / "given", operation)
        yield from _null_order(root, rows, repeats)


def _strategies(root: Path, operation: CompactionTask, repeats: int) -> Iterator[Metric]:
    store = LocalStore(root)
    tables = [read_split(store, add, KEY, verify=True, as_dictionary=True) for add in operation.inputs]
    for fan_in in FAN_IN:
        taken = {
            strategy: _seconds(partial(positions, tables[:fan_in], operation.context.order, strategy), repeats)
            for strategy in Strategy
        }
        for strategy, own in taken.items():
            name = f"order of {fan_in} splits, {strategy}"
            packed = taken[Strategy.PACKED]
            yield Metric(name=name, value=own, unit="cpu s", against=str(Strategy.PACKED), ratio=packed / own)


def _fan_in(root: Path, operation: CompactionTask) -> Iterator[Metric]:
    """Merge all splits with this fan-in until one split is left.

    Measure the time, and how many times each byte is written.
    """
    given_bytes = sum(add.size for add in operation.inputs)
    for fan_in in FAN_IN:
        started, written, inputs = time.process_time(), 0, operation.inputs
        while len(inputs) > 1:
            groups = [inputs[start : start + fan_in] for start in range(0, len(inputs), fan_in)]
            results = [_merge(root, replace(operation, inputs=group)) for group in groups]
            written += sum(result.bytes_out for result in results)
            inputs = tuple(add for result in results for add in result.adds)
        name = f"{SPLITS} splits by {fan_in}"
        yield Metric(name=name, value=time.process_time() - started, unit="cpu s")
        yield Metric(name=f"{name}, written per byte", value=written / given_bytes, unit="B/B")
        first = replace(operation, inputs=operation.inputs[:fan_in])
        files = tuple(str(root / add.path) for add in first.inputs)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            grown = fresh.submit(grown_by_merge, Given(root, files, first.to_json(), 0)).result()
        yield Metric(name=f"{name}, growth of a fresh process in one merge", value=grown, unit="MiB")


def _page_size(root: Path, operation: CompactionTask, repeats: int) -> Iterator[Metric]:
    """Write the merged rows with this number of rows per page, and query one series."""
    result = _merge(root, replace(operation, inputs=operation.inputs[:16]))
    rows = read_split(LocalStore(root), result.adds[0])
    encodings = choose(rows, rows.num_rows)
    for page_rows in PAGE_ROWS:
        file = root / f"pages-{page_rows}.parquet"
        taken = _seconds(partial(write, rows, file, encodings, page_rows=page_rows), repeats)
        name = f"pages of {page_rows:,} rows"
        yield Metric(name=f"{name}, writing", value=taken, unit="cpu s")
        yield Metric(name=f"{name}, size", value=file.stat().st_size, unit="B")
        yield Metric(name=f"{name}, read for a series", value=bytes_read([file], POINT), unit="B")


def _target_size(root: Path, operation: CompactionTask) -> Iterator[Metric]:
    """Merge all splits into one split, and then into increasing numbers of splits."""
    whole = sum(add.size for add in operation.inputs)
    for share in SHARES:
        context = replace(operation.context, target_bytes=whole if share == 1 else whole // share)
        started = time.process_time()
        result = _merge(root, replace(operation, context=context))
        name = f"a target of 1/{share} of the inputs"
        yield Metric(name=f"{name}, merging", value=time.process_time() - started, unit="cpu s")
        yield Metric(name=f"{name}, splits", value=len(result.adds), unit="splits")
        yield Metric(name=f"{name}, size", value=result.bytes_out, unit="B")
        read = bytes_read([root / add.path for add in result.adds], POINT)
        yield Metric(name=f"{name}, read for a series", value=read, unit="B")


def _null_order(root: Path, rows: int, repeats: int) -> Iterator[Metric]:
    taken: dict[str, float] = {}
    for place in ("last", "first"):
        folder = root / place
        schema = f"{points.SORT_SCHEMA} nulls {place}"
        operation = points.operation(folder, 16, rows, WIDTH, sort_schema=schema, null_hosts=NULL_HOSTS)
        taken[place] = _seconds(partial(_merge, folder, operation), repeats)
    for place, own in taken.items():
        yield Metric(
            name=f"a tenth of the hosts null, nulls {place}",
            value=own,
            unit="cpu s",
            against="nulls last",
            ratio=taken["last"] / own,
        )


def _merge(root: Path, operation: CompactionTask) -> Rewrite:
    return execute(LocalStore(root), operation, ids=SystemIds(), now_ms=1)


def _seconds(work: Callable[[], object], repeats: int) -> float:
    taken: Sequence[float] = [_once(work) for _ in range(repeats)]
    return median(taken)


def _once(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    sys.exit(command(measure, __doc__ or ""))
