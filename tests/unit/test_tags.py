from __future__ import annotations

import datetime as dt
import json
from contextlib import suppress
from functools import partial
from itertools import count

import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import (
    CommitConflict,
    CommitUnknown,
    Corrupt,
    InvalidInput,
    NotFound,
    SnapshotExpired,
    Unavailable,
    Unsupported,
)
from storage_core.data.formats import keys
from storage_core.data.formats.documents import Tag
from storage_core.data.settings.table import CheckpointFormat, TableConfig
from storage_core.log.checkpoint_writing import write_checkpoint
from storage_core.log.log import TransactionLog, read_tags, remove_tag, tagged
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.collect import CollectionReport, collect
from storage_core.maintain.history import set_tag
from storage_core.read.view import snapshot_at
from storage_core.store.contract import IfAbsent, ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.blind_listing import BlindListing
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore, PutFault
from tests.support.log_tables import INDEX
from tests.support.meanwhile import Meanwhile
from tests.support.sample_table import SampleTable

RETENTION_MS = 5 * HOUR_MS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def table(clock: ManualClock) -> SampleTable:
    config = TableConfig(
        checkpoint_interval=0, version_retention_ms=RETENTION_MS, gc_horizon_ms=HOUR_MS, indexes=(INDEX,)
    )
    return SampleTable(MemoryStore("tags", clock=clock), clock, config)


def log_of(table: SampleTable, store: ObjectStore | None = None) -> TransactionLog:
    return TransactionLog(store or table.store, clock=table.clock, ids=table.ids)


def tag(
    table: SampleTable, name: str, target: Snapshot, *, hours: int | None = None, store: ObjectStore | None = None
) -> Tag:
    expires = None if hours is None else table.clock.now + hours * HOUR_MS
    used = store or table.store
    return set_tag(log_of(table, used), name, target, expires_at_ms=expires)


def test_a_tag_lasts_as_long_as_was_said_from_the_moment_it_was_set() -> None:
    clock = ManualClock(step_ms=1)
    table = SampleTable(MemoryStore("tags", clock=clock), clock, TableConfig(checkpoint_interval=0))
    made = set_tag(log_of(table), "nightly", table.log.snapshot(), lasts=dt.timedelta(hours=1))
    assert made.expires_at_ms == made.created_at_ms + HOUR_MS


def run(table: SampleTable, *, store: ObjectStore | None = None, horizon_ms: int | None = None) -> CollectionReport:
    return collect(store or table.store, log_of(table, store), clock=table.clock, horizon_ms=horizon_ms)


def age_and_collect(table: SampleTable) -> None:
    """Collect until nothing is left: the first run notes the objects, the later runs delete them."""
    for _ in range(3):
        table.clock.now += 2 * HOUR_MS
        run(table)


def files_of(snapshot: Snapshot) -> set[str]:
    return {*snapshot.splits, *snapshot.segments}


# Setting, moving, removing.


def test_a_tag_names_a_version_until_it_is_removed(table: SampleTable) -> None:
    table.append()
    snapshot = table.log.snapshot()
    found = tag(table, "release-1.0", snapshot)
    assert (found.version, found.created_at_ms, found.expires_at_ms) == (1, table.clock.now, None)
    assert tagged(table.log, "release-1.0") == found
    assert remove_tag(table.log, "release-1.0") == found
    with pytest.raises(NotFound, match=r"unknown tag .* The table memory://tags has no tags\. Give a version"):
        tagged(table.log, "release-1.0")


def test_setting_a_name_again_moves_it_and_leaves_the_others(table: SampleTable) -> None:
    table.append()
    first = table.log.snapshot()
    tag(table, "nightly", first)
    other = tag(table, "weekly", first)
    table.append()
    moved = tag(table, "nightly", table.log.snapshot())
    assert read_tags(table.store).by_name == {"nightly": moved, "weekly": other}
    assert moved.version == 2


