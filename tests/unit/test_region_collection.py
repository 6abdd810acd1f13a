from __future__ import annotations

import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import Corrupt, Unavailable, WriterFenced
from storage_core.data.formats import keys
from storage_core.data.formats.keys import ParsedKey
from storage_core.data.formats.kinds import KeyKind, Reason
from storage_core.data.settings.table import TableConfig
from storage_core.log.log import TransactionLog
from storage_core.maintain.collect import CollectionReport, collect
from storage_core.store.contract import IfAbsent
from storage_core.store.memory import MemoryStore
from storage_core.write.region.manifest import region_of
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore, Interruption
from tests.support.keyed_table import KeyedTable


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(step_ms=1)


@pytest.fixture
def table(clock: ManualClock) -> KeyedTable:
    """Make a table with a retention and a horizon of one hour each."""
    config = TableConfig(
        primary_key=("tailnum",), checkpoint_interval=0, version_retention_ms=HOUR_MS, gc_horizon_ms=HOUR_MS
    )
    return KeyedTable(MemoryStore("regions", clock=clock), clock=clock).create(config=config)


def run(table: KeyedTable, *, horizon_ms: int | None = None) -> CollectionReport:
    return collect(table.store, table.log, clock=table.clock, horizon_ms=horizon_ms)


def run_until_quiet(table: KeyedTable) -> None:
    for _ in range(4):
        table.clock.sleep_ms(2 * HOUR_MS)
        run(table)


def objects(table: KeyedTable, kind: KeyKind) -> list[ParsedKey]:
    parsed = (keys.parse(info.key) for info in table.store.list(""))
    return [each for each in parsed if each is not None and each.kind is kind]


def entries(table: KeyedTable) -> set[int | None]:
    return {each.entry for each in objects(table, KeyKind.WAL_ENTRY)}


def generations(table: KeyedTable) -> set[int | None]:
    return {each.generation for each in objects(table, KeyKind.GENERATION_FILE)}


def row(tailnum: str, seats: int) -> dict[str, object]:
    return {"tailnum": tailnum, "seats": seats, "model": "m"}


def test_what_is_not_merged_is_kept_however_old(table: KeyedTable) -> None:
    with table.writer() as writer:
        writer.put(row("a", 1))
        writer.flush()
        writer.put(row("b", 2))
    before = entries(table)
    table.clock.sleep_ms(100 * HOUR_MS)
    for _ in range(2):
        assert {each.reason for each in run(table, horizon_ms=0).candidates} <= {Reason.OLD_REGION_MANIFEST}
    assert entries(table) == before
    assert generations(table) == {1}
    assert set(table.rows()) == {"a", "b"}


def test_a_merged_generation_stays_while_a_retained_version_has_not_merged_it(table: KeyedTable) -> None:
    with table.writer() as writer:
        writer.put(row("a", 1))
        writer.flush()
    before_the_merge = table.snapshot.version
    table.merge()
    table.log.checkpoint(table.snapshot)
    assert run(table, horizon_ms=0).candidates == ()
    assert table.log.snapshot(version=before_the_merge).merged_generations == {}
    assert generations(table) == {1}


def test_merged_generations_go_with_their_wal_entries_and_fences_stay(table: KeyedTable) -> None:
    with table.writer() as writer:
        writer.put(row("a", 1))
        writer.put(row("b", 2))
        writer.flush()
        table.merge()
        table.log.checkpoint(table.snapshot)
        writer.put(row("c", 3))
        writer.flush()
        writer.put(row("d", 4))
    table.clock.sleep_ms(2 * HOUR_MS)
    report = run(table)
    found = {each.reason for each in report.candidates}
    assert {Reason.MERGED_GENERATION, Reason.WAL_ENTRY, Reason.OLD_VERSION} <= found
    run_until_quiet(table)
    assert generations(table) == {2}
    # WAL entry 1 is the sentinel of the claim. Generation 1 had the entries 2 and 3, and generation 2 has entry 4.
    # Entry 5 is not in a generation yet.
    assert entries(table) == {1, 4, 5}
    assert table.rows() == {name: row(name, seats) for name, seats in (("a", 1), ("b", 2), ("c", 3), ("d", 4))}
    assert run(table).candidates == ()


def test_a_shorter_horizon_of_one_run_leaves_no_wal_entry_behind_for_ever(table: KeyedTable) -> None:
    with table.writer() as writer:
        writer.put(row("a", 1))
        writer.flush()
        table.merge()
        table.log.checkpoint(table.snapshot)
        table.clock.sleep_ms(2 * HOUR_MS)
        deleted = run(table, horizon_ms=0).deleted
        assert entries(table) == {1, 2}, "numbers wait for the horizon of the table"
        assert any(key.endswith("/bloom_filter.bin") for key in deleted)
    run_until_quiet(table)
    assert entries(table) == {1}
    assert generations(table) == set()


