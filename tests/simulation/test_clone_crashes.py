"""Kill a clone at each of its requests to the source and to the target.

The target then has no table or a complete table. A rerun completes the clone.
"""

from __future__ import annotations

from functools import cache, partial

import pytest

from storage_core.log.log import TransactionLog, read_tags
from storage_core.log.sharing import Cloned, TableStore
from storage_core.maintain.check import fsck
from storage_core.maintain.clone import clone
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Severity
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from tests.support.changed_rows import CONFIG, created, index, opened, row, rows_of
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_of
from tests.support.crashes import left_by_crashes
from tests.support.ids import SeededIds

WAYS = pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])


@cache
def _source() -> MemoryStore:
    """Return a source table with index segments, and with deletion vectors inline and in an object."""
    store = MemoryStore("source")
    table = created(store, CONFIG)
    table.append([row(n, f"h{n % 5}", hour=n % 2) for n in range(4_000)])
    index(table)
    table.refresh().delete("n = 1000")
    table.delete("(n * n) % 1009 < 300")
    return store


def _clone(source: ObjectStore, target: ObjectStore, *, deep: bool, seed: int) -> Cloned:
    log = TransactionLog(source, clock=ManualClock(step_ms=1), ids=SeededIds(seed))
    to = TransactionLog(target, clock=ManualClock(step_ms=1), ids=SeededIds(seed + 1000))
    return clone(log, log.snapshot(), to, deep=deep)


def _collected(store: ObjectStore) -> None:
    for seed in (50, 51):
        clock = ManualClock(START_MS + 40 * 86_400_000, step_ms=1)
        collect(store, opened(store, seed).log, clock=clock, horizon_ms=0)


def _require_whole(source: ObjectStore, target: ObjectStore) -> None:
    seen = TableStore(target, opened=lambda _: source)
    assert rows_of(seen) == rows_of(_source())
    _collected(source)
    _collected(seen)
    assert rows_of(seen) == rows_of(source) == rows_of(_source())
    for store in (seen, source):
        found = fsck(store, clock=ManualClock(step_ms=1), deep=True).findings
        assert [each for each in found if each.severity is not Severity.NOTE] == [], "at most a hint is missing"


@WAYS
def test_killed_at_a_request_of_the_clone_it_is_made_again_by_the_same_call(deep: bool) -> None:
    source = copy_of(_source(), "source")
    left = left_by_crashes(MemoryStore("clone"), partial(_clone, source, deep=deep, seed=7))
    assert len(left) > (4 if deep else 3)
    for target in left:
        again = copy_of(source, "source")
        is_table = TransactionLog(target).exists()
        assert (_clone(again, target, deep=deep, seed=8).commit_id == "") == is_table
        assert _clone(again, target, deep=deep, seed=9).commit_id == ""
        _require_whole(again, target)


@WAYS
def test_killed_at_a_request_of_the_source_it_is_made_again_and_the_source_is_whole(deep: bool) -> None:
    targets: list[MemoryStore] = []

    def run(source: ObjectStore) -> None:
        targets.append(MemoryStore("clone"))
        _clone(source, targets[-1], deep=deep, seed=7)

    for source in left_by_crashes(copy_of(_source(), "source"), run):
        for target in (MemoryStore("clone"), copy_of(targets[-1], "clone")):
            again = copy_of(source)  # at the same location as before
            _clone(again, target, deep=deep, seed=8)
            _require_whole(again, target)
            assert len(read_tags(again).live(START_MS)) <= 1, "no tag is left that nobody knows"


@WAYS
def test_the_collector_of_the_source_meets_no_moment_at_which_it_takes_what_a_clone_needs(deep: bool) -> None:
    source = copy_of(_source(), "source")
    version = opened(source, 3).version
    _clone(source, target := MemoryStore("clone"), deep=deep, seed=7)
    table = opened(source, 4)
    table.delete("true")
    table.checkpoint()
    _collected(source)
    assert rows_of(TableStore(target, opened=lambda _: source)) == rows_of(_source(), version)
