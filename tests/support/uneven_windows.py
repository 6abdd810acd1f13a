"""A table with one large and several small windows. Every store gets objects with equal names and bytes.

The table has all kinds of data that a compaction must preserve. The table has strings with few and with many values,
floats of every kind, decimals, dates and booleans. The table also has nulls in every nullable column, overlapping
splits, and deleted rows.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa

from storage_core.data.rows.schema import to_schema_string
from storage_core.log.actions import Add, Metadata
from storage_core.log.log import TransactionLog
from storage_core.split.context import context_of
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import ObjectStore
from storage_core.store.resolve import open_store
from storage_core.table import Table
from tests.support.clock import ManualClock
from tests.support.deleted_rows import delete_where
from tests.support.events import CONFIG, HOUR_SECONDS, SCHEMA, TABLE_ID, instant
from tests.support.ids import SeededIds

LARGE = 394_464 * HOUR_SECONDS
"""The start time of the large window. The small windows are later than the large window."""

WINDOWS = 5
_BATCHES = 5
_LARGE_ROWS, _SMALL_ROWS = 2_000, 60
_FLOATS = (0.0, -0.0, math.nan, math.inf, -math.inf, None, 1 / 3, 5e-324)
_COLUMNS = (
    *SCHEMA,
    pa.field("message", pa.string()),
    pa.field("price", pa.decimal128(12, 2)),
    pa.field("day", pa.date32()),
    pa.field("ok", pa.bool_()),
)


def create(store: ObjectStore) -> None:
    """Create the table: five splits per window from five commits, with deleted rows in all of them."""
    log = TransactionLog(store, clock=ManualClock(1_000 * LARGE), ids=SeededIds(8))
    schema = pa.schema(list(_COLUMNS))
    log.create(
        Metadata(
            id=TABLE_ID,
            schemaString=to_schema_string(schema),
            configuration=CONFIG.to_configuration(),
            createdTime=log.clock.now_ms(),
        )
    )
    for batch in range(_BATCHES):
        head = log.snapshot()
        rows = pa.Table.from_pylist(list(_rows(batch)), schema=schema)
        adds = sort_and_write(store, rows, context=context_of(head), ids=log.ids, now_ms=log.clock.now_ms())
        log.commit(head, adds, operation="WRITE")
    delete_where(log, lambda row: row["count"] % 11 == 0)


def rows_of(table: Table) -> Counter[str]:
    """Return the rows of the table as a multiset of texts. NaN equals itself, and -0.0 differs from 0.0."""
    return Counter(repr(sorted(row.items())) for row in table.scan().to_arrow().to_pylist())


def stored_splits(uri: str) -> set[str]:
    """Return the keys of all stored split files, including files that no version refers to."""
    return {info.key for info in open_store(uri).list("splits/")}


def live_splits(table: Table) -> list[Add]:
    """Return the live splits by window, and within a window by the first key."""
    return sorted(table.snapshot.splits.values(), key=lambda add: (add.windowStart or 0, add.minRowKey or ""))


def _rows(batch: int) -> Iterator[dict[str, Any]]:
    for window in range(WINDOWS):
        start = LARGE + window * HOUR_SECONDS
        many = _SMALL_ROWS if window else _LARGE_ROWS
        for number in range(many):
            count = batch * many + number
            yield {
                "at": instant(start + (count * 7_919) % HOUR_SECONDS),
                "service": f"service {count % 7}",
                "host": None if count % 13 == 0 else f"host {count * 31 % 17}",
                "count": count,
                "value": _FLOATS[count % len(_FLOATS)],
                "message": None if count % 29 == 0 else f"request {count * 104_729 % 1_000_003} of batch {batch}",
                "price": None if count % 5 == 0 else Decimal(count * 37 % 100_000) / 100,
                "day": dt.date(2015, 1, 1) + dt.timedelta(days=count % 400),
                "ok": None if count % 3 == 0 else count % 2 == 0,
            }
