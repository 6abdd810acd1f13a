"""A table whose window duration changed, and its expected answers.

Two ingests with different durations read one file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core.base.clock import SystemIds
from storage_core.change.creation import change_settings
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Metadata
from storage_core.log.log import TransactionLog
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.store.contract import ObjectStore
from storage_core.write.ingest.batch import execute, plan
from storage_core.write.ingest.landing import LandedFile, LandingSpec, discover
from storage_core.write.ingest.progress import Durations, progress

QUARTER, HOUR = 900, 3600
SCHEMA = pa.schema([pa.field("time", pa.timestamp("us", tz="UTC")), pa.field("id", pa.int64())])


def windows_table(log: TransactionLog, landing: Path, *, packed: bool = False) -> None:
    """Write windows of a quarter hour, then an hour, then a quarter hour. The file's last hour is not ingested."""
    settings = {"string_cut": 16, "split_compression": "gzip", "retained_states": 3, "manifest_entries": 100}
    settings |= {"split_metadata": "packed"} if packed else {}
    config = TableConfig(time_column="time", window_seconds=QUARTER, checkpoint_interval=2, **settings)  # type: ignore[arg-type]  # by name
    body = config.to_configuration()
    log.create(Metadata(id="t", schemaString=to_schema_string(SCHEMA), configuration=body))
    lines = [f"1970-01-01T{minute // 60:02}:{minute % 60:02}:00Z {minute}\n" for minute in range(0, 180, 5)]
    (landing / "a.log").write_text("".join(lines), encoding="utf-8")
    spec = LandingSpec(uri=str(landing), format="pattern", pattern=r"^(?P<time>\S+) (?P<id>[0-9]+)$")
    _ingest(log, spec, [0])
    change_settings(log, log.snapshot(), {"window": HOUR})
    _ingest(log, spec, [0])
    change_settings(log, log.snapshot(), {"window": QUARTER})
    _ingest(log, spec, [HOUR, HOUR + QUARTER])


def _ingest(log: TransactionLog, spec: LandingSpec, windows: Sequence[int]) -> None:
    snapshot = log.snapshot()
    context = context_of(snapshot)
    works = plan(snapshot, spec, discover(spec), windows)
    done = [execute(log.store, work, context=context, ids=SystemIds(), now_ms=1) for work in works]
    log.commit(snapshot, [action for result in done for action in result.actions], operation="INGEST")


def answers(store: ObjectStore) -> dict[str, Any]:
    """Return the rows, windows and settings of the table, and the ingest progress of the file."""
    snapshot = TransactionLog(store).snapshot()
    adds = sorted(snapshot.splits.values(), key=lambda add: (add.windowStart or 0, add.windowSeconds or 0, add.path))
    file = LandedFile(uri="a.log", path="a.log", size=0, etag=None, landed_ms=None)
    known = progress(snapshot.txns, [file], Durations.of(snapshot.config))["a.log"]
    return {
        "configuration": dict(snapshot.metadata.configuration),
        "features": sorted(snapshot.protocol.writerFeatures or ()),
        "windows": [[add.windowStart, add.windowSeconds] for add in adds],
        "rows": sorted(row for add in adds for row in read_split(store, add).column("id").to_pylist()),
        "done": [known.whole, sorted(each or 0 for each in known.windows), sorted(map(list, known.spans))],
    }
