from __future__ import annotations

import json
from dataclasses import replace

import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import CommitConflict, Corrupt, InvalidInput, Unavailable, Unsupported
from storage_core.data.formats import keys
from storage_core.data.formats.kinds import Reason
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add
from storage_core.log.checkpoint import manifest_keys, read_state
from storage_core.log.listing import first_version
from storage_core.log.log import TransactionLog
from storage_core.maintain.collect import CollectionReport, Horizon, collect, read_plan, sweep, write_plan
from storage_core.store.contract import IfAbsent, ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore, Interruption
from tests.support.log_tables import INDEX
from tests.support.sample_table import SampleTable

DAY_MS = 24 * HOUR_MS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def table(clock: ManualClock) -> SampleTable:
    return SampleTable(MemoryStore("gc", clock=clock), clock, TableConfig(checkpoint_interval=0, indexes=(INDEX,)))


@pytest.fixture
def brief(clock: ManualClock) -> SampleTable:
    """Make a table with a retention and a horizon of one hour each."""
    config = TableConfig(checkpoint_interval=0, version_retention_ms=HOUR_MS, gc_horizon_ms=HOUR_MS, indexes=(INDEX,))
    return SampleTable(MemoryStore("brief", clock=clock), clock, config)


def run(
    table: SampleTable, *, store: ObjectStore | None = None, horizon_ms: int | None = None, dry_run: bool = False
) -> CollectionReport:
    target = store or table.store
    log = TransactionLog(target, clock=table.clock, ids=table.ids)
    return collect(target, log, clock=table.clock, horizon_ms=horizon_ms, dry_run=dry_run)


def is_read(kind: str, _key: str) -> bool:
    return kind in ("get", "head", "list")


def is_write(kind: str, _key: str) -> bool:
    return kind in ("put", "delete")


def reasons(report: CollectionReport) -> dict[str, Reason]:
    return {each.key: each.reason for each in report.candidates}


def test_a_fresh_table_has_nothing_to_collect_and_gets_no_plan(table: SampleTable) -> None:
    before = table.objects()
    report = run(table, horizon_ms=0)
    assert report.candidates == ()
    assert table.objects() == before


def test_with_a_horizon_of_zero_the_orphans_go_and_nothing_else(table: SampleTable) -> None:
    live = table.append(2)
    removed = table.append(1)
    table.replace(removed)
    segment = table.upload_segment()
    table.commit([table.segment(segment, live)])
    orphans = {table.upload_split(), table.upload_segment()}
    before = table.objects()
    report = run(table, horizon_ms=0)
    assert set(report.deleted) == orphans
    assert sorted(reasons(report).values()) == [Reason.ORPHAN_SEGMENT, Reason.ORPHAN_SPLIT]
    assert report.bytes == 16
    assert table.objects() - {keys.gc_candidates_key()} == before - orphans
    assert run(table, horizon_ms=0).candidates == ()


def test_a_dry_run_says_what_would_go_and_changes_nothing(table: SampleTable) -> None:
    orphan = table.upload_split()
    metered = MeteredStore(table.store)
    report = run(table, store=metered, horizon_ms=0, dry_run=True)
    assert reasons(report) == {orphan: Reason.ORPHAN_SPLIT}
    assert (report.deleted, report.bytes, report.candidate_bytes) == ((), 0, 7)
    assert (metered.requests["put"], metered.requests["delete"]) == (0, 0)


def test_an_orphan_waits_in_the_plan_for_the_whole_horizon(table: SampleTable, clock: ManualClock) -> None:
    orphan = table.upload_split()
    clock.now += 10 * DAY_MS
    first = run(table)
    assert (reasons(first), first.deleted) == ({orphan: Reason.ORPHAN_SPLIT}, ())
    clock.now += DAY_MS - 1
    assert run(table).deleted == ()
    clock.now += 1
    third = run(table)
    assert third.deleted == (orphan,)
    assert third.candidates[0].first_seen_ms == first.candidates[0].first_seen_ms
    assert read_plan(table.store).candidates == {}


