"""Kill a distributor at any point between several regions. Each row is still distributed exactly once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from storage_core.base.errors import RegionClosed
from storage_core.data.formats.keys import region_registry_key
from storage_core.data.settings.table import TableConfig
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.distribution.rounds import Tasks
from storage_core.write.distribution.work import DivideResult, DivideWork, FillResult, FillWork, Terms
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from storage_core.write.region import generation
from storage_core.write.region.manifest import read_latest
from storage_core.write.region.repartition import change_regions, close_regions
from storage_core.write.region.spec import declared_fields, first_specs, read_registry
from tests.support.clock import ManualClock
from tests.support.copies import copy_of
from tests.support.distribution import EVENTS, Board, Step, TasksMeanwhile
from tests.support.fault_store import Crash, CrashFault, FaultStore, PutFault
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.region_rows import region_of_row
from tests.support.rejected_lines import rejected_lines

THREE = ({"transform": "bucket", "source": "n", "n": 3},)
CONFIG = TableConfig(primary_key=("n",), region_specs=first_specs(THREE, EVENTS))
KEYS = range(9)


def raw(store: ObjectStore, calls: Sequence[Sequence[RawRecord]], *, seed: int = 1) -> None:
    """Write one chunk per call, each in its own segment."""
    clock = ManualClock()
    with RawLog([store], clock=clock, ids=SeededIds(seed), limits=RawLimits(segment_ms=1_000)) as log:
        for records in calls:
            log.append_many(records)
            clock.now += 1_000


def put(n: object, text: str) -> RawRecord:
    return RawRecord(table="users", fields={"n": n, "text": text})


CALLS = (
    [put(n, f"first {n}") for n in KEYS],
    [put(n, f"second {n}") for n in KEYS if n % 2],
    [RawRecord(table="users", operation="delete", fields={"n": 4}), put("bad", ""), put(0, "third 0")],
)
RECORDS = sum(len(each) for each in CALLS) - 1
EXPECTED = {n: f"second {n}" if n % 2 else f"first {n}" for n in KEYS if n != 4} | {0: "third 0"}


def given() -> dict[str, MemoryStore]:
    stores = {name: MemoryStore(name) for name in ("users", "raw")}
    board(dict(stores), 1).create(users=CONFIG)
    raw(stores["raw"], CALLS)
    return stores


def board(stores: dict[str, ObjectStore], seed: int) -> Board:
    return Board([stores["raw"]], {"users": stores["users"]}, seed=seed)


def copies(stores: dict[str, MemoryStore]) -> dict[str, ObjectStore]:
    return {name: copy_of(store, name) for name, store in stores.items()}


def records_by_region(store: ObjectStore) -> dict[str, int]:
    found = {}
    for region in read_registry(store).regions:
        manifest = read_latest(store, region)
        if manifest is not None:
            several = (generation.read(store, region, each) for each in manifest.flushed_generations)
            found[region] = sum(each.records for each in several)
    return found


def texts(stores: dict[str, ObjectStore]) -> dict[object, object]:
    return {key: row["text"] for key, row in board(stores, 90).rows("users").items()}


def judge(stores: dict[str, ObjectStore]) -> None:
    assert board(stores, 3).distribute().failures == {}
    assert texts(stores) == EXPECTED
    assert sum(records_by_region(stores["users"]).values()) == RECORDS, "a record is in a generation once"
    assert len(list(rejected_lines(stores["users"]))) == 1
    again = board(stores, 4).distribute()
    assert (again.records, again.tables["users"].rows) == (0, 0)


def test_each_region_gets_the_rows_of_its_keys_and_a_bad_one_is_counted_once() -> None:
    stores = copies(given())
    done = board(stores, 2).distribute().tables["users"]
    assert (done.rows, done.generations, sum(done.rejected.values())) == (RECORDS, 3, 1)
    assert len(records_by_region(stores["users"])) == 3
    judge(stores)


@pytest.mark.parametrize("terms", [Terms(), Terms(round_bytes=1)], ids=["one round", "a round per chunk"])
@pytest.mark.parametrize("side", list(CrashFault))
def test_a_distributor_may_end_between_the_commits_of_regions(side: CrashFault, terms: Terms) -> None:
    start = given()
    counting = FaultStore(copy_of(start["users"], "users"))
    board({**copies(start), "users": counting}, 2).distribute(terms)
    numbers = [number for number, each in enumerate(counting.trace) if each.request.kind == "put"]
    landed = set()
    for number in numbers:
        stores = copies(start)
        crashing = FaultStore(stores["users"])
        crashing.at(number, side)
        with pytest.raises(Crash):
            board({**stores, "users": crashing}, 2).distribute(terms)
        landed.add(sum(rows > 0 for rows in records_by_region(stores["users"]).values()))
        judge(stores)
    assert {0, 1, 2, 3} <= landed, "it ended before, between and behind the regions"


def test_what_a_distributor_leaves_that_ended_before_its_claims_is_no_damage_and_is_collected() -> None:
    stores = copies(given())
    claims = FaultStore(stores["users"])
    claims.on("put", region_registry_key(), CrashFault.BEFORE)
    with pytest.raises(Crash):
        board({**stores, "users": claims}, 2).distribute()
    parts = {info.key for info in stores["users"].list("_mem_wal/") if info.key.endswith("/records.arrow")}
    assert len(parts) == 3
    table = KeyedTable(stores["users"], ids=SeededIds(8))
    assert fsck(stores["users"], clock=table.clock, deep=True).clean
    judge(stores)
    table = KeyedTable(stores["users"], ids=SeededIds(9))
    report = collect(stores["users"], table.log, clock=table.clock, horizon_ms=0)
    assert parts <= {each.key for each in report.candidates}
    assert texts(stores) == EXPECTED


@pytest.mark.parametrize("fault", [PutFault.APPLIED_THEN_UNKNOWN, PutFault.DROPPED_THEN_UNKNOWN])
def test_a_lost_reply_to_any_put_is_handled(fault: PutFault) -> None:
    start = given()
    counting = FaultStore(copy_of(start["users"], "users"))
    board({**copies(start), "users": counting}, 2).distribute()
    puts = [number for number, each in enumerate(counting.trace) if each.request.kind == "put"]
    assert puts
    for number in puts:
        stores = copies(start)
        losing = FaultStore(stores["users"])
        losing.at(number, fault)
        board({**stores, "users": losing}, 2).distribute()
        judge(stores)


@pytest.mark.parametrize("step", ["divide", "fill"])
def test_a_region_that_appears_meanwhile_keeps_its_order(step: Step) -> None:
    stores = copies(given())
    table = KeyedTable(stores["users"], ids=SeededIds(7))

    def write() -> None:
        table.routing_writer().put({"n": 1, "text": "direct"})

    late = board(stores, 2).distributor()
    late.tasks = TasksMeanwhile(late.tasks, write, before=step)
    assert late.distribute(Terms()).failures == {}
    assert texts(stores) == EXPECTED, "what is distributed later comes over what was written directly"
    table.routing_writer().put({"n": 1, "text": "newest"})
    board(stores, 3).distribute()
    assert texts(stores) == EXPECTED | {1: "newest"}


@pytest.mark.parametrize("step", ["divide", "fill"])
def test_of_two_distributors_that_planned_alike_each_region_takes_one(step: Step) -> None:
    stores = copies(given())
    late = board(stores, 2).distributor()
    late.tasks = TasksMeanwhile(late.tasks, lambda: board(stores, 3).distribute(), before=step)
    done = late.distribute(Terms())
    assert (done.failures, done.tables["users"].rows) == ({}, 0)
    judge(stores)


def test_a_region_that_is_lost_to_another_writer_stops_no_region_behind_it() -> None:
    stores = copies(given())
    snapshot = KeyedTable(stores["users"]).snapshot
    taken = region_of_row(snapshot.table_id, snapshot.config.region_spec, {"n": 0}, snapshot.schema)
    late = board(stores, 2).distributor()
    seen: list[dict[str, int]] = []

    def claim() -> None:
        KeyedTable(stores["users"], ids=SeededIds(7)).routing_writer(taken).put({"n": 0, "text": "direct"})

    watching = _Watching(late.tasks, lambda: seen.append(records_by_region(stores["users"])))
    late.tasks = TasksMeanwhile(watching, claim, before="fill")
    assert late.distribute(Terms()).failures == {}
    assert [rows > 0 for region, rows in seen[1].items() if region != taken.id] == [True, True]
    assert seen[1][taken.id] == 0
    assert texts(stores) == EXPECTED


def half_distributed() -> dict[str, ObjectStore]:
    """Return the stores after the distributor crashed between two regions. One region has already received rows."""
    start = given()
    for number in range(1_000):
        stores = copies(start)
        crashing = FaultStore(stores["users"])
        crashing.at(number, CrashFault.AFTER)
        with pytest.raises(Crash):
            board({**stores, "users": crashing}, 2).distribute()
        if any(records_by_region(stores["users"]).values()):
            return stores
    raise AssertionError("the distributor never ends between two regions")


@pytest.mark.parametrize("fields", [({"transform": "bucket", "source": "n", "n": 2},), ()], ids=["two", "one region"])
def test_rows_that_a_region_of_an_earlier_spec_has_are_not_distributed_into_the_next(
    fields: Sequence[dict[str, object]],
) -> None:
    stores = half_distributed()
    before = dict(texts(stores))
    assert 0 < len(before) < len(EXPECTED)
    table = KeyedTable(stores["users"], ids=SeededIds(7))
    change_regions(table.log, declared_fields(fields, EVENTS))
    newest = {n: f"newest {n}" for n in before if isinstance(n, int)}
    table.routing_writer().put([{"n": n, "text": text} for n, text in newest.items()])
    assert board(stores, 3).distribute().failures == {}
    assert texts(stores) == EXPECTED | newest


def test_a_spec_whose_end_was_begun_fails_the_table_and_loses_nothing() -> None:
    stores = copies(given())
    table = KeyedTable(stores["users"], ids=SeededIds(7))
    close_regions(stores["users"], table.snapshot, successor=3, clock=table.clock, ids=table.ids)
    assert isinstance(board(stores, 2).distribute().failures["users"], RegionClosed)
    change_regions(table.log, declared_fields(({"transform": "bucket", "source": "n", "n": 2},), EVENTS))
    judge(stores)


@dataclass
class _Watching:
    """Tasks that run a check before each call of `divide`."""

    tasks: Tasks
    look: Callable[[], object]

    def divide(self, works: Sequence[DivideWork]) -> list[DivideResult]:
        self.look()
        return self.tasks.divide(works)

    def fill(self, works: Sequence[FillWork]) -> list[FillResult]:
        return self.tasks.fill(works)
