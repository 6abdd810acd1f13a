"""A change of the region spec keeps every acknowledged row, and newer rows win over rows of the old regions."""

from __future__ import annotations

from collections import Counter

import pytest

from storage_core.base.errors import InvalidInput, RegionClosed, TidemarkError, Unavailable, WriterFenced
from storage_core.data.formats.keys import region_registry_key
from storage_core.data.settings.layout import RegionField
from storage_core.data.settings.table import TableConfig
from storage_core.log.log import TransactionLog
from storage_core.maintain.check import fsck
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.region import captured_regions
from storage_core.write.region.repartition import change_regions
from storage_core.write.region.router import RoutingWriter
from storage_core.write.region.spec import DeclaredField, declared_fields, first_specs, list_regions
from tests.support.fault_store import FaultStore
from tests.support.ids import SeededIds
from tests.support.keyed_table import PLANES, KeyedTable, Row, seats
from tests.support.meanwhile import Meanwhile

NAMES = [f"N{number}" for number in range(12)]


def fields(*declared: DeclaredField) -> tuple[RegionField, ...]:
    return declared_fields(list(declared), PLANES)


def buckets(number: int) -> DeclaredField:
    return {"transform": "bucket", "source": "tailnum", "n": number}


def make(store: ObjectStore, *declared: DeclaredField) -> KeyedTable:
    config = TableConfig(primary_key=("tailnum",), region_specs=first_specs(list(declared), PLANES))
    return KeyedTable(store).create(PLANES, config)


def rows(seats: int, names: list[str] = NAMES) -> list[Row]:
    return [{"tailnum": name, "seats": seats, "model": None} for name in names]


def change(table: KeyedTable, *declared: DeclaredField, store: ObjectStore | None = None, seed: int = 5) -> None:
    log = TransactionLog(store or table.store, clock=table.clock, ids=SeededIds(seed))
    change_regions(log, fields(*declared))


@pytest.mark.parametrize(
    ("before", "after"),
    [([], [buckets(3)]), ([buckets(3)], [buckets(2)]), ([buckets(3)], [])],
    ids=["one to three", "three to two", "three to one"],
)
def test_rows_of_the_old_regions_stay_and_newer_ones_win(
    before: list[DeclaredField], after: list[DeclaredField]
) -> None:
    table = make(MemoryStore("planes"), *before)
    with table.routing_writer() as writer:
        writer.put(rows(1))
        writer.flush()
        writer.put(rows(2, NAMES[:6]))
        writer.delete(NAMES[5])
    change(table, *after)
    expected: dict[object, object] = dict.fromkeys(NAMES, 1)
    expected |= dict.fromkeys(NAMES[:5], 2)
    del expected[NAMES[5]]
    assert seats(table) == expected
    assert captured_regions.capture(table.store, table.snapshot, include_wal=True).above(table.snapshot).num_rows == 0
    with table.routing_writer() as writer:
        writer.put(rows(3, NAMES[4:8]))
        writer.flush()
    expected |= dict.fromkeys(NAMES[4:8], 3)
    assert seats(table) == expected
    table.merge_all()
    assert seats(table) == expected
    assert max(Counter(str(row["tailnum"]) for row in table.base_rows()).values()) == 1


def test_writers_of_the_old_regions_stop_and_are_told_where_to_go() -> None:
    table = make(MemoryStore("planes"), buckets(3))
    old = table.snapshot
    with table.routing_writer() as writer:
        writer.put(rows(1, NAMES[:1]))
        change(table, buckets(2))
        with pytest.raises(WriterFenced):
            writer.put(rows(2, NAMES[:1]))
    with RoutingWriter(table.store, old, clock=table.clock, ids=table.ids) as late:
        for name in NAMES:  # regions with rows, and regions that were never claimed
            with pytest.raises(RegionClosed, match="spec 3 follows"):
                late.put(rows(2, [name]))
    assert seats(table) == {NAMES[0]: 1}


def test_changing_to_what_is_already_there_changes_nothing() -> None:
    table = make(MemoryStore("planes"), buckets(3))
    version = table.snapshot.version
    change(table, buckets(3))
    assert table.snapshot.version == version


def test_spec_ids_are_never_used_twice_and_all_specs_stay_known() -> None:
    table = make(MemoryStore("planes"))
    change(table, buckets(2))
    change(table)
    change(table, buckets(2))
    specs = table.snapshot.config.region_specs
    assert [(each.id, len(each.fields)) for each in specs] == [(1, 0), (2, 1), (3, 0), (4, 1)]
    with table.routing_writer() as writer:
        writer.put(rows(1))
    assert seats(table) == dict.fromkeys(NAMES, 1)