def test_a_tag_holds_up_to_the_moment_it_expires_and_not_at_it(table: SampleTable, clock: ManualClock) -> None:
    tag(table, "brief", table.log.snapshot(), hours=1)
    clock.now += HOUR_MS - 1
    assert tagged(table.log, "brief").version == 0
    clock.now += 1
    with pytest.raises(NotFound, match=r"the tag 'brief' has expired\. The table memory://tags has no tags"):
        tagged(table.log, "brief")


@pytest.mark.parametrize("name", ["", "1", "2024-01-01", "Nightly", "a b", "a/b", "../x", "ä", "-a", "a" * 64])
def test_a_name_that_could_be_something_else_is_refused(table: SampleTable, name: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not a valid tag name\. Use 1 to 63 of"):
        tag(table, name, table.log.snapshot())
    assert keys.tags_key() not in table.objects()


def test_a_tag_that_would_have_expired_already_is_refused(table: SampleTable) -> None:
    with pytest.raises(InvalidInput, match="has passed"):
        tag(table, "late", table.log.snapshot(), hours=0)


def test_removing_what_is_not_there_says_what_is(table: SampleTable) -> None:
    tag(table, "nightly", table.log.snapshot())
    with pytest.raises(NotFound, match=r"unknown tag 'weekly'\. The table memory://tags has the tags nightly"):
        remove_tag(table.log, "weekly")


def test_a_tag_costs_few_requests_however_many_versions_there_are(table: SampleTable) -> None:
    for _ in range(30):
        table.append()
    table.checkpoint()
    snapshot = table.log.snapshot()
    metered = MeteredStore(table.store)
    tag(table, "nightly", snapshot, store=metered)
    # Before and after the PUT, the call reads the head, its checkpoint state, the tags and the plan.
    assert metered.requests == {"get": 11, "head": 7, "put": 1, "list": 1, "delete": 0}


# Concurrency and lost replies.


@pytest.mark.parametrize(
    "fault",
    [PutFault.APPLIED_THEN_CONFLICT, PutFault.APPLIED_THEN_UNKNOWN, PutFault.APPLIED_THEN_UNAVAILABLE],
)
def test_a_lost_reply_is_read_back_and_the_tag_set_once(table: SampleTable, fault: PutFault) -> None:
    faulty = FaultStore(table.store)
    faulty.on_put(keys.tags_key(), fault)
    found = tag(table, "nightly", table.log.snapshot(), store=faulty)
    stored = read_tags(table.store)
    assert (stored.by_name, stored.counter) == ({"nightly": found}, 1)


@pytest.mark.parametrize("fault", [PutFault.DROPPED_THEN_UNKNOWN, PutFault.CONFLICT_WITH_NOTHING, PutFault.REFUSED])
def test_a_put_that_never_arrived_is_tried_again(table: SampleTable, fault: PutFault) -> None:
    faulty = FaultStore(table.store)
    faulty.on_put(keys.tags_key(), fault, fault)
    found = tag(table, "nightly", table.log.snapshot(), store=faulty)
    assert read_tags(table.store).by_name == {"nightly": found}


def test_a_put_that_arrives_late_changes_nothing_any_more(table: SampleTable) -> None:
    faulty = FaultStore(table.store)
    faulty.on_put(keys.tags_key(), PutFault.DELAYED_THEN_UNKNOWN)
    tag(table, "nightly", table.log.snapshot(), store=faulty)
    remove_tag(table.log, "nightly")
    faulty.deliver()
    assert read_tags(table.store).by_name == {}


def test_a_store_that_never_says_is_an_unknown_outcome(table: SampleTable) -> None:
    faulty = FaultStore(table.store)
    faulty.on_put(keys.tags_key(), *[PutFault.DROPPED_THEN_UNKNOWN] * 20)
    with pytest.raises(CommitUnknown, match=r"_tags\.json"):
        tag(table, "nightly", table.log.snapshot(), store=faulty)


def test_tags_of_different_names_set_at_once_are_both_set(table: SampleTable) -> None:
    snapshot = table.log.snapshot()
    faulty = FaultStore(table.store)
    faulty.on_put(keys.tags_key(), lambda: tag(table, "theirs", snapshot))
    tag(table, "mine", snapshot, store=faulty)
    assert sorted(read_tags(table.store).by_name) == ["mine", "theirs"]


def test_of_two_settings_of_one_name_at_once_one_is_told(table: SampleTable) -> None:
    snapshot = table.log.snapshot()
    faulty = FaultStore(table.store)
    theirs: list[Tag] = []
    faulty.on_put(keys.tags_key(), lambda: theirs.append(tag(table, "nightly", snapshot)))
    with pytest.raises(CommitConflict, match="changed by another process"):
        tag(table, "nightly", snapshot, store=faulty)
    assert read_tags(table.store).by_name == {"nightly": theirs[0]}


# Damage.


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"format":1}',
        b'{"format":1,"counter":0,"tags":[]}',
        b'{"format":1,"counter":0,"tags":{"../x":{"version":1,"createdAtMs":0,"id":"i"}}}',
        b'{"format":1,"counter":0,"tags":{"a":{"version":-1,"createdAtMs":0,"id":"i"}}}',
        b'{"format":1,"counter":0,"tags":{"a":{"version":1e9,"createdAtMs":0,"id":"i"}}}',
        b'{"format":1,"counter":0,"tags":{"a":{"version":1,"createdAtMs":0,"id":"i","expiresAtMs":true}}}',
        b"[" * 100_000,
    ],
)
def test_damaged_tags_are_corrupt_and_stop_the_collector(table: SampleTable, body: bytes) -> None:
    orphan = table.upload_split()
    table.store.put(keys.tags_key(), body, Overwrite())
    with pytest.raises(Corrupt, match=r"_tags\.json: not the tags"):
        read_tags(table.store)
    with pytest.raises(Corrupt, match=r"_tags\.json"):
        run(table, horizon_ms=0)
    assert orphan in table.objects()


