"""Search for a value in all objects of stores, in every form and codec.

The module also contains a table whose splits, indexes, log and other parts all contain the value.
"""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.data.rows.vectors import vector_type
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up
from storage_core.maintain.collect import CollectionReport, collect
from storage_core.maintain.forget_report import ForgetReport, RawTable
from storage_core.maintain.raw_logs import RawLogCollector
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.distribution.work import ByTable, Source, log_offsets
from storage_core.write.ingest.convert import RejectedLine, write_quarantine
from storage_core.write.raw_log.history import RawStore
from storage_core.write.raw_log.records import RawLimits
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import START_MS, ManualClock
from tests.support.distribution import Board
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable, Row

CANARY = "zqcanaryqz"
"""The person to erase. No other value shares a part of this text."""
WHERE = f"person = '{CANARY}'"
PLACE = 7.654321e11
"""A component of the erased person's embeddings. The embeddings of other persons do not have this component."""
NEEDLES = (CANARY.encode(), pa.array([PLACE], pa.float32()).buffers()[1].to_pybytes()[:4])
RETENTION_MS = 3_600_000
HORIZON_MS = 60_000
DAY_MS = 86_400_000

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("person", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("note", pa.string()),
        ("place", vector_type(2)),
    ]
)
INDEXES = (
    IndexDefinition("people", "bitmap", ("person",)),
    IndexDefinition("notes", "fulltext", ("note",)),
    IndexDefinition("places", "vector", ("place",), {"quantization": "none"}),
)
APPENDED = TableConfig(
    time_column="at",
    window_seconds=3600,
    sort_schema="person|timestamp/V2",
    indexes=INDEXES,
    checkpoint_interval=3,
    version_retention_ms=RETENTION_MS,
    gc_horizon_ms=HORIZON_MS,
)
KEYED = replace(
    APPENDED,
    time_column=None,
    window_seconds=None,
    sort_schema=None,
    primary_key=("id",),
    indexes=(*INDEXES, IndexDefinition("keys", "primary_key", ("id",))),
)


def row(number: int, person: str = "") -> Row:
    """Return a row of another person, or of the person to erase."""
    is_canary = person == CANARY
    return {
        "id": number,
        "person": person or f"p{number % 4}",
        "at": dt.datetime.fromtimestamp(START_MS // 1000 + number, dt.UTC),
        "note": f"about {person}" if is_canary else f"about p{number % 4}",
        "place": [PLACE, 1.0] if is_canary else [float(number), 2.0],
    }


def places_of(store: ObjectStore, needles: Sequence[bytes] = NEEDLES) -> set[tuple[str, str]]:
    """Return the objects that contain one of the values in any form, as pairs of URI and key."""
    found = ((info.key, store.get(info.key).data) for info in store.list(""))
    return {
        (store.uri, key)
        for key, data in found
        if any(needle in form for form in forms_of(key, data) for needle in needles)
    }


def forms_of(key: str, data: bytes) -> Iterator[bytes]:
    """Yield the bytes of an object as stored, and decoded in each of its forms."""
    yield data
    if data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)
    if data[:4] == b"PAR1":
        file = pq.ParquetFile(io.BytesIO(data))
        yield from _of_rows(file.read())
        yield repr(file.metadata.metadata).encode()
    if data[:3] == b"Obj":
        yield from (repr(each).encode() for each in fastavro.reader(io.BytesIO(data)))
    if key.endswith(".arrow"):
        source = pa.BufferReader(data)
        while source.tell() < len(data) - 24:  # a WAL entry ends with a trailer
            with pa.ipc.open_stream(source) as stream:
                yield from _of_rows(stream.read_all())
    if key.startswith("quarantine/"):
        body = json.loads(data)
        if "rows" in body:
            yield from _of_rows(pa.ipc.open_stream(base64.b64decode(body["rows"])).read_all())


def _of_rows(rows: pa.Table) -> Iterator[bytes]:
    for column in rows.columns:
        yield repr(column.to_pylist()).encode()
        kind = column.type
        if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
            yield b"".join(pa.array(each or [], pa.float32()).buffers()[1].to_pybytes() for each in column.to_pylist())


