"""A reader that follows the newest rows (`read.describe.Tail`) is slower than merges, sorts and the collector."""

from __future__ import annotations

import pytest

from storage_core.base.errors import Corrupt
from storage_core.data.formats import keys
from storage_core.data.settings.table import TableConfig
from storage_core.maintain.collect import collect
from storage_core.read.describe import CollectedEntries, Tail, TailRecord
from storage_core.store.memory import MemoryStore
from storage_core.write.region import wal
from storage_core.write.region.repartition import change_regions
from storage_core.write.region.spec import first_specs
from tests.support.clock import ManualClock
from tests.support.keyed_table import PLANES, KeyedTable

HOUR_MS = 3_600_000
LETTERS = [{"transform": "identity", "source": "tailnum"}]


def planes(**settings: object) -> KeyedTable:
    settings |= {"checkpoint_interval": 0, "version_retention_ms": 0, "gc_horizon_ms": 0}
    clock = ManualClock(step_ms=1)
    store = MemoryStore("planes", clock=clock)
    return KeyedTable(store, clock=clock).create(config=TableConfig(primary_key=("tailnum",), **settings))  # type: ignore[arg-type]


def by_letter() -> KeyedTable:
    return planes(region_specs=first_specs(LETTERS, PLANES))


def collected(table: KeyedTable) -> KeyedTable:
    for _ in range(3):
        table.log.checkpoint(table.snapshot)
        table.clock.sleep_ms(2 * HOUR_MS)
        collect(table.store, table.log, clock=table.clock, horizon_ms=0)
    return table


def told(tail: Tail, table: KeyedTable) -> list[object]:
    return [
        each.fields["tailnum"] if isinstance(each, TailRecord) else each.entries for each in tail.new(table.snapshot)
    ]


@pytest.mark.parametrize("upkeep", ["merge", "sort"])
def test_a_follower_is_told_how_many_entries_were_collected_and_goes_on_behind_them(upkeep: str) -> None:
    table = planes()
    with table.writer() as writer:
        writer.put([{"tailnum": "a"}])
        tail = Tail(table.store, table.snapshot)
        for name in ("b", "c", "d"):
            writer.put([{"tailnum": name}])
            writer.flush()
        table.merge() if upkeep == "merge" else table.sort()
        collected(table)
        assert told(tail, table) == [3]
        assert told(tail, table) == []
        writer.put([{"tailnum": "e"}])
        assert told(tail, table) == ["e"]


def test_records_on_both_sides_of_what_was_collected_are_told_in_their_order() -> None:
    table = planes()
    with table.writer() as writer:
        writer.put([{"tailnum": "a"}])
        tail = Tail(table.store, table.snapshot)
        writer.put([{"tailnum": "b"}])
        writer.flush()
        table.merge()
        collected(table)
        writer.put([{"tailnum": "c"}])
        writer.flush()
        writer.put([{"tailnum": "d"}])
        assert told(tail, table) == [1, "c", "d"]


def test_flushed_entries_that_are_still_there_are_told_though_they_are_merged() -> None:
    table = planes()
    with table.writer() as writer:
        tail = Tail(table.store, table.snapshot)
        writer.put([{"tailnum": "a"}])
        writer.flush()
        table.merge()
        writer.put([{"tailnum": "b"}])
        assert told(tail, table) == ["a", "b"]
        assert told(tail, table) == []


def test_a_region_that_is_new_and_was_collected_before_it_was_looked_at_is_no_damage() -> None:
    table = by_letter()
    tail = Tail(table.store, table.snapshot)
    with table.routing_writer() as writer:
        writer.put([{"tailnum": "a"}])
        writer.flush()
        table.merge()
        collected(table)
        writer.put([{"tailnum": "a", "seats": 2}])
        (notice, record) = tail.new(table.snapshot)
    assert isinstance(notice, CollectedEntries)
    assert isinstance(record, TailRecord)
    assert (notice.region_id, notice.entries, record.fields["seats"]) == (record.region_id, 1, 2)


def test_the_last_records_of_regions_that_another_spec_follows_are_told() -> None:
    table = planes()
    with table.writer() as writer:
        writer.put([{"tailnum": "a"}])
        tail = Tail(table.store, table.snapshot)
        writer.put([{"tailnum": "b"}])
    change_regions(table.log, first_specs(LETTERS, PLANES)[0].fields)
    with table.routing_writer() as routing:
        routing.put([{"tailnum": "c"}])
        assert told(tail, table) == ["b", "c"]
        assert told(tail, table) == []


def test_an_entry_that_is_gone_though_nothing_merged_it_is_damage() -> None:
    table = planes()
    with table.writer() as writer:
        writer.put([{"tailnum": "a"}])
        tail = Tail(table.store, table.snapshot)
        for name in ("b", "c"):
            writer.put([{"tailnum": name}])
        writer.flush()
        (region,) = {info.key.split("/")[1] for info in table.store.list("_mem_wal/") if "/wal/" in info.key}
        last = wal.find_tail(table.store, region, after=0, seed=0)
        table.store.delete([keys.wal_entry_key(region, last)])
        with pytest.raises(Corrupt, match=f"entry {last} of region {region} is missing"):
            tail.new(table.snapshot)
