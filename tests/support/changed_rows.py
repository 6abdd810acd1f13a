"""A small append table for statements that change its rows, and its content as plain rows."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping

import pyarrow as pa

from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up
from storage_core.maintain.check import fsck
from storage_core.maintain.findings import Kind
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable, Row

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("host", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
START = dt.datetime(2024, 2, 29, 10, tzinfo=dt.UTC)
CONFIG = TableConfig(
    time_column="at",
    window_seconds=3600,
    sort_schema="host|timestamp/V2",
    checkpoint_interval=0,
    indexes=(IndexDefinition(name="hosts", kind="bitmap", columns=("host",)),),
)
Kept = tuple[object, ...]


def row(n: int, host: str | None = "h", *, hour: int = 0, x: float | None = None) -> Row:
    """Return a row whose time is `hour` hours and `n % 3600` seconds after `START`."""
    return {"at": START + dt.timedelta(hours=hour, seconds=n % 3600), "host": host, "n": n, "x": x}


def opened(store: ObjectStore, seed: int) -> Table:
    """Open the table as a second process would, with different IDs."""
    metered = MeteredStore(store)
    log = KeyedTable(metered, ids=SeededIds(seed), clock=ManualClock(step_ms=1)).log
    return Table(metered, log, log.snapshot())


def created(store: ObjectStore, config: TableConfig = CONFIG) -> Table:
    """Create an empty table in the store."""
    KeyedTable(store, ids=SeededIds(1), clock=ManualClock(step_ms=1)).create(SCHEMA, config)
    return opened(store, 2)


def rows_of(store: ObjectStore, version: int | None = None) -> Counter[Kept]:
    """Return the rows that a scan finds, each with its count."""
    return kept(opened(store, 999).scan(at=version).to_arrow().to_pylist())


def kept(rows: Iterable[Mapping[str, object]]) -> Counter[Kept]:
    """Return the rows as a multiset."""
    return Counter(tuple(map(_text, each.values())) for each in rows)


def _text(value: object) -> str:
    """Return a value as text. The text is the same for time zones with different names, and for 0.0 and -0.0."""
    if isinstance(value, dt.datetime):
        return str(value)
    return repr(value + 0.0) if isinstance(value, float) else repr(value)


def index(table: Table) -> None:
    """Catch up all indexes."""
    for each in table.config.indexes:
        snapshot = table.log.snapshot()
        plan = catch_up.plan(snapshot, each.name)
        built = [catch_up.execute(table.store, work, ids=table.log.ids) for work in plan.work]
        if actions := plan.actions(built):
            table.log.commit(snapshot, actions, operation="CATCH UP")


def require_sound(store: ObjectStore) -> None:
    """Fail if the table is damaged. Unreferenced files and segments of deleted rows are allowed."""
    found = fsck(store, clock=ManualClock(step_ms=1), deep=True).findings
    assert [each for each in found if each.kind not in (Kind.UNREFERENCED, Kind.SEGMENT_STALE)] == []
