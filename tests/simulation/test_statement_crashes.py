"""Kill a statement at each of its requests, before or after the request takes effect.

The statement is done completely or not at all.

If the store does not report the outcome of the commit, the statement is also done completely or not at all. A statement
that must be applied once is applied once, even if it is repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache

import pytest

from storage_core.base.errors import CommitUnknown
from storage_core.change.statement import expr
from storage_core.data.formats.keys import version_key
from storage_core.maintain.collect import collect
from storage_core.store.memory import MemoryStore
from storage_core.table import Table
from tests.support import upkeep
from tests.support.changed_rows import CONFIG, Kept, created, opened, require_sound, row, rows_of
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_of
from tests.support.crashes import left_by_crashes
from tests.support.fault_store import FaultStore, PutFault

ROWS = 4_000
PUT = [row(n, "put", hour=n % 3) for n in (4, 5, 5_000)]
WORK: Mapping[str, Callable[[Table], object]] = {
    "delete, vectors in the action": lambda table: table.delete("n < 40"),
    "delete, vectors that are stored": lambda table: table.delete("(n * n) % 1009 < 300"),
    "delete of whole splits": lambda table: table.delete("\"at\" >= timestamptz '2024-02-29 11:00:00+00'"),
    "update": lambda table: table.update({"n": expr("n + 10000")}, "n % 50 = 7", application=("update", 1)),
    "overwrite": lambda table: table.overwrite(PUT[:1], "n < 30", application=("overwrite", 1)),
    "upsert": lambda table: table.upsert(PUT, on="n"),
}


@cache
def _start() -> MemoryStore:
    """Return a table with one split for each of two hours. One split has deleted rows."""
    store = MemoryStore("statements")
    table = created(store, replace(CONFIG, gc_horizon_ms=0, version_retention_ms=0))
    table.append([row(n, f"h{n % 5}", hour=n % 2) for n in range(ROWS)])
    table.delete("n = 1000")
    return store


@cache
def _done(name: str) -> Counter[Kept]:
    store = copy_of(_start())
    WORK[name](opened(store, 7))
    return rows_of(store)


@pytest.mark.parametrize("name", WORK)
def test_killed_at_any_request_all_of_it_is_done_or_nothing_and_doing_it_again_ends_it(name: str) -> None:
    before, done = rows_of(_start()), _done(name)
    left = left_by_crashes(_start(), lambda store: WORK[name](opened(store, 7)))
    found = []
    for store in left:
        assert rows_of(store) in (before, done)
        found.append(rows_of(store) == done)
        WORK[name](opened(store, 8))
        assert rows_of(store) == done
        require_sound(store)
        collect(store, opened(store, 9).log, clock=ManualClock(START_MS + 10**9, step_ms=1))
        assert rows_of(store) == done, "the collector took nothing that is needed"
    assert {True, False} == {*found}, "before its commit, and after it"


@pytest.mark.parametrize("fault", list(PutFault))
@pytest.mark.parametrize("name", WORK)
def test_a_lost_reply_of_the_commit_leaves_it_done_once_or_not(name: str, fault: PutFault) -> None:
    objects = copy_of(_start())
    store = FaultStore(objects)
    version = opened(objects, 3).version
    store.on_put(version_key(version + 1), fault)
    with suppress(CommitUnknown):
        WORK[name](opened(store, 7))
    store.deliver()
    WORK[name](opened(objects, 8))
    assert rows_of(objects) == _done(name)
    require_sound(objects)


def test_a_rewrite_into_new_windows_that_is_killed_at_any_request_keeps_every_row_once() -> None:
    start = copy_of(_start())
    opened(start, 6).alter({"window": "30m"})
    for store in left_by_crashes(start, lambda store: upkeep.rewindow(opened(store, 7))):
        assert rows_of(store) == rows_of(start)
        upkeep.rewindow(opened(store, 8))
        assert rows_of(store) == rows_of(start)
        assert {add.windowSeconds for add in opened(store, 9).snapshot.splits.values()} == {1800}
        require_sound(store)
