"""Manual regions: they are written, read and merged like the regions of the spec, but are not part of the spec."""

from __future__ import annotations

import itertools
import json
import uuid
from collections import Counter

import pyarrow as pa
import pytest

from storage_core.base.clock import SystemIds
from storage_core.base.errors import CommitConflict, InvalidInput, Unsupported, WriterFenced
from storage_core.change.statements import change
from storage_core.data.formats.keys import region_registry_key
from storage_core.log import actions, snapshot
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Severity
from storage_core.maintain.repair import repair
from storage_core.store.resolve import open_store
from storage_core.write.region import merge as merging
from storage_core.write.region.manifest import read_latest
from storage_core.write.region.records import RecordBuilder
from storage_core.write.region.spec import hand_region, list_regions, read_registry
from tests.support.keyed_table import commit_merges
from tidemark import Table, col

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
REGIONS = [{"transform": "bucket", "source": "id", "n": 2}]
_names = itertools.count()


def new_table(*, by_hand: bool = True, **options: object) -> Table:
    chosen: dict[str, object] = {"primary_key": "id", "regions": REGIONS, **options}
    place = f"memory://by-hand-{next(_names)}"
    return Table.create(place, SCHEMA, settings={"regions_by_hand": by_hand}, **chosen)  # type: ignore[arg-type]


@pytest.fixture(params=["of several regions", "of one region"])
def table(request: pytest.FixtureRequest) -> Table:
    return new_table(regions=REGIONS if request.param == "of several regions" else ())


def put(table: Table, region: str | None, names: dict[int, str], *, flush: bool = True) -> None:
    with table.writer(region=region) as writer:
        writer.put([{"id": number, "name": name} for number, name in names.items()])
        if flush:
            writer.flush()


def seen(table: Table, consistency: str = "latest") -> dict[int, str]:
    rows = table.scan(consistency=consistency).to_arrow().to_pylist()
    assert max(Counter(row["id"] for row in rows).values(), default=1) == 1
    return {row["id"]: row["name"] for row in rows}


def merge_once(table: Table, regions: list[str] | None = None) -> bool:
    head = table.log.snapshot()
    works = merging.plan(table.store, head, regions=regions)
    done = [merging.execute(table.store, each, ids=SystemIds(), now_ms=table.log.clock.now_ms()) for each in works]
    if works:
        commit_merges(table.log, head, works, done)
    table.refresh()
    return bool(works)


def merge(table: Table) -> None:
    while merge_once(table):
        pass


def merge_region(table: Table, name: str | None) -> None:
    by_hand = hand_region(table.snapshot.table_id, "x").id
    known = [each.region_id for each in list_regions(table.store, table.snapshot)]
    assert merge_once(table, [each for each in known if (each == by_hand) == (name is not None)])


def test_rows_written_by_hand_are_seen_at_every_level_before_and_after_the_merge(table: Table) -> None:
    put(table, None, {1: "routed", 2: "routed"})
    put(table, "import-2026", {3: "by hand", 4: "by hand"})
    put(table, "import-2026", {5: "in the log"}, flush=False)
    flushed = {1: "routed", 2: "routed", 3: "by hand", 4: "by hand"}
    everything = flushed | {5: "in the log"}
    reader = Table.open(table.uri)
    assert (seen(reader), seen(reader, "committed"), seen(reader, "snapshot")) == (everything, flushed, {})
    for number, name in everything.items():
        assert reader.get(number) == {"id": number, "name": name}
        assert reader.scan(filter=col("id") == number, consistency="latest").to_arrow().to_pylist() == [
            {"id": number, "name": name}
        ]
        assert reader.explain_get(number).to_dict()["regions"]
    assert reader.sql("select count(*) as n from t where id between 2 and 5", consistency="latest").to_pylist() == [
        {"n": 4}
    ]
    pages = reader.read_history_pages()
    assert sum(page.records.num_rows for page in pages) == len(everything)
    with table.writer(region="import-2026") as writer:
        writer.flush()
    merge(table)
    assert seen(table, "snapshot") == everything == seen(table)
    assert fsck(table.store, clock=table.log.clock).findings == ()


def test_the_region_is_named_by_its_text_and_described_with_it() -> None:
    table = new_table()
    put(table, 'import "2026"', {1: "a"})
    name = "region:0:" + json.dumps(['import "2026"'], separators=(",", ":"))
    region = str(uuid.uuid5(uuid.UUID(table.snapshot.table_id), name))
    [listed] = list_regions(table.store, table.snapshot)
    assert (listed.region_id, listed.values) == (region, ('import "2026"',))
    manifest = read_latest(table.store, region)
    assert manifest is not None
    assert manifest.region_spec_id == 0
    assert table.describe()["settings"]["regions_by_hand"] is True  # type: ignore[index]  # plain data


def test_of_two_writers_of_one_name_the_later_fences_the_earlier_and_no_other(table: Table) -> None:
    with table.writer(region="b") as other:
        first = table.writer(region="a")
        first.put({"id": 1, "name": "first"})
        with table.writer(region="a") as second:
            with pytest.raises(WriterFenced):
                first.put({"id": 1, "name": "late"})
            second.put({"id": 2, "name": "second"})
        other.put({"id": 3, "name": "other"})
    assert seen(table) == {1: "first", 2: "second", 3: "other"}


