"""Kill a merger at each request of a merge, before or after the request takes effect. The rows are merged exactly once.

The put of the version file commits the merge. Readers see the old base before this put, and the merged base after it. A
later process finds either the old base or the merged base. The later process never finds a partial merge or two live
rows of one key. The result is the same as without the kill.
"""

from __future__ import annotations

from functools import cache, partial

import pytest

from storage_core.base.errors import CommitConflict
from storage_core.compact import execute as compaction
from storage_core.data.formats.keys import version_key
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.region import merge
from tests.support import merge_plan
from tests.support.copies import copy_of
from tests.support.fault_store import Crash, CrashFault, FaultStore
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable, Row

Rows = dict[object, Row]

MANY = 2_500


def _plane(name: str, seats: int) -> Row:
    return {"tailnum": name, "seats": seats, "model": "m"}


@cache
def start() -> MemoryStore:
    """Return a base of three splits, and two generations that put, patch and delete rows.

    The generations delete all rows of one split.
    """
    store = MemoryStore("planes")
    table = KeyedTable(store).create()
    with table.writer() as writer:
        for rows in (
            [_plane(f"n{n:04}", n) for n in range(MANY)],
            [_plane("x1", 1), _plane("x2", 1)],
            [_plane("y1", 1), _plane("y2", 1)],
        ):
            writer.put(rows)
            writer.flush()
            table.merge()
        writer.delete([f"n{n * n % 2_477:04}" for n in range(2_000)])
        writer.put([_plane("x1", 2), _plane("n0000", -1)])
        writer.delete(["y1"])
        writer.flush()
        writer.patch({"tailnum": "x2", "seats": 3})
        writer.delete(["y2"])
        writer.put([_plane("new", 4)])
        writer.flush()
    return store


def _process(store: ObjectStore, seed: int) -> KeyedTable:
    return KeyedTable(store, ids=SeededIds(seed))


def _base(store: ObjectStore) -> Rows:
    listed = _process(store, 1_000).base_rows()
    rows = {row["tailnum"]: row for row in listed}
    assert len(rows) == len(listed), "one live row per key"
    return rows


@cache
def reference() -> tuple[Rows, Rows, tuple[str, ...]]:
    """Run a merge undisturbed.

    Return the base before and after the merge, and the key of each put. Other requests have an empty key.
    """
    store = FaultStore(copy_of(start()))
    before = _base(start())
    assert _process(store, 2).merge() is not None
    puts = tuple(each.request.key if each.request.kind == "put" else "" for each in store.trace)
    return before, _base(store), puts


def test_the_merge_of_the_matrix_does_all_that_a_merge_can_do() -> None:
    before, after, puts = reference()
    assert {"y1", "y2"} <= before.keys() - after.keys()
    assert (after["x1"]["seats"], after["x2"]["seats"], after["new"]["seats"]) == (2, 3, 4)
    assert len([key for key in puts if key.endswith(".dv")]) == 1
    store = copy_of(start())
    (work,) = merge.plan(store, _process(store, 2).snapshot)
    result = _process(store, 2).execute(work)
    rewrite = result.rewrite
    assert (len(work.generations), len(result.marks), len(rewrite.removes), len(rewrite.adds)) == (2, 1, 2, 1)


@pytest.mark.parametrize("side", list(CrashFault))
def test_a_merger_may_end_at_any_request_and_the_rows_are_merged_once(side: CrashFault) -> None:
    before, after, puts = reference()
    head = _process(start(), 3).snapshot.version
    (decisive,) = [number for number, key in enumerate(puts) if key == version_key(head + 1)]
    judged: list[tuple[frozenset[str], bool]] = []
    for number in range(len(puts)):
        left = _crashed(number, side)
        committed = number > decisive or (number == decisive and side is CrashFault.AFTER)
        case = (frozenset(info.key for info in left.list("")), committed)
        if case in judged:
            continue  # a request that only reads changes no object, so this case was already checked
        judged.append(case)
        assert _base(left) == (after if committed else before)
        assert _process(left, 4).rows() == after, "what is acknowledged is read, merged or not"
        assert (_process(left, 5).merge() is None) == committed, "the progress tells what is merged"
        assert _base(left) == after
        _others_go_on(left, after)
    assert len(judged) == 4 - (side is CrashFault.BEFORE), "nothing, a vector, a split, the version"
    print(f"{side}: {len(puts)} requests leave {len(judged)} different tables behind")  # noqa: T201 -- for `pytest -rA`


def _crashed(number: int, side: CrashFault) -> MemoryStore:
    objects = copy_of(start())
    store = FaultStore(objects)
    store.at(number, side)
    with pytest.raises(Crash):
        _process(store, 2).merge()
    return objects


def _others_go_on(store: MemoryStore, expected: Rows) -> None:
    """After a merge was killed, continue with a new writer, a new merger and a new compactor."""
    table = _process(store, 6)
    with table.writer() as writer:
        writer.put(_plane("x1", 9))
        writer.delete("n0000")
        writer.flush()
    assert table.merge() is not None
    snapshot = table.snapshot
    for operation in merge_plan.plan(snapshot):
        done = compaction.execute(store, operation, ids=table.ids, now_ms=1)
        table.log.commit(snapshot, done.actions, operation="COMPACT")
    rows = {**expected, "x1": {**_plane("x1", 9), "model": "m"}}
    del rows["n0000"]
    assert _base(store) == rows
    assert not any(add.deleted_rows for add in table.snapshot.splits.values())


def test_of_two_mergers_that_race_at_every_request_one_wins_and_the_other_plans_again() -> None:
    """Before one request of the first merger, a second merger merges all flushed generations."""
    _, after, puts = reference()
    conflicts = 0
    for number in range(len(puts)):
        objects = copy_of(start())
        store = FaultStore(objects)
        store.at(number, partial(_merge, objects))
        first = _process(store, 2)
        try:
            assert first.merge() is None, "it saw the progress in time"
        except CommitConflict:
            conflicts += 1
            assert first.merge() is None, "planned again there is nothing left to do"
        assert _base(objects) == after
        assert list(first.snapshot.merged_generations.values()) == [5]
    assert 0 < conflicts < len(puts)


def _merge(store: ObjectStore) -> None:
    assert _process(store, 7).merge() is not None