def test_tags_of_a_newer_format_are_refused(table: SampleTable) -> None:
    table.store.put(keys.tags_key(), json.dumps({"format": 2}).encode(), IfAbsent())
    with pytest.raises(Unsupported, match="the tags of a table of format 2"):
        run(table)


# Concurrent collection.


def test_a_tagged_version_outlives_retention_whole(table: SampleTable) -> None:
    target = table.superseded()
    tag(table, "audit", target)
    age_and_collect(table)
    assert keys.version_key(target.version) not in table.objects()
    assert snapshot_at(table.log, "audit") == target
    assert files_of(target) <= table.objects()


def test_without_the_tag_the_same_version_goes(table: SampleTable) -> None:
    target = table.superseded()
    age_and_collect(table)
    assert files_of(target) & table.objects() == set()
    with pytest.raises(
        NotFound, match=r"version 1 is no longer retained. memory://tags retains versions 2 \(committed "
    ):
        snapshot_at(table.log, target.version)


def test_a_version_goes_when_its_tag_is_removed(table: SampleTable) -> None:
    target = table.superseded()
    tag(table, "audit", target)
    age_and_collect(table)
    remove_tag(table.log, "audit")
    age_and_collect(table)
    assert files_of(target) & table.objects() == set()
    assert keys.state_key(target.version) not in table.objects()


def test_an_expired_tag_keeps_nothing_and_the_collector_removes_it(table: SampleTable, clock: ManualClock) -> None:
    target = table.superseded()
    kept = tag(table, "kept", table.log.snapshot())
    tag(table, "brief", target, hours=100)
    age_and_collect(table)
    assert files_of(target) <= table.objects()
    clock.now += 100 * HOUR_MS
    assert "brief" in read_tags(table.store).by_name
    age_and_collect(table)
    assert read_tags(table.store).by_name == {"kept": kept}
    assert files_of(target) & table.objects() == set()


