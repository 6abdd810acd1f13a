"""Read histories in pages while other work changes the table.

The pages must end, and together they must equal one read of the whole history.

The oracle is a dictionary of the written rows. At the start of a history, all records are read in one page. The pages
of the history are compared with this page. That page is compared with the dictionary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import pyarrow as pa

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import SnapshotExpired
from storage_core.compact import execute as compaction
from storage_core.data.formats.history_token import decode
from storage_core.data.rows.conform import conform
from storage_core.data.rows.fold import FIELDS, OPERATION
from storage_core.data.settings.table import TableConfig
from storage_core.log.log import TransactionLog
from storage_core.maintain.collect import collect
from storage_core.split.context import context_of
from storage_core.split.writer import sort_and_write
from storage_core.store.memory import MemoryStore
from storage_core.write.region.generation_write import SortingTerms
from storage_core.write.region.router import RoutingWriter
from storage_core.write.region.spec import first_specs
from storage_core.write.region.writer import RegionWriter
from tests.support.clock import ManualClock
from tests.support.keyed_table import PLANES, KeyedTable
from tests.support.merge_plan import plan as plan_compaction
from tests.support.paged_history import folded, page_of
from tests.support.scale import scaled

SEEDS = scaled(8)
STEPS = 80
NAMES = [f"N{number}" for number in range(12)]


def config(**settings: object) -> TableConfig:
    kept = {"checkpoint_interval": 0, "version_retention_ms": HOUR_MS, "gc_horizon_ms": HOUR_MS}
    return TableConfig(**{**kept, **settings})  # type: ignore[arg-type]  # settings by name


class World(Protocol):
    """A table that is written and maintained at random."""

    table: KeyedTable

    def write(self, random: Random) -> None:
        """Write some rows."""
        ...

    def check(self, records: pa.Table) -> None:
        """Assert that the records of the history contain exactly the rows that were written."""
        ...


def make(settings: TableConfig) -> KeyedTable:
    clock = ManualClock(step_ms=1)
    return KeyedTable(MemoryStore("history", clock=clock), clock=clock).create(config=settings)


class Keyed:
    """A keyed table with all operations on a few keys, flushes and claims."""

    def __init__(self, settings: TableConfig) -> None:
        self.table = make(settings)
        self.rows: dict[object, dict[str, object]] = {}
        self.writer = self.claim()

    def claim(self) -> RegionWriter | RoutingWriter:
        regions = self.table.snapshot.config.region_spec.fields
        return self.table.routing_writer() if regions else self.table.writer()

    def write(self, random: Random) -> None:
        name, seats = random.choice(NAMES), random.randrange(1000)
        row: dict[str, object] = {"tailnum": name, "seats": seats, "model": "m" * random.randrange(40)}
        match random.randrange(8):
            case 0 | 1:
                self.writer.put(row)
                self.rows[name] = row
            case 2:
                self.writer.reset(row)
                self.rows[name] = row
            case 3:
                self.writer.patch({"tailnum": name, "seats": seats})
                self.rows[name] = {"tailnum": name, "model": None, **self.rows.get(name, {}), "seats": seats}
            case 4:
                self.writer.delete(name)
                self.rows.pop(name, None)
            case 5 | 6:
                self.writer.flush()
            case _:
                self.writer.close()
                self.writer = self.claim()

    def check(self, records: pa.Table) -> None:
        assert folded(records, self.table.snapshot) == self.rows


class Appended:
    """An append table. Each write commits a few rows."""

    def __init__(self) -> None:
        self.table = make(config())
        self.rows: Counter[tuple[object, ...]] = Counter()

    def write(self, random: Random) -> None:
        table, snapshot = self.table, self.table.snapshot
        rows = [(random.choice(NAMES), random.randrange(9), "m") for _ in range(random.randrange(1, 5))]
        given = pa.Table.from_pylist([dict(zip(PLANES.names, row, strict=True)) for row in rows])
        adds = sort_and_write(
            table.store,
            conform(given, PLANES),
            context=context_of(snapshot),
            ids=table.ids,
            now_ms=table.clock.now_ms(),
        )
        table.log.commit(snapshot, adds, operation="APPEND")
        self.rows.update(rows)

    def check(self, records: pa.Table) -> None:
        rows = records.drop_columns([OPERATION, FIELDS]).to_pylist()
        assert Counter(tuple(row.values()) for row in rows) == self.rows


@dataclass(slots=True)
class Reader:
    """Reads histories one after another, page by page. The reader checks each history at its end."""

    world: World
    random: Random
    token: str | None = None
    begun: bool = False
    restarts: int = 0
    sizes: list[int] = field(default_factory=list)
    whole: pa.Table | None = None
    pages: list[pa.Table] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    @property
    def log(self) -> TransactionLog:
        return self.world.table.log

    def read(self) -> None:
        """Read the next page of the history in a new process. Before the first page, start a new history."""
        if not self.begun:
            self._begin()
        page_bytes = self.random.choice(self.sizes)
        try:
            page = page_of(self.log, self.token, page_bytes=page_bytes)
        except SnapshotExpired:
            assert self.restarts == 1, "a history begins anew once before it is given up"
            self._end("expired")
            return
        if page.restarted:
            self.restarts += 1
            assert self.restarts == 1
            self._remember_instant()
            self.seen["restarted"] += 1
        assert page.records.num_rows or page.token is None
        assert page.records.nbytes <= page_bytes or page.records.num_rows == 1
        self.pages.append(page.records)
        self.token = page.token
        if page.token is not None:
            self.seen[type(decode(page.token).place).__name__] += 1
            return
        assert self.whole is not None
        assert pa.concat_tables(self.pages).equals(self.whole)
        self._end("ended")

    def _begin(self) -> None:
        self.begun, self.restarts = True, 0
        self.sizes = self.random.choice([[1], [1, 60], [200, 700, 5_000]])
        self._remember_instant()

    def _remember_instant(self) -> None:
        self.pages = []
        self.whole = page_of(self.log).records
        self.world.check(self.whole)

    def _end(self, how: str) -> None:
        self.begun, self.token = False, None
        self.seen[how] += 1


def merge(world: World, _random: Random) -> None:
    if world.table.snapshot.config.primary_key:
        world.table.merge()


def sort(world: World, random: Random) -> None:
    world.table.sort(SortingTerms(generations=1, run_records=random.choice([2, 1000])))


def compact(world: World, _random: Random) -> None:
    table = world.table
    for operation in plan_compaction(table.snapshot):
        result = compaction.execute(table.store, operation, ids=table.ids, now_ms=table.clock.now_ms())
        table.log.commit(table.snapshot, result.actions, operation="COMPACT")


def checkpoint_and_collect(world: World, random: Random) -> None:
    table = world.table
    if random.random() < 0.8:
        table.log.checkpoint(table.snapshot)
    table.clock.sleep_ms(random.choice([0, 2 * HOUR_MS, 2 * HOUR_MS]))
    collect(table.store, table.log, clock=table.clock, horizon_ms=0)


MAINTENANCE: list[Callable[[World, Random], None]] = [merge, sort, compact, checkpoint_and_collect]


def run(world: World, random: Random) -> Counter[str]:
    reader = Reader(world, random)
    for _ in range(STEPS):
        match random.randrange(6):
            case 0 | 1:
                world.write(random)
            case 2 | 3:
                random.choice(MAINTENANCE)(world, random)
            case _:
                reader.read()
    ended = reader.seen["ended"] + reader.seen["expired"]
    for _ in range(500):
        if reader.seen["ended"] + reader.seen["expired"] > ended:
            return reader.seen
        reader.read()
        random.choice(MAINTENANCE)(world, random)
        world.write(random)
    raise AssertionError("a history does not end")


def test_pages_read_at_random_moments_are_one_read_of_the_rows_that_were_written() -> None:
    specs = first_specs([{"transform": "bucket(2)", "source": "tailnum"}], PLANES)
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        keyed = config(primary_key=("tailnum",))
        regions = config(primary_key=("tailnum",), region_specs=specs)
        world: World = (Keyed(keyed), Keyed(keyed), Keyed(regions), Appended())[seed % 4]
        try:
            seen += run(world, Random(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert not {"InBase", "InGenerations", "InTail", "restarted", "expired", "ended"} - set(seen), seen
