"""Copies of a writer have the same epoch, for example on a machine that was restored from an image (decision 0011).

A writer in a forked process refuses its calls (`tests/integration/test_forked_writers.py`). The table does not refuse
the copies in this test. Every acknowledgement by a copy of the writer must still be correct.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import WriterFenced
from storage_core.data.rows.fold import record_schema
from storage_core.maintain.check import fsck
from storage_core.maintain.repair import repair
from storage_core.store.memory import MemoryStore
from storage_core.write.region.records import Following, WriterOptions, WriterSnapshot
from storage_core.write.region.spec import only_region
from storage_core.write.region.writer import RegionWriter, claim
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable, seats
from tests.support.scale import scaled

STEPS = st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=12)


def copies(table: KeyedTable, count: int) -> list[RegionWriter]:
    """Return writers that all use the same claim."""
    snapshot = table.snapshot
    region = only_region(snapshot.table_id, snapshot.config.region_spec)
    schema = record_schema(snapshot.schema)
    claimed = claim(table.store, region, record_schema=schema, clock=table.clock, ids=table.ids)
    return [
        RegionWriter(
            replace(claimed, appender=replace(claimed.appender)),
            following=Following(table.store, table.clock, WriterSnapshot.of(snapshot)),
            ids=table.ids,
            options=WriterOptions(),
            late=None,
        )
        for _ in range(count)
    ]


@given(STEPS)
@settings(max_examples=scaled(80), deadline=None)
def test_what_any_copy_was_told_is_durable_is_there_whatever_the_others_put(steps: list[tuple[int, bool]]) -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as before:
        before.put({"tailnum": "before", "seats": 0})
    writers, told, fenced = copies(table, 3), {"before": 0}, set()
    for number, (who, same) in enumerate(steps):
        name = "same" if same else f"n{number}"
        try:
            writers[who].put({"tailnum": name, "seats": 1})
        except WriterFenced:
            fenced.add(who)
        else:
            assert who not in fenced
            told[name] = 1
    assert len(fenced) == max(0, len({who for who, _ in steps}) - 1)
    assert seats(table) == told
    with table.writer() as after:
        after.flush()
    table.merge()
    assert seats(table) == told


def test_an_entry_of_our_epoch_that_is_not_ours_ends_the_writer_and_names_whose_it_is() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    first, second = copies(table, 2)
    first.put({"tailnum": "same", "seats": 1})
    with pytest.raises(WriterFenced, match=r"WAL entry 2 was written by writer .* with epoch 1 .*restored machine"):
        second.put({"tailnum": "same", "seats": 1})
    with pytest.raises(WriterFenced):
        second.flush()
    first.put({"tailnum": "later", "seats": 1})
    assert seats(table) == {"same": 1, "later": 1}


def test_two_copies_do_not_flush_one_generation_each() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as before:
        before.put({"tailnum": "before", "seats": 0})
    first, second = copies(table, 2)
    assert first.flush() == 1
    with pytest.raises(WriterFenced, match="flushes generation 1, but the manifest already has generation 2"):
        second.flush()
    first.put({"tailnum": "later", "seats": 1})
    assert seats(table) == {"before": 0, "later": 1}


OPERATIONS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["put", "put", "flush", "merge"])), max_size=12)


@given(OPERATIONS)
@settings(max_examples=scaled(40), deadline=None)
def test_what_a_copy_appends_to_a_generation_that_another_flushed_is_of_the_next_one(
    steps: list[tuple[int, str]],
) -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as before:
        before.put({"tailnum": "before", "seats": 0})
    writers, told = copies(table, 3), {"before": 0}
    for number, (who, what) in enumerate(steps):
        with suppress(WriterFenced):
            match what:
                case "put":
                    writers[who].put([{"tailnum": name, "seats": number} for name in ("same", f"n{number}")])
                    told |= {"same": number, f"n{number}": number}
                case "flush":
                    writers[who].flush()
                case _:
                    table.merge()
        assert seats(table) == told
    assert fsck(table.store, clock=table.clock).clean
    with table.writer() as after:
        assert seats(table) == told
        after.flush()
    assert seats(table) == told
    assert fsck(table.store, clock=table.clock).clean
    table.merge()
    assert seats(table) == told


@pytest.mark.parametrize("flushed", [False, True])
def test_a_repair_keeps_what_a_copy_appended_behind_the_flush_of_another(flushed: bool) -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as before:
        before.put({"tailnum": "before", "seats": 0})
    first, second = copies(table, 2)
    first.flush()
    table.merge()
    second.put({"tailnum": "late", "seats": 1})
    if flushed:
        with table.writer() as after:
            after.flush()
    target = KeyedTable(MemoryStore("repaired"))
    repair(table.store, target.store, clock=table.clock, ids=SeededIds(7))
    assert seats(target) == seats(table) == {"before": 0, "late": 1}
