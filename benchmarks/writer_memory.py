"""The memory of a region writer, compared to the limits in its options. The callers are faster than the store.

Sixteen threads append without pauses in a separate process. A put into the store takes 20 ms. "Held" is the peak memory
of Arrow, including the batches that the callers hold. The process uses more memory than Arrow reports. A flush needs
memory, and the memory allocators of many threads keep memory.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa

from benchmarks.events import KEY, SCHEMA, batch
from benchmarks.metrics import Metric, peak_mib
from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import Overloaded
from storage_core.store.local import LocalStore
from storage_core.store.meter import RequestKind
from storage_core.write.region.records import MB, WriterOptions
from storage_core.write.region.writer import RegionWriter
from tests.support.fault_store import FaultStore
from tidemark import Table

_THREADS = 16
_OPTIONS = WriterOptions(
    durable=False,
    entry_bytes=4 * MB,
    flush_bytes=64 * MB,
    flush_rows=10**9,
    wait_bytes=32 * MB,
    refuse_bytes=64 * MB,
    wait_rows=10**9,
    refuse_rows=10**9,
)
BOUND_MIB = (_OPTIONS.refuse_bytes + _OPTIONS.flush_bytes + _OPTIONS.entry_bytes) / MB


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the growth of the process in MiB, compared to the limits in the options."""
    with tempfile.TemporaryDirectory() as folder:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            held, grown, mb = pool.submit(_grown_mib, folder, 20 if small else 400).result()
        name, against = f"writer that {_THREADS} threads gave {mb:,.0f} MB", f"its bounds, {BOUND_MIB:.0f} MiB"
        yield Metric(name=f"{name}, held", value=held, unit="MiB", against=against, ratio=BOUND_MIB / held, aim=1)
        name = f"{name}, growth of the process"
        yield Metric(name=name, value=grown, unit="MiB", against=against, ratio=BOUND_MIB / grown)


def _slowly(kind: RequestKind, _key: str) -> None:
    """Make a put slower."""
    if kind == "put":
        time.sleep(0.02)


def _grown_mib(folder: str, megabytes: int) -> tuple[float, float, float]:
    """Return three numbers: the peak memory of Arrow in MiB, the growth of the process in MiB, and the written MB."""
    root = Path(folder) / "table"
    snapshot = Table.create(str(root), SCHEMA, primary_key=[KEY]).snapshot
    store = FaultStore(LocalStore(root), watch=_slowly)
    writer = RegionWriter.open(store, snapshot, clock=SystemClock(), ids=SystemIds(), options=_OPTIONS)
    writer.put(batch(0))
    writer.flush()
    before = peak_mib()
    given = [0] * _THREADS

    def append(thread: int) -> None:
        number = thread + 1
        while sum(given) < megabytes * 10**6:
            rows = batch(number, 10_000)
            try:
                writer.put(rows)
            except Overloaded:
                continue  # a real caller would also call `put` again after `Overloaded`, but later
            given[thread] += rows.nbytes
            number += _THREADS

    running = [threading.Thread(target=append, args=(thread,)) for thread in range(_THREADS)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    writer.close()
    held = pa.default_memory_pool().max_memory() / MB
    return held, max(peak_mib() - before, 0.1), sum(given) / 10**6
