"""Sorted generations replace their inputs for readers, writers, mergers and the collector."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import CommitConflict, Corrupt
from storage_core.data.formats import keys, region_manifest
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.formats.region_manifest import RECORDS_FILE, FlushedGeneration, Generation, RegionManifest
from storage_core.data.settings.table import TableConfig
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Kind
from storage_core.maintain.history import restore
from storage_core.maintain.repair import repair
from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.write.region import captured_regions, generation, generation_write, merge, router
from storage_core.write.region.generation import CHUNK_RECORDS
from storage_core.write.region.generation_write import SortingResult, SortingTerms, SortingWork
from storage_core.write.region.manifest import read_latest, region_of
from storage_core.write.region.records import RecordBuilder
from storage_core.write.region.repartition import close_regions
from storage_core.write.region.spec import whole_table
from tests.support.clock import ManualClock
from tests.support.copies import copy_of
from tests.support.ids import SeededIds
from tests.support.keyed_table import PLANES, KeyedTable, base_seats, seats

SOON = SortingTerms(generations=1)
RAW_WRITER = "5f0c1c7a-5a9e-4a4f-8f8c-0a8f3b1f2c11"


def new_table() -> KeyedTable:
    return KeyedTable(MemoryStore("planes")).create()


def flush(table: KeyedTable, *generations: Mapping[str, int | None]) -> None:
    """Flush one generation for each argument, a map of planes to seats. The value None deletes a plane."""
    with table.writer() as writer:
        for planes in generations:
            for name, seats in planes.items():
                if seats is None:
                    writer.delete([name])
                else:
                    writer.put({"tailnum": name, "seats": seats})
            writer.flush()


def planned(table: KeyedTable, terms: SortingTerms = SOON) -> SortingWork:
    (work,) = generation_write.plan_sort(table.store, table.snapshot, terms=terms)
    return SortingWork.from_json(work.to_json())


def executed(table: KeyedTable, work: SortingWork) -> SortingResult:
    result = generation_write.execute_sort(table.store, work, clock=table.clock, ids=table.ids)
    return SortingResult.from_json(result.to_json())


def finish(table: KeyedTable, work: SortingWork, result: SortingResult) -> None:
    generation_write.finish(table.store, work, result, clock=table.clock, writer_id=table.ids.uuid())


def sort(table: KeyedTable) -> None:
    work = planned(table)
    finish(table, work, executed(table, work))


def manifest(table: KeyedTable) -> RegionManifest:
    found = read_latest(table.store, region_of(table.snapshot.table_id))
    assert found is not None
    return found


def ranges(table: KeyedTable) -> list[tuple[int, int]]:
    return [(each.first, each.generation) for each in manifest(table).flushed_generations]


def as_other(table: KeyedTable, seed: int, store: ObjectStore | None = None) -> KeyedTable:
    return KeyedTable(store or table.store, ids=SeededIds(seed), clock=table.clock)


def test_a_sorted_generation_has_one_record_per_key_in_order_and_deletes_stay() -> None:
    table = new_table()
    flush(table, {"b": 1, "gone": 1})
    table.merge()
    flush(table, {"c": 2, "a": 2}, {"b": 3, "gone": None}, {"a": 4})
    sort(table)
    assert ranges(table) == [(1, 1), (2, 4)]
    assert seats(table) == {"a": 4, "b": 3, "c": 2}
    region = manifest(table)
    opened = generation.read(table.store, region.region_id, region.flushed_generations[-1])
    records = pa.concat_tables(generation.read_records(table.store, opened)).to_pylist()
    assert [(each["tailnum"], each["_op"]) for each in records] == [("a", 0), ("b", 0), ("c", 0), ("gone", 2)]
    assert opened.records == 4
    table.merge()
    assert base_seats(table) == {"a": 4, "b": 3, "c": 2}


def test_more_than_thirty_unsorted_generations_are_due_and_fewer_only_by_their_size() -> None:
    table = new_table()
    flush(table, *({f"n{number}": number} for number in range(30)))
    assert generation_write.plan_sort(table.store, table.snapshot) == []
    assert len(planned(table, SortingTerms(size_bytes=100)).generations) == 30
    flush(table, {"last": 1})
    assert len(planned(table, SortingTerms()).generations) == 31
    sort(table)
    assert generation_write.plan_sort(table.store, table.snapshot, terms=SortingTerms(size_bytes=0)) == [], (
        "nothing unsorted is left"
    )


def test_a_run_is_bounded_by_records_and_takes_at_least_one_generation() -> None:
    table = new_table()
    flush(table, {"a": 1, "b": 1}, {"c": 1}, {"d": 1, "e": 1, "f": 1, "g": 1}, {"h": 1})
    table_terms = SortingTerms(generations=0, run_records=3)
    taken = []
    while works := generation_write.plan_sort(table.store, table.snapshot, terms=table_terms):
        taken.append([each.generation for each in works[0].generations])
        finish(table, works[0], executed(table, works[0]))
    assert taken == [[1, 2], [3], [4]]
    assert ranges(table) == [(1, 2), (3, 3), (4, 4)]
    assert len(seats(table)) == 8
    work = merge.plan(table.store, table.snapshot)[0]
    assert [(each.first, each.generation) for each in work.generations] == [(1, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize("what", ["flush", "claim", "close", "distribute", "merge"])
def test_whatever_others_commit_between_plan_and_commit_is_carried_on(what: str) -> None:
    table = new_table()
    writer = table.writer()
    for number in range(3):
        writer.put({"tailnum": f"n{number}", "seats": number})
        writer.flush()
    writer.put({"tailnum": "tail", "seats": 9})
    work = planned(table)
    result = executed(table, work)
    before = manifest(table)
    other = as_other(table, 5)
    meanwhile: dict[str, Callable[[], object]] = {
        "flush": writer.flush,
        "claim": lambda: other.writer().close(),
        "close": lambda: close_regions(other.store, other.snapshot, successor=2, clock=other.clock, ids=other.ids),
        "distribute": lambda: distribute(other, "distributed"),
        "merge": table.merge,
    }
    meanwhile[what]()
    between = manifest(table)
    finish(table, work, result)
    after = manifest(table)
    expected = {"n0": 0, "n1": 1, "n2": 2, "tail": 9} | ({"distributed": 7} if what == "distribute" else {})
    assert seats(table) == expected
    assert (after.writer_epoch, after.closed_by, after.distributed) == (
        between.writer_epoch,
        between.closed_by,
        between.distributed,
    )
    assert (after.current_generation, after.replay_after_wal_id) == (
        between.current_generation,
        between.replay_after_wal_id,
    )
    assert (between == before) == (what == "merge")
    table.merge_all()
    flushed = {name for name in expected if name != "tail" or after.current_generation > 4}
    assert base_seats(table) == {name: expected[name] for name in flushed}


def distribute(table: KeyedTable, name: str, *, delete: bool = False) -> None:
    builder = RecordBuilder(PLANES, ("tailnum",))
    records = builder.deletes([name]) if delete else builder.puts({"tailnum": name, "seats": 7})
    region = whole_table(table.snapshot.table_id)
    turn = router.claim_region(table.store, table.snapshot, region, clock=table.clock, ids=table.ids)
    written = router.write_distributed(table.store, records, ("tailnum",), turn=turn, clock=table.clock, ids=table.ids)
    last = router.offsets(table.store, turn.region).get(RAW_WRITER, 0)
    stretch = router.ChunkRange(writer=RAW_WRITER, after=last, last=last + 1)
    router.finish(table.store, turn, written.path, [stretch], clock=table.clock, writer_id=table.ids.uuid())


def test_a_live_writer_flushes_over_a_sort_and_is_not_fenced() -> None:
    table = new_table()
    writer = table.writer()
    for number in range(6):
        writer.put({"tailnum": "a", "seats": number})
        writer.flush()
        if number % 2:
            sort(table)
            writer.put({"tailnum": "b", "seats": number})
    assert ranges(table) == [(1, 2), (3, 4), (5, 6)]
    assert seats(table) == {"a": 5, "b": 5}
    assert manifest(table).writer_epoch == 1


def test_of_two_sorters_one_wins_and_the_other_plans_again() -> None:
    table = new_table()
    flush(table, {"a": 1}, {"a": 2}, {"b": 3})
    first, second = planned(table), planned(table)
    done = executed(table, first), executed(table, second)
    finish(table, first, done[0])
    with pytest.raises(CommitConflict, match="which its manifest does not list"):
        finish(table, second, done[1])
    assert generation_write.plan_sort(table.store, table.snapshot, terms=SOON) == []
    assert seats(table) == {"a": 2, "b": 3}


def merged_in_part() -> KeyedTable:
    """Make a table whose generations 1 and 2 were merged during a sort of generations 1 to 4."""
    table = new_table()
    with table.writer() as writer:
        writer.put([{"tailnum": "a", "seats": 1}, {"tailnum": "b", "seats": 1}, {"tailnum": "c", "seats": 1}])
        writer.flush()
        writer.patch({"tailnum": "a", "model": "x"})
        writer.delete(["b"])
        writer.flush()
        snapshot = table.snapshot
        (merging,) = merge.plan(table.store, snapshot)
        writer.reset({"tailnum": "b", "seats": 3})
        writer.flush()
    distribute(table, "distributed")
    sort(table)
    table.commit(snapshot, merging, table.execute(merging))
    return table


def test_of_a_sorted_generation_that_is_merged_in_part_the_rest_is_read_and_merged() -> None:
    table = merged_in_part()
    assert ranges(table) == [(1, 4)]
    assert seats(table) == {"a": 1, "b": 3, "c": 1, "distributed": 7}
    (work,) = merge.plan(table.store, table.snapshot)
    assert [(each.first, each.generation, each.sorted_from) for each in work.generations] == [(3, 3, 0), (4, 4, 0)]
    table.merge()
    assert base_seats(table) == {"a": 1, "b": 3, "c": 1, "distributed": 7}
    assert merge.plan(table.store, table.snapshot) == []


def test_what_a_restore_took_back_does_not_return_with_a_sorted_generation() -> None:
    table = merged_in_part()
    restore(table.log, table.log.snapshot(version=0))
    assert seats(table) == {"b": 3, "distributed": 7}, "generations 1 and 2 are merged, and taken back"
    table.merge()
    assert base_seats(table) == {"b": 3, "distributed": 7}


def damage(store: ObjectStore, clock: ManualClock) -> list[tuple[Kind, str]]:
    """Return the findings of a deep check, without objects that wait for the collector."""
    found = fsck(store, clock=clock, deep=True).findings
    return [(each.kind, each.key) for each in found if each.kind is not Kind.UNREFERENCED]


def test_fsck_and_repair_know_a_sorted_generation_and_one_that_is_merged_in_part() -> None:
    whole = new_table()
    flush(whole, {"a": 1}, {"b": 2}, {"a": 3})
    distribute(whole, "distributed")
    sort(whole)
    flush(whole, {"c": 4})
    for table in (whole, merged_in_part()):
        assert damage(table.store, table.clock) == []
        target = MemoryStore("target")
        repair(table.store, target, clock=table.clock, ids=SeededIds(7))
        assert seats(KeyedTable(target)) == seats(table)
        assert damage(target, table.clock) == []


def test_a_damaged_sorted_file_is_a_finding_and_repair_takes_what_it_replaced() -> None:
    table = new_table()
    flush(table, {"a": 1}, {"b": 2}, {"a": 3})
    distribute(table, "distributed")
    sort(table)
    expected = seats(table)
    last = manifest(table).flushed_generations[-1]
    key = keys.generation_file_key(manifest(table).region_id, last.path, RECORDS_FILE)
    data = bytearray(table.store.get(key).data)
    data[len(data) // 2] ^= 1
    table.store.put(key, bytes(data), Overwrite())
    with pytest.raises(Corrupt, match=key):
        table.rows()
    assert damage(table.store, table.clock) == [(Kind.GENERATION_DAMAGED, key)]
    target = MemoryStore("target")
    repair(table.store, target, clock=table.clock, ids=SeededIds(7))
    assert seats(KeyedTable(target)) == expected


def test_a_repair_behind_a_lost_merge_reads_what_it_deleted_from_a_file_of_records() -> None:
    table = new_table()
    flush(table, {"a": 1, "b": 1, "c": 1})
    table.merge()
    distribute(table, "b", delete=True)
    distribute(table, "a")
    table.merge()
    assert seats(table) == {"a": 7, "c": 1}
    region = manifest(table)
    last = region.flushed_generations[-1]
    table.store.delete([keys.generation_file_key(region.region_id, last.path, RECORDS_FILE)])
    assert repaired_without_log(table) == ({"a": 7, "c": 1}, True), "nobody knows what the lost records deleted"


@pytest.mark.parametrize("in_part", [False, True], ids=["merged whole", "merged in part"])
def test_a_repair_behind_a_lost_merge_lays_a_sorted_generation_over_the_base_again(in_part: bool) -> None:
    table = new_table()
    flush(table, {"a": 1, "b": 1})
    table.merge()
    flush(table, {"a": None, "e": 2}, {"c": 2}, {"b": None})
    snapshot = table.snapshot
    works = merge.plan(table.store, snapshot, max_records=2 if in_part else 10)
    sort(table)
    for work in works if in_part else merge.plan(table.store, snapshot):
        table.commit(snapshot, work, table.execute(work))
    assert snapshot.version < table.snapshot.version
    assert seats(table) == {"c": 2, "e": 2}
    assert repaired_without_log(table) == ({"c": 2, "e": 2}, False)


def repaired_without_log(table: KeyedTable) -> tuple[dict[object, object], bool]:
    """Repair without the log. Return the seats of all planes, and whether deleted rows may be live again."""
    kinds = {KeyKind.VERSION, KeyKind.STATE, KeyKind.MANIFEST, KeyKind.LAST_CHECKPOINT}
    parsed = [keys.parse(info.key) for info in table.store.list("")]
    table.store.delete([each.key for each in parsed if each is not None and each.kind in kinds])
    target = MemoryStore("target")
    outcome = repair(table.store, target, clock=table.clock, ids=SeededIds(7))
    return seats(KeyedTable(target)), any("may be live again" in each.reason for each in outcome.lost)


def collecting() -> KeyedTable:
    clock = ManualClock(step_ms=1)
    config = TableConfig(
        primary_key=("tailnum",), checkpoint_interval=0, version_retention_ms=HOUR_MS, gc_horizon_ms=HOUR_MS
    )
    return KeyedTable(MemoryStore("planes", clock=clock), clock=clock).create(config=config)


def collect_all(table: KeyedTable) -> None:
    for _ in range(4):
        table.clock.sleep_ms(2 * HOUR_MS)
        collect(table.store, table.log, clock=table.clock)


def objects(table: KeyedTable, kind: KeyKind) -> set[int | None]:
    parsed = [keys.parse(info.key) for info in table.store.list("")]
    found = [each for each in parsed if each is not None and each.kind is kind]
    return {each.entry if kind is KeyKind.WAL_ENTRY else each.generation for each in found}


def test_what_was_sorted_is_collected_with_its_entries_after_the_horizon_and_rows_stay() -> None:
    table = collecting()
    flush(table, {"a": 1}, {"b": 2}, {"a": 3})
    sort(table)
    flush(table, {"c": 4})
    collect(table.store, table.log, clock=table.clock)
    assert objects(table, KeyKind.GENERATION_FILE) == {1, 2, 3, 4}, "a reader may have captured them a moment ago"
    collect_all(table)
    assert objects(table, KeyKind.GENERATION_FILE) == {3, 4}
    assert objects(table, KeyKind.WAL_ENTRY) == {1, 5, 6}, "the sentinels, and the entry of generation 4"
    assert seats(table) == {"a": 3, "b": 2, "c": 4}
    assert damage(table.store, table.clock) == []
    table.merge()
    table.log.checkpoint(table.snapshot)
    collect_all(table)
    assert objects(table, KeyKind.GENERATION_FILE) == set()
    assert objects(table, KeyKind.WAL_ENTRY) == {1, 5}
    assert seats(table) == {"a": 3, "b": 2, "c": 4}


def test_what_was_sorted_stays_while_a_retained_version_has_merged_a_part_of_it() -> None:
    table = collecting()
    flush(table, {"a": 1}, {"b": 2}, {"c": 3})
    snapshot = table.snapshot
    (merging,) = merge.plan(table.store, snapshot, max_records=1)
    assert len(merging.generations) == 1
    result = table.execute(merging)
    sort(table)
    table.commit(snapshot, merging, result)
    table.log.checkpoint(table.snapshot)
    collect_all(table)
    assert objects(table, KeyKind.GENERATION_FILE) == {2, 3}
    assert objects(table, KeyKind.WAL_ENTRY) == {1, 3, 4}
    assert seats(table) == {"a": 1, "b": 2, "c": 3}
    table.merge()
    table.log.checkpoint(table.snapshot)
    collect_all(table)
    assert objects(table, KeyKind.GENERATION_FILE) == set()
    assert base_seats(table) == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize("generations", [2, 7])
def test_requests_of_a_sort(generations: int) -> None:
    made = new_table()
    flush(made, *({"a": number} for number in range(generations)))
    store = MeteredStore(copy_of(made.store))
    table, snapshot = as_other(made, 5, store), made.snapshot
    (work,) = generation_write.plan_sort(store, snapshot, terms=SortingTerms(generations=0))
    assert _since(store, {}) == {"get": 2 + generations, "head": 1}
    before = store.requests
    result = executed(table, work)
    assert _since(store, before) == {"get": 2 * generations, "put": 3}, "manifest and entry of each"
    before = store.requests
    finish(table, work, result)
    assert _since(store, before) == {"get": 2 + 3, "head": 1, "put": 2}, "it reads back what the manifest copies"


def _since(store: MeteredStore, before: dict[str, int]) -> dict[str, int]:
    now = {kind: count - before.get(kind, 0) for kind, count in store.requests.items()}
    return {kind: count for kind, count in now.items() if count}


def large() -> tuple[KeyedTable, Generation]:
    table = new_table()
    with table.writer() as writer:
        for part in range(2):
            writer.put([{"tailnum": f"n{number:06}", "seats": part} for number in range(part, 4 * CHUNK_RECORDS, 2)])
            writer.flush()
    sort(table)
    region = manifest(table)
    return table, generation.read(table.store, region.region_id, region.flushed_generations[-1])


def test_lookups_in_a_sorted_generation_read_the_chunks_of_their_keys() -> None:
    table, held = large()
    assert len(held.chunks) == 4
    where = keys.generation_file_key(held.region, held.path, RECORDS_FILE)
    whole = table.store.head(where).size

    def look_up(*names: str) -> tuple[list[object], int, int]:
        store = MeteredStore(table.store)
        found = [
            row["tailnum"] for part in captured_regions.find(store, [held], _keys(*names)) for row in part.to_pylist()
        ]
        return found, store.requests["get"], store.bytes_read

    assert look_up("n000100")[:2] == (["n000100"], 2), "the filter and one chunk"
    assert look_up("n000100x")[:2] == ([], 1), "the filter denies it"
    assert look_up("n000000", "n016384", "n016385")[:2] == (["n000000", "n016384", "n016385"], 3), "two chunks apart"
    assert look_up("n008191", "n008192")[:2] == (["n008191", "n008192"], 2), "neighbours are one request"
    assert max(each.length for each in held.chunks) < whole / 3


def test_requests_of_a_lookup_above_the_base_when_the_generation_is_sorted() -> None:
    table, _ = large()
    snapshot = table.snapshot

    def look_up(name: str) -> tuple[int, dict[str, int]]:
        store = MeteredStore(table.store)
        captured = captured_regions.capture(store, snapshot, include_wal=False)
        before = store.requests
        return captured.above(snapshot, keys=_keys(name)).num_rows, _since(store, before)

    assert look_up("n000100") == (1, {"get": 1}), "the chunk: the region's manifest has copies of manifest and filter"
    assert look_up("n000100x") == look_up("x") == (0, {})


def _keys(*names: str) -> pa.Table:
    return pa.table({"tailnum": pa.array(names, pa.string())})


def test_a_damaged_chunk_stops_lookups_of_its_keys_only() -> None:
    table, held = large()
    where = keys.generation_file_key(held.region, held.path, RECORDS_FILE)
    data = bytearray(table.store.get(where).data)
    data[held.chunks[1].start + held.chunks[1].length // 2] ^= 1
    table.store.put(where, bytes(data), Overwrite())
    assert [part.num_rows for part in captured_regions.find(table.store, [held], _keys("n000100"))] == [1]
    with pytest.raises(Corrupt, match=where):
        list(captured_regions.find(table.store, [held], _keys("n010000")))
    table.store.delete([where])
    with pytest.raises(Corrupt, match="lost its records"):
        list(captured_regions.find(table.store, [held], _keys("n000100")))


def test_the_range_of_a_sorted_generation_is_part_of_what_is_checked() -> None:
    table = new_table()
    flush(table, {"a": 1}, {"b": 2})
    sort(table)
    region = manifest(table)
    (flushed,) = region.flushed_generations
    opened = generation.read(table.store, region.region_id, flushed)
    assert region_manifest.decode_generation(region_manifest.encode_generation(opened), "k") == opened
    assert region_manifest.decode_region(region_manifest.encode_region(region), "k") == region
    with pytest.raises(Corrupt, match="sorted from 1"):
        generation.read(table.store, region.region_id, FlushedGeneration(generation=2, path=flushed.path))
    # Early releases of 0.1 do not know the field, so the checksum of their known fields differs.
    without = region_manifest.encode_region(_unsorted(region))
    assert without[-8:] != region_manifest.encode_region(region)[-8:]


def _unsorted(region: RegionManifest) -> RegionManifest:
    flushed = tuple(
        FlushedGeneration(generation=each.generation, path=each.path) for each in region.flushed_generations
    )
    return RegionManifest(
        region_id=region.region_id,
        version=region.version,
        writer_epoch=region.writer_epoch,
        current_generation=region.current_generation,
        replay_after_wal_id=region.replay_after_wal_id,
        wal_id_last_seen=region.wal_id_last_seen,
        flushed_generations=flushed,
        region_spec_id=region.region_spec_id,
        writer_id=region.writer_id,
    )
