"""Delete and update of a keyed table change the rows that match now, despite a live writer, a merge or a crash.

If a row is written during the statement, the statement matches its new values. A deleted row exists again if it is put
later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitConflict
from storage_core.change.statement import expr
from storage_core.change.statements import MOST_ATTEMPTS
from storage_core.data.settings.table import TableConfig
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.region.router import TableWriter
from storage_core.write.region.spec import first_specs
from tests import draws
from tests.support.clock import ManualClock
from tests.support.copies import copy_of
from tests.support.crashes import left_by_crashes
from tests.support.fault_store import FaultStore
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.meanwhile import Meanwhile

SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), pa.field("must", pa.string(), nullable=False), ("n", pa.int64())]
)
Seen = dict[int, int | None]


def _row(k: int, n: int | None) -> dict[str, object]:
    return {"k": k, "must": f"m{k}", "n": n}


def _process(store: ObjectStore, seed: int) -> KeyedTable:
    return KeyedTable(store, ids=SeededIds(seed), clock=ManualClock(step_ms=1))


def opened(store: ObjectStore, seed: int) -> Table:
    log = _process(MeteredStore(store), seed).log
    return Table(MeteredStore(store), log, log.snapshot())


def created(*, regions: bool) -> MemoryStore:
    store = MemoryStore("keyed")
    fields = [{"source": "k", "transform": "bucket", "n": 2}] if regions else []
    config = TableConfig(primary_key=("k",), region_specs=first_specs(fields, SCHEMA), checkpoint_interval=0)
    _process(store, 1).create(SCHEMA, config)
    return store


def seen(store: ObjectStore, consistency: str = "latest") -> Seen:
    rows = opened(store, 900).scan(consistency=consistency).to_arrow().to_pylist()
    assert all(each["must"] == f"m{each['k']}" for each in rows)
    found = {each["k"]: each["n"] for each in rows}
    assert len(found) == len(rows)
    return found


def merge(store: ObjectStore) -> None:
    _process(store, 1_000 + len([*store.list("")])).merge_all()  # different IDs each time


@cache
def _start(*, regions: bool) -> MemoryStore:
    """Return a table with rows in the base, in a generation, and in a later log."""
    store = created(regions=regions)
    table = opened(store, 2)
    table.append([_row(k, k) for k in range(10)])
    merge(store)
    table.append([_row(k, k + 100) for k in range(5, 8)])
    with table.writer() as writer:
        writer.put([_row(k, k) for k in range(10, 14)])
        writer.patch({"k": 1, "must": "m1", "n": 101})
        writer.delete([0])
    return store


Model = Callable[[Seen], Seen]
STATEMENTS: Mapping[str, tuple[Callable[[Table], object], Model]] = {
    "delete": (
        lambda table: table.delete("n % 2 = 1"),
        lambda rows: {k: n for k, n in rows.items() if n is None or n % 2 != 1},
    ),
    "update": (
        lambda table: table.update({"n": expr("n + 1000")}, "n between 100 and 110 or n = 12"),
        lambda rows: {k: n + 1000 if n is not None and (100 <= n <= 110 or n == 12) else n for k, n in rows.items()},
    ),
}


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("regions", [False, True])
def test_rows_that_match_now_are_changed_wherever_they_are_and_stay_so_through_a_merge(
    name: str, regions: bool
) -> None:
    store = copy_of(_start(regions=regions))
    before = seen(store)
    act, model = STATEMENTS[name]
    act(opened(store, 5))
    expected = model(before)
    assert expected != before
    assert seen(store) == expected
    assert regions or seen(store, "committed") == expected
    merge(store)
    assert seen(store) == expected
    assert regions or seen(store, "snapshot") == expected, "also what the log held is flushed and merged"


def test_what_is_put_later_comes_back() -> None:
    store = copy_of(_start(regions=True))
    opened(store, 5).delete("true")
    assert seen(store) == {}
    opened(store, 6).append([_row(3, 3)])
    assert seen(store) == {3: 3}
    merge(store)
    assert seen(store, "snapshot") == {3: 3}


def test_a_statement_that_matches_nothing_claims_nothing() -> None:
    store = copy_of(_start(regions=True))
    objects = {info.key for info in store.list("")}
    done = opened(store, 5).delete("n = 4000")
    assert done.rows == 0
    assert {info.key for info in store.list("")} == objects


@pytest.mark.parametrize("regions", [False, True])
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_live_writer_goes_on_and_is_never_judged_by_what_it_replaced(name: str, regions: bool) -> None:
    """While the statement runs, a writer puts rows before one of the statement's requests.

    The rows of the writer count as written before or after the statement.
    """
    act, model = STATEMENTS[name]
    instant = 0
    for instant in draws.instants(f"{name}, {regions}"):
        objects = copy_of(_start(regions=regions))
        before = seen(objects)
        writer = opened(objects, 4).writer()
        writer.put(_row(20, 1))
        before[20] = 1
        meanwhile = Meanwhile(instant, partial(_puts, writer))
        act(opened(FaultStore(objects, watch=meanwhile), 5))
        if not meanwhile.acted:
            break
        put: Seen = {1: 7, 2: 101, 5: 4}
        # In each region, the statement matches all rows of the put or none.
        first, last = model({**before, **put}), {**model(before), **put}
        found = seen(objects)
        assert found.keys() == (found.keys() & (first.keys() | last.keys()))
        for k in {**first, **last}:
            assert found.get(k, "gone") in (first.get(k, "gone"), last.get(k, "gone")), k
        writer.put(_row(21, 21))
        writer.close()
        assert seen(objects) == {**found, 21: 21}
    assert instant > 10


def _puts(writer: TableWriter) -> None:
    writer.put([_row(1, 7), _row(2, 101), _row(5, 4)])


def test_a_writer_that_writes_all_the_time_is_not_fenced_and_the_statement_gives_up() -> None:
    objects = copy_of(_start(regions=False))
    writer = opened(objects, 4).writer()
    store = FaultStore(objects, watch=lambda _, key: writer.put(_row(50, 50)) if "_transaction_log" in key else None)
    with pytest.raises(CommitConflict, match=f"each of {MOST_ATTEMPTS} attempts"):
        opened(store, 5).delete("n = 12")
    writer.put(_row(51, 51))
    assert seen(objects)[51] == 51
    assert 12 in seen(objects)


@pytest.mark.parametrize("name", STATEMENTS)
def test_killed_at_any_request_a_region_has_all_of_it_or_nothing(name: str) -> None:
    act, model = STATEMENTS[name]
    start = _start(regions=False)
    before, done = seen(start), model(seen(start))
    states = left_by_crashes(start, lambda store: act(opened(store, 5)))
    for left in states:
        found = seen(left)
        assert found in (before, done)
        expected = model(done) if found == done else done
        act(opened(left, 6))
        assert seen(left) == expected
        merge(left)
        assert seen(left) == expected
    assert len(states) > 2
