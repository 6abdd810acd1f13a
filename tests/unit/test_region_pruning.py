"""Removal of collected generations from region manifests: time, effect on other processes, and cost of a commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import SnapshotExpired
from storage_core.data.formats import keys
from storage_core.data.formats.region_manifest import MANIFEST_FILE, FlushedGeneration, RegionManifest
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import MergedGenerations
from storage_core.log.conflicts import MergeProgress
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import CollectionReport, collect
from storage_core.maintain.findings import Finding, Kind
from storage_core.maintain.repair import repair
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.write.region import captured_regions, generation_write, merge
from storage_core.write.region.generation_write import SortingWork
from storage_core.write.region.manifest import commit, prune_collected, read_latest, region_of
from tests.support.ids import SeededIds
from tests.support.keyed_table import ALWAYS, KeyedTable


def _table(*, retention_ms: int = 0, store: MeteredStore | None = None) -> KeyedTable:
    config = TableConfig(
        primary_key=("tailnum",), checkpoint_interval=0, version_retention_ms=retention_ms, gc_horizon_ms=0
    )
    return KeyedTable(store or MemoryStore("planes")).create(config=config)


def _flush(table: KeyedTable, *names: str) -> None:
    """Flush one generation per name."""
    with table.writer() as writer:
        for name in names:
            writer.put({"tailnum": name, "seats": 1})
            writer.flush()


def _merge(table: KeyedTable) -> None:
    table.merge_all()
    table.log.checkpoint(table.snapshot)


def _collect(table: KeyedTable, *, dry_run: bool = False) -> CollectionReport:
    return collect(table.store, table.log, clock=table.clock, dry_run=dry_run)


def _region(table: KeyedTable) -> str:
    return region_of(table.snapshot.table_id)


def _manifest(table: KeyedTable) -> RegionManifest:
    found = read_latest(table.store, _region(table))
    assert found is not None
    return found


def _listed(table: KeyedTable) -> list[int]:
    return [each.generation for each in _manifest(table).flushed_generations]


def test_what_is_merged_everywhere_and_gone_is_listed_no_more_and_all_else_stays_as_it_is() -> None:
    table = _table()
    _flush(table, "a", "b", "c")
    _merge(table)
    _flush(table, "d")
    assert _collect(table).pruned == {}, "it had objects still"
    before = _manifest(table)
    assert _listed(table) == [1, 2, 3, 4]

    assert _collect(table).pruned == {_region(table): 3}

    after = _manifest(table)
    assert after == replace(
        before,
        version=before.version + 1,
        writer_id=after.writer_id,
        flushed_generations=before.flushed_generations[3:],
        collected_generation=3,
    )
    assert after.writer_id != before.writer_id
    assert set(table.rows()) == set("abcd")
    assert _collect(table).pruned == {}
    assert _manifest(table) == after


def test_a_dry_run_says_what_would_be_pruned_and_writes_nothing() -> None:
    table = _table()
    _flush(table, "a", "b")
    _merge(table)
    _collect(table)
    before = {info.key for info in table.store.list("")}
    assert _collect(table, dry_run=True).pruned == {_region(table): 2}
    assert {info.key for info in table.store.list("")} == before


def test_what_a_retained_version_has_not_merged_stays_on_the_list() -> None:
    table = _table(retention_ms=HOUR_MS)
    _flush(table, "a")
    _merge(table)
    for _ in range(3):
        assert _collect(table).pruned == {}
    assert _listed(table) == [1]


def test_one_that_has_objects_left_keeps_those_behind_it_on_the_list() -> None:
    table = _table(retention_ms=HOUR_MS)
    _flush(table, "a", "b", "c")
    _merge(table)
    table.clock.sleep_ms(2 * HOUR_MS)
    second = _manifest(table).flushed_generations[1]
    table.store.delete([keys.generation_file_key(_region(table), second.path, MANIFEST_FILE)])
    assert _collect(table, dry_run=True).pruned == {}


def test_a_snapshot_from_before_is_refused_and_not_answered_with_rows_missing() -> None:
    table = _table()
    _flush(table, "a")
    _merge(table)
    old = table.snapshot
    _flush(table, "b", "c")
    _merge(table)
    _flush(table, "d")
    for _ in range(2):
        _collect(table)
    assert _listed(table) == [4]
    with pytest.raises(
        SnapshotExpired, match=r"up to 3 are merged and collected. This version has merged only generations up to 1"
    ):
        captured_regions.capture(table.store, old, include_wal=True).above(old)
    assert set(table.rows()) == set("abcd")


def test_a_writer_goes_on_through_it_and_so_does_the_next_one() -> None:
    table = _table()
    _flush(table, "a", "b")
    _merge(table)
    with table.writer() as writer:
        writer.put({"tailnum": "c", "seats": 1})
        for _ in range(2):
            _collect(table)
        writer.put({"tailnum": "d", "seats": 1})
        assert writer.flush() == 3
        assert _listed(table) == [3]
        assert writer.epoch == _manifest(table).writer_epoch
    _flush(table, "e")
    assert _listed(table) == [3, 4]
    assert _manifest(table).collected_generation == 2
    _merge(table)
    assert set(table.rows()) == set("abcde")


def test_the_second_of_two_collectors_and_one_that_is_late_change_nothing() -> None:
    table = _table()
    _flush(table, "a", "b", "c")
    _merge(table)
    for _ in range(2):
        _collect(table)
    before = _manifest(table)
    for generation in (1, 3):
        assert not prune_collected(
            table.store, _region(table), generation, clock=table.clock, writer_id=table.ids.uuid()
        )
    assert _manifest(table) == before


def test_a_sorted_generation_that_is_merged_in_part_is_not_pruned_until_all_of_it_is_merged() -> None:
    table = _table()
    _flush(table, "a", "b", "c")
    (work,) = generation_write.plan_sort(table.store, table.snapshot, terms=ALWAYS)
    _merge_two(table)
    _sorted(table, work)
    for _ in range(3):
        assert _collect(table).pruned == {}
    assert [(each.first, each.generation) for each in _manifest(table).flushed_generations] == [(1, 3)]
    assert set(table.rows()) == set("abc")
    _merge(table)
    for _ in range(2):
        _collect(table)
    assert (_listed(table), _manifest(table).collected_generation) == ([], 3)
    assert {row["tailnum"] for row in table.base_rows()} == set("abc")


def _merge_two(table: KeyedTable) -> None:
    """Merge with a limit of two records at once."""
    snapshot = table.snapshot
    (work,) = merge.plan(table.store, snapshot, max_records=2)
    table.commit(snapshot, work, table.execute(work))
    table.log.checkpoint(table.snapshot)


def _sorted(table: KeyedTable, work: SortingWork) -> None:
    done = generation_write.execute_sort(table.store, work, clock=table.clock, ids=table.ids)
    generation_write.finish(table.store, work, done, clock=table.clock, writer_id=table.ids.uuid())


def _damage(table: KeyedTable) -> list[Finding]:
    """Return the findings of a deep check, without objects that wait for the collector."""
    found = fsck(table.store, clock=table.clock, deep=True).findings
    return [each for each in found if each.kind is not Kind.UNREFERENCED]


def test_fsck_finds_nothing_after_it_nor_after_a_repair_and_a_gap_where_the_mark_is_above_what_is_merged() -> None:
    table = _table()
    _flush(table, "a", "b")
    _merge(table)
    for _ in range(3):
        _collect(table)
    _flush(table, "c")
    assert _damage(table) == []
    target = MemoryStore("target")
    repair(table.store, target, clock=table.clock, ids=SeededIds(7))
    assert KeyedTable(target).rows() == table.rows()
    assert _damage(KeyedTable(target)) == []
    newest = _manifest(table)
    commit(table.store, replace(newest, version=newest.version + 1, collected_generation=3), clock=table.clock)
    (finding,) = _damage(table)
    assert (finding.kind, finding.expected) == (Kind.GENERATION_GAP, "the unmerged generations 3 to 3")


class History:
    """A region with many merged generations. An early 0.1 release deleted them, but the manifest still lists them."""

    def __init__(self, generations: int) -> None:
        self.store = MeteredStore(MemoryStore("planes"))
        self.table = table = _table(store=self.store)
        table.writer().close()
        newest = _manifest(table)
        listed = tuple(
            FlushedGeneration(generation=number, path=f"0badf00d_gen_{number}") for number in range(1, generations + 1)
        )
        grown = replace(
            newest, version=newest.version + 1, current_generation=generations + 1, flushed_generations=listed
        )
        assert commit(self.store, grown, clock=table.clock)
        merged = MergedGenerations(region=newest.region_id, generation=generations)
        start = MergeProgress(newest.region_id, 0)
        table.log.commit(table.snapshot, [merged], operation="MERGE", requirements=[start])
        table.log.checkpoint(table.snapshot)
        for _ in range(2):
            _collect(table)

    def cost(self, act: Callable[[], object]) -> tuple[dict[str, int], int]:
        """Return the requests of `act`, and the size of the resulting manifest."""
        before = dict(self.store.requests)
        act()
        requests = {kind: count - before[kind] for kind, count in self.store.requests.items()}
        key = keys.region_manifest_key(_region(self.table), _manifest(self.table).version)
        return requests, self.store.head(key).size

    def costs(self) -> list[tuple[dict[str, int], int]]:
        """Return the costs of a collection, a claim and a flush."""
        collection = self.cost(lambda: _collect(self.table))
        claim = self.cost(self.table.writer)
        with self.table.writer() as writer:
            writer.put({"tailnum": "a", "seats": 1})
            return [collection, claim, self.cost(writer.flush)]


def test_ten_thousand_merged_generations_cost_a_collection_a_claim_and_a_flush_what_ten_cost() -> None:
    few, many = History(10).costs(), History(10_000).costs()
    assert [requests for requests, _ in many] == [requests for requests, _ in few]
    for (_, larger), (_, smaller) in zip(many, few, strict=True):
        assert larger - smaller <= 16, "of numbers that have a byte more, some of them twice: in a copy too"
