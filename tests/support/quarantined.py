"""A table with a landing location, whose lines go to quarantine and come back."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from storage_core.data.formats.arrow_files import QuarantinedRows
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.data.steps import RetryQuarantine
from storage_core.log.actions import Metadata
from storage_core.log.job_run import InProcessExecutor, JobReport, JobRun
from storage_core.log.log import TransactionLog
from storage_core.maintain.quarantine import pending_entries, retry
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.ingest.batch import BatchResult, IngestWork, execute_batch, plan
from storage_core.write.ingest.landing import LandingSpec, discover
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds

HOUR = 3600
SCHEMA = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC")), pa.field("id", pa.int64())])
WIDER = pa.schema([*SCHEMA, pa.field("city", pa.string())])
CONFIG = TableConfig(time_column="at", window_seconds=HOUR)


@dataclass(frozen=True)
class Opened:
    """An open table: its log and its newest version."""

    log: TransactionLog

    @property
    def snapshot(self) -> object:
        return self.log.snapshot()


@dataclass
class Bench:
    """One table in a store, and a landing folder."""

    root: Path
    spec: LandingSpec
    store: ObjectStore = field(default_factory=lambda: MemoryStore("table", clock=_clock()))
    seeds: SeededIds = field(default_factory=lambda: SeededIds(7))

    def at(self, store: ObjectStore, seed: int = 11) -> Bench:
        """Return the same table in another store."""
        return replace(self, store=store, seeds=SeededIds(seed))

    @property
    def log(self) -> TransactionLog:
        return TransactionLog(self.store, clock=_clock(), ids=self.seeds)

    def create(self, config: TableConfig = CONFIG, schema: pa.Schema = SCHEMA) -> Bench:
        (self.root / "landing").mkdir(parents=True, exist_ok=True)
        metadata = Metadata(id="t", schemaString=to_schema_string(schema), configuration=config.to_configuration())
        self.log.create(metadata)
        return self

    def widen(self, config: TableConfig = CONFIG) -> None:
        """Add the column `city`, like a user who corrects the declaration."""
        log = self.log
        head = log.snapshot()
        metadata = replace(head.metadata, schemaString=to_schema_string(WIDER), configuration=config.to_configuration())
        log.commit(head, [metadata], operation="SET SCHEMA")

    def land(self, name: str, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        (self.root / "landing" / name).write_bytes(data)

    def works(self, windows: Collection[int | None] | None = None) -> list[IngestWork]:
        return plan(self.log.snapshot(), self.spec, discover(self.spec), windows)

    def execute(self, works: Sequence[IngestWork]) -> BatchResult:
        log = self.log
        result = execute_batch(self.store, works, context=context_of(log.snapshot()), ids=log.ids, now_ms=NOW_MS)
        assert BatchResult.from_json(result.to_json()) == result
        return result

    def commit(self, result: BatchResult) -> None:
        log = self.log
        if result.actions:
            log.commit(log.snapshot(), result.actions, operation="INGEST")

    def ingest(self, windows: Collection[int | None] | None = None) -> BatchResult:
        result = self.execute(self.works(windows))
        self.commit(result)
        return result

    def retry(self, *, source: str | None = None, accept_late: bool = False) -> JobReport:
        log = self.log
        options = RetryQuarantine(table_uri=self.store.uri, source=source, accept_late=accept_late)
        job = JobRun(options, InProcessExecutor(log), Opened(log), takes_leases=False)  # type: ignore[arg-type]
        return retry(job, self.spec)

    def ids(self) -> list[int]:
        snapshot = self.log.snapshot()
        tables = [read_split(self.store, add, ["id"]) for add in snapshot.splits.values()]
        return sorted(value for table in tables for value in table.column("id").to_pylist())

    def objects(self) -> list[str]:
        """Return the keys of the quarantine objects, without receipts."""
        return sorted(each.key for each in self.store.list("quarantine/") if "_receipts" not in each.key)

    def pending(self) -> list[tuple[str, int, str]]:
        """Return the file, the line and the reason of everything in quarantine."""
        found: list[tuple[str, int, str]] = []
        for each in pending_entries(self.store, self.log.snapshot()):
            entry = each.entry
            if isinstance(entry, QuarantinedRows):
                found += [(entry.source, line, entry.reason) for line in each.lines]
            else:
                reasons = [str(line["reason"]) for line in entry.rejected]
                found += [(entry.source, *pair) for pair in zip(each.lines, reasons, strict=True)]
        return sorted(found)


NOW_MS = 1_700_000_000_000


def _clock() -> ManualClock:
    clock = ManualClock()
    clock.now = NOW_MS
    return clock


def make_bench(root: Path, form: str = "ndjson", config: TableConfig = CONFIG, schema: pa.Schema = SCHEMA) -> Bench:
    spec = LandingSpec(uri=str(root / "landing"), format=form)  # type: ignore[arg-type]
    return Bench(root, spec).create(config, schema)


def line(second: int, number: int, **more: object) -> str:
    """Return a line of NDJSON with a time, an id and other fields."""
    at = f"1970-01-01T{second // HOUR:02}:{second // 60 % 60:02}:{second % 60:02}Z"
    return json.dumps({"at": at, "id": number, **more}) + "\n"
