"""A table with several regions through `Table`: writes, pruned reads, lookups of many keys, declarations."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.clock import SystemIds
from storage_core.base.errors import InvalidInput
from storage_core.change.declaration import load
from storage_core.write.region.router import RoutingWriter, TableWriter
from storage_core.write.region.spec import list_regions
from storage_core.write.region.writer import RegionWriter
from tests.support.keyed_table import KeyedTable
from tidemark import Table, col

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
REGIONS = [{"transform": "bucket", "source": "id", "n": 4}]
IDS = range(100)

_names = itertools.count()


def new_table(**options: object) -> Table:
    chosen: dict[str, object] = {"primary_key": "id", "regions": REGIONS, **options}
    return Table.create(f"memory://regions-{next(_names)}", SCHEMA, **chosen)  # type: ignore[arg-type]  # by name


@pytest.fixture
def table() -> Table:
    return new_table()


def rows(name: str, ids: range = IDS) -> list[dict[str, object]]:
    return [{"id": number, "name": name} for number in ids]


def merge(table: Table) -> None:
    merger = KeyedTable(table.store, ids=SystemIds())
    merger.merge_all()
    table.refresh()


def requests(table: Table, before: dict[str, int]) -> dict[str, int]:
    after = table.store.requests
    return {kind: after[kind] - before[kind] for kind in after if after[kind] != before[kind]}


def test_a_table_of_one_region_has_the_writer_it_always_had() -> None:
    with new_table(regions=()).writer() as writer:
        assert isinstance(writer, RegionWriter)


def test_rows_come_back_at_every_level_wherever_they_lie(table: Table) -> None:
    table.append(rows("merged"))
    merge(table)
    with table.writer() as writer:
        assert isinstance(writer, RoutingWriter)
        writer.put(rows("flushed", range(50)))
        writer.flush()
        writer.put(rows("live", range(10)))
    expected = {number: "live" if number < 10 else "flushed" if number < 50 else "merged" for number in IDS}
    latest = {row["id"]: row["name"] for row in table.scan(consistency="latest").to_arrow().to_pylist()}
    assert latest == expected
    assert {number: (table.get(number) or {})["name"] for number in (0, 20, 99)} == {
        0: "live",
        20: "flushed",
        99: "merged",
    }
    names = table.sql("select name, count(*) as n from t group by 1 order by 1", consistency="committed")
    assert names.to_pylist() == [{"name": "flushed", "n": 50}, {"name": "merged", "n": 50}]
    described = table.describe()["regions"]
    assert isinstance(described, list)
    assert len(described) == 4


def test_many_keys_are_answered_in_their_order_and_missing_ones_are_none(table: Table) -> None:
    table.append(rows("merged"))
    merge(table)
    with table.writer() as writer:
        writer.put(rows("new", range(5)))
        writer.delete([7])
    wanted = [99, 3, 7, -1, 3, 50]
    found = table.get_many(wanted)
    assert found == [table.get(each) for each in wanted]
    assert [each and each["name"] for each in found] == ["merged", "new", None, None, "new", "merged"]
    assert table.get_many([]) == []
    with pytest.raises(InvalidInput, match="Give a list"):
        table.get_many("5")
    with pytest.raises(InvalidInput, match="does not have one value"):
        table.get_many([(1, 2)])


def test_many_keys_cost_as_many_requests_as_regions_and_not_as_keys(table: Table) -> None:
    table.append(rows("flushed"))
    opened = Table.open(table.uri)
    before = opened.store.requests
    assert all(opened.get_many(list(IDS)))
    # A read sends five requests for each region: one for the hint, one for the manifest, two for the end of the log,
    # and one for a WAL entry. Two more requests of the read find no newer version. The read computes the region of each
    # key from the key, so it does not request the registry.
    assert requests(opened, before) == {"get": 4 * 5 + 2, "head": 4}


def test_a_lookup_asks_one_region_and_not_the_registry(table: Table) -> None:
    table.append(rows("flushed"))
    opened = Table.open(table.uri)
    before = opened.store.requests
    assert opened.get(5) == {"id": 5, "name": "flushed"}
    assert requests(opened, before) == {"get": 5 + 2, "head": 1}


def test_keys_that_filters_exclude_cost_no_entry(table: Table) -> None:
    table.append(rows("flushed"))
    opened = Table.open(table.uri)
    before = opened.store.requests
    assert opened.get_many([1000, 2000]) == [None, None]
    requested = requests(opened, before)
    assert requested["get"] <= 2 * 5 + 2  # the bounds exclude the keys, so no filter and no entry is read


def test_a_filter_that_pins_the_region_reads_that_region_only(table: Table) -> None:
    with table.writer() as writer:
        writer.put(rows("live"))
    opened = Table.open(table.uri)
    before = opened.store.requests
    pinned = opened.scan(filter=(col("id") == 5) & (col("name") == "live"), consistency="latest").to_arrow()
    pruned = requests(opened, before)
    assert pinned.to_pylist() == [{"id": 5, "name": "live"}]
    opened = Table.open(table.uri)
    before = opened.store.requests
    assert opened.scan(filter=col("id") >= 5, consistency="latest").to_arrow().num_rows == 95
    whole = requests(opened, before)
    assert whole["get"] == 2 + 4 * (pruned["get"] - 2) + 1  # plus the registry


@pytest.mark.parametrize("condition", ["id = 5", "id = 5.0", "id = '5'", "ID = 5", "id = 5 AND id = 6", "id = 4 + 1"])
def test_pruning_regions_never_changes_an_answer(table: Table, condition: str) -> None:
    with table.writer() as writer:
        writer.put(rows("live"))
    every = table.sql(f"select * from t where {condition}", consistency="latest")  # the condition of this test
    assert table.scan(filter=condition, consistency="latest").to_arrow().to_pylist() == every.to_pylist()


def test_one_pinned_field_of_two_leaves_the_regions_with_its_value() -> None:
    schema = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("a", "b")])
    declared = [{"transform": "identity", "source": "a"}, {"transform": "identity", "source": "b"}]
    table = Table.create(f"memory://regions-{next(_names)}", schema, primary_key=["a", "b"], regions=declared)
    with table.writer() as writer:
        writer.put([{"a": a, "b": b} for a in range(3) for b in range(2)])
    opened = Table.open(table.uri)
    before = opened.store.requests["get"]
    assert opened.scan(filter=col("a") == 1, consistency="latest").to_arrow().num_rows == 2
    some = opened.store.requests["get"] - before
    opened = Table.open(table.uri)
    before = opened.store.requests["get"]
    assert opened.scan(consistency="latest").to_arrow().num_rows == 6
    assert opened.store.requests["get"] - before - 3 == (some - 3) * 3


def test_a_writer_for_one_region_is_named_by_its_values(table: Table) -> None:
    with table.writer(region={"bucket_id": 0}) as writer:
        mine = [number for number in IDS if _fits(writer, number)]
        assert isinstance(writer, RoutingWriter)
        assert len(writer.regions) == 1
    assert 0 < len(mine) < 100
    assert len(list_regions(table.store, table.snapshot)) == 1
    for wrong in ({"bucket_id": 4}, {"bucket_id": "x"}, {"id": 0}, {}):
        with pytest.raises(InvalidInput, match="bucket"):
            table.writer(region=wrong)


def _fits(writer: TableWriter, number: int) -> bool:
    try:
        writer.put({"id": number})
    except InvalidInput:
        return False
    return True


def test_regions_are_declared_with_the_table(tmp_path: Path) -> None:
    file = tmp_path / "planes.yaml"
    text = "name: planes\nuri: {}\ncolumns: {{id: long, at: date}}\nprimary_key: [id, at]\nregions:\n{}"
    fields = "  - {transform: bucket, source: id, n: 4}\n  - {transform: month, source: at}\n"
    file.write_text(text.format(tmp_path / "planes", fields))
    table = Table.declare(load(file))
    assert [each.transform for each in table.config.region_spec.fields] == ["bucket(4)", "month"]
    assert Table.declare(load(file)).version == table.version
    file.write_text(text.format(tmp_path / "planes", fields.replace("n: 4", "n: 8")))
    with pytest.raises(InvalidInput, match="region_specs"):
        Table.declare(load(file))
    file.write_text(text.format(tmp_path / "planes", "  - {transform: bucket, source: at, n: 0}\n"))
    with pytest.raises(InvalidInput, match=r"planes.yaml:5: field `regions`: 'bucket.0.' is not a region transform"):
        load(file)


def test_lookups_find_every_row_when_the_registry_is_lost(table: Table) -> None:
    with table.writer() as writer:
        writer.put(rows("live"))
    table.store.delete(["_mem_wal/_regions.json"])
    assert Table.open(table.uri).scan(consistency="latest").to_arrow().num_rows == 100


def test_a_reader_that_was_opened_before_the_regions_changed_sees_what_is_written_after() -> None:
    table = new_table(regions=())
    with table.writer() as writer:
        writer.put(rows("old"))
    reader, writer_of_old = Table.open(table.uri), Table.open(table.uri)
    table.set_regions(REGIONS)
    with writer_of_old.writer() as writer:  # the writer first searches for the newest version
        writer.put(rows("new", range(10)))
    assert reader.get(5) == {"id": 5, "name": "new"}
    stale = Table.open(table.uri, at=0)
    assert stale.config.region_spec.id == 1
    found = reader.scan(consistency="latest").to_arrow().to_pylist()
    assert {row["id"]: row["name"] for row in found} == {number: "new" if number < 10 else "old" for number in IDS}
    assert reader.config.region_spec.id == 2


def test_restoring_a_version_from_before_keeps_the_regions_of_now() -> None:
    table = new_table(regions=())
    table.append(rows("old"))
    merge(table)
    before = table.version
    table.set_regions(REGIONS)
    with table.writer() as writer:
        writer.put(rows("new", range(10)))
        writer.flush()
    merge(table)
    table.restore(before)
    assert table.config.region_spec.id == 2
    assert {row["name"] for row in table.scan(consistency="latest").to_arrow().to_pylist()} == {"old"}
    with table.writer() as writer:
        writer.put(rows("newest", range(1)))
    assert table.get(0) == {"id": 0, "name": "newest"}
