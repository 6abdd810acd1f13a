"""After any events, each table has exactly one row per producer ID, and no acknowledged record is lost.

Producers append to one store or both and repeat records. Distributors and collectors are killed at any of their
requests. A copy of the raw log is lost and then restored. Tables are added later. The model contains only the
acknowledged IDs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import TidemarkError
from storage_core.maintain.raw_logs import heal
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.distribution.work import Terms
from storage_core.write.raw_log.history import union
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from storage_core.write.region import generation
from storage_core.write.region.manifest import read_latest, region_of
from tests.support.clock import ManualClock
from tests.support.distribution import LATER_MS, Board
from tests.support.fault_store import Crash, CrashFault, FaultStore
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.raw_collection import collect

TABLES = ("events", "users")
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.lists(st.integers(0, 8), min_size=1, max_size=4),
            st.sampled_from(["one", "two", "both"]),
        ),
        st.tuples(st.just("distribute"), st.none() | st.integers(0, 60), st.sampled_from([1, 1_000, 10**9])),
        st.tuples(st.just("collect"), st.none() | st.integers(0, 40), st.just(0)),
        st.tuples(st.just("lose"), st.integers(0, 20), st.sampled_from(["one", "two"])),
        st.tuples(st.just("heal"), st.none(), st.just(0)),
    ),
    max_size=14,
)


@dataclass(slots=True)
class _World:
    raw: dict[str, MemoryStore]
    tables: dict[str, MemoryStore]
    clock: ManualClock
    seed: int = 1
    acknowledged: set[int] = field(default_factory=set)

    def board(self, crash: FaultStore | None = None, wrapped: str = "") -> Board:
        self.seed += 1
        raw: list[ObjectStore] = [crash if name == wrapped and crash else store for name, store in self.raw.items()]
        tables = {name: crash if name == wrapped and crash else store for name, store in self.tables.items()}
        return Board(raw, tables, seed=10_000 * self.seed, clock=ManualClock(LATER_MS), raw_clock=self.clock)

    def append(self, numbers: list[int], where: str) -> None:
        """Append one chunk. The number of a record is its ID, and each record goes to both tables."""
        self.seed += 1
        self.clock.now += 1
        places = [*self.raw.values()] if where == "both" else [self.raw[where]]
        limits = RawLimits(segment_ms=1)
        with RawLog(places, clock=ManualClock(self.clock.now), ids=SeededIds(10_000 * self.seed), limits=limits) as log:
            log.append_many(
                [RawRecord(table=name, fields={"n": n, "text": str(n)}, id=str(n)) for n in numbers for name in TABLES]
            )
        self.acknowledged |= set(numbers)

    def distribute(self, crash_at: int | None, work_bytes: int) -> None:
        self._crashing(crash_at, lambda board: board.distribute(Terms(work_bytes=work_bytes)))

    def collect(self, crash_at: int | None, _: int) -> None:
        self._crashing(crash_at, lambda board: collect(board, now_ms=self.clock.now, retention_ms=0, seed=self.seed))

    def lose(self, index: int, where: str) -> None:
        """Lose a copy of a chunk, but never the last copy."""
        other = self.raw["two" if where == "one" else "one"]
        keys = [info.key for info in self.raw[where].list("live/") if info.key.endswith(".avro")]
        kept = {info.key for info in other.list("live/")}
        if keys and keys[index % len(keys)] in kept:
            self.raw[where].delete([keys[index % len(keys)]])

    def heal(self, _: None, __: int) -> None:
        self.seed += 1
        assert heal([*self.raw.values()], clock=ManualClock(), ids=SeededIds(10_000 * self.seed)).is_whole

    def _crashing(self, at: int | None, run: Callable[[Board], object]) -> None:
        names = [*self.raw, *self.tables]
        name = names[(at or 0) % len(names)]
        crashing = FaultStore({**self.raw, **self.tables}[name])
        if at is not None:
            crashing.at(at // len(names), CrashFault.AFTER if at % 2 else CrashFault.BEFORE)
        with suppress(Crash, TidemarkError):
            run(self.board(crashing, name))


@settings(max_examples=120)
@given(STEPS)
def test_each_id_is_one_row_in_every_table_and_none_is_lost(steps: list[tuple[str, object, object]]) -> None:
    clock = ManualClock()
    raw = {name: MemoryStore(name, clock=clock) for name in ("one", "two")}
    world = _World(raw, {name: MemoryStore(name) for name in TABLES}, clock)
    world.board().create(users="n")
    for step, first, second in steps:
        getattr(world, step)(first, second)
    board = world.board()
    done = board.distribute()
    assert (done.held, done.failures) == ((), {})
    assert board.numbers("events") == sorted(world.acknowledged)
    assert set(board.rows("users")) == world.acknowledged
    assert _records(world.tables["users"]) == Counter(world.acknowledged), "no record of a region twice, either"
    collect(board, now_ms=clock.now + 10**12, retention_ms=0, seed=world.seed + 1)
    assert union([*raw.values()]).chunks == []
    later = Board([*raw.values()], {"later": MemoryStore("later")}, seed=10_000 * (world.seed + 2)).create()
    assert later.distribute().held == (), "what was collected is no gap"


def _records(store: MemoryStore) -> Counter[int]:
    manifest = read_latest(store, region_of(KeyedTable(store).snapshot.table_id))
    flushed = (
        []
        if manifest is None
        else [generation.read(store, manifest.region_id, each) for each in manifest.flushed_generations]
    )
    return Counter(
        row["n"] for each in flushed for part in generation.read_records(store, each) for row in part.to_pylist()
    )
