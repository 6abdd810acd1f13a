"""Windows expire in one commit.

Before each request of the process that expires windows, kill this process or let another process act. No retained row
changes.

If a compaction commits first, the expiry plans again and removes the outputs of the compaction. If the compaction
commits second, the compaction conflicts and restores no expired row. Rows that arrive late for an expired window are
accepted, and expire with the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import pyarrow as pa
import pytest

from jobs.spark.spark import Spark
from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import CommitConflict, TidemarkError
from storage_core.compact.execute import execute
from storage_core.compact.steps import run_expire as expire
from storage_core.data.settings.table import TableConfig
from storage_core.data.steps import Expire
from storage_core.log.actions import Action
from storage_core.log.deletion_vector import inline
from storage_core.log.job_run import JobReport, JobRun
from storage_core.log.log import PLANNED_AT_MOST
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Kind
from storage_core.split.read import read_split
from storage_core.store.contract import ObjectStore, exists
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.region import merge
from tests.support import merge_plan
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_of
from tests.support.crashes import left_by_crashes
from tests.support.fault_store import FaultStore, PutFault
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

HOUR = 3600
NOW = START_MS // 1000 // HOUR * HOUR
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False)]
)
RETENTION_MS = 24 * HOUR_MS
OLD, KEPT = NOW - 48 * HOUR, NOW - 2 * HOUR
Rows = set[tuple[int, int]]


def _config(**more: object) -> TableConfig:
    base = {"time_column": "at", "window_seconds": HOUR, "checkpoint_interval": 0, "retention_ms": RETENTION_MS}
    return TableConfig(**{**base, **more})  # type: ignore[arg-type]  # settings by name


def _process(store: ObjectStore, seed: int) -> KeyedTable:
    return KeyedTable(store, ids=SeededIds(seed), clock=ManualClock(NOW * 1000))


def _opened(store: ObjectStore, seed: int) -> Table:
    metered = MeteredStore(store)
    log = KeyedTable(metered, ids=SeededIds(seed), clock=ManualClock(NOW * 1000)).log
    return Table(metered, log, log.snapshot())


def _append(store: ObjectStore, seed: int, rows: Sequence[tuple[int, int]]) -> None:
    _opened(store, seed).append(_table(rows))


def _table(rows: Sequence[tuple[int, int]]) -> pa.Table:
    at = pa.array([second * 1_000_000 for _, second in rows], pa.int64()).cast(SCHEMA.field("at").type)
    return pa.Table.from_arrays([pa.array([number for number, _ in rows], pa.int64()), at], schema=SCHEMA)


def _rows(store: ObjectStore, version: int | None = None) -> Rows:
    found = _opened(store, 99).scan(at=version).to_arrow()
    return set(zip(found["id"].to_pylist(), found["at"].cast(pa.int64()).to_pylist(), strict=True))


@cache
def start() -> MemoryStore:
    """Return a table with two expired and two retained windows of two splits each."""
    store = MemoryStore("events")
    _process(store, 1).create(SCHEMA, _config())
    for number in (0, 10):
        windows = (OLD, OLD + HOUR, KEPT, KEPT + HOUR)
        _append(store, 2 + number, [(number + index, each + number) for index, each in enumerate(windows)])
    return store


def _kept(rows: Rows) -> Rows:
    return {row for row in rows if row[1] >= KEPT * 1_000_000}


def _expire(store: ObjectStore, seed: int) -> JobReport:
    return expire(JobRun(Expire(table_uri="test:"), Spark(), _opened(store, seed)))


@cache
def requests() -> int:
    store = FaultStore(copy_of(start()))
    _expire(store, 3)
    return len(store.trace)


def test_every_window_that_has_left_goes_in_one_commit_and_a_second_run_finds_nothing() -> None:
    store = copy_of(start())
    done = _expire(store, 3)
    metrics = done.metrics
    assert (done.status, done.version) == ("committed", 3)
    assert (metrics.splits_in, metrics.rows_in, metrics.rows_out) == (4, 4, 0)
    windows = done.details["windows"]
    assert isinstance(windows, list)
    assert [(each["window_start"], each["splits"], each["rows"]) for each in windows] == [
        (OLD, 2, 2),
        (OLD + HOUR, 2, 2),
    ]
    assert sum(each["bytes"] for each in windows) == metrics.bytes_in
    assert _rows(store) == _kept(_rows(start()))
    assert _rows(store, version=2) == _rows(start()), "an older version still shows what it held"
    assert _expire(store, 4).status == "nothing_to_do"
    assert _opened(store, 5).version == 3


def test_killed_at_any_request_the_next_run_does_what_is_left() -> None:
    versions = set()
    for left in left_by_crashes(start(), lambda store: _expire(store, 3)):
        versions.add(_opened(left, 4).version)
        assert _rows(left) in (_rows(start()), _kept(_rows(start()))), "all of it or nothing"
        _expire(left, 5)
        assert _rows(left) == _kept(_rows(start()))
        assert _opened(left, 6).version == 3, "one commit in all"
    assert versions == {2, 3}


@pytest.mark.parametrize("fault", [PutFault.APPLIED_THEN_UNKNOWN, PutFault.DROPPED_THEN_UNKNOWN])
def test_a_lost_reply_leaves_it_done_or_to_be_done(fault: PutFault) -> None:
    left = copy_of(start())
    store = FaultStore(left)
    store.at(requests() - 1, fault)
    try:
        _expire(store, 3)
    except TidemarkError as error:
        assert error.kind == "commit_unknown"  # noqa: PT017  # whether an error occurs depends on the fault
    _expire(left, 5)
    assert (_rows(left), _opened(left, 6).version) == (_kept(_rows(start())), 3)


# Concurrent actions of other processes.


def _compaction(table: KeyedTable) -> list[Action]:
    """Rewrite every window, also expired windows, like a run that was planned before the windows expired."""
    operations = merge_plan.plan(table.snapshot, now_ms=OLD * 1000)
    results = [execute(table.store, each, ids=table.ids, now_ms=table.clock.now_ms()) for each in operations]
    return [action for each in results for action in each.actions]


def _compacts(store: ObjectStore) -> None:
    table = _process(store, 7)
    table.log.commit(table.snapshot, _compaction(table), operation="COMPACT")


def _deletes(store: ObjectStore) -> None:
    """Delete each row whose `id` is at least 10. Each of these rows is the only row of its split."""
    table = _process(store, 7)
    adds = [add for add in table.snapshot.splits.values() if read_split(store, add)["id"].to_pylist()[0] >= 10]
    marked = [replace(add, deletionVector=inline([0])) for add in adds]
    table.log.commit(table.snapshot, marked, operation="DELETE")


def _lengthens(store: ObjectStore) -> None:
    table = _process(store, 7)
    metadata = replace(table.snapshot.metadata, configuration=_config(retention_ms=None).to_configuration())
    table.log.commit(table.snapshot, [metadata], operation="CONFIGURE")


def _is_late(store: ObjectStore) -> None:
    _append(store, 7, [(77, OLD + 77)])


def _appends(store: ObjectStore) -> None:
    _append(store, 7, [(77, KEPT + 77)])


def _operations(store: ObjectStore) -> list[str]:
    return [each.operation for each in _opened(store, 8).history()]


def _met(act: Callable[[ObjectStore], None]) -> Iterator[tuple[MemoryStore, bool]]:
    """Let another process act at each request of an expiry.

    For each request, yield the store after both commits, and whether the other process committed before the expiry.
    """
    for number in range(requests()):
        left = copy_of(start())
        store = FaultStore(left)
        store.at(number, lambda left=left: act(left))  # type: ignore[misc]
        assert _expire(store, 3).status in ("committed", "nothing_to_do")
        found = _operations(left)
        yield left, "EXPIRE" not in found or found.index("EXPIRE") == 0


@pytest.mark.parametrize("act", [_compacts, _deletes], ids=["a compaction", "a delete"])
def test_whoever_rewrites_such_a_window_first_is_planned_after(act: Callable[[ObjectStore], None]) -> None:
    first = []
    deleted = {row for row in _kept(_rows(start())) if act is _deletes and row[0] >= 10}
    for left, theirs_first in _met(act):
        first.append(theirs_first)
        assert _rows(left) == _kept(_rows(start())) - deleted
        assert _operations(left).count("EXPIRE") == 1
        findings = fsck(left, clock=ManualClock(NOW * 1000), deep=True).findings
        assert {each.kind for each in findings} <= {Kind.UNREFERENCED}
    assert True in first


def test_a_compaction_that_comes_second_conflicts_and_brings_nothing_back() -> None:
    store = copy_of(start())
    slow = _process(store, 7)
    planned, actions = slow.snapshot, _compaction(slow)
    assert _expire(store, 3).status == "committed"
    with pytest.raises(CommitConflict, match="no longer live"):
        slow.log.commit(planned, actions, operation="COMPACT")
    assert _rows(store) == _kept(_rows(start()))
    _compacts(store)  # a new plan contains only the windows that are left
    assert _rows(store) == _kept(_rows(start()))


def test_a_delete_that_comes_second_conflicts_and_brings_nothing_back() -> None:
    store = copy_of(start())
    slow = _process(store, 7)
    marked = [replace(add, deletionVector=inline([0])) for add in slow.snapshot.splits.values()]
    planned = slow.snapshot
    assert _expire(store, 3).status == "committed"
    with pytest.raises(CommitConflict, match="rewritten or removed"):
        slow.log.commit(planned, marked, operation="DELETE")
    assert _rows(store) == _kept(_rows(start()))


def test_a_row_that_is_late_for_a_window_that_has_left_comes_in_and_leaves_with_the_next_run() -> None:
    for left, _ in _met(_is_late):
        assert _rows(left) - _kept(_rows(left)) <= {(77, (OLD + 77) * 1_000_000)}
        _expire(left, 5)
        assert _rows(left) == _kept(_rows(start()))


def test_an_append_to_a_kept_window_is_nothing_to_it() -> None:
    for left, _ in _met(_appends):
        assert _rows(left) == _kept(_rows(start())) | {(77, (KEPT + 77) * 1_000_000)}
        assert _operations(left).count("EXPIRE") == 1


def test_a_retention_that_is_given_up_before_the_commit_keeps_every_row() -> None:
    seen = set()
    for left, theirs_first in _met(_lengthens):
        seen.add("EXPIRE" in _operations(left))
        assert _rows(left) == (_rows(start()) if "EXPIRE" not in _operations(left) else _kept(_rows(start())))
        assert theirs_first == ("EXPIRE" not in _operations(left))
    assert False in seen


def test_a_table_that_changes_under_every_attempt_is_left_alone_with_a_conflict() -> None:
    store = copy_of(start())

    class Busy(ManualClock):
        """A clock for the job. In each attempt of the job, another process commits a delete when the clock is read."""

        job: JobRun[Expire] | None = None

        def now_ms(self) -> int:
            other = _process(store, 50 + len(_operations(store)))
            if self.job and self.job.before.version == other.snapshot.version:
                adds = [add for add in other.snapshot.splits.values() if add.windowStart == OLD]
                changed = replace(adds[0], deletionVector=inline([] if adds[0].deleted_rows else [0]))
                other.log.commit(other.snapshot, [changed], operation="DELETE")
            return super().now_ms()

    metered, clock = MeteredStore(store), Busy(NOW * 1000)
    log = KeyedTable(metered, ids=SeededIds(3), clock=clock).log
    job = clock.job = JobRun(Expire(table_uri="test:"), Spark(), Table(metered, log, log.snapshot()))
    with pytest.raises(CommitConflict, match=f"committed first during each of {PLANNED_AT_MOST} plans"):
        expire(job)
    assert _operations(store).count("DELETE") == PLANNED_AT_MOST
    assert "EXPIRE" not in _operations(store)


# The files.


def test_the_files_go_when_no_retained_version_names_them_and_not_before() -> None:
    clock = ManualClock(NOW * 1000)
    store = MemoryStore("events", clock=clock)
    table = KeyedTable(store, ids=SeededIds(1), clock=clock)
    table.create(SCHEMA, _config(version_retention_ms=HOUR_MS, gc_horizon_ms=0))
    _append(store, 2, [(1, OLD), (2, KEPT)])
    table.log.checkpoint(table.snapshot)
    old = [add.path for add in table.snapshot.splits.values() if add.windowStart == OLD]
    assert _expire(store, 3).status == "committed"
    table.log.checkpoint(table.snapshot)
    _append(store, 4, [(3, KEPT)])
    table.log.checkpoint(table.snapshot)

    def collected(after_ms: int) -> set[str]:
        clock.now += after_ms
        for _ in range(2):  # the first run records the files, the second run deletes them
            clock.now += 1
            collect(store, table.log, clock=clock)
        return {key for key in old if not exists(store, key)}

    assert collected(0) == set()
    assert _rows(store, version=1) == {(1, OLD * 1_000_000), (2, KEPT * 1_000_000)}
    assert collected(2 * HOUR_MS) == set(old)
    assert _rows(store) == {(2, KEPT * 1_000_000), (3, KEPT * 1_000_000)}


# Rows that are not merged yet.


def test_unmerged_rows_of_a_window_that_has_left_are_merged_and_leave_with_the_next_run() -> None:
    store = MemoryStore("keyed")
    table = _process(store, 1).create(SCHEMA, _config(primary_key=("id", "at")))
    rows = [(1, OLD), (2, KEPT)]
    with table.writer() as writer:
        writer.put(_table(rows))
        writer.flush()
        assert _expire(store, 3).status == "nothing_to_do"
        table.merge()
        writer.put(_table([(3, OLD)]))
        writer.flush()
        assert _expire(store, 4).status == "committed"
    assert {row["id"] for row in table.base_rows()} == {2}
    table.merge()
    assert {row["id"] for row in table.base_rows()} == {2, 3}
    assert _expire(store, 5).status == "committed"
    assert {row["id"] for row in table.rows().values()} == {2}


def test_a_merge_that_was_planned_before_conflicts_where_it_hides_rows_that_have_left() -> None:
    store = MemoryStore("keyed")
    table = _process(store, 1).create(SCHEMA, _config(primary_key=("id", "at")))
    with table.writer() as writer:
        writer.put(_table([(1, OLD), (2, KEPT)]))
        writer.flush()
        table.merge()
        writer.put(_table([(1, OLD)]))
        writer.flush()
    planned = table.snapshot
    (work,) = merge.plan(store, planned)
    result = table.execute(work)
    assert _expire(store, 3).status == "committed"
    with pytest.raises(CommitConflict):
        table.commit(planned, work, result)
    assert {row["id"] for row in table.base_rows()} == {2}
