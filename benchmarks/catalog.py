"""The SQL catalog for tables with many splits and versions, in SQLite and PostgreSQL.

The benchmark writes the splits into the state of the table without separate commits. A load of this state reads the
same data as a load of a real log. Each query returns the first page of its result. The measured time includes the time
to connect.
"""

from __future__ import annotations

import datetime as dt
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.metrics import Metric, command, grown_mib, median, seconds
from storage_core.catalog.catalog import Catalog
from storage_core.catalog.opening import open_catalog
from storage_core.catalog.refresher import insert
from storage_core.catalog.schema import COMMITS
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add
from storage_core.log.checkpoint_writing import write_checkpoint
from storage_core.log.log import TransactionLog
from storage_core.store.local import LocalStore
from tests.support import postgres
from tests.support.events import HOUR_SECONDS
from tests.support.many_splits import snapshot_of_many, table_of_many

SPLITS = 1_000_000
WINDOWS = 8_000
EXPIRED = 100
VERSIONS = 100_000
YOUNG = 10
COMMITTED = 20
NAME = "events"


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the metrics of each database."""
    splits, versions = (20_000, 1_000) if small else (SPLITS, VERSIONS)
    with tempfile.TemporaryDirectory() as folder, postgres.running(hurried=False) as server:
        root = Path(folder)
        table_of_many(root / NAME, splits=splits, windows=WINDOWS)
        grown = {count: _at_version(root / str(count), count) for count in (YOUNG, versions)}
        for database in ("SQLite", "PostgreSQL"):
            first, second = (
                f"sqlite:///{root}/{number}.db" if database == "SQLite" else server.place() for number in range(2)
            )
            with open_catalog(first) as catalog:
                yield from _at_many_splits(catalog, root / NAME, f"{splits:,} splits in {database}")
            with open_catalog(second) as catalog:
                yield from _at_many_versions(catalog, grown, database)


def _at_many_splits(catalog: Catalog, root: Path, where: str) -> Iterator[Metric]:
    taken: list[float] = []
    grown = grown_mib(lambda: taken.append(seconds(lambda: catalog.refresh(str(root)))), every_s=0.05)
    yield _against(f"first load of {where}", taken[0], 60, "s")
    yield Metric(name=f"first load of {where}, memory", value=grown, unit="MiB")
    yield _against(f"rebuild of {where}", seconds(lambda: catalog.rebuild(str(root))), 60, "s")
    yield _against(f"refresh after one commit, {where}", _after_a_commit(catalog, root), 50, "ms")
    for question, ask in _questions(catalog).items():
        ask()
        yield _against(f"{question}, {where}", 1_000 * median([seconds(ask) for _ in range(9)]), 20, "ms")


def _questions(catalog: Catalog) -> dict[str, Callable[[], object]]:
    since = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=WINDOWS // 2)
    until = since + dt.timedelta(hours=1)
    head = catalog.tables()[0].head_version
    now_ms = 1000 * EXPIRED * HOUR_SECONDS + 1
    return {
        "compaction candidates": lambda: catalog.compaction_candidates(NAME, after=(WINDOWS // 2 * HOUR_SECONDS, "")),
        "splits of a time and a filter": lambda: catalog.splits_between(
            NAME, since, until, filter="service = 'api' and host >= '0000'"
        ),
        "windows to discard": lambda: catalog.expired_windows(NAME, now_ms=now_ms),
        "what changed since a version": lambda: catalog.changes_since(NAME, head - COMMITTED),
    }


def _at_many_versions(catalog: Catalog, grown: Mapping[int, Path], database: str) -> Iterator[Metric]:
    costs = {}
    for versions, root in grown.items():
        catalog.refresh(str(root))
        _fill_history(catalog, root, versions)
        costs[versions] = _after_a_commit(catalog, root)
        name = f"refresh after one commit, version {versions:,} in {database}"
        if versions == YOUNG:
            yield Metric(name=name, value=costs[YOUNG], unit="ms")
        else:
            ratio = costs[YOUNG] / costs[versions]
            yield Metric(
                name=name, value=costs[versions], unit="ms", against=f"version {YOUNG}", ratio=ratio, aim=0.7
            )  # fmt: skip


def _after_a_commit(catalog: Catalog, root: Path) -> float:
    """Return the median milliseconds of a refresh after one commit of a split."""
    log, taken = _log(root), []
    for _ in range(COMMITTED):
        head = log.snapshot()
        log.commit(head, [_split(head.version)], operation="APPEND")
        taken.append(1_000 * seconds(lambda: catalog.refresh(str(root))))
    return median(taken)


def _at_version(root: Path, version: int) -> Path:
    """Create a small table at this version. The log retains only the state, and this state contains the version."""
    log = _log(root)
    settings = {
        **snapshot_of_many(1, 1).metadata.configuration,
        **TableConfig(checkpoint_interval=0).to_configuration(),
    }
    head = log.create(replace(snapshot_of_many(1, 1).metadata, id=log.ids.uuid(), configuration=settings))
    write_checkpoint(log.store, replace(head, version=version), log.ids.uuid)
    return root


def _fill_history(catalog: Catalog, root: Path, versions: int) -> None:
    """Add all earlier commits of the table to the catalog, without reading these commits from the log."""
    (known,) = [each for each in catalog.tables() if each.uri == _log(root).store.uri]
    constant = {"table_id": known.table_id, "commit_id": "", "operation": "APPEND", "metrics": "{}"}
    rows = {name: pa.repeat(pa.scalar(text), versions) for name, text in constant.items()}
    number = pa.array(np.arange(versions))
    rows |= {"version": number, "committed_at_ms": number, "splits_added": number, "splits_removed": number}
    catalog.database.write(lambda connection: insert(connection, COMMITS, pa.table(rows)))


def _split(number: int) -> Add:
    return Add(
        path=f"splits/0/added-{number}.parquet", size=1, modificationTime=0, numRecords=1, windowStart=0,
        windowSeconds=HOUR_SECONDS,
    )  # fmt: skip


def _log(root: Path) -> TransactionLog:
    return TransactionLog(LocalStore(root))


def _against(name: str, value: float, aim: float, unit: str) -> Metric:
    return Metric(name=name, value=value, unit=unit, against=f"{aim:g} {unit}", ratio=aim / value, aim=1)


if __name__ == "__main__":
    sys.exit(command(measure, __doc__))