def test_a_dry_run_removes_no_tag(table: SampleTable, clock: ManualClock) -> None:
    tag(table, "brief", table.log.snapshot(), hours=1)
    clock.now += HOUR_MS
    collect(table.store, table.log, clock=clock, dry_run=True)
    assert "brief" in read_tags(table.store).by_name


def test_a_clock_that_runs_ahead_ends_no_tag(table: SampleTable, clock: ManualClock) -> None:
    target = table.superseded()
    tag(table, "audit", target, hours=100)
    ahead = ManualClock(clock.now + 1000 * HOUR_MS)
    for _ in range(3):
        clock.now += 2 * HOUR_MS
        ahead.now += 2 * HOUR_MS
        collect(table.store, TransactionLog(table.store, clock=ahead, ids=table.ids), clock=ahead)
    assert tagged(table.log, "audit").version == target.version
    assert files_of(target) <= table.objects()


def test_a_tag_on_a_version_that_does_not_open_stops_the_collector(table: SampleTable) -> None:
    target = table.superseded()
    tag(table, "audit", target)
    age_and_collect(table)
    orphan = table.upload_split()
    table.store.delete([keys.state_key(target.version)])
    with pytest.raises(Corrupt, match="the tag 'audit' keeps version 1, which does not open"):
        run(table, horizon_ms=0)
    assert orphan in table.objects()
    remove_tag(table.log, "audit")
    assert orphan in run(table, horizon_ms=0).deleted


def test_a_version_in_the_collectors_plan_cannot_be_tagged(table: SampleTable) -> None:
    target = table.superseded()
    run(table)
    with pytest.raises(SnapshotExpired, match="version 1 of memory://tags is no longer retained"):
        tag(table, "audit", target)
    assert read_tags(table.store).by_name == {}


def test_a_version_whose_files_are_gone_cannot_be_tagged(table: SampleTable) -> None:
    target = table.superseded()
    age_and_collect(table)
    with pytest.raises(SnapshotExpired, match="objects are collected"):
        tag(table, "audit", target)
    assert read_tags(table.store).by_name == {}


def test_a_tag_that_is_set_between_the_passes_is_seen_by_the_second(table: SampleTable) -> None:
    """The collector has rewritten its plan for a version and is about to read the roots again."""
    target = table.superseded()
    faulty = FaultStore(table.store)
    refused: list[SnapshotExpired] = []

    def set_while_collecting() -> None:
        try:
            tag(table, "audit", target)
        except SnapshotExpired as error:
            refused.append(error)

    faulty.on("head", keys.gc_candidates_key(), set_while_collecting)
    run(table, store=faulty, horizon_ms=0)
    assert len(refused) == 1
    assert read_tags(table.store).by_name == {}


def impatient() -> SampleTable:
    """Make a table with a horizon of zero."""
    clock = ManualClock()
    config = TableConfig(checkpoint_interval=0, version_retention_ms=RETENTION_MS, gc_horizon_ms=0)
    return SampleTable(MemoryStore("race", clock=clock), clock, config)


def is_kept(table: SampleTable, target: Snapshot) -> bool:
    """Return True if the tag exists, and check that its version is then complete."""
    if not read_tags(table.store).by_name:
        return False
    assert snapshot_at(table.log, "audit") == target
    assert files_of(target) <= table.objects()
    return True


def test_a_tag_set_at_any_moment_of_a_collection_is_refused_or_keeps_its_version() -> None:
    """The horizon is zero. Before one request of the collector, another process tags the version to be deleted."""
    kept = []
    for instant in count():
        table = impatient()
        target = table.superseded()

        def set_tag_now(table: SampleTable = table, target: Snapshot = target) -> None:
            with suppress(SnapshotExpired):
                tag(table, "audit", target)

        meanwhile = Meanwhile(instant, set_tag_now)
        run(table, store=FaultStore(table.store, watch=meanwhile), horizon_ms=0)
        if not meanwhile.acted:
            break
        kept.append(is_kept(table, target))
    assert set(kept) == {True, False}