def test_a_first_sight_by_a_clock_that_was_ahead_counts_from_the_next_collection_on(
    table: SampleTable, clock: ManualClock
) -> None:
    orphan = table.upload_split()
    run(table)
    plan = read_plan(table.store)
    ahead = {key: replace(each, first_seen_ms=clock.now + 365 * DAY_MS) for key, each in plan.candidates.items()}
    write_plan(table.store, plan, ahead, nonce="of a release that kept it")
    assert run(table).deleted == ()
    clock.now += DAY_MS - 1
    assert run(table).deleted == ()
    clock.now += 1001
    assert run(table).deleted == (orphan,)


def test_a_collector_whose_clock_is_ahead_of_the_store_holds_up_no_later_one(
    table: SampleTable, clock: ManualClock
) -> None:
    orphan = table.upload_split()
    ahead = ManualClock(clock.now + 365 * DAY_MS)
    collect(table.store, TransactionLog(table.store, clock=ahead, ids=table.ids), clock=ahead)
    assert read_plan(table.store).candidates[orphan].first_seen_ms == clock.now + 1000
    clock.now += DAY_MS + 1000
    assert run(table).deleted == (orphan,)


def test_an_upload_that_is_committed_before_the_horizon_ends_stays(table: SampleTable, clock: ManualClock) -> None:
    upload = table.upload_split()
    run(table)
    clock.now += DAY_MS - 1
    table.commit([table.add(upload)])
    clock.now += DAY_MS
    report = run(table)
    assert (report.candidates, report.deleted) == ((), ())
    assert upload in table.objects()


def test_an_object_that_was_never_in_the_plan_is_not_deleted_however_old(
    table: SampleTable, clock: ManualClock
) -> None:
    planned = table.upload_split()
    run(table)
    clock.now += 30 * DAY_MS
    unseen = table.upload_split()
    assert run(table).deleted == (planned,)
    assert unseen in table.objects()


def test_a_removed_split_stays_while_a_retained_version_names_it(table: SampleTable, clock: ManualClock) -> None:
    removed = table.append(1)
    table.replace(removed)
    table.checkpoint()
    clock.now += 29 * DAY_MS
    assert run(table, horizon_ms=0).candidates == ()
    assert removed[0] in table.log.snapshot(version=1).splits


def test_a_removed_split_ages_from_its_removal_and_not_from_its_file(brief: SampleTable, clock: ManualClock) -> None:
    # Lesson 40.
    removed = brief.append(1)[0]
    clock.now += 10 * DAY_MS
    brief.replace([removed])
    brief.checkpoint()
    removal = brief.log.snapshot()
    clock.now += HOUR_MS
    report = run(brief)
    assert reasons(report)[removed] is Reason.REMOVED_SPLIT
    found = next(each for each in report.candidates if each.key == removed)
    assert found.since_version == removal.version
    assert report.deleted == ()
    clock.now += HOUR_MS
    assert removed in run(brief).deleted


def test_a_split_that_was_planned_as_an_orphan_ages_anew_from_its_removal(clock: ManualClock) -> None:
    config = TableConfig(checkpoint_interval=0, version_retention_ms=0, gc_horizon_ms=HOUR_MS)
    table = SampleTable(MemoryStore("anew", clock=clock), clock, config)
    upload = table.upload_split()
    run(table)
    clock.now += 2 * HOUR_MS
    table.commit([table.add(upload)])
    table.replace([upload])
    table.checkpoint()
    report = run(table)
    assert reasons(report)[upload] is Reason.REMOVED_SPLIT
    assert report.deleted == ()
    clock.now += HOUR_MS
    assert upload in run(table).deleted


def test_versions_and_splits_below_the_retained_checkpoint_go_together(brief: SampleTable, clock: ManualClock) -> None:
    removed = brief.append(3)
    kept = brief.replace(removed)
    base = brief.checkpoint()
    clock.now += 2 * HOUR_MS
    later = brief.append(1)
    report = run(brief)
    assert {key: reason for key, reason in reasons(report).items() if reason is not Reason.REMOVED_SPLIT} == {
        keys.version_key(version): Reason.OLD_VERSION for version in range(base)
    }
    clock.now += HOUR_MS
    assert set(run(brief).deleted) == {*removed, *(keys.version_key(version) for version in range(base))}
    assert first_version(brief.store) == base
    assert set(brief.log.snapshot().splits) == {*kept, *later}
    assert set(brief.log.snapshot(version=base).splits) == set(kept)
    assert [entry.version for entry in brief.log.history()] == [base + 1, base]


