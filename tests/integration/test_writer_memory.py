"""The callers of a region writer are faster than its store.

The memory of the writer stays below the limits in its options.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import Overloaded
from storage_core.store.local import LocalStore
from storage_core.store.meter import RequestKind
from storage_core.table import Table
from storage_core.write.region.records import MB, WriterOptions
from storage_core.write.region.writer import RegionWriter
from tests.support.fault_store import FaultStore

THREADS = 16
CALLS = 12
ROWS = 2_000
PATIENCE_S = 120.0
OPTIONS = WriterOptions(
    durable=False,
    entry_bytes=MB,
    flush_bytes=4 * MB,
    wait_bytes=3 * MB,
    wait_ms=2,
    refuse_bytes=6 * MB,
)
BOUND = OPTIONS.refuse_bytes + OPTIONS.flush_bytes + OPTIONS.entry_bytes
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("text", pa.string())])


@dataclass(slots=True)
class Callers:
    """Threads that each write batches with their own keys.

    If the writer refuses a call, the thread repeats the call.
    """

    writer: RegionWriter
    too_fast: threading.Event
    refused: int = 0
    peak: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        threads = [threading.Thread(target=self._write, args=(number,)) for number in range(THREADS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _write(self, thread: int) -> None:
        for call in range(CALLS):
            rows = rows_of(thread * CALLS + call)
            while not self._taken(rows):
                pass

    def _taken(self, rows: pa.Table) -> bool:
        try:
            self.writer.put(rows)
        except Overloaded:
            with self.lock:
                self.refused += 1
            self.too_fast.set()
            return False
        finally:
            with self.lock:
                self.peak = max(self.peak, pa.total_allocated_bytes())
        return True


def rows_of(batch: int) -> pa.Table:
    keys = pa.array(np.arange(batch * ROWS, (batch + 1) * ROWS))
    return pa.Table.from_arrays([keys, pa.array(["x" * 80] * ROWS)], schema=SCHEMA)


def test_a_writer_whose_store_is_slower_than_its_callers_holds_no_more_than_its_options_state(tmp_path: Path) -> None:
    snapshot = Table.create(str(tmp_path), SCHEMA, primary_key=["n"]).snapshot
    too_fast = threading.Event()
    too_fast.set()

    def slowly(kind: RequestKind, _key: str) -> None:
        """Delay each put until the first caller is refused, so that the test works on slow machines."""
        if kind == "put":
            assert too_fast.wait(PATIENCE_S)
            time.sleep(0.005)

    store = FaultStore(LocalStore(tmp_path), watch=slowly)
    before = pa.total_allocated_bytes()
    with RegionWriter.open(store, snapshot, clock=SystemClock(), ids=SystemIds(), options=OPTIONS) as writer:
        too_fast.clear()
        callers = Callers(writer, too_fast)
        callers.run()
    given = THREADS * CALLS * rows_of(0).nbytes
    in_hand = THREADS * rows_of(0).nbytes  # each caller holds its own batch while it waits or retries
    assert callers.refused, "the callers were faster than the store"
    assert given > 2 * BOUND
    assert callers.peak - before <= BOUND + in_hand
    assert Table.open(str(tmp_path)).scan(consistency="latest").to_arrow().num_rows == THREADS * CALLS * ROWS
