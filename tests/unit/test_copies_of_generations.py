"""Copies of generations in a region's manifest: the processes that write or keep them, and damaged copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from storage_core.base.errors import Corrupt
from storage_core.data.formats import keys
from storage_core.data.formats.region_manifest import BLOOM_FILE, MANIFEST_FILE, Copies
from storage_core.maintain.check import fsck as check
from storage_core.maintain.findings import Kind, Severity
from storage_core.maintain.repair import repair
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.region import generation, generation_write, router
from storage_core.write.region.manifest import read_latest, region_of
from storage_core.write.region.records import RecordBuilder
from storage_core.write.region.spec import whole_table
from tests.support.ids import SeededIds
from tests.support.keyed_table import PLANES, KeyedTable
from tests.support.region_copies import change_copies, copied_as_stored


def new_table() -> tuple[KeyedTable, str]:
    table = KeyedTable(MemoryStore("planes")).create()
    return table, region_of(table.snapshot.table_id)


def opened(table: KeyedTable) -> Table:
    return Table(MeteredStore(table.store), table.log, table.snapshot)


def distribute(table: KeyedTable) -> None:
    region = whole_table(table.snapshot.table_id)
    turn = router.claim_region(table.store, table.snapshot, region, clock=table.clock, ids=table.ids)
    records = RecordBuilder(PLANES, ("tailnum",)).puts([{"tailnum": "a", "seats": 2}])
    written = router.write_distributed(table.store, records, ("tailnum",), turn=turn, clock=table.clock, ids=table.ids)
    of_chunks = [router.ChunkRange(writer="w", after=0, last=3)]
    router.finish(table.store, turn, written.path, of_chunks, clock=table.clock, writer_id="distributor")


def test_a_flush_a_distribution_a_sort_a_claim_and_a_repair_list_generations_with_copies() -> None:
    table, region = new_table()
    for number in range(3):
        with table.writer() as writer:
            writer.put([{"tailnum": f"n{number}", "seats": number}])
            writer.flush()
    assert copied_as_stored(table.store, region) == [True] * 3
    distribute(table)
    assert copied_as_stored(table.store, region) == [True] * 4
    (work,) = generation_write.plan_sort(
        table.store, table.snapshot, terms=generation_write.SortingTerms(generations=1)
    )
    result = generation_write.execute_sort(table.store, work, clock=table.clock, ids=table.ids)
    generation_write.finish(table.store, work, result, clock=table.clock, writer_id="sorter")
    assert copied_as_stored(table.store, region) == [True]
    with table.writer():
        assert copied_as_stored(table.store, region) == [True]
    repaired = MemoryStore("repaired")
    repair(table.store, repaired, clock=table.clock, ids=SeededIds(9))
    assert copied_as_stored(repaired, region) == [True]


def test_what_cannot_be_copied_does_not_keep_a_generation_from_being_listed() -> None:
    table, region = new_table()
    with table.writer() as writer:
        writer.put([{"tailnum": "a", "seats": 1}])
        writer.flush()
    latest = read_latest(table.store, region)
    assert latest is not None
    flushed = replace(latest.flushed_generations[0], copies=Copies())
    for name in (BLOOM_FILE, MANIFEST_FILE):
        table.store.delete([keys.generation_file_key(region, flushed.path, name)])
        assert generation.with_copies(table.store, region, flushed).copies == Copies()


@pytest.mark.parametrize("name", [MANIFEST_FILE, BLOOM_FILE])
def test_a_copy_hides_no_damage_of_the_object_from_fsck_and_lookups_go_on(name: str) -> None:
    table, region = new_table()
    with table.writer() as writer:
        writer.put([{"tailnum": "a", "seats": 1}])
        writer.flush()
    latest = read_latest(table.store, region)
    assert latest is not None
    key = keys.generation_file_key(region, latest.flushed_generations[0].path, name)
    table.store.put(key, b"damaged", Overwrite())
    assert opened(table).get("a") == opened(table).get("a", consistency="committed")
    assert opened(table).get("b") is None
    found = {each.key: each.kind for each in check(table.store, clock=table.clock, deep=False).findings}
    assert found[key] is (Kind.GENERATION_DAMAGED if name == MANIFEST_FILE else Kind.BLOOM_DAMAGED)
    if name == MANIFEST_FILE:
        with pytest.raises(Corrupt, match="not a generation manifest"):
            table.merge()


@pytest.mark.parametrize(
    ("damaged", "name"),
    [
        (lambda copies: Copies(copies.manifest[:-1], copies.bloom_filter), MANIFEST_FILE),
        (lambda copies: Copies(copies.manifest, copies.bloom_filter[:-1] + b"!"), BLOOM_FILE),
    ],
    ids=["manifest", "filter"],
)
def test_fsck_names_a_damaged_copy_of_which_nothing_is_lost(damaged: Callable[[Copies], Copies], name: str) -> None:
    table, region = new_table()
    with table.writer() as writer:
        writer.put([{"tailnum": "a", "seats": 1}])
        writer.flush()
    assert check(table.store, clock=table.clock, deep=True).findings == ()
    change_copies(opened(table), damaged)
    latest = read_latest(table.store, region)
    assert latest is not None
    (finding,) = check(table.store, clock=table.clock, deep=True).findings
    assert (finding.kind, finding.severity) == (Kind.GENERATION_COPY_DAMAGED, Severity.WARNING)
    assert finding.key == keys.region_manifest_key(region, latest.version)
    assert name in finding.expected