def test_a_writer_that_stalls_through_a_collection_is_fenced_and_acknowledges_nothing(table: KeyedTable) -> None:
    # Lesson 06: the collector must not delete the WAL entry with the number that the stalled writer writes next.
    # Otherwise the stalled writer could still write its entry.
    stalled = table.writer()
    stalled.put(row("a", 1))
    with table.writer() as writer:
        writer.put(row("a", 2))
        writer.flush()
    table.merge()
    table.log.checkpoint(table.snapshot)
    run_until_quiet(table)
    assert generations(table) == set()
    with pytest.raises(WriterFenced):
        stalled.put(row("a", 3))
    assert table.rows() == {"a": row("a", 2)}


def test_a_new_claim_after_a_collection_finds_every_row(table: KeyedTable) -> None:
    for seats in range(1, 4):
        with table.writer() as writer:
            writer.put(row("a", seats))
            writer.flush()
        table.merge()
        table.log.checkpoint(table.snapshot)
        run_until_quiet(table)
    with table.writer() as writer:
        writer.put(row("b", 9))
    with table.writer() as writer:
        assert writer.epoch == 5
        writer.flush()
    table.merge()
    assert table.rows() == {"a": row("a", 3), "b": row("b", 9)}


def test_killed_at_any_delete_the_next_runs_find_the_rest() -> None:
    def prepared() -> KeyedTable:
        clock = ManualClock(step_ms=1)
        config = TableConfig(primary_key=("tailnum",), checkpoint_interval=0, version_retention_ms=0, gc_horizon_ms=0)
        table = KeyedTable(MemoryStore("killed", clock=clock), clock=clock).create(config=config)
        with table.writer() as writer:
            for seats in range(3):
                writer.put(row("a", seats))
            writer.flush()
        table.merge()
        table.log.checkpoint(table.snapshot)
        return table

    def remaining(table: KeyedTable) -> set[str]:
        for _ in range(3):  # delete, prune, delete the old manifest
            run(table)
        return {info.key for info in table.store.list("_mem_wal/")}

    finished = remaining(prepared())
    assert len(finished) == 3, "the newest manifest, its hint, and the sentinel"
    for fail_at in range(len(run(prepared(), horizon_ms=0).deleted)):
        table = prepared()
        interruption = Interruption(fail_at, lambda kind, _key: kind == "delete")
        store = FaultStore(table.store, watch=interruption)
        with pytest.raises(Unavailable, match="interrupted"):
            collect(store, TransactionLog(store, clock=table.clock, ids=table.ids), clock=table.clock)
        assert remaining(table) == finished
        assert table.rows() == {"a": row("a", 2)}


def test_old_region_manifests_go_and_the_newest_stays(table: KeyedTable) -> None:
    for _ in range(4):
        table.writer().close()
    run_until_quiet(table)
    assert [each.version for each in objects(table, KeyKind.REGION_MANIFEST)] == [4]
    assert table.writer().epoch == 5


def test_the_directory_of_a_failed_flush_goes_after_the_horizon(table: KeyedTable) -> None:
    with table.writer() as writer:
        writer.put(row("a", 1))
        writer.flush()
    region = region_of(table.snapshot.table_id)
    failed = keys.generation_file_key(region, "0badf00d_gen_2", "bloom_filter.bin")
    table.store.put(failed, b"half a flush", IfAbsent())
    report = run(table)
    assert [(each.key, each.reason) for each in report.candidates] == [(failed, Reason.ORPHAN_GENERATION)]
    assert report.deleted == ()
    table.clock.sleep_ms(HOUR_MS + 100)
    assert run(table).deleted == (failed,)
    assert set(table.rows()) == {"a"}


def test_a_region_without_a_manifest_keeps_everything(table: KeyedTable) -> None:
    region = "0f8fad5b-d9cb-469f-a165-70867728950e"
    lost = {
        keys.wal_entry_key(region, 1),
        keys.generation_file_key(region, "0badf00d_gen_1", "_manifest.json"),
    }
    for key in lost:
        table.store.put(key, b"x", IfAbsent())
    table.clock.sleep_ms(1000 * HOUR_MS)
    assert run(table, horizon_ms=0).candidates == ()


def test_an_unreadable_unmerged_generation_stops_the_collection(table: KeyedTable) -> None:
    with table.writer() as writer:
        writer.put(row("a", 1))
        writer.flush()
    orphan = keys.split_key(None, False, table.ids.uuid())
    table.store.put(orphan, b"an orphan", IfAbsent())
    manifest = next(each for each in objects(table, KeyKind.GENERATION_FILE) if each.name == "_manifest.json")
    table.store.delete([manifest.key])
    with pytest.raises(Corrupt):
        run(table, horizon_ms=0)
    assert orphan in {info.key for info in table.store.list("splits/")}


def test_what_a_sorted_generation_replaced_is_not_missed_when_a_later_version_merges_all_of_it(
    table: KeyedTable,
) -> None:
    with table.writer() as writer:
        for name in ("a", "b", "c"):
            writer.put(row(name, 1))
            writer.flush()
            if name == "a":
                table.merge()
        table.sort()
        table.log.checkpoint(table.snapshot)
        run_until_quiet(table)
        assert generations(table) == {3}
        table.merge()
        assert run(table, horizon_ms=0).failed == {}
        writer.put(row("d", 1))
    run_until_quiet(table)
    assert set(table.rows()) == {"a", "b", "c", "d"}
