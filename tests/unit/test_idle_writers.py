"""A merge takes over the rows of a silent writer. A writer that is still alive continues without loss or duplicates.

The store's clock measures the idle time of a writer. No test sleeps: the tests advance the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from storage_core.base.errors import CommitUnknown, Corrupt, WriterFenced
from storage_core.data.formats import keys
from storage_core.data.settings.table import TableConfig
from storage_core.maintain.check import fsck
from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.local import LocalStore
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.write.region import idle, router
from storage_core.write.region.manifest import read_latest
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.repartition import change_regions
from storage_core.write.region.router import RoutingWriter
from storage_core.write.region.spec import DeclaredField, first_specs, known_manifests, only_region
from storage_core.write.region.writer import RegionWriter
from tests.support.clock import ManualClock
from tests.support.fault_store import Crash, CrashFault, FaultStore, PutFault
from tests.support.ids import SeededIds
from tests.support.keyed_table import PLANES, KeyedTable, Row, base_seats, seats
from tests.support.meanwhile import Meanwhile

IDLE_MS = 120_000
REGIONS = 16
NAMES = [f"N{number}" for number in range(100)]
LATER = WriterOptions(durable=False, linger_ms=10**12)


class World:
    """One table, the clock of its store, and processes that each have their own store object."""

    def __init__(self, buckets: int = 0) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore("planes", clock=self.clock)
        fields: list[DeclaredField] = [{"transform": "bucket", "source": "tailnum", "n": buckets}] if buckets else []
        config = TableConfig(primary_key=("tailnum",), idle_after_ms=IDLE_MS, region_specs=first_specs(fields, PLANES))
        self.seeds = iter(range(1, 1000))
        self.table = self.process().create(PLANES, config)

    def process(self, store: ObjectStore | None = None) -> KeyedTable:
        return KeyedTable(store or self.memory, SeededIds(next(self.seeds)), self.clock)

    def wait(self, duration_ms: int = IDLE_MS) -> None:
        self.clock.now += duration_ms

    def upkeep(self) -> None:
        """Wait until the writers count as idle. Then merge in a new process."""
        self.wait()
        merger = self.process()
        merger.flush_idle()
        merger.merge_all()

    def check(self, expected: Mapping[str, int]) -> None:
        """Check that each acknowledged row exists once, before and after a merge of the idle regions."""
        assert seats(self.table) == expected
        self.upkeep()
        assert base_seats(self.table) == expected
        assert fsck(self.memory, clock=self.clock, deep=True).clean


def planes(number: int, names: list[str] = NAMES) -> list[Row]:
    return [{"tailnum": name, "seats": number} for name in names]


def epochs(world: World) -> Counter[int]:
    return Counter(each.writer_epoch for each in known_manifests(world.memory, world.table.snapshot))


def test_the_rows_of_an_ended_writer_are_in_the_base_of_every_region_after_the_next_merge() -> None:
    world = World(REGIONS)
    with world.table.routing_writer() as writer:
        writer.put(planes(1))
    assert len(writer.regions) == REGIONS
    world.wait(IDLE_MS - 1)
    assert world.table.flush_idle() == 0
    world.wait(1)
    assert world.table.flush_idle() == REGIONS
    world.table.merge_all()
    assert base_seats(world.table) == dict.fromkeys(NAMES, 1)
    world.wait()
    assert world.table.flush_idle() == 0, "it is flushed once"
    assert epochs(world) == {2: REGIONS}


def test_a_live_writer_goes_on_in_every_region_and_its_caller_sees_nothing() -> None:
    world = World(REGIONS)
    with world.table.routing_writer() as writer:
        for number in range(3):
            writer.put(planes(number))
            writer.patch([{"tailnum": name, "model": f"M{number}"} for name in NAMES[::2]])
            world.upkeep()
            assert base_seats(world.table) == dict.fromkeys(NAMES, number)
        writer.delete(NAMES[0])
        assert len(writer.flush()) == 1, "a merge has flushed the rest"
        assert writer.unflushed().num_rows == 0
    world.check(dict.fromkeys(NAMES[1:], 2))
    models = {row["tailnum"]: row["model"] for row in world.table.base_rows()}
    assert models == {name: "M2" if name in NAMES[::2] else None for name in NAMES[1:]}


def test_only_the_clock_of_the_store_says_how_long_a_writer_is_silent() -> None:
    world = World()
    with world.table.writer() as writer:
        writer.put(planes(1))
    merger = replace(world.table, clock=ManualClock(world.clock.now + 10 * IDLE_MS))
    assert merger.flush_idle() == 0
    world.wait()
    merger = replace(world.table, clock=ManualClock(world.clock.now - 10 * IDLE_MS))
    assert merger.flush_idle() == 1


def test_a_local_file_is_as_old_as_its_clock_says(tmp_path: object) -> None:
    clock = ManualClock()
    store = LocalStore(str(tmp_path), clock=clock)
    store.put("k", b"", Overwrite())
    clock.now = store.head("k").last_modified_ms + 7
    assert store.head("k").age_ms == 7


def test_regions_without_unflushed_rows_cost_one_head_each_and_those_of_live_writers_few() -> None:
    world = World(REGIONS)
    with world.table.routing_writer() as writer:
        writer.put(planes(1))
        snapshot, manifests = world.table.snapshot, known_manifests(world.memory, world.table.snapshot)
        store = MeteredStore(world.memory)
        assert idle.find_idle(store, snapshot, manifests) == []
        asked = store.meter.requests
        assert (asked["head"], asked["get"]) == (4 * REGIONS, 0), "to the last of two entries, and one for its age"
        writer.flush()
    world.wait()
    manifests = known_manifests(world.memory, snapshot)
    store = MeteredStore(world.memory)
    assert idle.find_idle(store, snapshot, manifests) == []
    assert (store.meter.requests["head"], store.meter.requests["get"]) == (REGIONS, 0)


def test_a_region_without_rows_in_its_log_is_left_to_who_claimed_it() -> None:
    world = World()
    region = only_region(world.table.snapshot.table_id, world.table.snapshot.config.region_spec)
    turn = router.claim_region(world.memory, world.table.snapshot, region, clock=world.clock, ids=world.table.ids)
    world.wait()
    assert world.table.flush_idle() == 0
    manifest = read_latest(world.memory, region.id)
    assert manifest is not None
    assert (manifest.writer_epoch, manifest.idle_epoch) == (turn.epoch, 0), "the distributor may finish"


def test_a_writer_whose_region_another_one_claimed_is_fenced_also_when_a_merge_came_after() -> None:
    world = World()
    first = world.table.writer()
    first.put(planes(1))
    second = world.process().writer()
    second.put(planes(2))
    world.upkeep()
    with pytest.raises(WriterFenced, match="Another writer claimed the region"):
        first.put(planes(3))
    second.put(planes(4, NAMES[:1]))
    world.check(dict.fromkeys(NAMES, 2) | {NAMES[0]: 4})


def test_a_writer_whose_region_is_claimed_after_a_merge_took_it_is_fenced() -> None:
    world = World()
    first = world.table.writer()
    first.put(planes(1))
    world.upkeep()
    second = world.process().writer()
    with pytest.raises(WriterFenced, match="Another writer claimed the region"):
        first.put(planes(3))
    with pytest.raises(WriterFenced):
        first.flush()
    second.put(planes(4, NAMES[:1]))
    world.check(dict.fromkeys(NAMES, 1) | {NAMES[0]: 4})


def test_rows_that_are_not_durable_yet_survive_a_merge() -> None:
    world = World()
    writer = world.table.writer(LATER)
    writer.put(planes(1), durable=True)
    writer.put(planes(2, NAMES[:9]))
    world.upkeep()
    assert base_seats(world.table) == dict.fromkeys(NAMES, 1)
    assert writer.scan().num_rows == len(NAMES)
    writer.close()
    world.check(dict.fromkeys(NAMES, 1) | dict.fromkeys(NAMES[:9], 2))


def test_a_writer_that_cannot_claim_again_says_that_the_outcome_is_unknown_and_a_new_one_finds_all() -> None:
    world = World()
    store = FaultStore(world.memory)
    writer = world.process(store).writer()
    writer.put(planes(1))
    world.upkeep()
    store.on_put("/manifest/", *[PutFault.DELAYED_THEN_UNKNOWN] * 4)
    with pytest.raises(CommitUnknown):
        writer.put(planes(2))
    with pytest.raises(CommitUnknown, match="Open a new writer"):
        writer.put(planes(2))
    store.deliver()
    with world.process().writer() as following:
        following.put(planes(3, NAMES[:1]))
    world.check(dict.fromkeys(NAMES, 1) | {NAMES[0]: 3})


def test_a_damaged_log_is_said_and_keeps_no_other_region_from_being_flushed() -> None:
    world = World(REGIONS)
    with world.table.routing_writer() as writer:
        writer.put(planes(1))
    damaged = writer.regions[3]
    key = keys.wal_entry_key(damaged, 2)
    world.memory.put(key, world.memory.get(key).data[:-1], Overwrite())
    world.wait()
    with pytest.raises(Corrupt, match=key):
        world.table.flush_idle()
    works = idle.merge_due(world.memory, world.table.snapshot).works
    assert {each.region for each in works} == {*writer.regions} - {damaged}


def test_a_region_that_a_merge_took_can_be_closed_and_its_writer_is_told() -> None:
    world = World()
    writer = world.table.writer()
    writer.put(planes(1))
    world.upkeep()
    spec = first_specs([{"transform": "bucket", "source": "tailnum", "n": 2}], PLANES)[-1]
    change_regions(world.table.log, spec.fields)
    with pytest.raises(WriterFenced):
        writer.put(planes(2))
    assert base_seats(world.table) == dict.fromkeys(NAMES, 1)


def requests_of(act: Callable[[RegionWriter], object]) -> int:
    world = World()
    store = FaultStore(world.memory)
    writer = world.process(store).writer()
    writer.put(planes(1))
    before = len(store.trace)
    act(writer)
    return len(store.trace) - before


def reset_and_flush(writer: RegionWriter) -> None:
    writer.reset(planes(2))
    writer.flush()


CALLS: dict[str, Callable[[RegionWriter], object]] = {
    "put": lambda writer: writer.put(planes(2)),
    "flush": lambda writer: writer.flush(),
    "reset and flush": reset_and_flush,
}
PAUSES = [(name, request) for name, act in CALLS.items() for request in range(requests_of(act))]


@pytest.mark.parametrize(("call", "request_number"), PAUSES)
def test_a_writer_that_is_paused_at_any_request_wakes_up_and_goes_on(call: str, request_number: int) -> None:
    world = World()
    store = FaultStore(world.memory)
    writer = world.process(store).writer()
    writer.put(planes(1))
    store.at(len(store.trace) + request_number, world.upkeep)
    CALLS[call](writer)
    expected = dict.fromkeys(NAMES, 1 if call == "flush" else 2)
    assert seats(world.table) == expected
    writer.put(planes(3, NAMES[:1]))
    writer.flush()
    writer.close()
    world.check(expected | {NAMES[0]: 3})


@pytest.mark.parametrize("instant", range(11))
def test_a_writer_that_is_paused_while_it_claims_gets_the_region_all_the_same(instant: int) -> None:
    world = World()
    with world.table.writer() as ended:
        ended.put(planes(1))
    world.wait()
    pause = Meanwhile(instant, world.upkeep)
    writer = world.process(FaultStore(world.memory, watch=pause)).writer()
    assert pause.acted
    writer.put(planes(2, NAMES[:1]))
    world.check(dict.fromkeys(NAMES, 1) | {NAMES[0]: 2})


@pytest.mark.parametrize("instant", range(11))
def test_a_region_that_is_being_claimed_is_not_silent_however_old_its_log_is(instant: int) -> None:
    world = World()
    with world.table.writer() as ended:
        ended.put(planes(1))
    world.wait()
    merge = Meanwhile(instant, world.process().flush_idle)
    writer = world.process(FaultStore(world.memory, watch=merge)).writer()
    assert merge.acted
    assert writer.epoch in (2, 3), "the merge came before it, or not at all"
    writer.put(planes(2, NAMES[:1]))
    world.check(dict.fromkeys(NAMES, 1) | {NAMES[0]: 2})


def requests_of_a_merge() -> int:
    world = World()
    with world.table.writer() as writer:
        writer.put(planes(1))
    world.wait()
    store = FaultStore(world.memory)
    merger = world.process(store)
    merger.flush_idle()
    return len(store.trace)


MERGE_REQUESTS = range(requests_of_a_merge())


@pytest.mark.parametrize("alive", [True, False], ids=["a live writer", "an ended writer"])
@pytest.mark.parametrize("fault", [*CrashFault])
@pytest.mark.parametrize("number", MERGE_REQUESTS)
def test_a_merge_that_is_killed_anywhere_loses_nothing_and_the_next_ones_finish(
    number: int, fault: CrashFault, alive: bool
) -> None:
    world = World()
    writer = world.table.writer()
    writer.put(planes(1))
    world.wait()
    store = FaultStore(world.memory)
    store.at(number, fault)
    with pytest.raises(Crash):
        world.process(store).flush_idle()
    assert seats(world.table) == dict.fromkeys(NAMES, 1)
    expected = dict.fromkeys(NAMES, 1)
    if alive:
        writer.put(planes(2, NAMES[:5]))
        writer.flush()
        writer.put(planes(3, NAMES[:1]))
        expected |= dict.fromkeys(NAMES[:5], 2) | {NAMES[0]: 3}
    world.check(expected)


@pytest.mark.parametrize("number", MERGE_REQUESTS)
def test_a_writer_that_wakes_up_at_any_request_of_a_merge_loses_nothing(number: int) -> None:
    world = World()
    writer = world.table.writer()
    writer.put(planes(1))
    world.wait()
    wakes = Meanwhile(number, lambda: writer.put(planes(2, NAMES[:5])))
    world.process(FaultStore(world.memory, watch=wakes)).flush_idle()
    assert wakes.acted
    writer.put(planes(3, NAMES[:1]))
    world.check(dict.fromkeys(NAMES, 1) | dict.fromkeys(NAMES[:5], 2) | {NAMES[0]: 3})


@pytest.mark.parametrize("number", MERGE_REQUESTS)
def test_two_merges_at_a_time_flush_each_row_once(number: int) -> None:
    world = World()
    writer = world.table.writer()
    writer.put(planes(1))
    world.wait()
    other = Meanwhile(number, world.process().flush_idle)
    world.process(FaultStore(world.memory, watch=other)).flush_idle()
    assert other.acted
    world.table.merge_all()
    assert base_seats(world.table) == dict.fromkeys(NAMES, 1)
    manifest = read_latest(world.memory, writer.region_id)
    assert manifest is not None
    assert [each.generation for each in manifest.flushed_generations] == [1]
    writer.put(planes(2, NAMES[:1]))
    world.check(dict.fromkeys(NAMES, 1) | {NAMES[0]: 2})


def test_a_merge_after_a_merge_that_was_killed_still_lets_the_writer_go_on() -> None:
    world = World(REGIONS)
    writer = RoutingWriter(world.memory, world.table.snapshot, clock=world.clock, ids=SeededIds(77))
    for number in range(3):
        writer.put(planes(number))
        for claims in range(2):
            world.wait()
            store = FaultStore(world.memory)
            store.on_put("_gen_", CrashFault.BEFORE)
            with pytest.raises(Crash):
                world.process(store).flush_idle()
            assert claims == 0 or max(epochs(world)) > 2
    writer.put(planes(9))
    writer.close()
    world.check(dict.fromkeys(NAMES, 9))


def test_rows_are_not_flushed_into_a_generation_that_is_merged_already() -> None:
    """Only a lost manifest causes this state. A reader would treat the rows of this generation as merged."""
    world = World()
    with world.table.writer() as writer:
        writer.put(planes(1))
        before = read_latest(world.memory, writer.region_id)
        writer.flush()
        world.table.merge_all()
        writer.put(planes(2))
        flushed = read_latest(world.memory, writer.region_id)
    assert before is not None
    assert flushed is not None
    world.memory.delete([keys.region_manifest_key(flushed.region_id, flushed.version)])
    world.wait()
    with pytest.raises(Corrupt, match="has the current generation 1, but generations up to 1 are already merged"):
        world.table.flush_idle()
    assert read_latest(world.memory, before.region_id) == before