def test_without_a_checkpoint_every_version_is_retained(brief: SampleTable, clock: ManualClock) -> None:
    brief.replace(brief.append(1))
    clock.now += 100 * DAY_MS
    assert run(brief, horizon_ms=0).candidates == ()


def test_a_moment_within_the_retention_can_be_opened_after_a_collection(brief: SampleTable, clock: ManualClock) -> None:
    opened = []
    for _ in range(6):
        split = brief.append(1)
        brief.checkpoint()
        clock.now += 20 * 60_000
        opened.append((clock.now_ms(), brief.log.snapshot().version, set(brief.log.snapshot().splits)))
        brief.replace(split)
    for _ in range(2):
        run(brief)
        clock.now += HOUR_MS
    cutoff = clock.now_ms() - HOUR_MS
    for instant, version, splits in opened:
        if instant >= cutoff:
            snapshot = brief.log.snapshot(timestamp_ms=instant)
            assert (snapshot.version, set(snapshot.splits)) == (version, splits)
            assert splits <= brief.objects("splits/")


def test_an_override_shortens_neither_retention_nor_the_horizon_of_versions(
    clock: ManualClock,
) -> None:
    config = TableConfig(checkpoint_interval=0, version_retention_ms=0)
    table = SampleTable(MemoryStore("numbered", clock=clock), clock, config)
    removed = table.append(1)[0]
    table.replace([removed])
    table.checkpoint()
    assert run(table, horizon_ms=0).deleted == (removed,)
    assert keys.version_key(0) in table.objects()
    clock.now += DAY_MS
    assert run(table, horizon_ms=0).deleted == tuple(keys.version_key(version) for version in range(2))


def test_old_states_go_first_and_their_manifests_after_them(brief: SampleTable, clock: ManualClock) -> None:
    states = []
    for _ in range(5):
        brief.append(1)
        states.append(brief.checkpoint())
        clock.now += HOUR_MS
    for _ in range(4):
        run(brief, horizon_ms=0)
        clock.now += HOUR_MS
    remaining = {parsed.version for key in brief.objects() if (parsed := keys.parse(key)) and parsed.kind == "state"}
    assert remaining == set(states[-2:])
    named = {key for version in states[-2:] for key in manifest_keys(read_state(brief.store, version))}
    assert brief.objects("_transaction_log/manifests/") == named
    assert len(brief.log.snapshot().splits) == 5


def test_a_segment_that_was_removed_goes_and_one_over_removed_splits_does_not_keep_them(
    brief: SampleTable, clock: ManualClock
) -> None:
    first = brief.append(1)
    old, new = brief.upload_segment(), brief.upload_segment()
    brief.commit([brief.segment(old, first)])
    second = brief.replace(first)
    brief.commit([brief.remove_segment(old), brief.segment(new, second)])
    brief.checkpoint()
    clock.now += 2 * HOUR_MS
    report = run(brief, horizon_ms=0)
    assert {key: reason for key, reason in reasons(report).items() if reason is not Reason.OLD_VERSION} == {
        first[0]: Reason.REMOVED_SPLIT,
        old: Reason.REMOVED_SEGMENT,
    }
    assert {new, *second} <= brief.objects()


def test_what_a_killed_probe_left_goes_after_the_horizon(table: SampleTable, clock: ManualClock) -> None:
    left = keys.probe_key(table.ids.uuid())
    table.store.put(left, b"{}", IfAbsent())
    assert reasons(run(table)) == {left: Reason.LEFT_BY_PROBE}
    clock.now += 23 * HOUR_MS
    assert run(table).deleted == ()
    clock.now += 2 * HOUR_MS
    assert run(table).deleted == (left,)


