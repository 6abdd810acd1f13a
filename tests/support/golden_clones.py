"""A table and clones of it that changed independently, and their expected answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage_core.log.log import TransactionLog
from storage_core.log.sharing import TableStore
from storage_core.maintain.clone import clone
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from tests.support.changed_rows import CONFIG, created, index, opened, row
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

NAMES = ("source", "shallow", "deep")


def made() -> dict[str, MemoryStore]:
    """Return a source with deleted rows and segments, and two clones.

    Each clone has its own rows, and one of the two clones is compacted.
    """
    stores = {name: MemoryStore(f"golden/{name}") for name in NAMES}
    source = created(stores["source"], CONFIG)
    source.append([row(n, f"h{n % 3}", hour=n % 2) for n in range(60)])
    source.append([row(n, f"h{n % 3}", hour=n % 2) for n in range(60, 80)])
    index(source)
    source.refresh().delete("n % 10 = 4")
    for seed, name in enumerate(NAMES[1:]):
        log = TransactionLog(stores["source"], clock=ManualClock(step_ms=1), ids=SeededIds(20 + seed))
        target = TransactionLog(stores[name], clock=ManualClock(step_ms=1), ids=SeededIds(30 + seed))
        clone(log, log.snapshot(), target, deep=name == "deep")
    for seed, (name, store) in enumerate(seen(stores).items()):
        opened(store, 40 + seed).append([row(100 + seed, name)])
    shared = seen(stores)["shallow"]
    opened(shared, 50).delete("n = 7")
    KeyedTable(shared, ids=SeededIds(60), clock=ManualClock(step_ms=1)).compact()
    return stores


def seen(stores: Mapping[str, ObjectStore]) -> dict[str, ObjectStore]:
    """Return the stores that tables read. For the shallow clone, missing objects are read from the source."""
    return {name: TableStore(store, opened=lambda _: stores["source"]) for name, store in stores.items()}


def answers(stores: Mapping[str, ObjectStore]) -> dict[str, Any]:
    """Return the answers of each table, now and at the version that was cloned."""
    found: dict[str, Any] = {}
    for name, store in seen(stores).items():
        table = opened(store, 70)
        found[name] = {
            "configuration": dict(table.snapshot.metadata.configuration),
            "features": sorted(table.snapshot.protocol.readerFeatures or ()),
            "versions": table.version,
            "hosts": table.search_count("h1", index="hosts"),
            "rows": sorted(table.scan(["n"]).to_arrow().column("n").to_pylist()),
            "at_0": sorted(table.scan(["n"], at=0).to_arrow().column("n").to_pylist()),
            "own": sum(1 for _ in stores[name].list("splits/")),
        }
    return found
