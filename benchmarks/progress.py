"""The cost of the stored state that makes ingestion exactly-once, for few and for many files and writers.

Opening a table must not become slower when this state grows. The unit is processor time. One process opens a table with
ten files and a table with 100,000 files alternately. All metrics except the opening of a table are the costs of steps
that use this state. The steps are an ingest with a lookup of ingested files, a commit with its own transaction, and a
checkpoint of new entries.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa

from benchmarks.metrics import Metric, command, median
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Metadata, Txn
from storage_core.log.checkpoint_writing import write_checkpoint
from storage_core.log.log import TransactionLog
from storage_core.log.transactions import Transactions
from storage_core.store.contract import ObjectStore
from storage_core.store.local import LocalStore
from storage_core.store.meter import MeteredStore
from storage_core.write.ingest.landing import LandedFile
from storage_core.write.ingest.progress import progress

FEW = 10
MANY = 100_000


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the cost of opening a table, and then the costs of the other steps."""
    many = 5_000 if small else MANY
    with tempfile.TemporaryDirectory() as folder:
        logs = {count: _log(Path(folder) / str(count), count) for count in (FEW, many)}
        opened = {count: _opening(log.store) for count, log in logs.items()}
        for position, unit in enumerate(("requests", "bytes")):
            name = f"open after {many:,} files and as many writers, {unit}"
            yield _against_few(name, opened[many][position], opened[FEW][position], unit)
        few, cost = _in_turns([log.snapshot for log in logs.values()], 20 if small else 200)
        name = f"open after {many:,} files and as many writers, processor"
        yield _against_few(name, cost * 1_000, few * 1_000, "ms")
        log = logs[many]
        files = [LandedFile(f"2026/{number:08}.log", 1, "x") for number in range(many)]
        (first,) = _in_turns([lambda: progress(log.snapshot().txns, files)], 1)
        yield Metric(name=f"open and look up {many:,} files that are in, processor", value=first, unit="s")
        unit_of_work = [Txn(appId="landed:2026/99999999.log", version=1)]
        own = MeteredStore(log.store)
        TransactionLog(own).commit(log.snapshot(), unit_of_work, operation="INGEST")
        requests = sum(own.requests.values())
        yield Metric(name=f"commit one more after {many:,}", value=requests, unit="requests")
        (seconds,) = _in_turns([lambda: log.checkpoint(log.snapshot())], 1)
        yield Metric(name="and checkpoint it, processor", value=seconds * 1_000, unit="ms")


def _against_few(name: str, cost: float, few: float, unit: str) -> Metric:
    return Metric(name=name, value=cost, unit=unit, against=f"after {FEW}", ratio=few / cost, aim=0.83)


def _log(root: Path, count: int) -> TransactionLog:
    """Return a table whose state contains `count` landed files, and `count` writers of raw logs that have ended."""
    log = TransactionLog(LocalStore(root))
    schema = to_schema_string(pa.schema([("id", pa.int64())]))
    metadata = Metadata(
        id=log.ids.uuid(),
        schemaString=schema,
        configuration=TableConfig(checkpoint_interval=0).to_configuration(),
    )
    head = log.create(metadata)
    files = [f"landed:2026/{number:08}.log" for number in range(count)]
    contents = [f"content:2026/{number:08}.log@{Random(number).getrandbits(64):016x}" for number in range(count)]
    writers = [f"raw:{Random(number).getrandbits(128):032x}" for number in range(count)]
    recorded = {app_id: Txn(appId=app_id, version=1, lastUpdated=1) for app_id in (*files, *contents, *writers)}
    write_checkpoint(log.store, replace(head, txns=Transactions(recent=recorded)), log.ids.uuid)
    return log


def _opening(store: ObjectStore) -> tuple[int, int]:
    metered = MeteredStore(store)
    TransactionLog(metered).snapshot()
    return sum(metered.requests.values()), metered.bytes_read


def _in_turns(works: list[Callable[[], object]], times: int) -> list[float]:
    """Return the median processor seconds of each function.

    Other load on the machine then affects all functions equally.
    """
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(times):
        for work, each in zip(works, taken, strict=True):
            started = time.process_time()
            work()
            each.append(time.process_time() - started)
    return [median(each) for each in taken]


if __name__ == "__main__":
    sys.exit(command(measure, "What exactly-once remembers, and what it costs."))
