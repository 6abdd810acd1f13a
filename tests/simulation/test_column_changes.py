"""Kill a column change at each of its requests. In other tests, change columns before each request of a statement.

A column change is applied completely or not at all. The schema is committed as a whole, and no row depends on the
progress of the change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial

import pytest

from storage_core.base.errors import CommitConflict, CommitUnknown, InvalidInput
from storage_core.data.formats.keys import version_key
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.table import Table
from tests.support import upkeep
from tests.support.changed_rows import START, created, kept, opened, require_sound, row
from tests.support.copies import copy_of
from tests.support.crashes import left_by_crashes
from tests.support.fault_store import FaultStore, PutFault
from tests.support.meanwhile import Meanwhile

Seen = tuple[list[tuple[str, str, bool]], object]

CHANGES: Mapping[str, Callable[[Table], object]] = {
    "add": lambda table: table.add_column("more", "bigint", default=4),
    "add again": lambda table: table.add_column("gone", "string"),
    "widen": lambda table: table.widen_column("small", "bigint"),
    "rename": lambda table: table.rename_column("x", "y"),
    "drop": lambda table: table.drop_column("x"),
    "window": lambda table: table.alter({"window": "30m"}),
    "settings": lambda table: table.alter({"bloom_filters": ["n"], "splits.metadata": "packed"}),
}


@cache
def _start() -> MemoryStore:
    """Return a table whose columns have changed, with splits of two schemas and a checkpoint."""
    store = MemoryStore("columns")
    table = created(store)
    table.append([row(n, x=n / 2) for n in range(10)])
    table.add_column("small", "short", default=1).add_column("gone", "int").drop_column("gone")
    table.append([{**row(n, hour=1), "small": n} for n in range(10, 20)])
    upkeep.checkpoint(table)
    return store


def _seen(store: ObjectStore) -> Seen:
    table = opened(store, 999)
    columns = [(each.name, str(each.type), each.nullable) for each in table.schema]
    return columns, (table.snapshot.metadata.configuration, kept(table.scan().to_arrow().to_pylist()))


def _change(name: str, store: ObjectStore, seed: int) -> None:
    CHANGES[name](opened(store, seed))


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_is_killed_at_any_request_is_made_or_not_and_can_be_made(name: str) -> None:
    before, whole = _seen(_start()), copy_of(_start())
    _change(name, whole, 7)
    done = _seen(whole)
    found = []
    for store in left_by_crashes(_start(), lambda store: _change(name, store, 7)):
        assert _seen(store) in (before, done)
        found.append(_seen(store) == done)
        with suppress(InvalidInput):  # already committed
            _change(name, store, 8)
        assert _seen(store) == done
        opened(store, 9).append([{"at": START, "n": 30}])
        upkeep.compact(opened(store, 10))
        assert opened(store, 11).scan().to_arrow().num_rows == 21
        require_sound(store)
    assert {*found} == {False, True}, "its commit is its last request"


@pytest.mark.parametrize("fault", list(PutFault))
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_whose_reply_is_lost_is_made_once_or_not(name: str, fault: PutFault) -> None:
    before, whole = _seen(_start()), copy_of(_start())
    _change(name, whole, 7)
    done = _seen(whole)
    objects = copy_of(_start())
    version = opened(objects, 3).version
    store = FaultStore(objects)
    store.on_put(version_key(version + 1), fault)
    with suppress(CommitUnknown):
        _change(name, store, 7)
    store.deliver()
    assert _seen(objects) in (before, done)
    with suppress(InvalidInput):
        _change(name, objects, 8)
    assert _seen(objects) == done
    require_sound(objects)


def _swap(store: ObjectStore) -> None:
    """Swap the names of `x` and `small`."""
    opened(store, 5).rename_column("x", "other").rename_column("small", "x").rename_column("other", "small")


STATEMENTS: Mapping[str, Callable[[Table], object]] = {
    "delete": lambda table: table.delete("small = 1 or n = 3"),
    "update": lambda table: table.update({"small": 5}, "small > 14"),
    "overwrite": lambda table: table.overwrite([{**row(500, hour=2), "small": 1}], "small = 1"),
    "upsert": lambda table: table.upsert([{**row(500, hour=2), "small": 12}], on="small"),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_never_takes_a_column_for_another_that_got_its_name_meanwhile(name: str) -> None:
    """The statement runs before the swap, or after it, or fails with the advice to plan again."""
    act, outcomes, conflicts = STATEMENTS[name], [], 0
    for swaps in ((True, False), (False, True)):
        store = copy_of(_start())
        for is_swap in swaps:
            _swap(store) if is_swap else act(opened(store, 4))
        outcomes.append(kept(opened(store, 9).scan().to_arrow().to_pylist()))
    assert outcomes[0] != outcomes[1]
    objects = copy_of(_start())
    for instant in range(1_000):
        objects = copy_of(_start())
        meanwhile = Meanwhile(instant, partial(_swap, objects))
        process = opened(FaultStore(objects, watch=meanwhile), 4)
        try:
            act(process)
        except CommitConflict:
            conflicts += 1
            act(opened(objects, 6))
        if not meanwhile.acted:
            break
        assert kept(opened(objects, 9).scan().to_arrow().to_pylist()) in outcomes
    assert instant > 3
    assert (conflicts > 0) == (name in ("overwrite", "upsert"))
    require_sound(objects)