@dataclass(slots=True)
class Forgetful:
    """A table, a raw log on separate stores, and their common clock, which tests move."""

    config: TableConfig
    table_store: MemoryStore
    raw_stores: list[MemoryStore]
    clock: ManualClock
    seed: int = 1
    others: set[int] = field(default_factory=set)

    @staticmethod
    def create(config: TableConfig, *, raw_stores: int = 3) -> Forgetful:
        """Create an empty table and raw log."""
        clock = ManualClock(step_ms=1)
        stores = [MemoryStore(f"raw-{number}", clock=clock) for number in range(raw_stores)]
        made = Forgetful(config, MemoryStore("people", clock=clock), stores, clock)
        KeyedTable(made.table_store, ids=SeededIds(1), clock=clock).create(SCHEMA, config)
        return made

    @property
    def stores(self) -> list[MemoryStore]:
        """Return all stores."""
        return [self.table_store, *self.raw_stores]

    @property
    def raw(self) -> RawTable:
        """Return the raw log."""
        return RawTable("people", self.raw_stores)

    def opened(self, store: ObjectStore | None = None) -> Table:
        """Open the table as a second process would."""
        self.seed += 1
        metered = MeteredStore(store or self.table_store)
        log = KeyedTable(metered, ids=SeededIds(self.seed), clock=self.clock).log
        return Table(metered, log, log.snapshot())

    @property
    def keyed(self) -> KeyedTable:
        """Return the helper that merges and compacts the table."""
        self.seed += 1
        return KeyedTable(self.table_store, ids=SeededIds(self.seed), clock=self.clock)

    def rows(self, numbers: Iterable[int], person: str = "") -> list[Row]:
        """Return rows of `person`. Without `person`, return and record rows that the erasure must keep."""
        numbers = [*numbers]
        if not person:
            self.others |= {*numbers}
        return [row(number, person) for number in numbers]

    def index(self) -> None:
        """Catch up all indexes."""
        table = self.opened()
        for each in table.config.indexes:
            snapshot = table.log.snapshot()
            plan = catch_up.plan(snapshot, each.name)
            built = [catch_up.execute(table.store, work, ids=table.log.ids) for work in plan.work]
            if actions := plan.actions(built):
                table.log.commit(snapshot, actions, operation="CATCH UP")

    def produce(self, numbers: Iterable[int], person: str = "") -> None:
        """Write rows to the raw log with a new writer, one chunk per row."""
        self.seed += 1
        limits = RawLimits(segment_ms=1)
        with RawLog(
            [RawStore(each) for each in self.raw_stores], clock=self.clock, ids=SeededIds(self.seed), limits=limits
        ) as log:
            for each in self.rows(numbers, person):
                log.append("people", {**each, "at": each["at"].isoformat()})  # type: ignore[attr-defined]
                self.clock.now += 10

    def distribute(self) -> None:
        """Distribute all rows that can be distributed."""
        self.seed += 1
        self.clock.now += DAY_MS
        Board(self.raw_stores, {"people": self.table_store}, seed=self.seed, clock=self.clock).distribute()

    def reject(self, *texts: str, source: str = "landed.csv") -> None:
        """Put lines of a landed file into quarantine."""
        lines = [RejectedLine(source, number, "no row", text) for number, text in enumerate(texts, start=1)]
        write_quarantine(self.table_store, source, 100, lines)

    def collect(self) -> CollectionReport:
        """Collect the table and the raw log at the current time."""
        self.seed += 1
        found = collect(self.table_store, self.opened().log, clock=self.clock)
        if self.raw_stores:
            self._raw_collector().collect()
        return found

    def _raw_collector(self) -> RawLogCollector:
        source = Source(name="raw", stores=tuple(each.uri for each in self.raw_stores), tables=("people",))
        return RawLogCollector(
            source=source,
            stores=self.raw_stores,
            offsets=self._offsets,
            retention_ms=None,
            clock=self.clock,
            ids=SeededIds(self.seed),
            horizon_ms=HORIZON_MS,
        )

    def _offsets(self) -> ByTable:
        return {"people": log_offsets(self.opened().log.snapshot())}

    def places(self) -> set[tuple[str, str]]:
        """Return the objects of all stores that contain data of the person to erase."""
        return set().union(*(places_of(each) for each in self.stores))

    def report(self, where: str = WHERE) -> ForgetReport:
        """Return the erasure report. The report must list every object that contains data of the person."""
        found = self.opened().forget_report(where, raw_logs=[self.raw] if self.raw_stores else [])
        require_true(found, self.places())
        return found

    def numbers(self) -> list[int]:
        """Return the `id` of each row. A keyed table is read at consistency level `latest`."""
        consistency = "latest" if self.config.primary_key else "snapshot"
        return sorted(self.opened().scan(["id"], consistency=consistency).to_arrow().column("id").to_pylist())


DATA = frozenset({"split", "raw_chunk", "quarantine"})
"""Kinds of objects that contain only whole rows. A delete in a WAL entry contains only the key of a person."""


def require_true(report: ForgetReport, places: set[tuple[str, str]]) -> None:
    """Fail if the report omits an object with the person's rows, or lists a data object without the person's rows."""
    named = {(each.store, each.key) for each in report.held}
    assert places <= named, sorted(places - named)
    wrong = {(each.store, each.key) for each in report.held if each.kind in DATA} - places
    assert not wrong, sorted(wrong)
