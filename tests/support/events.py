"""An events table for tests, with windows, sorted by service, host and descending time. Snapshots need no log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from storage_core.data.rows.schema import to_schema_string
from storage_core.data.rows.sort_order import bind
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, MergeSkip, Metadata, Protocol
from storage_core.log.live_splits import Added, LiveFiles
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import SplitContext

TABLE_ID = "5b0f3c1e-2f3a-4d52-9a52-0f6c2f7d9a11"
HOUR_SECONDS = 3600
SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("service", pa.string()),
        pa.field("host", pa.string()),
        pa.field("count", pa.int64()),
        pa.field("value", pa.float64()),
    ]
)
CONFIG = TableConfig(time_column="at", sort_schema="service|host|timestamp/V2", window_seconds=HOUR_SECONDS)


def context(schema: pa.Schema = SCHEMA, config: TableConfig = CONFIG) -> SplitContext:
    """Return the context of the events table, or of a variant of it."""
    return SplitContext(
        table_id=TABLE_ID,
        schema=schema,
        order=bind(config, schema),
        time_column=config.time_column,
        window_seconds=config.window_seconds,
        target_bytes=config.target_split_bytes,
        configuration=config.to_configuration(),
    )


def events(rows: Iterable[Mapping[str, Any]], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return rows of the events table. `at` may be given as seconds since the epoch."""
    return pa.Table.from_pylist([{**row, "at": instant(row.get("at"))} for row in rows], schema=schema)


def instant(seconds: float | datetime | None) -> datetime | None:
    """Return the UTC time of this number of seconds since the epoch, exact to the microsecond."""
    if seconds is None or isinstance(seconds, datetime):
        return seconds
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def snapshot(
    adds: Sequence[Add],
    *,
    config: TableConfig = CONFIG,
    mergeskips: Sequence[MergeSkip] = (),
    timestamp: int = 1_000_000,
) -> Snapshot:
    """Return a snapshot in which exactly `adds` are live. Every split was added by a separate version."""
    metadata = Metadata(
        id=TABLE_ID, schemaString=to_schema_string(SCHEMA), configuration=config.to_configuration(), createdTime=0
    )
    return Snapshot(
        version=len(adds),
        timestamp=timestamp,
        protocol=Protocol(),
        metadata=metadata,
        splits=LiveFiles(added={add.path: Added(add, number, number) for number, add in enumerate(adds, start=1)}),
        mergeskips={skip.path: skip for skip in mergeskips},
    )
