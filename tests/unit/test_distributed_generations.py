"""The distributor adds its generations exactly once, after the acknowledged records, even if it ends at any point."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitConflict, Corrupt, WriterFenced
from storage_core.data.formats import keys
from storage_core.data.formats.region_manifest import MANIFEST_FILE, RECORDS_FILE, FlushedGeneration, Generation
from storage_core.maintain.check import fsck as check
from storage_core.maintain.findings import Kind
from storage_core.maintain.repair import repair
from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.write.region import generation, router
from storage_core.write.region.idle import find_idle
from storage_core.write.region.manifest import read_latest, region_of
from storage_core.write.region.records import RecordBuilder
from storage_core.write.region.router import ChunkRange, RegionClaim
from storage_core.write.region.spec import known_manifests, whole_table
from tests.support.ids import SeededIds
from tests.support.keyed_table import PLANES, KeyedTable, seats

WRITER = "5f0c1c7a-5a9e-4a4f-8f8c-0a8f3b1f2c11"
BUILDER = RecordBuilder(PLANES, ("tailnum",))


def puts(**seats: int) -> pa.Table:
    return BUILDER.puts([{"tailnum": name, "seats": value} for name, value in seats.items()])


def take_turn(table: KeyedTable) -> RegionClaim:
    region = whole_table(table.snapshot.table_id)
    return router.claim_region(table.store, table.snapshot, region, clock=table.clock, ids=table.ids)


def distribute(table: KeyedTable, records: pa.Table, after: int, last: int) -> None:
    turn = take_turn(table)
    written = router.write_distributed(table.store, records, ("tailnum",), turn=turn, clock=table.clock, ids=table.ids)
    router.finish(
        table.store,
        turn,
        written.path,
        [ChunkRange(writer=WRITER, after=after, last=last)],
        clock=table.clock,
        writer_id=table.ids.uuid(),
    )


def marks(table: KeyedTable) -> Mapping[str, int]:
    return router.offsets(table.store, region_of(table.snapshot.table_id))


@pytest.mark.parametrize(("name", "rows"), [(RECORDS_FILE, 2), (MANIFEST_FILE, None)])
def test_a_repair_counts_the_records_of_a_generation_that_cannot_be_read(name: str, rows: int | None) -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    distribute(table, puts(a=1, b=2), 0, 1)
    region = region_of(table.snapshot.table_id)
    manifest = read_latest(table.store, region)
    assert manifest is not None
    key = keys.generation_file_key(region, manifest.flushed_generations[0].path, name)
    table.store.put(key, b"nothing of it", Overwrite())
    outcome = repair(table.store, MemoryStore("repaired"), clock=table.clock, ids=table.ids)
    assert [(each.key, each.rows, each.is_uncounted) for each in outcome.lost] == [(key, rows, rows is None)]


def test_distributed_rows_are_read_before_and_after_the_merge_and_the_mark_moves_with_them() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    assert marks(table) == {}
    distribute(table, pa.concat_tables([puts(a=1, b=2), BUILDER.deletes(["b"]), puts(c=3)]), 0, 4)
    assert (seats(table), marks(table)) == ({"a": 1, "c": 3}, {WRITER: 4})
    assert table.merge() is not None
    assert sorted(str(row["tailnum"]) for row in table.base_rows()) == ["a", "c"]
    assert seats(table) == {"a": 1, "c": 3}


def test_after_a_distribution_the_log_is_read_from_behind_the_sentinel_of_its_claim() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    for last in (1, 2, 3):
        distribute(table, puts(a=last), last - 1, last)
    (manifest,) = known_manifests(table.store, table.snapshot)
    assert manifest.replay_after_wal_id == 3
    store = MeteredStore(table.store)
    assert find_idle(store, table.snapshot, [manifest]) == []
    assert store.meter.requests == {"get": 0, "put": 0, "list": 0, "head": 1, "delete": 0}
    with table.writer() as writer:
        writer.put({"tailnum": "b", "seats": 1})
    assert seats(table) == {"a": 3, "b": 1}


def test_what_a_direct_writer_left_comes_before_the_distributed_rows_and_it_is_fenced() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    writer = table.writer()
    writer.put([{"tailnum": "a", "seats": 1}, {"tailnum": "b", "seats": 1}])
    distribute(table, puts(a=2), 0, 1)
    with pytest.raises(WriterFenced):
        writer.put({"tailnum": "a", "seats": 3})
    assert seats(table) == {"a": 2, "b": 1}
    table.writer().put({"tailnum": "a", "seats": 4})
    assert seats(table) == {"a": 4, "b": 1}
    assert marks(table) == {WRITER: 1}, "later manifests of direct writers keep the mark"
    writer = table.writer()
    writer.flush()
    table.merge_all()
    assert {str(row["tailnum"]): row["seats"] for row in table.base_rows()} == {"a": 4, "b": 1}
    assert marks(table) == {WRITER: 1}


def test_of_two_distributors_with_one_plan_the_later_one_conflicts_and_the_fenced_one_stops() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    early = take_turn(table)
    distribute(table, puts(a=1), 0, 2)
    with pytest.raises(CommitConflict, match=r"now distributed up to 2\. This plan begins after 0"):
        distribute(table, puts(a=1), 0, 3)
    stretch = [ChunkRange(writer=WRITER, after=0, last=2)]
    with pytest.raises(WriterFenced):
        router.finish(table.store, early, "00000000_gen_1", stretch, clock=table.clock, writer_id=table.ids.uuid())
    assert (seats(table), marks(table)) == ({"a": 1}, {WRITER: 2})


def test_records_that_are_damaged_or_gone_are_corrupt_and_named() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    distribute(table, puts(a=1), 0, 1)
    found, path = _first(table)
    key = keys.generation_file_key(found.region, path, "records.arrow")
    sound = table.store.get(key).data
    table.store.put(key, sound[:-9] + b"x" + sound[-8:], Overwrite())
    with pytest.raises(Corrupt, match=r"records\.arrow: damaged"):
        list(generation.read_records(table.store, found))
    table.store.delete([key])
    with pytest.raises(Corrupt, match=r"records\.arrow: generation 1 .* lost its records"):
        list(generation.read_records(table.store, found))


def test_a_generation_with_a_data_file_is_of_a_format_that_older_releases_refuse() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    distribute(table, puts(a=1), 0, 1)
    found, path = _first(table)
    key = keys.generation_file_key(found.region, path, "_manifest.json")
    assert b'"format": 2' in table.store.get(key).data
    table.writer().put({"tailnum": "b"})
    table.writer().flush()
    region = read_latest(table.store, found.region)
    assert region is not None
    last = region.flushed_generations[-1]
    assert b'"format": 1' in table.store.get(keys.generation_file_key(found.region, last.path, "_manifest.json")).data


def test_a_repair_brings_distributed_rows_over_in_their_order_with_the_offset() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    table.writer().put([{"tailnum": "a", "seats": 1}, {"tailnum": "b", "seats": 1}])
    distribute(table, puts(a=2, c=2), 0, 3)
    table.writer().put({"tailnum": "c", "seats": 3})
    assert table.merge() is not None
    distribute(table, puts(b=4), 3, 5)
    table.writer().put({"tailnum": "d", "seats": 5})
    repaired = MemoryStore("repaired")
    outcome = repair(table.store, repaired, clock=table.clock, ids=SeededIds(9))
    assert outcome.check is not None
    assert outcome.check.exit_code == 0
    after = _as(repaired, 10)
    assert seats(after) == seats(table) == {"a": 2, "b": 4, "c": 3, "d": 5}
    assert marks(after) == {WRITER: 5}
    after.merge_all()
    distribute(after, puts(d=6), 5, 6)
    assert seats(after) == {"a": 2, "b": 4, "c": 3, "d": 6}


def test_damaged_records_of_a_distributed_generation_are_a_finding() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    distribute(table, puts(a=1), 0, 1)
    assert check(table.store, clock=table.clock, deep=False).exit_code == 0
    found, path = _first(table)
    key = keys.generation_file_key(found.region, path, "records.arrow")
    table.store.put(key, b"damaged", Overwrite())
    report = check(table.store, clock=table.clock, deep=False)
    assert [(each.kind, each.key) for each in report.findings if each.kind is Kind.GENERATION_DAMAGED] == [
        (Kind.GENERATION_DAMAGED, key)
    ]


def _first(table: KeyedTable) -> tuple[Generation, str]:
    manifest = read_latest(table.store, region_of(table.snapshot.table_id))
    assert manifest is not None
    flushed: FlushedGeneration = manifest.flushed_generations[0]
    return generation.read(table.store, manifest.region_id, flushed), flushed.path


def _as(store: ObjectStore, seed: int) -> KeyedTable:
    return KeyedTable(store, ids=SeededIds(seed))
