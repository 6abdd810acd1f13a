"""A keyed table with a landing location, whose files are ingested, merged and retried."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from jobs.ingest import run_ingest
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.layout import LANDING_KEY
from storage_core.data.settings.table import TableConfig
from storage_core.data.steps import Ingest, RetryQuarantine
from storage_core.log.actions import Metadata
from storage_core.log.job_run import InProcessExecutor, JobReport, JobRun
from storage_core.log.log import TransactionLog
from storage_core.log.versions import entries
from storage_core.maintain.quarantine import pending_entries, retry
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.ingest.landing import LandingSpec
from storage_core.write.region.spec import first_specs
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.quarantined import Opened

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("lsn", pa.int64()),
    ]
)
THREE_REGIONS = first_specs(({"transform": "bucket", "source": "id", "n": 3},), SCHEMA)
KEYED = TableConfig(primary_key=("id",))
Record = Mapping[str, object] | None


@dataclass
class KeyedLanding:
    """One keyed table in a store, and a landing folder. Files land a second apart."""

    root: Path
    spec: LandingSpec
    store: ObjectStore = field(default_factory=lambda: MemoryStore("table"))
    seeds: SeededIds = field(default_factory=lambda: SeededIds(7))
    clock: ManualClock = field(default_factory=lambda: ManualClock(step_ms=1))
    landed: int = 0

    def at(self, store: ObjectStore, seed: int = 11) -> KeyedLanding:
        """Return the same table in another store."""
        return replace(self, store=store, seeds=SeededIds(seed), clock=ManualClock(step_ms=1))

    @property
    def table(self) -> KeyedTable:
        return KeyedTable(self.store, ids=self.seeds, clock=self.clock)

    @property
    def log(self) -> TransactionLog:
        return self.table.log

    def create(self, config: TableConfig = KEYED, schema: pa.Schema = SCHEMA) -> KeyedLanding:
        (self.root / "landing").mkdir(parents=True, exist_ok=True)
        configuration = {**config.to_configuration(), LANDING_KEY: self.spec.to_json()}
        self.log.create(
            Metadata(
                id="6e1bb7ba-6c4c-4e3c-9d0b-0d0f1b1c2d3e",
                schemaString=to_schema_string(schema),
                configuration=configuration,
            )
        )
        return self

    def land(self, name: str, *records: Record) -> None:
        """Land a file of JSON lines."""
        self.land_text(name, "".join(json.dumps(each) + "\n" for each in records))

    def land_text(self, name: str, text: str | bytes) -> None:
        path = self.root / "landing" / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        self.landed += 1
        os.utime(path, (self.landed, self.landed))

    def declare(self, **changes: object) -> None:
        """Change the landing location, like a user who corrects the declaration."""
        self.spec = replace(self.spec, **changes)  # type: ignore[arg-type]
        log = self.log
        head = log.snapshot()
        configuration = {**head.metadata.configuration, LANDING_KEY: self.spec.to_json()}
        log.commit(head, [replace(head.metadata, configuration=configuration)], operation="SET SETTINGS")

    def ingest(self, **given: object) -> JobReport:
        log = self.log
        options = Ingest(table_uri=self.store.uri, **given)  # type: ignore[arg-type]
        return run_ingest(JobRun(options, InProcessExecutor(log), Opened(log), takes_leases=False))  # type: ignore[arg-type]

    def retry(self, **options: object) -> JobReport:
        log = self.log
        given = RetryQuarantine(table_uri=self.store.uri, **options)  # type: ignore[arg-type]
        return retry(JobRun(given, InProcessExecutor(log), Opened(log), takes_leases=False), self.spec)  # type: ignore[arg-type]

    def rows(self) -> dict[object, dict[str, object]]:
        return self.table.rows()

    def names(self) -> dict[object, object]:
        """Return a mapping from the key of each row to the value of the column `name`."""
        return {key: row["name"] for key, row in self.rows().items()}

    def metrics(self) -> Mapping[str, object]:
        """Return the metrics of the newest commit."""
        return next(entries(self.store, self.log.snapshot().version)).metrics

    def reasons(self) -> list[tuple[str, int, str]]:
        """Return the file, the line and the reason of every rejected line in quarantine."""
        found: list[tuple[str, int, str]] = []
        for each in pending_entries(self.store, self.log.snapshot()):
            rejected: Sequence[Mapping[str, object]] = getattr(each.entry, "rejected", ())
            found += [
                (each.entry.source, line, str(own["reason"])) for line, own in zip(each.lines, rejected, strict=False)
            ]
        return sorted(found)


def make_landing(root: Path, config: TableConfig = KEYED, schema: pa.Schema = SCHEMA, **spec: object) -> KeyedLanding:
    """Return a keyed table with a landing location of NDJSON, or of the given form."""
    given = {"format": "ndjson", **spec}
    return KeyedLanding(root, LandingSpec(uri=str(root / "landing"), **given)).create(config, schema)  # type: ignore[arg-type]


def change(op: str, at: int, key: int, **row: object) -> dict[str, object]:
    """Return an envelope of Debezium for the row with this key."""
    image = {"id": key, **row}
    before, after = (image, None) if op == "d" else (None, image)
    return {"before": before, "after": after, "op": op, "ts_ms": at // 2, "source": {"lsn": at}}
