"""Writes to several regions, and reads of all regions without a gap or a duplicate."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput, WriterFenced
from storage_core.data.formats import keys
from storage_core.data.rows import fold
from storage_core.data.settings.table import TableConfig
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Kind
from storage_core.maintain.repair import repair
from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.write.region import captured_regions, merge
from storage_core.write.region.manifest import read_latest, region_of
from storage_core.write.region.merge_work import MergeWork
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.router import RoutingWriter
from storage_core.write.region.spec import first_specs, list_regions, read_registry, region_of_values, register
from storage_core.write.region.writer import RegionWriter
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore
from tests.support.ids import SeededIds
from tests.support.keyed_table import PLANES, KeyedTable, Row
from tests.support.meanwhile import Meanwhile
from tests.support.region_rows import region_of_row

NAMES = [f"N{number}" for number in range(40)]


def make(store: ObjectStore | None = None, buckets: int = 3) -> KeyedTable:
    specs = first_specs([{"transform": "bucket", "source": "tailnum", "n": buckets}], PLANES)
    return KeyedTable(store or MemoryStore("planes")).create(
        PLANES, TableConfig(primary_key=("tailnum",), region_specs=specs)
    )


def plane(name: str, seats: int = 0) -> Row:
    return {"tailnum": name, "seats": seats, "model": None}


def test_an_error_inside_the_block_is_raised_and_what_closing_adds_is_its_note() -> None:
    table = make()
    snapshot = table.snapshot
    region = region_of_row(snapshot.table_id, snapshot.config.region_spec, {"tailnum": "N0"}, PLANES)

    def block() -> None:
        with table.routing_writer() as writer:
            writer.put(plane("N0"))
            RegionWriter.open(table.store, snapshot, clock=table.clock, ids=table.ids, region=region)  # fences `writer`
            writer.put(plane("N0"), durable=False)
            raise ValueError("the caller's own")

    with pytest.raises(ValueError, match="the caller's own") as raised:
        block()
    assert ["closing the writer" in note for note in raised.value.__notes__] == [True]


def bucket(table: KeyedTable, name: str) -> object:
    snapshot = table.snapshot
    values = region_of_row(snapshot.table_id, snapshot.config.region_spec, {"tailnum": name}, PLANES).values
    assert values is not None
    return values[0]


def of_bucket(table: KeyedTable, number: int) -> list[str]:
    return [name for name in NAMES if bucket(table, name) == number]


def entries(store: MemoryStore) -> int:
    parsed = [keys.parse(info.key) for info in store.list("_mem_wal/")]
    return sum(each is not None and each.kind is keys.KeyKind.WAL_ENTRY for each in parsed)


def test_a_call_makes_one_entry_per_region_and_every_row_is_there() -> None:
    store = MemoryStore("planes")
    table = make(store)
    with table.routing_writer() as writer:
        writer.put([plane(name, 1) for name in NAMES])
        assert len(writer.regions) == 3
    assert entries(store) == 3 + 3  # each region has a sentinel and an entry
    assert table.rows() == {name: plane(name, 1) for name in NAMES}
    assert writer.unflushed().num_rows == len(NAMES)


def test_patches_and_deletes_find_the_region_of_their_key_in_any_form() -> None:
    table = make()
    with table.routing_writer() as writer:
        writer.put(pa.Table.from_pylist([plane(name) for name in NAMES], schema=PLANES))
        writer.patch([{"tailnum": "N1", "seats": 7}, {"tailnum": "N2", "model": "A"}])
        writer.patch({"tailnum": "N3", "seats": 9})
        writer.patch(pa.table({"tailnum": ["N4", "N5"], "seats": [4, 5]}))
        writer.delete(["N6", "N7"])
        writer.delete("N8")
    expected = {name: plane(name) for name in NAMES if name not in {"N6", "N7", "N8"}}
    expected |= {"N1": plane("N1", 7), "N3": plane("N3", 9), "N4": plane("N4", 4), "N5": plane("N5", 5)}
    expected["N2"] = {"tailnum": "N2", "seats": 0, "model": "A"}
    assert table.rows() == expected


def test_only_regions_that_have_a_row_are_claimed() -> None:
    table = make()
    with table.routing_writer() as writer:
        writer.put(plane("N0"))
        assert [each.values for each in read_registry(table.store).regions.values()] == [(bucket(table, "N0"),)]
        writer.put([])
        assert len(writer.regions) == 1
    assert read_latest(table.store, region_of(table.snapshot.table_id)) is None


def test_two_writers_of_different_regions_do_not_fence_each_other() -> None:
    table = make()
    with table.routing_writer() as first, table.routing_writer() as second:
        for seats in range(3):
            first.put([plane(name, seats) for name in of_bucket(table, 0)])
            second.put([plane(name, seats) for name in of_bucket(table, 1)])
    assert {row["seats"] for row in table.rows().values()} == {2}


def test_a_row_that_does_not_fit_leaves_every_region_as_it_was() -> None:
    store = MemoryStore("planes")
    table = make(store)
    with table.routing_writer() as writer:
        rows: list[Row] = [plane(name) for name in NAMES]
        with pytest.raises(InvalidInput, match="seats"):
            writer.put([*rows, {"tailnum": "x", "seats": "many"}])
        assert writer.regions == []
    assert entries(store) == 0


def test_a_region_that_is_fenced_stops_the_call_and_the_error_says_what_is_written() -> None:
    table = make()
    snapshot = table.snapshot
    with table.routing_writer() as writer:
        writer.put([plane(name) for name in NAMES])
        lost = region_of_values(snapshot.table_id, snapshot.config.region_spec, {"bucket_tailnum": 1})
        RegionWriter.open(table.store, snapshot, clock=table.clock, ids=table.ids, region=lost)
        with pytest.raises(WriterFenced) as fenced:
            writer.put([plane(name, 1) for name in NAMES])
    first = region_of_values(snapshot.table_id, snapshot.config.region_spec, {"bucket_tailnum": 0})
    assert fenced.value.context["written"] == [first.id]
    found = table.rows()
    assert {name for name in NAMES if found[name]["seats"] == 1} == set(of_bucket(table, 0))


def test_a_writer_of_one_region_refuses_rows_of_others_and_writes_none_of_them() -> None:
    table = make()
    snapshot = table.snapshot
    only = region_of_values(snapshot.table_id, snapshot.config.region_spec, {"bucket_tailnum": 1})
    with table.routing_writer(only) as writer:
        with pytest.raises(InvalidInput, match=r"values \(1,\)"):
            writer.put([plane(name) for name in NAMES])
        writer.put([plane(name) for name in of_bucket(table, 1)])
        assert writer.regions == [only.id]
    assert set(table.rows()) == set(of_bucket(table, 1))


def test_a_closed_writer_writes_nothing() -> None:
    table = make()
    with table.routing_writer() as writer:
        writer.put(plane("N0"))
    for name in ("N0", "N1", "N2"):
        with pytest.raises(InvalidInput, match="closed"):
            writer.put(plane(name))


def test_a_writer_for_the_whole_table_is_refused_where_there_are_regions() -> None:
    with pytest.raises(InvalidInput, match="bucket_tailnum"):
        make().writer()


def test_each_region_is_merged_on_its_own_and_every_row_once() -> None:
    table = make()
    for seats in (1, 2):
        with table.routing_writer() as writer:
            writer.put([plane(name, seats) for name in NAMES])
            assert sorted(writer.flush()) == writer.regions
        table.merge()
    assert merge.plan(table.store, table.snapshot) == []
    assert Counter(str(row["tailnum"]) for row in table.base_rows()) == dict.fromkeys(NAMES, 1)
    assert {row["seats"] for row in table.base_rows()} == {2}
    assert [each.merged_generation for each in list_regions(table.store, table.snapshot)] == [2, 2, 2]


def test_works_of_one_plan_may_hide_rows_of_the_same_splits_and_one_commit_takes_them_all() -> None:
    table = make()
    works: list[MergeWork] = []
    for seats in (1, 2):
        with table.routing_writer() as writer:
            writer.put([plane(name, seats) for name in NAMES])
            writer.flush()
        works = merge.plan(table.store, table.snapshot)
        assert len(works) == 3
        assert table.merge() is not None
    touched = [add.path for work in works for add in work.base]
    assert len(touched) > len(set(touched))
    assert table.snapshot.rows == len(NAMES)
    assert {row["seats"] for row in table.base_rows()} == {2}


def test_a_check_finds_a_region_that_the_registry_lacks_and_a_repair_brings_every_row_over() -> None:
    table = make()
    with table.routing_writer() as writer:
        writer.put([plane(name, 1) for name in NAMES])
        writer.flush()
        writer.put([plane(name, 2) for name in NAMES[:9]])
    registry = keys.region_registry_key()
    assert fsck(table.store, clock=table.clock, deep=True).clean
    table.store.put(registry, b"torn", Overwrite())
    assert [each.kind for each in fsck(table.store, clock=table.clock).findings] == [Kind.REGION_REGISTRY_DAMAGED]
    table.store.delete([registry])
    lone = region_of_row(table.snapshot.table_id, table.snapshot.config.region_spec, {"tailnum": "N0"}, PLANES)
    with_one = MemoryStore("one")
    register(with_one, lone, clock=table.clock, ids=table.ids)
    table.store.put(registry, with_one.get(registry).data, Overwrite())
    found = [each.kind for each in fsck(table.store, clock=table.clock).findings]
    assert found == [Kind.REGION_NOT_REGISTERED] * 2
    target = MemoryStore("repaired")
    repair(table.store, target, clock=table.clock, ids=table.ids)
    repaired = KeyedTable(target, ids=table.ids, clock=table.clock)
    assert repaired.rows() == {name: plane(name, 2 if name in NAMES[:9] else 1) for name in NAMES}
    assert {each.spec_id for each in read_registry(target).regions.values()} == {2}


def test_the_collector_keeps_the_registry_and_what_is_not_merged() -> None:
    clock = ManualClock(step_ms=1)
    store = MemoryStore("planes", clock=clock)
    table = replace(make(store), clock=clock)
    for seats in (1, 2):
        with table.routing_writer() as writer:
            writer.put([plane(name, seats) for name in NAMES])
            writer.flush()
    table.merge_all()
    table.log.checkpoint(table.snapshot)
    with table.routing_writer() as writer:
        writer.put([plane(name, 3) for name in NAMES[:9]])
        writer.flush()
    before = entries(store)
    for _ in range(3):
        table.clock.now += 90 * 24 * 3_600_000
        collect(store, table.log, clock=table.clock)
    assert table.rows() == {name: plane(name, 3 if name in NAMES[:9] else 2) for name in NAMES}
    assert len(read_registry(store).of_spec(2)) == 3
    assert entries(store) == before - 2 * 3  # the entries of merged generations are gone


@pytest.mark.parametrize("instant", range(22))
def test_writes_flushes_and_merges_between_the_requests_of_a_reader_make_no_gap_and_no_double(instant: int) -> None:
    """A read of several regions has this order: registry, manifest and log per region, then the head."""
    memory = MemoryStore("planes")
    table = make(memory)
    with table.routing_writer() as writer:
        writer.put([plane(name, 1) for name in of_bucket(table, 0)])
        writer.flush()
        writer.put([plane(name, 1) for name in of_bucket(table, 1)])

    def meanwhile() -> None:
        with table.routing_writer() as other:
            other.put([plane(name, 2) for name in NAMES])
            other.flush()
        table.merge_all()
        with table.routing_writer() as other:
            other.put([plane(name, 3) for name in of_bucket(table, 2)])

    reader = KeyedTable(FaultStore(memory, watch=Meanwhile(instant, meanwhile)))
    before = table.snapshot
    captured = captured_regions.capture(reader.store, before, include_wal=True)
    head = reader.snapshot
    records = captured.above(head)
    base = pa.Table.from_pylist(table.base_rows(head), schema=PLANES)
    rows = fold.apply(base, fold.fold(records, ("tailnum",)), ("tailnum",)).to_pylist()
    found = {row["tailnum"]: row["seats"] for row in rows}
    assert len(found) == len(rows)
    acknowledged = {*of_bucket(table, 0), *of_bucket(table, 1)}
    assert acknowledged <= found.keys()
    assert all(found[name] in (1, 2) for name in acknowledged)
    if head.version > before.version:  # the merge is committed, so the newer rows must be visible
        assert all(found[name] == 2 for name in acknowledged)


@pytest.mark.parametrize("end", ["sync", "flush", "close"])
def test_a_region_that_fails_keeps_the_rows_of_no_other_region_from_being_written(end: str) -> None:
    table = make()
    options = WriterOptions(durable=False, linger_ms=60_000)
    writer = RoutingWriter(table.store, table.snapshot, clock=table.clock, ids=SeededIds(9), options=options)
    writer.put([plane(name, 7) for name in NAMES])
    lost, *_ = [of_bucket(table, number) for number in range(3)]
    with table.routing_writer() as rival:
        rival.put(plane(lost[0], 1))
    with pytest.raises(WriterFenced) as failure:
        getattr(writer, end)()
    assert failure.value.context["lost_rows"] == len(lost)
    seats = {name: row["seats"] for name, row in table.rows().items()}
    assert seats == {lost[0]: 1} | {name: 7 for name in NAMES if name not in lost}
