"""The collector keeps every object that a restore brings back."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import CommitConflict, SnapshotExpired
from storage_core.data.formats.keys import gc_candidates_key, state_key, version_key
from storage_core.data.settings.table import TableConfig
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.collect import collect, read_plan, write_plan
from storage_core.maintain.history import Restored, restore
from storage_core.store.contract import ObjectStore, Overwrite, exists
from storage_core.store.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore
from tests.support.meanwhile import Meanwhile
from tests.support.sample_table import SampleTable

RETENTION_MS = 5 * HOUR_MS


def made() -> SampleTable:
    clock = ManualClock()
    config = TableConfig(checkpoint_interval=0, version_retention_ms=RETENTION_MS, gc_horizon_ms=HOUR_MS)
    return SampleTable(MemoryStore("restores", clock=clock), clock, config)


def run(table: SampleTable, *, store: ObjectStore | None = None, horizon_ms: int | None = None) -> None:
    used = store or table.store
    collect(used, TransactionLog(used, clock=table.clock, ids=table.ids), clock=table.clock, horizon_ms=horizon_ms)


def go_back(table: SampleTable, target: Snapshot, *, store: ObjectStore | None = None) -> Restored:
    used = store or table.store
    log = TransactionLog(used, clock=table.clock, ids=table.ids)
    return restore(log, target)


def test_what_a_restore_brings_back_survives_every_later_collection() -> None:
    table = made()
    target = table.superseded()
    go_back(table, target)
    for _ in range(4):
        table.clock.now += RETENTION_MS + HOUR_MS
        table.checkpoint()
        run(table)
    assert set(table.log.snapshot().splits) == set(target.splits) <= table.objects()


@pytest.mark.parametrize("noted", [False, True], ids=["not in the plan", "due in the plan"])
def test_a_collection_at_any_moment_of_a_restore_takes_nothing_that_it_brings_back(*, noted: bool) -> None:
    outcomes = set()
    for instant in count():
        table = made()
        target = table.superseded()
        if noted:
            run(table)
            table.clock.now += 2 * HOUR_MS
        meanwhile = Meanwhile(instant, partial(run, table))
        try:
            go_back(table, target, store=FaultStore(table.store, watch=meanwhile))
        except SnapshotExpired:
            assert table.log.snapshot().version == 3
            outcomes.add("refused")
        else:
            assert set(table.log.snapshot().splits) == set(target.splits) <= table.objects()
            outcomes.add("restored")
        if not meanwhile.acted:
            break
    assert outcomes == ({"refused"} if noted else {"restored", "refused"})


def test_a_restore_at_any_moment_of_a_collection_keeps_what_it_brings_back() -> None:
    outcomes = set()
    for instant in count():
        table = made()
        target = table.superseded()

        def restore_now(table: SampleTable = table, target: Snapshot = target) -> None:
            try:
                go_back(table, target)
            except SnapshotExpired:
                outcomes.add("refused")
            else:
                outcomes.add("restored")

        meanwhile = Meanwhile(instant, restore_now)
        run(table, store=FaultStore(table.store, watch=meanwhile))
        table.clock.now += 2 * HOUR_MS
        run(table)
        head = table.log.snapshot()
        assert set(head.splits) <= table.objects()
        if not meanwhile.acted:
            break
    assert outcomes == {"refused", "restored"}


def test_what_was_restored_and_removed_again_is_unneeded_since_then_only() -> None:
    table = made()
    table.append()
    target = table.log.snapshot()
    table.replace(list(target.splits))
    go_back(table, target)
    table.clock.now += 3 * HOUR_MS
    table.replace(list(target.splits))
    table.checkpoint()
    table.clock.now += RETENTION_MS + 1
    collect(table.store, table.log, clock=table.clock)
    noted = read_plan(table.store).candidates
    assert {noted[path].since_version for path in target.splits} == {4}


def test_a_collector_whose_plan_was_replaced_deletes_nothing_more() -> None:
    """A process that sets a tag or restores checks the current plan."""
    table = made()
    orphan = table.upload_split()
    faulty = FaultStore(table.store)

    def replace_plan() -> None:
        write_plan(table.store, read_plan(table.store), {}, nonce="other")

    faulty.on("head", gc_candidates_key(), lambda: None, replace_plan)  # the time is read first, then the ETag
    with pytest.raises(CommitConflict, match="another collector"):
        run(table, store=faulty, horizon_ms=0)
    assert orphan in table.objects()
    assert gc_candidates_key() in table.objects()


def test_should_the_newest_state_be_damaged_the_one_before_it_leads_to_the_head() -> None:
    """The version files between the two newest states are kept at any age."""
    table = made()
    table.append()
    table.checkpoint()
    table.append()
    table.append()
    newest = table.checkpoint()
    table.append()
    head = table.log.snapshot()
    for _ in range(3):
        table.clock.now += RETENTION_MS + 2 * HOUR_MS
        run(table)
    assert version_key(0) not in table.objects()
    table.store.put(state_key(newest), b"damaged", Overwrite())
    assert table.log.snapshot() == head


def test_a_snapshot_behind_collected_versions_is_refreshed_to_the_head() -> None:
    table = made()
    before = table.log.snapshot()
    for _ in range(4):
        table.append()
        table.clock.now += RETENTION_MS + HOUR_MS
        table.checkpoint()
        run(table)
    assert not exists(table.store, version_key(before.version + 1))
    assert table.log.refresh(before).version == table.log.snapshot().version > before.version
    head = table.log.snapshot()
    assert table.log.refresh(head) is head