def test_fields_outside_the_key_and_tables_without_a_key_are_refused_before_anything_is_closed() -> None:
    table = make(MemoryStore("planes"))
    with pytest.raises(InvalidInput, match="primary key"):
        change(table, {"transform": "bucket", "source": "seats", "n": 2})
    with table.writer() as writer:
        writer.put(rows(1))
    append = KeyedTable(MemoryStore("append")).create(PLANES, TableConfig())
    with pytest.raises(InvalidInput, match="has no primary key"):
        change(append, buckets(2))


def test_an_interrupted_change_loses_nothing_takes_no_row_and_is_finished_by_the_next() -> None:
    interrupted = 0
    for step in range(0, 100, 4):
        memory = MemoryStore("planes")
        table = make(memory, buckets(2))
        with table.routing_writer() as writer:
            writer.put(rows(1))
            writer.flush()
            writer.put(rows(2, NAMES[:6]))
        expected: dict[object, object] = {name: 2 if name in NAMES[:6] else 1 for name in NAMES}
        store = FaultStore(memory)
        store.at(step, Unavailable("the process dies here"))
        try:
            change(table, store=store)
        except TidemarkError:
            interrupted += 1
            assert seats(table) == expected
            _write_if_allowed(table, expected)
            change(table, seed=6)
        assert seats(table) == expected
        assert not table.snapshot.config.region_spec.fields
        with table.routing_writer() as writer:
            writer.put(rows(9))
        assert seats(table) == dict.fromkeys(NAMES, 9)
    assert interrupted > 12  # a failed hint request, or a step after the last request, stops nothing


def _write_if_allowed(table: KeyedTable, expected: dict[object, object]) -> None:
    """Write row by row after the interruption. Each row is refused or acknowledged."""
    with table.routing_writer() as writer:
        for name in NAMES:
            try:
                writer.put(rows(3, [name]))
            except RegionClosed:
                continue
            expected[name] = 3


def test_a_closed_spec_that_never_had_a_row_stays_closed_when_the_registry_is_lost() -> None:
    table = make(MemoryStore("planes"), buckets(3))
    old = table.snapshot
    change(table, buckets(2))
    assert list_regions(table.store, old) == [], "the region that closes a spec is nobody's"
    table.store.delete([region_registry_key()])
    assert list_regions(table.store, old) == []
    with RoutingWriter(table.store, old, clock=table.clock, ids=table.ids) as late:
        for name in NAMES:
            with pytest.raises(RegionClosed, match="spec 3 follows"):
                late.put(rows(1, [name]))
    with table.routing_writer() as writer:
        writer.put(rows(2))
    assert seats(table) == dict.fromkeys(NAMES, 2)
    assert fsck(table.store, clock=table.clock, deep=True).clean


@pytest.mark.parametrize("lost", [False, True], ids=["", "registry lost"])
@pytest.mark.parametrize("instant", range(0, 140, 10))
def test_whatever_is_acknowledged_beside_a_change_is_there_after_it(instant: int, lost: bool) -> None:
    memory = MemoryStore("planes")
    table = make(memory, buckets(2))
    stale = table.snapshot
    with table.routing_writer() as writer:
        writer.put(rows(1, NAMES[:1]))  # no other region is claimed before the repartition
    expected: dict[object, object] = {NAMES[0]: 1}

    def meanwhile() -> None:
        memory.delete([region_registry_key()] if lost else [])
        with RoutingWriter(memory, stale, clock=table.clock, ids=SeededIds(7)) as other:
            for name in NAMES:
                try:
                    other.put(rows(2, [name]))
                except (RegionClosed, WriterFenced):
                    continue
                expected[name] = 2

    change(table, buckets(3), store=FaultStore(memory, watch=Meanwhile(instant, meanwhile)))
    assert table.snapshot.config.region_spec.id == 3
    assert seats(table) == expected
    with table.routing_writer() as writer:
        writer.put(rows(4, NAMES[:3]))
        writer.flush()
    table.merge_all()
    assert seats(table) == expected | dict.fromkeys(NAMES[:3], 4)


def test_regions_whose_rows_hide_others_in_one_split_are_merged_and_the_change_ends() -> None:
    table = make(MemoryStore("planes"))
    with table.routing_writer() as writer:
        writer.put(rows(1))
    change(table, buckets(4))
    assert len(table.snapshot.splits) == 1
    with table.routing_writer() as writer:
        writer.put(rows(2))
    change(table, buckets(2), seed=6)
    assert seats(table) == dict.fromkeys(NAMES, 2)
    assert table.snapshot.rows == len(NAMES)