def test_what_is_not_ours_is_never_deleted_and_is_reported(table: SampleTable, clock: ManualClock) -> None:
    foreign = {
        "README.md",
        "splits/all/part-0001.snappy.parquet",
        "splits/007/x.parquet",
        "_transaction_log/1.json",
        "other/table/_transaction_log/00000000000000000000.json",
    }
    kept = {keys.quarantine_key("a.gz", table.ids.uuid()), keys.lock_key("compact"), keys.gc_boundary_key()}
    for key in foreign | kept:
        body = b'{"firstVersion":0,"nonce":""}' if key == keys.gc_boundary_key() else b"x"
        table.store.put(key, body, IfAbsent())
    clock.now += 1000 * DAY_MS
    report = run(table, horizon_ms=0)
    assert report.candidates == ()
    assert set(report.unknown_keys) == foreign
    assert foreign | kept <= table.objects()


def test_a_live_path_that_is_not_our_key_stops_the_collection(table: SampleTable) -> None:
    orphan = table.upload_split()
    table.commit([Add(path="part-0001.split", size=1, modificationTime=1)])
    with pytest.raises(Unsupported, match=r"[Nn]othing is collected"):
        run(table, horizon_ms=0)
    assert orphan in table.objects()


def test_any_read_error_stops_before_anything_is_deleted(brief: SampleTable, clock: ManualClock) -> None:
    # Lesson 41: the collection stops at an error of any single read, in both passes.
    removed = brief.append(2)
    brief.replace(removed)
    brief.checkpoint()
    brief.upload_split()
    clock.now += 2 * HOUR_MS
    run(brief)
    clock.now += 2 * HOUR_MS
    before = brief.objects()
    counted = Interruption(counts=is_read)
    run(brief, store=FaultStore(brief.store, watch=counted), dry_run=True)
    for fail_at in range(counted.requests):
        store = FaultStore(brief.store, watch=Interruption(fail_at, is_read))
        with pytest.raises(Unavailable, match="interrupted"):
            run(brief, store=store)
        assert brief.objects() == before


def test_an_unreadable_version_stops_the_collection(table: SampleTable) -> None:
    table.append(1)
    orphan = table.upload_split()
    table.store.put(keys.version_key(1), b"torn", Overwrite())
    with pytest.raises(Corrupt):
        run(table, horizon_ms=0)
    assert orphan in table.objects()


def test_killed_at_any_write_the_next_run_finishes() -> None:
    def prepared() -> SampleTable:
        clock = ManualClock()
        config = TableConfig(checkpoint_interval=0, version_retention_ms=0, gc_horizon_ms=0)
        table = SampleTable(MemoryStore("killed", clock=clock), clock, config)
        table.replace(table.append(2))
        table.checkpoint()
        table.upload_split()
        return table

    finished = prepared()
    counted = Interruption(counts=is_write)
    run(finished, store=FaultStore(finished.store, watch=counted), horizon_ms=0)
    assert counted.requests > 5
    for fail_at in range(counted.requests):
        table = prepared()
        with pytest.raises(Unavailable, match="interrupted"):
            run(table, store=FaultStore(table.store, watch=Interruption(fail_at, is_write)), horizon_ms=0)
        live = set(table.log.snapshot().splits)
        assert live <= table.objects()
        run(table, horizon_ms=0)
        assert table.objects() | {keys.gc_candidates_key()} == finished.objects()


def test_a_clock_that_runs_ahead_deletes_nothing_early(table: SampleTable, clock: ManualClock) -> None:
    # Lesson 48: the store's clock sets the times of objects.
    orphan = table.upload_split()
    run(table)
    ahead = ManualClock(clock.now_ms() + 100 * DAY_MS)
    report = collect(table.store, table.log, clock=ahead)
    assert (report.deleted, reasons(report)) == ((), {orphan: Reason.ORPHAN_SPLIT})


def test_a_first_sight_by_a_clock_that_is_behind_does_not_shorten_the_horizon(table: SampleTable) -> None:
    table.upload_split()
    collect(table.store, table.log, clock=ManualClock(0))
    assert run(table).deleted == ()