def test_a_collection_at_any_moment_of_a_tagging_loses_no_tagged_version() -> None:
    """Run a whole collection before each single request of the tagging process."""
    kept = []
    for instant in count():
        table = impatient()
        target = table.superseded()
        meanwhile = Meanwhile(instant, partial(run, table, horizon_ms=0))
        with suppress(SnapshotExpired):
            tag(table, "audit", target, store=FaultStore(table.store, watch=meanwhile))
        if not meanwhile.acted:
            break
        kept.append(is_kept(table, target))
    assert set(kept) == {True, False}


def test_a_tagging_that_dies_before_its_put_leaves_nothing(table: SampleTable) -> None:
    faulty = FaultStore(table.store)
    faulty.on("get", keys.tags_key(), Unavailable("down"))
    with pytest.raises(Unavailable):
        tag(table, "nightly", table.log.snapshot(), store=faulty)
    assert read_tags(table.store).by_name == {}


@pytest.mark.parametrize("form", ["json", "json-multipart"])
def test_a_version_that_is_checkpointed_as_json_is_kept_as_well(clock: ManualClock, form: CheckpointFormat) -> None:
    config = TableConfig(
        checkpoint_interval=0, version_retention_ms=RETENTION_MS, gc_horizon_ms=HOUR_MS, checkpoint_format=form
    )
    table = SampleTable(MemoryStore("json", clock=clock), clock, config)
    target = table.superseded()
    tag(table, "audit", target)
    age_and_collect(table)
    assert keys.version_key(target.version) not in table.objects()
    assert keys.json_checkpoint_key(target.version) in table.objects()
    assert snapshot_at(table.log, "audit") == target
    assert files_of(target) <= table.objects()


FORMS: tuple[CheckpointFormat, ...] = ("avro", "json", "json-multipart")


@pytest.mark.parametrize("below", [False, True], ids=["above the base", "below the base"])
@pytest.mark.parametrize("form", FORMS)
def test_a_listing_that_misses_the_checkpoint_of_a_tag_costs_the_tag_nothing(
    clock: ManualClock, form: CheckpointFormat, *, below: bool
) -> None:
    retention_ms = RETENTION_MS if below else 4 * RETENTION_MS
    config = TableConfig(
        checkpoint_interval=0, version_retention_ms=retention_ms, gc_horizon_ms=HOUR_MS, checkpoint_format=form
    )
    table = SampleTable(MemoryStore("blind", clock=clock), clock, config)
    old = table.append(2)
    target = table.log.snapshot()
    tag(table, "audit", target)
    table.replace(old)
    if below:
        table.checkpoint()
        clock.now += 2 * RETENTION_MS
    for _ in range(2):
        table.append()
        write_checkpoint(table.store, table.log.snapshot(), table.log.ids.uuid, compact=True)
    roots = (keys.state_key(target.version), keys.json_checkpoint_key(target.version))
    blind = BlindListing(table.store, lambda key: key in roots)
    for store in (blind, table.store):
        for _ in range(3):
            clock.now += HOUR_MS + 1
            run(table, store=store)
        clock.now += 2 * retention_ms
    run(table)
    assert keys.version_key(target.version) not in table.objects()
    assert snapshot_at(table.log, "audit") == target
    assert files_of(target) <= table.objects()


def test_a_tag_below_the_base_that_only_version_files_open_stops_the_collector(table: SampleTable) -> None:
    target = table.superseded()
    tag(table, "audit", target)
    table.store.delete([keys.state_key(target.version)])
    assert table.log.snapshot(version=target.version) == target
    with pytest.raises(Corrupt, match="the tag 'audit' retains version 1, which has no checkpoint"):
        run(table, horizon_ms=0)
    tag(table, "audit", target)
    age_and_collect(table)
    assert snapshot_at(table.log, "audit") == target