@pytest.mark.parametrize("consistency", ["latest", "committed", "snapshot"])
def test_a_search_finds_rows_written_by_hand(table: Table, consistency: str) -> None:
    table.alter({"indexes": [{"name": "words", "kind": "fulltext", "columns": ["name"]}]})
    put(table, None, {1: "routed word"})
    put(table, "a", {2: "flushed word"})
    put(table, "a", {3: "logged word"}, flush=False)
    if consistency == "snapshot":
        with table.writer(region="a") as writer:
            writer.flush()
        merge(table)
    found = table.search("word", index="words", consistency=consistency).column("id").to_pylist()
    assert sorted(found) == ([1, 2] if consistency == "committed" else [1, 2, 3])


def test_a_lost_registry_is_made_again_with_the_regions_by_hand(table: Table) -> None:
    put(table, None, {1: "routed"})
    put(table, "a", {2: "by hand"})
    table.store.delete([region_registry_key()])
    assert seen(Table.open(table.uri)) == {1: "routed", 2: "by hand"}
    put(table, "b", {3: "by hand"})
    reader = Table.open(table.uri)
    assert seen(reader) == {1: "routed", 2: "by hand", 3: "by hand"}
    assert [reader.get(number) is None for number in (1, 2, 3, 4)] == [False, False, False, True]
    assert len(read_registry(table.store).of_spec(0)) == 2
    merge(table)
    assert seen(table, "snapshot") == {1: "routed", 2: "by hand", 3: "by hand"}


def test_a_table_without_the_setting_refuses_a_name_until_it_is_altered_and_then_keeps_it() -> None:
    table = new_table(by_hand=False)
    before = Table.open(table.uri)
    with pytest.raises(InvalidInput, match="Alter the table with regions_by_hand: true"):
        table.writer(region="a")
    table.alter({"regions_by_hand": True})
    put(table, "a", {1: "by hand"})
    assert seen(before) == {1: "by hand"}, "a reader from before looks again"
    with pytest.raises(InvalidInput, match="cannot become false"):
        table.alter({"regions_by_hand": None})
    with pytest.raises(InvalidInput, match="not empty"):
        table.writer(region="")
    table.restore(0)
    assert table.config.regions_by_hand
    assert seen(table) == {1: "by hand"}


def test_a_release_before_refuses_and_tables_without_such_regions_need_no_feature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, without = new_table(), new_table(by_hand=False)
    assert actions.HAND_REGIONS_FEATURE not in (without.snapshot.protocol.readerFeatures or ())
    for features in (table.snapshot.protocol.readerFeatures, table.snapshot.protocol.writerFeatures):
        assert actions.HAND_REGIONS_FEATURE in (features or ())
    monkeypatch.setattr(snapshot, "FEATURES", actions.FEATURES - {actions.HAND_REGIONS_FEATURE})
    with pytest.raises(Unsupported, match="regionsByHand"):
        Table.open(table.uri)
    assert Table.open(without.uri).version == 0


def test_changing_the_regions_leaves_those_by_hand_as_they_are(table: Table) -> None:
    put(table, None, {1: "routed"})
    with table.writer(region="a") as writer:
        writer.put({"id": 2, "name": "before"})
        table.set_regions([{"transform": "bucket", "source": "id", "n": 3}])
        assert seen(table, "snapshot") == {1: "routed"}
        writer.put({"id": 3, "name": "after"})
        put(table, None, {4: "routed"})
        assert seen(table) == {1: "routed", 2: "before", 3: "after", 4: "routed"}
    table.set_regions([])
    assert seen(table) == {1: "routed", 2: "before", 3: "after", 4: "routed"}
    assert seen(table, "snapshot") == {1: "routed", 4: "routed"}


@pytest.mark.parametrize("merged", [False, True], ids=["unmerged", "merged before"])
def test_statements_write_where_the_unmerged_record_of_a_key_is(table: Table, *, merged: bool) -> None:
    put(table, None, {1: "routed", 2: "routed"})
    put(table, "a", {3: "a", 4: "a"})
    put(table, "b", {5: "b"}, flush=False)
    if merged:
        merge(table)
    table.delete(col("id").isin([1, 3]))
    table.update({"name": "changed"}, col("id").isin([2, 4, 5]))
    expected = {2: "changed", 4: "changed", 5: "changed"}
    assert seen(table) == expected
    with table.writer(region="a") as writer:
        writer.put({"id": 6, "name": "later"})
        writer.flush()
    merge(table)
    assert seen(table) == seen(table, "snapshot") == expected | {6: "later"}


