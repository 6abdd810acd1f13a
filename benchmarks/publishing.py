"""The cost of a Delta mirror for one commit of the table, after ten published versions and after many.

Twenty commits are published one by one, in the same way as a schedule publishes commits. During the twenty commits, the
table's log and the mirror's log each write two checkpoints. Each commit adds a split and removes a split, so the table
keeps its size. The metrics contain only the requests and bytes of the publications.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.metrics import Metric, command
from storage_core.data.formats.keys import split_key
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.interop.delta_mirror import publish_delta
from storage_core.log.actions import Add, Metadata, Remove
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.local import LocalStore
from storage_core.store.meter import MeteredStore

FEW = 10
MANY = 2_000
LIVE = 100
COMMITS = 20


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the cost of a publication after few versions and after many."""
    many = 60 if small else MANY
    with tempfile.TemporaryDirectory() as folder:
        taken = {versions: _cost(Path(folder) / str(versions), versions) for versions in (FEW, many)}
    for place, unit in enumerate(("requests", "KiB", "ms")):
        few, cost = taken[FEW][place], taken[many][place]
        what = "processor" if unit == "ms" else "read and written" if unit == "KiB" else "requests"
        name = f"publish a commit after {many:,} versions, {what}"
        yield Metric(name=name, value=cost, unit=unit, against=f"after {FEW}", ratio=few / cost, aim=0.8)


def _cost(root: Path, versions: int) -> tuple[float, float, float]:
    """Return the requests, KiB and processor milliseconds per publication of one commit."""
    store = MeteredStore(LocalStore(root))
    log = TransactionLog(store)
    schema = to_schema_string(pa.schema([("id", pa.int64()), ("name", pa.string())]))
    configuration = TableConfig().to_configuration()
    snapshot = log.create(Metadata(id=log.ids.uuid(), schemaString=schema, configuration=configuration))
    paths = [_key(log) for _ in range(LIVE)]
    snapshot = log.commit(snapshot, list(map(_split, paths)), operation="APPEND").snapshot
    publish_delta(log, shows_vectors=True)
    for _ in range(versions):
        snapshot = _replaced(log, snapshot, paths)
    publish_delta(log, shows_vectors=True)
    requests = size = seconds = 0.0
    for _ in range(COMMITS):
        snapshot = _replaced(log, snapshot, paths)
        before, moved, began = sum(store.requests.values()), _moved(store), time.process_time()
        publish_delta(log, shows_vectors=True)
        seconds += time.process_time() - began
        requests += sum(store.requests.values()) - before
        size += _moved(store) - moved
    return requests / COMMITS, size / COMMITS / 1024, seconds / COMMITS * 1000


def _key(log: TransactionLog) -> str:
    return split_key(None, windowed=False, split_id=log.ids.uuid())


def _moved(store: MeteredStore) -> int:
    return store.bytes_read + store.bytes_written


def _replaced(log: TransactionLog, snapshot: Snapshot, paths: list[str]) -> Snapshot:
    old, new = paths.pop(0), _key(log)
    paths.append(new)
    return log.commit(snapshot, [Remove(path=old), _split(new)], operation="COMPACT").snapshot


def _split(path: str) -> Add:
    bounds = {"id": "1", "name": "somebody"}
    return Add(
        path=path,
        size=10_000,
        modificationTime=1_700_000_000_000,
        numRecords=1_000,
        minValues=bounds,
        maxValues=bounds,
        nullCounts=dict.fromkeys(bounds, 0),
    )


if __name__ == "__main__":
    sys.exit(command(measure, "What a Delta mirror costs per commit of the table."))
