"""A reader at `latest` sees each acknowledged row once, in every way to read and after any sequence of events.

Producers append through open writers, lose replies and repeat records with their own IDs. Copies are lost and healed.
Distributors, merges and collectors are killed at any of their requests. Other processes write, alter the schema and
delete. After each step, the test compares every table with two results. The first result is the table's content after a
full distribution. The second result comes from a model that contains the appended rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product

from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_core.base.errors import TidemarkError, Unavailable
from storage_core.data.formats.raw_chunk import OPERATIONS
from storage_core.maintain.raw_logs import heal
from storage_core.write.distribution.work import Terms
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import ManualClock
from tests.support.fault_store import Crash, CrashFault, FaultStore, PutFault
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.raw_collection import collect
from tests.support.raw_reads import RAW, READS, TABLES, RawReads, by_history, by_keys, by_scan, records_of
from tests.support.scale import scaled

_NUMBERS = st.lists(st.integers(0, 7), min_size=1, max_size=4)
_AT = st.none() | st.integers(0, 60)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([0, 1]), _NUMBERS),
        st.tuples(st.just("append"), st.sampled_from([0, 1]), _NUMBERS),
        st.tuples(st.just("again"), st.sampled_from(["acknowledged", *PutFault]), _NUMBERS),
        st.tuples(st.just("distribute"), _AT, st.sampled_from([1, 1_000, 10**9])),
        st.tuples(st.just("distribute"), _AT, st.sampled_from([1, 1_000, 10**9])),
        st.tuples(st.just("merge"), _AT, st.sampled_from(["users", "parts"])),
        st.tuples(st.just("sort"), _AT, st.sampled_from(["users", "parts"])),
        st.tuples(st.just("compact"), _AT, st.sampled_from(TABLES)),
        st.tuples(st.just("put"), st.integers(0, 7), st.sampled_from(["users", "parts"])),
        st.tuples(st.just("delete"), st.integers(0, 7), st.sampled_from(["users", "parts"])),
        st.tuples(st.just("alter"), st.just(0), st.sampled_from(TABLES)),
        st.tuples(st.just("collect"), _AT, st.just(0)),
        st.tuples(st.just("lose"), st.integers(0, 20), st.sampled_from(RAW)),
        st.tuples(st.just("heal"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@dataclass(slots=True)
class _World:
    reads: RawReads
    writers: dict[int, RawLog] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=ManualClock)
    rows: int = 0
    known: Counter[int] = field(default_factory=Counter)
    ids: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)

    def append(self, writer: int, numbers: list[int]) -> None:
        """Append one chunk: rows, patches and deletes of repeated keys, and rows that all tables reject."""
        self.clock.now += 1
        if writer not in self.writers:
            self.reads.seed += 1
            stores = [self.reads.stores[each] for each in RAW]
            ids, limits = SeededIds(10_000 * self.reads.seed), RawLimits(segment_ms=2)
            self.writers[writer] = RawLog(stores, clock=self.clock, ids=ids, limits=limits)
        records = [RawRecord(table="strange", fields={}), RawRecord(table="events", fields={"n": "bad"})]
        for n in numbers:
            self.rows += 1
            records += [RawRecord(table="events", fields={"n": self.rows, "text": "a row"})]
            for name in ("users", "parts"):
                operation = OPERATIONS[self.rows % len(OPERATIONS)]
                text = {} if operation == "delete" else {"text": f"row {self.rows}"}
                records.append(RawRecord(table=name, operation=operation, fields={"n": n, **text}))
            self.known[self.rows] += 1
        self.writers[writer].append_many(records)

    def again(self, fault: str | PutFault, numbers: list[int]) -> None:
        """Append one chunk of records with IDs through a new writer. The reply to the writer may be lost."""
        self.reads.seed += 1
        self.clock.now += 1
        one = FaultStore(self.reads.stores["one"])
        if isinstance(fault, PutFault):
            one.on_put("live/", fault)
        with RawLog([one, self.reads.stores["two"]], clock=self.clock, ids=SeededIds(10_000 * self.reads.seed)) as log:
            try:
                log.append_many(
                    [
                        RawRecord(table=name, fields={"n": 100 + n, "text": "same row"}, id=str(n))
                        for n in numbers
                        for name in TABLES
                    ]
                )
            except TidemarkError:
                self.doubtful |= set(numbers)
            else:
                self.ids |= set(numbers)

    def distribute(self, crash_at: int | None, size: int) -> None:
        terms = Terms(round_bytes=size, work_bytes=size)
        self._crashing(crash_at, [*RAW, *TABLES], lambda own: own.board().distribute(terms))

    def merge(self, crash_at: int | None, name: str) -> None:
        self._crashing(crash_at, [name], lambda own: self._keyed(own, name).merge())

    def sort(self, crash_at: int | None, name: str) -> None:
        self._crashing(crash_at, [name], lambda own: self._keyed(own, name).sort())

    def compact(self, crash_at: int | None, name: str) -> None:
        self._crashing(crash_at, [name], lambda own: self._keyed(own, name).compact())

    def put(self, n: int, name: str) -> None:
        self.rows += 1
        with self._keyed(self.reads, name).routing_writer() as writer:
            writer.put({"n": n, "text": f"direct row {self.rows}"})

    def delete(self, n: int, name: str) -> None:
        """Delete a key. Nothing changes if the newest record of the key is not distributed yet."""
        table = self.reads.table(name)
        before = by_keys(table)
        is_deleted = True
        try:
            table.delete(f"n = {n}")
        except Unavailable as error:
            is_deleted = "not distributed yet" not in str(error)
        after = self.reads.table(name)
        assert after.get(n) is None if is_deleted else by_keys(after) == before

    def alter(self, _: int, name: str) -> None:
        table = self.reads.table(name)
        if "more" not in table.schema.names:
            table.add_column("more", "bigint", default=7)

    def collect(self, crash_at: int | None, _: int) -> None:
        now = self.reads.clock.now
        self._crashing(crash_at, list(RAW), lambda own: collect(own.board(), now_ms=now, retention_ms=0, seed=own.seed))

    def lose(self, index: int, where: str) -> None:
        """Lose a copy of a chunk, but never the last copy."""
        other = self.reads.stores["two" if where == "one" else "one"]
        keys = [info.key for info in self.reads.stores[where].list("live/") if info.key.endswith(".avro")]
        if keys and keys[index % len(keys)] in {info.key for info in other.list("live/")}:
            self.reads.stores[where].delete([keys[index % len(keys)]])

    def heal(self, _: int, __: int) -> None:
        self.reads.seed += 1
        stores = [self.reads.stores[each] for each in RAW]
        heal(stores, clock=self.clock, ids=SeededIds(10_000 * self.reads.seed))

    def check(self) -> None:
        other = self.reads.distributed()
        for name in TABLES:
            expected, table = other.settled(name), self.reads.table(name)
            assert records_of(table) == records_of(other.table(name)), name
            for read in (by_scan, by_keys, by_history):
                assert read(table) == expected, (name, read.__name__)
            if name == "events":
                self.check_events(expected)

    def check_events(self, found: Counter[str]) -> None:
        names = self.reads.table("events").scan(["n"], consistency="latest").to_arrow().column("n").to_pylist()
        assert len(names) == found.total()
        counted = Counter(names)
        assert {n: count for n, count in counted.items() if n < 100} == self.known
        with_ids = {n - 100 for n in counted if n >= 100}
        assert self.ids <= with_ids <= self.ids | self.doubtful
        assert all(count == 1 for n, count in counted.items() if n >= 100)

    def _keyed(self, own: RawReads, name: str) -> KeyedTable:
        own.seed += 1
        return KeyedTable(own.stores[name], ids=SeededIds(10_000 * own.seed), clock=own.clock)

    def _crashing(self, at: int | None, names: list[str], run: Callable[[RawReads], object]) -> None:
        stores = dict(self.reads.stores)
        if at is not None:
            name = names[at % len(names)]
            crashing = FaultStore(stores[name])
            crashing.at(at // len(names), CrashFault.AFTER if at % 2 else CrashFault.BEFORE)
            stores[name] = crashing
        own = RawReads(stores, self.reads.clock, self.reads.seed)
        with suppress(Crash, TidemarkError):
            run(own)
        self.reads.seed = own.seed


@settings(max_examples=scaled(12))
@example([("append", 0, [1]), ("alter", 0, "parts"), ("append", 1, [0, 0, 1, 0])])  # a patch of a deleted row
@given(STEPS)
def test_each_acknowledged_row_is_read_once_whatever_happens_meanwhile(steps: list[tuple[str, object, object]]) -> None:
    world = _World(RawReads.create())
    for step, first, second in steps:
        getattr(world, step)(first, second)
        world.check()
    other = world.reads.distributed()
    for name, read in product(TABLES, READS.values()):
        assert read(world.reads.table(name)) == other.settled(name), (name, read.__name__)
