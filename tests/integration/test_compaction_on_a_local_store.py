"""Compaction from end to end on a directory: write, commit, compact, commit, audit, time travel."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from storage_core.base.clock import SystemIds
from storage_core.base.errors import CommitConflict
from storage_core.compact.execute import execute
from storage_core.compact.pending_work import group_by_window
from storage_core.compact.planner import choose
from storage_core.compact.work import CompactionTask
from storage_core.data.rows.schema import to_schema_string
from storage_core.log.actions import Action, Metadata, Remove
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.audit import audit
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.split.writer import Rewrite, sort_and_write
from storage_core.store.contract import ObjectStore
from storage_core.store.local import LocalStore
from tests.support.events import CONFIG, SCHEMA, TABLE_ID, events
from tests.support.ids import SeededIds
from tests.support.merge_plan import plan

BATCHES = 5


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.fixture
def log(store: LocalStore) -> TransactionLog:
    return TransactionLog(store)


@pytest.fixture
def ingested(store: LocalStore, log: TransactionLog) -> Snapshot:
    metadata = Metadata(
        id=TABLE_ID, schemaString=to_schema_string(SCHEMA), configuration=CONFIG.to_configuration(), createdTime=0
    )
    snapshot = log.create(metadata)
    for batch in range(BATCHES):
        rows = events(
            {
                "at": batch * 1800 + i,
                "service": f"s{i % 7}",
                "host": None if i % 11 == 0 else f"h{i % 3}",
                "count": batch * 10_000 + i,
                "value": i / 3,
            }
            for i in range(2500)
        )
        adds = sort_and_write(store, rows, context=context_of(snapshot), ids=SystemIds(), now_ms=1)
        snapshot = log.commit(snapshot, adds, operation="WRITE").snapshot
    return snapshot


def _rows(store: ObjectStore, snapshot: Snapshot) -> Counter[tuple[object, ...]]:
    tables = (read_split(store, add).select(SCHEMA.names) for add in snapshot.splits.values())
    return Counter(tuple(row.values()) for table in tables for row in table.to_pylist())


def _compact(store: ObjectStore, log: TransactionLog, snapshot: Snapshot) -> Snapshot:
    results = [execute(store, operation, ids=SystemIds(), now_ms=2) for operation in plan(snapshot)]
    return _commit(log, snapshot, results)


def _commit(log: TransactionLog, snapshot: Snapshot, results: list[Rewrite]) -> Snapshot:
    actions: list[Action] = []
    for result in results:
        actions += [*result.removes, *result.adds]
    return log.commit(snapshot, actions, operation="COMPACT").snapshot


def test_compaction_leaves_one_split_per_window_and_the_same_rows(
    store: LocalStore, log: TransactionLog, ingested: Snapshot
) -> None:
    before = _rows(store, ingested)
    compacted = _compact(store, log, ingested)
    assert sorted(add.windowStart or 0 for add in compacted.splits.values()) == [0, 3600, 7200]
    assert len(ingested.splits) > 3
    assert _rows(store, compacted) == before
    assert compacted.rows == ingested.rows == BATCHES * 2500
    assert compacted.bytes < ingested.bytes
    assert audit(store, compacted).violations == ()


def test_after_compaction_there_is_no_debt_and_nothing_to_do(
    store: LocalStore, log: TransactionLog, ingested: Snapshot
) -> None:
    assert [each.window_start for each in group_by_window(choose(ingested))] == [0, 3600, 7200]
    compacted = _compact(store, log, ingested)
    assert group_by_window(choose(compacted)) == []
    assert plan(compacted) == []


def test_the_version_before_the_compaction_can_still_be_read(
    store: LocalStore, log: TransactionLog, ingested: Snapshot
) -> None:
    before = _rows(store, ingested)
    _compact(store, log, ingested)
    assert _rows(store, log.snapshot(version=ingested.version)) == before


def test_a_compaction_that_died_before_its_commit_leaves_the_table_as_it_was(
    store: LocalStore, log: TransactionLog, ingested: Snapshot
) -> None:
    for operation in plan(ingested):
        execute(store, operation, ids=SystemIds(), now_ms=2)
    head = log.snapshot()
    assert head.splits == ingested.splits
    assert _rows(store, _compact(store, log, head)) == _rows(store, ingested)


def test_of_two_compactions_of_the_same_inputs_one_is_committed(
    store: LocalStore, log: TransactionLog, ingested: Snapshot
) -> None:
    operations = [CompactionTask.from_json(operation.to_json()) for operation in plan(ingested)]
    twice = [[execute(store, operation, ids=SeededIds(seed), now_ms=2) for operation in operations] for seed in (1, 2)]
    winner = _commit(log, ingested, twice[0])
    with pytest.raises(CommitConflict):
        _commit(log, ingested, twice[1])
    assert log.snapshot().splits == winner.splits


def test_a_compaction_is_not_committed_over_a_later_removal_of_its_input(
    store: LocalStore, log: TransactionLog, ingested: Snapshot
) -> None:
    """Lesson 26: rows that another commit removed from the table do not come back."""
    results = [execute(store, operation, ids=SystemIds(), now_ms=2) for operation in plan(ingested)]
    deleted = results[0].removes[0].path
    log.commit(ingested, [Remove(path=deleted, deletionTimestamp=3)], operation="DELETE")
    with pytest.raises(CommitConflict):
        _commit(log, ingested, results)
    assert set(log.snapshot().splits) == set(ingested.splits) - {deleted}


def test_late_rows_reopen_only_their_window(store: LocalStore, log: TransactionLog, ingested: Snapshot) -> None:
    compacted = _compact(store, log, ingested)
    late = events([{"at": 3601, "service": "late", "host": None, "count": 1, "value": 1.0}])
    adds = sort_and_write(store, late, context=context_of(compacted), ids=SystemIds(), now_ms=3)
    reopened = log.commit(compacted, adds, operation="WRITE").snapshot
    assert [each.window_start for each in group_by_window(choose(reopened))] == [3600]
    settled = _compact(store, log, reopened)
    assert len(settled.splits) == 3
    assert settled.rows == BATCHES * 2500 + 1
    untouched = {path for path, add in compacted.splits.items() if add.windowStart != 3600}
    assert untouched < set(settled.splits)