def test_a_split_committed_before_any_read_of_a_collection_survives_it(clock: ManualClock) -> None:
    def survives_commit_before_read(number: int) -> bool | None:
        """Return True if the split still exists.

        Return None if the collection made fewer than `number` reads before its delete.
        """
        table = SampleTable(MemoryStore("meanwhile", clock=clock), clock, TableConfig(checkpoint_interval=0))
        upload = table.upload_split()
        seen: list[str] = []

        def commit_meanwhile(kind: str, key: str) -> None:
            if is_read(kind, key) or kind == "delete":
                seen.append(kind)
            if len(seen) == number and is_read(kind, key) and "delete" not in seen:
                table.commit([table.add(upload)])

        run(table, store=FaultStore(table.store, watch=commit_meanwhile), horizon_ms=0)
        committed = upload in table.log.snapshot().splits
        return upload in table.objects() if committed else None

    outcomes = [survives_commit_before_read(number) for number in range(1, 40)]
    reads = outcomes.index(None)
    assert reads > 10
    assert outcomes == [True] * reads + [None] * (39 - reads)


def test_two_collectors_that_meet_do_not_overwrite_each_others_plan(table: SampleTable) -> None:
    table.upload_split()
    stale = read_plan(table.store)
    write_plan(table.store, stale, {}, nonce="a")
    with pytest.raises(CommitConflict, match="another collector"):
        write_plan(table.store, stale, {}, nonce="b")


def test_a_sweep_deletes_nothing_once_another_collector_has_replaced_its_plan(table: SampleTable) -> None:
    orphan = table.upload_split()
    run(table)
    plan = read_plan(table.store)
    write_plan(table.store, plan, plan.candidates, nonce="other")
    log = TransactionLog(table.store, clock=table.clock, ids=table.ids)
    at_once = Horizon(requested_ms=0, configured_ms=0)
    with pytest.raises(CommitConflict, match="another collector"):
        sweep(table.store, log, plan, horizon=at_once, now_ms=table.clock.now_ms())
    assert orphan in table.objects()


def test_a_damaged_plan_starts_the_horizon_again(table: SampleTable, clock: ManualClock) -> None:
    orphan = table.upload_split()
    run(table)
    clock.now += 2 * DAY_MS
    table.store.put(keys.gc_candidates_key(), b'{"format":1,"candidates":[{"key"', Overwrite())
    assert run(table).deleted == ()
    clock.now += DAY_MS
    assert run(table).deleted == (orphan,)


def test_the_plan_of_a_newer_release_is_refused(table: SampleTable) -> None:
    orphan = table.upload_split()
    plan = {"format": 2, "counter": 1, "candidates": []}
    table.store.put(keys.gc_candidates_key(), json.dumps(plan).encode(), Overwrite())
    with pytest.raises(Unsupported):
        run(table, horizon_ms=0)
    assert orphan in table.objects()


def test_a_key_smuggled_into_the_plan_is_not_deleted(table: SampleTable) -> None:
    live = table.append(1)[0]
    table.upload_split()
    run(table)
    body = json.loads(table.store.get(keys.gc_candidates_key()).data)
    for key in (live, "../../etc/passwd", keys.version_key(0)):
        body["candidates"].append(body["candidates"][0] | {"key": key, "firstSeenMs": 0})
    table.store.put(keys.gc_candidates_key(), json.dumps(body).encode(), Overwrite())
    run(table, horizon_ms=0)
    assert {live, keys.version_key(0)} <= table.objects()


def test_a_negative_horizon_is_refused(table: SampleTable) -> None:
    with pytest.raises(InvalidInput):
        run(table, horizon_ms=-1)


def test_a_collection_costs_a_pinned_number_of_requests(table: SampleTable) -> None:
    for _ in range(3):
        table.append(1)
    table.checkpoint()
    metered = MeteredStore(table.store)
    run(table, store=metered)
    idle = metered.requests
    table.upload_split()
    metered = MeteredStore(table.store)
    run(table, store=metered, horizon_ms=0)
    assert (idle["list"], idle["put"], idle["delete"]) == (3, 0, 0)
    assert (metered.requests["list"], metered.requests["put"], metered.requests["delete"]) == (6, 2, 1)
