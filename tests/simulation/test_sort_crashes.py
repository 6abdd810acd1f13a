"""Kill a sorter at each request of a sort, or let another process act before that request.

Acknowledged rows exist exactly once.

The put of the region's manifest commits the sort. Before this put, no object refers to the new files. After this put,
the sorted generation replaces its inputs. After the kill, a writer, distributor, merger, sorter or collector finds one
of two states: the state before this put, or the state after this put.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from storage_core.base.errors import CommitConflict, TidemarkError
from storage_core.data.formats import keys
from storage_core.data.settings.table import TableConfig
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Kind
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.region import generation_write
from storage_core.write.region.generation_write import SortingTerms
from storage_core.write.region.manifest import read_latest, region_of
from tests.support.copies import copy_of
from tests.support.fault_store import Crash, CrashFault, FaultStore, PutFault
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable, Row

TERMS = SortingTerms(generations=2)
CONFIG = TableConfig(primary_key=("tailnum",), checkpoint_interval=0, version_retention_ms=0, gc_horizon_ms=0)
Rows = dict[object, Row]


def _plane(name: str, seats: int | None) -> Row:
    return {"tailnum": name, "seats": seats, "model": None}


@cache
def start() -> MemoryStore:
    """Return a merged generation, four later generations with every operation, and unflushed records."""
    store = MemoryStore("planes")
    table = KeyedTable(store).create(config=CONFIG)
    with table.writer() as writer:
        writer.put([_plane("base", 1), _plane("gone", 1)])
        writer.flush()
        table.merge()
        writer.put([_plane("a", 1), _plane("b", 1)])
        writer.flush()
        writer.patch({"tailnum": "base", "seats": 2})
        writer.delete(["b", "gone"])
        writer.flush()
        writer.reset(_plane("b", 3))
        writer.flush()
        writer.put([_plane("a", 4)])
        writer.flush()
        writer.put([_plane("tail", 5)])
    return store


EXPECTED: Rows = {name: _plane(name, seats) for name, seats in {"a": 4, "b": 3, "base": 2, "tail": 5}.items()}


def _process(store: ObjectStore, seed: int) -> KeyedTable:
    return KeyedTable(store, ids=SeededIds(seed))


def _sort(table: KeyedTable) -> bool:
    """Sort the waiting generations. Return True if any generation was waiting."""
    works = generation_write.plan_sort(table.store, table.snapshot, terms=TERMS)
    for work in works:
        result = generation_write.execute_sort(table.store, work, clock=table.clock, ids=table.ids)
        generation_write.finish(table.store, work, result, clock=table.clock, writer_id=table.ids.uuid())
    return bool(works)


@cache
def trace() -> tuple[str, ...]:
    """Return one text for each request of a sort without faults.

    The text is the key of a put, or empty for any other request.
    """
    store = FaultStore(copy_of(start()))
    assert _sort(_process(store, 2))
    return tuple(each.request.key if each.request.kind == "put" else "" for each in store.trace)


def _region(store: ObjectStore) -> str:
    return region_of(_process(store, 1).snapshot.table_id)


def _decisive() -> int:
    """Return the number of the request that puts the region's manifest."""
    newest = read_latest(start(), _region(start()))
    assert newest is not None
    return trace().index(keys.region_manifest_key(newest.region_id, newest.version + 1))


def _ranges(store: ObjectStore) -> list[tuple[int, int]]:
    newest = read_latest(store, _region(store))
    assert newest is not None
    return [(each.first, each.generation) for each in newest.flushed_generations]


SORTED = [(1, 1), (2, 5)]


@pytest.mark.parametrize("side", list(CrashFault))
def test_a_sorter_may_end_at_any_request(side: CrashFault) -> None:
    judged: list[frozenset[str]] = []
    for number in range(len(trace())):
        left = copy_of(start())
        store = FaultStore(left)
        store.at(number, side)
        with pytest.raises(Crash):
            _sort(_process(store, 2))
        committed = number > _decisive() or (number == _decisive() and side is CrashFault.AFTER)
        assert (_ranges(left) == SORTED) == committed
        objects = frozenset(info.key for info in left.list(""))
        if objects in judged:
            continue  # requests that only read leave the same objects
        judged.append(objects)
        _go_on(left, committed=committed)
    assert len(judged) == 5, "nothing, the records, the filter, their manifest, the region's"
    print(f"{side}: {len(trace())} requests leave {len(judged)} different regions behind")  # noqa: T201 -- for `pytest -rA`


def _go_on(store: MemoryStore, *, committed: bool) -> None:
    """Let a new sorter complete the killed sort, and let writers and mergers continue."""
    table = _process(store, 4)
    assert table.rows() == EXPECTED
    assert _sort(table) == (not committed)
    assert _ranges(store) == SORTED
    _judge(table)


def _judge(table: KeyedTable) -> None:
    """Check the rows now, and after a collection, a flush by the next writer, and a merge of everything."""
    assert table.rows() == EXPECTED
    collect(table.store, table.log, clock=table.clock)
    assert table.rows() == EXPECTED
    with table.writer() as writer:
        writer.put(_plane("a", 9))
        writer.flush()
    table.merge_all()
    rows = {**EXPECTED, "a": _plane("a", 9)}
    listed = table.base_rows()
    assert {row["tailnum"]: row for row in listed} == rows
    assert len(listed) == len(rows)
    found = fsck(table.store, clock=table.clock, deep=True).findings
    assert [each for each in found if each.kind is not Kind.UNREFERENCED] == []


@pytest.mark.parametrize("fault", [PutFault.APPLIED_THEN_UNKNOWN, PutFault.DROPPED_THEN_UNKNOWN])
def test_a_lost_reply_to_any_put_leaves_a_sorted_or_an_unsorted_region(fault: PutFault) -> None:
    for number in [number for number, key in enumerate(trace()) if key]:
        objects = copy_of(start())
        store = FaultStore(objects)
        store.at(number, fault)
        try:
            _sort(_process(store, 2))
        except TidemarkError as error:
            assert error.kind == "commit_unknown"  # noqa: PT017  # whether an error occurs depends on the put
        if _ranges(objects) != SORTED:
            assert _sort(_process(objects, 3))
        _judge(_process(objects, 4))


def _other_flushes(store: MemoryStore) -> None:
    with _process(store, 7).writer() as writer:
        writer.flush()


def _other_merges(store: MemoryStore) -> None:
    assert _process(store, 7).merge() is not None


def _other_sorts(store: MemoryStore) -> None:
    _sort(_process(store, 7))


OTHERS: list[Callable[[MemoryStore], None]] = [_other_flushes, _other_merges, _other_sorts]


@pytest.mark.parametrize("act", OTHERS, ids=["a claim and a flush", "a merger", "another sorter"])
def test_whatever_somebody_else_does_at_any_request_of_a_sort_no_row_is_lost_or_twice(
    act: Callable[[MemoryStore], None],
) -> None:
    conflicts = 0
    for number in range(len(trace())):
        objects = copy_of(start())
        store = FaultStore(objects)
        store.at(number, lambda objects=objects: act(objects))  # type: ignore[misc]
        try:
            _sort(_process(store, 2))
        except CommitConflict:
            conflicts += 1
        ranges = _ranges(objects)
        assert [first for first, _ in ranges] == [1, *(last + 1 for _, last in ranges[:-1])], "no gap, nothing twice"
        _judge(_process(objects, 4))
    assert (conflicts > 0) == (act is _other_sorts), "only another sorter is in the way"
