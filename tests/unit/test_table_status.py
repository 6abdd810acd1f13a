"""Each metric in a table's status equals its source. Only arrived rows count for freshness. Requests are bounded."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines import status as external_debt
from pipelines.status import State, StatusTarget, collect_all_statuses, collect_status, held_bytes
from storage_core.base.clock import HOUR_MS
from storage_core.compact.pending_work import Task
from storage_core.data.formats import keys
from storage_core.data.formats.documents import Candidate, Plan, encode_gc_plan
from storage_core.data.formats.keys import gc_candidates_key
from storage_core.data.formats.kinds import Reason
from storage_core.data.settings.layout import Mode
from storage_core.log.actions import Txn
from storage_core.maintain.collect import collect
from storage_core.maintain.status import MOST_VERSIONS, PendingWork, RetainedPart, measure_retained, status
from storage_core.store.contract import IfAbsent, Overwrite
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.ingest.landing import LandingSpec
from storage_core.write.region import idle
from storage_core.write.region.idle import MOST_REGIONS
from tests.support.clock import ManualClock
from tests.support.old_regions import make_old

MINUTE_MS = 60_000
SCHEMA = pa.schema([pa.field("at", pa.timestamp("us", "UTC"), nullable=False), ("text", pa.string())])
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
WORDS = {"name": "words", "kind": "fulltext", "columns": ["text"]}


@pytest.fixture
def places() -> Iterator[str]:
    return (f"memory://status-{uuid.uuid4()}" for _ in count())


def filled(uri: str, appends: int = 3) -> Table:
    table = Table.create(uri, SCHEMA, time_column="at", window="1h", indexes=[WORDS])
    for minute in range(appends):
        table.append({"at": NOON + dt.timedelta(minutes=minute), "text": "tide"})
    return table


def test_every_metric_is_that_of_its_home(places: Iterator[str]) -> None:
    table = filled(next(places), 12)
    now_ms = round(NOON.timestamp() * 1000) + 5 * HOUR_MS
    found = status(table.store, table.snapshot, now_ms=now_ms)
    about = table.describe()
    assert (found.rows, found.bytes, found.splits) == (about["rows"], about["bytes"], about["live_splits"])
    assert (found.version, found.committed_at) == (about["version"], about["timestamp"])
    assert found.newest_row_at == round(NOON.timestamp() * 1000) + 11 * MINUTE_MS
    (owed,) = [each for each in table.debt(Mode.POLICY) if each.task is Task.COMPACT]
    assert (found.pending["compact"].count, found.pending["compact"].bytes) == (1, owed.bytes)
    assert found.next_run == owed.next_run
    assert found.pending["catch_up"].count == 12
    assert [(each.name, each.rows, each.versions) for each in found.indexes] == [("words", 12, 12)]
    assert (found.oldest_unmerged_ms, found.quarantine_entries, found.behind) == (None, 0, ())


def test_a_table_is_behind_when_no_rows_came_for_longer_than_its_freshness_whatever_else_was_committed(
    places: Iterator[str],
) -> None:
    table = filled(next(places))
    came = table.snapshot.timestamp
    for number in range(4):
        table.log.commit(table.refresh().snapshot, [Txn(appId="x", version=number)], operation="UPKEEP")
    table.refresh()
    late = status(table.store, table.snapshot, now_ms=came + HOUR_MS + 1, freshness_ms=HOUR_MS)
    assert late.behind == ("newest_rows",)
    fresh = status(table.store, table.snapshot, now_ms=came + HOUR_MS, freshness_ms=HOUR_MS)
    assert (fresh.behind, fresh.rows_came_at) == ((), came)


def test_records_that_wait_longer_for_the_merge_than_the_freshness_are_behind(places: Iterator[str]) -> None:
    table = Table.create(next(places), pa.schema([("id", pa.int64())]), primary_key="id")
    table.append({"id": 1})
    found = status(table.store, table.snapshot, now_ms=table.snapshot.timestamp, freshness_ms=HOUR_MS)
    assert (found.pending["merge"].count, found.behind) == (1, ())
    assert found.oldest_unmerged_ms is not None
    behind = status(table.store, table.snapshot, now_ms=table.snapshot.timestamp, freshness_ms=-1)
    assert behind.behind == ("newest_rows", "unmerged")


def test_records_in_no_generation_are_seen_behind_the_entries_of_claims(places: Iterator[str]) -> None:
    table = Table.create(next(places), pa.schema([("id", pa.int64())]), primary_key="id")
    writer = table.writer()
    try:
        assert status(table.store, table.snapshot, now_ms=0).oldest_unmerged_ms is None
        writer.put([{"id": 1}])
        found = status(table.store, table.snapshot, now_ms=0)
        assert found.oldest_unmerged_ms is not None
        assert "merge" not in found.pending  # no generation: a merge flushes the rows when the writer is silent
    finally:
        writer.close()


def test_rows_of_a_silent_writer_are_owed_to_the_merge_once_its_idle_time_is_over(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "planes"), pa.schema([("id", pa.int64())]), primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 1}])

    def look_again() -> tuple[PendingWork | None, int]:
        asked = MeteredStore(table.store)
        return status(asked, table.snapshot, now_ms=0).pending.get("merge"), sum(asked.requests.values())

    owed, requests = look_again()
    assert owed is None
    make_old(table, table.config.idle_after_ms // 1000 + 1)
    assert look_again()[0] == PendingWork(count=1, unit="generations")
    assert look_again()[1] <= requests + 6  # only these regions need requests for the age of the newest row
    with table.writer() as writer:
        writer.put([{"id": 2}])
    assert look_again()[0] is None, "somebody writes again"


@pytest.mark.parametrize(("interval", "owed"), [(0, 4), (4, 4), (10, None)])
def test_a_checkpoint_is_owed_from_as_many_versions_on_as_the_table_allows_behind_it(
    places: Iterator[str], interval: int, owed: int | None
) -> None:
    table = Table.create(next(places), SCHEMA, settings={"checkpoint.interval": interval})
    for _ in range(3):
        table.append({"at": NOON, "text": "tide"})
    assert (table.version, table.snapshot.checkpoint_version) == (3, None)
    found = status(table.store, table.snapshot, now_ms=0).pending.get("checkpoint")
    assert found == (None if owed is None else PendingWork(count=owed, unit="versions"))


def test_an_append_table_takes_one_listing_and_so_many_versions_at_most(places: Iterator[str]) -> None:
    table = filled(next(places), 1)
    for number in range(MOST_VERSIONS + 8):
        table.log.commit(table.refresh().snapshot, [Txn(appId="x", version=number)], operation="UPKEEP")
    table.refresh()
    asked = MeteredStore(table.store)
    status(asked, table.snapshot, now_ms=table.snapshot.timestamp)
    assert asked.requests == {"get": 0, "put": 0, "list": 1, "head": 0, "delete": 0}
    status(asked, table.snapshot, now_ms=table.snapshot.timestamp, freshness_ms=HOUR_MS)
    assert asked.requests == {"get": MOST_VERSIONS, "put": 0, "list": 2, "head": 0, "delete": 0}


def test_a_keyed_table_takes_some_requests_per_region_and_only_so_many_regions_are_looked_at(
    places: Iterator[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"regions_by_hand": True}
    table = Table.create(next(places), pa.schema([("id", pa.int64())]), primary_key="id", settings=settings)
    for number in range(6):
        with table.writer(region=f"by-hand-{number}") as writer:
            writer.put([{"id": number}])

    def requests() -> int:
        asked = MeteredStore(table.store)
        assert status(asked, table.snapshot, now_ms=0).regions == 7
        return sum(asked.requests.values())

    of_all = requests()
    monkeypatch.setattr(idle, "MOST_REGIONS", 3)
    assert requests() < of_all <= 2 + 6 * 7
    assert MOST_REGIONS == 64


def test_a_thousand_entries_in_quarantine_are_counted_in_one_listing(places: Iterator[str]) -> None:
    table = filled(next(places), 1)
    for number in range(1005):
        table.store.put(keys.quarantine_key("append", str(uuid.UUID(int=number))), b"", Overwrite())
    asked = MeteredStore(table.store)
    assert status(asked, table.snapshot, now_ms=0).quarantine_entries == 1000
    assert asked.requests["list"] == 1


def test_a_table_that_fails_is_its_own_line_and_stops_no_other(places: Iterator[str]) -> None:
    sound, torn, missing, elsewhere = (next(places) for _ in range(4))
    filled(sound, 1)
    broken = filled(torn, 1)
    broken.store.put(keys.version_key(1), b"{", Overwrite())
    made = StatusTarget(name="x", uri=sound)
    found = list(
        collect_all_statuses(
            [
                replace(made, uri=torn),
                made,
                replace(made, uri=missing),
                replace(made, uri=elsewhere, is_declared=False),
                replace(made, uri="s3://bucket/x?endpoint=http://127.0.0.1:9"),
            ]
        )
    )
    states = [State.FAILED, State.OK, State.NOT_MADE, State.FAILED, State.FAILED]
    assert [each.state for each in found] == states
    assert [each.error and each.error.kind for each in found] == ["corrupt", None, None, "not_found", "unavailable"]
    assert collect_status(made, ManualClock()).requests["list"] == 2


def landed(folder: Path, count: int) -> LandingSpec:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.ndjson").write_text('{"at": "2026-01-01T12:00:00Z"}\n')
    return LandingSpec(uri=str(folder), format="ndjson")


def test_what_landed_what_mirrors_lack_and_what_a_collection_noted_is_owed(tmp_path: Path) -> None:
    table = filled(str(tmp_path / "events"), 1)
    table.alter({"publish": ["delta", "iceberg"]})
    place = StatusTarget(name="events", uri=table.uri, landing=landed(tmp_path / "landing", 2))
    clock = ManualClock(round(time.time() * 1000))
    found = collect_status(place, clock).status
    assert found is not None
    assert list(found.pending) == ["ingest", "catch_up", "publish"]
    assert found.pending["ingest"] == PendingWork(count=2, unit="files", bytes=2 * 31)
    assert (found.mirrors, found.pending["publish"].count) == ({"delta": 3, "iceberg": 3}, 3)
    table.publish("delta")
    (split,) = table.snapshot.splits
    orphan = (tmp_path / "events" / split).with_name("00000000-0000-4000-8000-000000000000.parquet")
    orphan.write_bytes(b"x" * 100)
    collect(table.store, table.log, clock=clock)
    later = ManualClock(clock.now_ms() + 25 * HOUR_MS)
    found = collect_status(place, later).status
    assert found is not None
    assert (found.mirrors, found.pending["publish"].count) == ({"delta": 0, "iceberg": 3}, 3)
    assert found.pending["collect"] == PendingWork(count=1, unit="objects", bytes=100)


def test_what_cannot_be_known_of_a_step_is_said_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(str(tmp_path / "events"), 1)
    away = LandingSpec(uri="s3://bucket/x?endpoint=http://127.0.0.1:9", format="ndjson")
    place = StatusTarget(name="events", uri=table.uri, landing=away)
    looked = collect_status(place, ManualClock())
    assert looked.status is not None
    assert (looked.state, looked.status.rows) == (State.OK, 1)
    assert {step: why.partition(":")[0] for step, why in looked.status.unknown.items()} == {"ingest": "unavailable"}
    monkeypatch.setattr(external_debt, "MOST_LANDED", 3)
    full = collect_status(replace(place, landing=landed(tmp_path / "full", 3)), ManualClock()).status
    assert full is not None
    assert full.unknown["ingest"] == "the landing location contains 3 files or more"


def test_what_holds_bytes_of_a_table_is_said_with_its_end(tmp_path: Path) -> None:
    clock = ManualClock(round(time.time() * 1000))
    table = filled(str(tmp_path / "events"), 2)
    place = StatusTarget(name="events", uri=table.uri)
    first = collect_status(place, clock, with_held=True).status
    assert first is not None
    assert first.held is not None
    assert (first.held.versions.bytes, first.held.tags, first.held.is_partial) == (0, {}, False)
    assert held_bytes(first, clock.now_ms()) == ""
    gone = table.refresh().snapshot.bytes
    table.tag("audit")
    table.delete("true")
    at_ms = Table.open(table.uri).snapshot.timestamp
    for number in range(3):
        table.refresh().log.commit(table.snapshot, [Txn(appId="x", version=number)], operation="UPKEEP")
    key = "splits/0/00000000-0000-4000-8000-000000000000.parquet"
    noted = [
        Candidate(key=key, reason=Reason.REMOVED_SPLIT, size=100, first_seen_ms=5, since_version=0),
        Candidate(key=f"{key}x", reason=Reason.ORPHAN_SPLIT, size=7, first_seen_ms=9, since_version=0),
    ]
    table.store.put(gc_candidates_key(), encode_gc_plan(noted, counter=1, nonce="n"), IfAbsent())
    found = collect_status(place, clock, with_held=True).status
    assert found is not None
    assert found.held is not None
    config = table.config
    until_ms = at_ms + config.version_retention_ms + config.gc_horizon_ms
    assert found.held.live_bytes == found.bytes == 0
    assert found.held.versions == RetainedPart(bytes=gone, first_ms=until_ms, last_ms=until_ms)
    assert found.held.horizon == RetainedPart(
        bytes=100, first_ms=5 + config.gc_horizon_ms, last_ms=5 + config.gc_horizon_ms
    )
    assert (found.held.orphans.bytes, found.held.orphans.last_ms) == (7, 9 + config.gc_horizon_ms)
    assert (found.held.tags, found.held.is_partial) == ({"audit": None}, False)
    words = held_bytes(found, at_ms)
    assert "0 B live" in words
    assert "kept by older versions for 31d" in words
    assert "the tag audit kept until it is removed" in words


def test_a_failed_read_of_tags_leaves_the_step_of_the_collector_known(places: Iterator[str]) -> None:
    table = filled(next(places), 1)
    table.store.put(keys.tags_key(), b"{", IfAbsent())
    place = StatusTarget(name="events", uri=table.uri)
    found = collect_status(place, ManualClock(), with_held=True).status
    assert found is not None
    assert found.held is None
    assert {step: why.partition(":")[0] for step, why in found.unknown.items()} == {"held": "corrupt"}
    without = collect_status(place, ManualClock()).status
    assert without is not None
    assert (without.held, without.unknown) == (None, {})


def test_a_look_at_what_holds_bytes_reads_so_many_versions_at_most(places: Iterator[str]) -> None:
    table = filled(next(places), 1)
    for number in range(MOST_VERSIONS):
        table.log.commit(table.refresh().snapshot, [Txn(appId="x", version=number)], operation="UPKEEP")
    asked = MeteredStore(table.refresh().store)
    plan = Plan(candidates={}, counter=0, etag=None)
    found = measure_retained(asked, table.snapshot, plan, now_ms=table.snapshot.timestamp)
    assert found.is_partial
    assert +Counter(asked.requests) == {"get": MOST_VERSIONS + 1}


def test_a_look_at_five_hundred_tables_takes_so_many_requests_of_each(places: Iterator[str], tmp_path: Path) -> None:
    plain, published = filled(next(places), 1), filled(next(places), 1)
    published.alter({"publish": "delta"})
    spec = landed(tmp_path / "landing", 1)
    of_plain = StatusTarget(name="plain", uri=plain.uri, landing=spec)
    of_published = StatusTarget(name="published", uri=published.uri)
    opening = [Counter(Table.open(each.uri).store.requests) for each in (plain, published)]
    every = Counter({"list": 1, "get": 1})  # requests for quarantine and for the collector's plan
    of_looks = [opening[0] + every + Counter({"list": 1}), opening[1] + every + Counter({"get": 2})]
    found = list(collect_all_statuses([of_plain, of_published] * 250, ManualClock()))
    assert [+Counter(each.requests) for each in found] == of_looks * 250
    assert max(sum(each.values()) for each in of_looks) <= 10
    for_tags_and_versions = [Counter({"get": each.refresh().version + 2}) for each in (plain, published)]
    with_held = [
        +Counter(each.requests)
        for each in collect_all_statuses([of_plain, of_published], ManualClock(), with_held=True)
    ]
    assert with_held == [look + more for look, more in zip(of_looks, for_tags_and_versions, strict=True)]