def test_a_statement_judges_each_key_once_also_where_a_merge_moves_it_between_attempts(table: Table) -> None:
    put(table, None, {1: "1"})
    put(table, "a", {2: "1"})
    judged: list[list[int]] = []
    reads = 0

    def matching() -> tuple[Snapshot, pa.Table]:
        nonlocal reads
        reads += 1
        if reads == 2:
            merge(table)  # now no region except the manual region has key 2
        found = Table.open(table.uri)
        rows = found.scan(filter=col("id") < 9, consistency="latest").to_arrow()
        if reads == 1:
            put(table, "a", {9: "meanwhile"})
        return found.snapshot, rows

    def records(head: Snapshot, rows: pa.Table) -> pa.Table:
        judged.append(sorted(rows.column("id").to_pylist()))
        return RecordBuilder(head.schema, ("id",)).deletes(rows.select(["id"]))

    assert change(table.log, table.snapshot, matching, records).rows == 2
    assert reads == 2
    assert judged == [[2], [1], [2]], "the attempt on the region by hand failed, that on the other was done"
    assert seen(table) == {9: "meanwhile"}


def test_a_statement_does_not_stop_the_writer_of_a_region_by_hand(table: Table) -> None:
    with table.writer(region="a") as writer:
        writer.put([{"id": 1, "name": "a"}, {"id": 2, "name": "a"}])
        table.delete(col("id") == 1)
        writer.put({"id": 3, "name": "a"})
    assert seen(table) == {2: "a", 3: "a"}


@pytest.mark.parametrize("first", ["x", None], ids=["by hand first", "by hand last"])
def test_where_a_key_is_in_two_regions_the_base_has_what_was_merged_last(table: Table, first: str | None) -> None:
    put(table, "x", {1: "by hand"})
    put(table, None, {1: "routed"})
    assert seen(table) == {1: "by hand"}, "unmerged records of the spec's region come below those by hand"
    assert table.get(1) == {"id": 1, "name": "by hand"}
    merge_region(table, first)
    merge(table)
    assert seen(table, "snapshot") == {1: "routed" if first else "by hand"}


def test_two_merges_that_know_nothing_of_each_other_never_both_commit(table: Table) -> None:
    put(table, "x", {1: "x"})
    put(table, "y", {1: "y"})
    head = table.log.snapshot()
    plans = [merging.plan(table.store, head, regions=[hand_region(head.table_id, name).id]) for name in "xy"]
    done = [[merging.execute(table.store, each, ids=SystemIds(), now_ms=1) for each in works] for works in plans]
    commit_merges(table.log, head, plans[0], done[0])
    with pytest.raises(CommitConflict, match="run one merge at a time"):
        commit_merges(table.log, head, plans[1], done[1])
    merge(table)
    assert seen(table, "snapshot") == {1: "y"}


def test_a_merge_that_was_planned_before_the_setting_does_not_commit_after_it() -> None:
    table = new_table(by_hand=False)
    put(table, None, {1: "routed"})
    head = table.log.snapshot()
    works = merging.plan(table.store, head)
    done = [merging.execute(table.store, each, ids=SystemIds(), now_ms=1) for each in works]
    table.alter({"regions_by_hand": True})
    put(table, "a", {1: "by hand"})
    assert merge_once(table, [hand_region(head.table_id, "a").id])
    with pytest.raises(CommitConflict, match="regions by hand"):
        commit_merges(table.log, head, works, done)
    merge(table)
    assert seen(table, "snapshot") == {1: "routed"}


def test_every_region_has_its_turn_to_be_merged_whatever_else_commits(table: Table) -> None:
    names = "abc"
    for name in names:
        put(table, name, {ord(name): name})
    for _ in range(30):
        put(table, None, {1: "routed"})
        table.alter({"checkpoint.interval": table.version + 1})
        merge_once(table)
    assert seen(table, "snapshot").items() >= {ord(name): name for name in names}.items()


def test_collection_and_forgetting_reach_regions_by_hand() -> None:
    table = new_table(regions=())
    table.alter({"gc.horizon": "0s", "gc.retention": "0s"})
    put(table, "a", {1: "gone", 2: "kept"})
    put(table, "b", {3: "gone"})
    table.forget(col("name") == "gone")
    assert seen(table) == {2: "kept"}
    for _ in range(2):
        collect(table.store, table.log, clock=table.log.clock, horizon_ms=0)
    assert seen(Table.open(table.uri)) == {2: "kept"}
    assert fsck(table.store, clock=table.log.clock).count(Severity.ERROR) == 0


def test_a_repair_keeps_rows_that_wait_in_regions_by_hand(table: Table) -> None:
    put(table, None, {1: "routed"})
    put(table, "a", {2: "merged"})
    merge(table)
    put(table, "a", {3: "flushed"})
    put(table, "a", {4: "in the log"}, flush=False)
    target = f"{table.uri}-repaired"
    repair(table.store, open_store(target), clock=table.log.clock, ids=SystemIds())
    repaired = Table.open(target)
    assert seen(repaired) == {1: "routed", 2: "merged", 3: "flushed", 4: "in the log"}
    put(repaired, "a", {5: "again"})
    merge(repaired)
    assert seen(repaired, "snapshot") == {1: "routed", 2: "merged", 3: "flushed", 4: "in the log", 5: "again"}
