"""Kill an erasure at each of its requests, and run the erasure again.

In other tests, a second operation, such as an append or a merge, runs at each request of the erasure. The erasure also
runs at each request of the second operation.

In whatever order the operations commit, the table then has the rows of all persons except the erased person. The report
is correct.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import pytest

from storage_core.base.errors import CommitConflict
from storage_core.compact import planner
from storage_core.maintain.check import fsck
from storage_core.maintain.findings import Kind
from storage_core.store.meter import RequestKind
from tests.support.changed_rows import require_sound
from tests.support.clock import ManualClock
from tests.support.copies import copy_of
from tests.support.crashes import at_both_ends, decides
from tests.support.fault_store import Crash, CrashFault, FaultStore
from tests.support.forgetting import (
    APPENDED,
    CANARY,
    DAY_MS,
    HORIZON_MS,
    KEYED,
    RETENTION_MS,
    WHERE,
    Forgetful,
    require_true,
    row,
)
from tests.support.scale import scaled

Act = Callable[[Forgetful], object]


@cache
def _start(kind: str) -> Forgetful:
    made = Forgetful.create(KEYED if kind == "keyed" else APPENDED, raw_stores=0)
    made.opened().append(made.rows(range(6)) + made.rows([100], CANARY))
    if kind == "keyed":
        made.keyed.merge_all()
    made.index()
    made.opened().append(made.rows(range(10, 14)) + made.rows([110], CANARY))
    made.reject(f"7,{CANARY}", "8,somebody else")
    return made


def _copy(kind: str) -> Forgetful:
    start = _start(kind)
    clock = ManualClock(start.clock.now, step_ms=1)
    store = copy_of(start.table_store, start.table_store.uri.removeprefix("memory://"), clock)
    return Forgetful(start.config, store, [], clock, seed=50, others={*start.others})


def _forget(made: Forgetful, store: FaultStore | None = None) -> object:
    return made.opened(store).forget(WHERE)


def _require_forgotten(made: Forgetful, others: set[int]) -> None:
    """Assert that the table contains exactly the rows with the numbers `others`.

    After all retention periods, no data of the erased person may be left.
    """
    assert made.numbers() == sorted(others)
    made.report()
    for _ in range(6):
        made.clock.now += RETENTION_MS + HORIZON_MS
        made.collect()
    assert made.report().is_clean
    assert made.places() == set()
    assert made.numbers() == sorted(others)
    found = fsck(made.table_store, clock=made.clock, deep=True).findings
    assert {each.kind for each in found} <= {Kind.UNREFERENCED, Kind.SEGMENT_STALE, Kind.HINT_STALE}, (
        "what a crash leaves"
    )


@pytest.mark.parametrize("kind", ["append", "keyed"])
def test_it_may_end_at_any_request_and_be_run_again(kind: str) -> None:
    left: list[Forgetful] = []
    # Only a put changes the state, so the run ends before the first put and after each put.
    first, *_ = puts = _puts(kind)
    for number, side in [(first, CrashFault.BEFORE), *((each, CrashFault.AFTER) for each in puts)]:
        made = _copy(kind)
        store = FaultStore(made.table_store)
        store.at(number, side)
        with pytest.raises(Crash):
            _forget(made, store)
        left.append(made)
    assert len(left) > 5
    for made in at_both_ends(left, lambda made: made.table_store):
        require_true(made.opened().forget_report(WHERE), made.places())
        _forget(made)
        _require_forgotten(made, made.others)


def _append(made: Forgetful) -> None:
    made.opened().append([row(500)])


def _restore(made: Forgetful) -> None:
    made.opened().restore(1)


def _merge(made: Forgetful) -> None:
    made.keyed.merge_all()


def _expire(made: Forgetful) -> None:
    """Expire all windows."""
    log = made.opened().log
    head = log.snapshot()
    retained = replace(head.config, retention_ms=1)
    log.commit(head, [replace(head.metadata, configuration=retained.to_configuration())], operation="CONFIGURE")
    head = log.snapshot()
    found = planner.plan_expiry(head, retention_ms=1, now_ms=made.clock.now + 10 * DAY_MS)
    if found.splits:
        log.commit(head, found.removes(1), operation="EXPIRE", requirements=[found.requirement])


def _sort_schema(made: Forgetful) -> None:
    made.opened().alter({"sort_schema": "note|timestamp/V2"})


OTHERS: Mapping[str, Act] = {
    "append": _append,
    "delete": lambda made: made.opened().delete("id = 3"),
    "compact": lambda made: made.keyed.compact(),
    "index": lambda made: made.index(),
    "forget": lambda made: made.opened().forget("id = 3"),
    "merge": _merge,
    "columns": lambda made: made.opened().add_column("more", "int"),
    "update": lambda made: made.opened().update({"note": "set"}, "id = 3"),
    "overwrite": lambda made: made.opened().overwrite([row(3)], "id = 3"),
    "upsert": lambda made: made.opened().upsert([row(3)], on="id"),
    "expire": _expire,
    "restore": _restore,
    "sort schema": _sort_schema,
}
KINDS = {name: ("keyed",) if name == "merge" else ("append",) for name in OTHERS}
GONE = {"delete": {3}, "forget": {3}, "expire": {*range(6), *range(10, 14)}, "restore": {*range(10, 14)}}
CAME = {"append": {500}}
PERSON = {100, 110}


@pytest.mark.parametrize(("theirs", "kind"), [(name, kind) for name in OTHERS for kind in KINDS[name]])
def test_others_commit_at_any_of_its_requests(theirs: str, kind: str) -> None:
    """Test a row of the conflict table. Another operation commits first. The erasure then plans again and commits."""
    for number in _deciding(kind):
        made = _copy(kind)
        meanwhile = _At(number, lambda made=made: OTHERS[theirs](made))  # type: ignore[misc]
        _forget(made, FaultStore(made.table_store, watch=meanwhile))
        assert meanwhile.acted
        others = (made.others - GONE.get(theirs, set())) | CAME.get(theirs, set())
        back = PERSON if theirs == "restore" else set()  # the restored version contains the erased person
        assert {*made.numbers()} - back == others
        require_true(made.opened().forget_report(WHERE), made.places())
        require_sound(made.table_store)


# "ok" means that the operation commits after the erasure. "abort" means that the operation commits nothing and plans
# again if the erasure committed during the operation. A commit of an index is aborted only if all rows that it indexed
# were rewritten.
OK = ("append", "delete", "forget", "update", "overwrite", "upsert", "restore")
ABORT = ("compact", "index", "merge", "expire")
COLUMN = dict.fromkeys(OK, "ok") | dict.fromkeys(ABORT, "abort")


@pytest.mark.parametrize("mine", COLUMN)
def test_it_commits_at_any_request_of_others(mine: str) -> None:
    """Test a column of the conflict table."""
    kind, aborted = KINDS[mine][0], 0
    for number in _deciding(kind, mine):
        made = _copy(kind)
        meanwhile = _At(number, lambda made=made: _forget(made))  # type: ignore[misc]
        try:
            OTHERS[mine](_through(made, FaultStore(made.table_store, watch=meanwhile)))
        except CommitConflict:
            aborted += 1
        assert meanwhile.acted
        _forget(made)
        changed = GONE.get(mine, set()) | CAME.get(mine, set())
        assert {*made.numbers()} - changed == made.others - changed
        require_true(made.opened().forget_report(WHERE), made.places())
    assert (aborted > 0) == (COLUMN[mine] == "abort")


class _At:
    """A `watch` hook that runs an action once, before the request with this number."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self._left, self._act = number, act
        self.acted = False

    def __call__(self, kind: RequestKind, key: str) -> None:
        del kind, key
        self._left -= 1
        if self._left < 0 and not self.acted:
            self.acted = True
            self._act()


def _through(made: Forgetful, store: FaultStore) -> Forgetful:
    """Return the same table, but send every request through another store."""
    return Forgetful(made.config, store, [], made.clock, seed=90)  # type: ignore[arg-type]


def _deciding(kind: str, name: str = "") -> list[int]:
    """Return the numbers of the puts that change the table.

    An action between two of these puts has the same effect as an action right before the second put.
    """
    return [number for number, key in _puts(kind, name).items() if decides(key) or scaled(1) > 1]


@cache
def _puts(kind: str, name: str = "") -> Mapping[int, str]:
    """Return the key of each put of the operation `name`, by request number. By default, run the erasure."""
    made = _copy(kind)
    store = FaultStore(made.table_store)
    beside = _through(made, store)
    (OTHERS[name] if name else _forget)(beside)
    return {number: each.request.key for number, each in enumerate(store.trace) if each.request.kind == "put"}
