"""Every write path has the same key limit. A region with a longer key from an early 0.1 release still works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt, InvalidInput, RegionClosed, Unavailable
from storage_core.data.formats import arrow_files, keys, region_manifest
from storage_core.data.formats.arrow_files import QuarantinedRows
from storage_core.data.rows.keys import MAX_KEY_BYTES
from storage_core.maintain.check import fsck
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.table import Table
from storage_core.write.late_rows import read_entries
from storage_core.write.raw_log.read import typed_records
from storage_core.write.raw_log.writer import RawLog
from storage_core.write.region import generation, merge, records, repartition, wal
from storage_core.write.region.manifest import read_latest, region_of
from storage_core.write.region.merge_work import naming_works, refused
from storage_core.write.region.spec import first_specs
from storage_core.write.region.writer import RegionWriter
from tests.support.ids import SeededIds
from tests.support.keyed_table import PLANES, KeyedTable, seats
from tests.unit import lenient_writer

LONG = "k" * (MAX_KEY_BYTES + 1)
LONGEST = "k" * MAX_KEY_BYTES
HUGE = "é" * 300_000
REFUSED = (
    f"column 'tailnum': a value of {MAX_KEY_BYTES + 1} bytes is too long for a key. The limit is {MAX_KEY_BYTES} bytes"
)


def _row(key: str) -> dict[str, object]:
    return {"tailnum": key, "seats": 1}


def _doors(table: KeyedTable) -> tuple[dict[str, Callable[[str], object]], Callable[[], None]]:
    """Return the write paths by name, and the function that closes the writer."""
    writer = table.writer()
    doors: dict[str, Callable[[str], object]] = {
        "put": lambda key: writer.put([_row("short"), _row(key)]),
        "not durable": lambda key: writer.put([_row("short"), _row(key)], durable=False),
        "arrow": lambda key: writer.put(pa.Table.from_pylist([_row("short"), _row(key)])),
        "patch": lambda key: writer.patch([_row("short"), _row(key)]),
        "reset": lambda key: writer.reset([_row("short"), _row(key)]),
        "append": lambda key: Table.open("memory://key-limit").append([_row("short"), _row(key)]),
    }
    return doors, writer.close


@pytest.mark.parametrize("door", ["put", "not durable", "arrow", "patch", "reset", "append"])
def test_a_key_beyond_the_limit_is_refused_at_every_door_before_anything_is_written(door: str) -> None:
    Table.create("memory://key-limit", PLANES, primary_key=["tailnum"]) if door == "append" else None
    table = KeyedTable(MemoryStore("planes")).create()
    doors, close = _doors(table)
    call = doors[door]
    with pytest.raises(InvalidInput, match=f"row 1: {REFUSED}") as raised:
        call(LONG)
    assert (raised.value.context["column"], raised.value.context["limit"]) == ("tailnum", MAX_KEY_BYTES)
    assert seats(table) == {}
    call(LONGEST)
    close()


def test_a_key_of_the_raw_log_beyond_the_limit_is_refused_or_goes_to_quarantine() -> None:
    store = MemoryStore("raw")
    log = RawLog([store])
    with pytest.raises(
        InvalidInput, match=f"record 0: the key has {MAX_KEY_BYTES + 1} bytes. The limit is {MAX_KEY_BYTES}"
    ):
        log.append("planes", _row(LONG), key="tailnum")
    arrow = pa.Table.from_pylist([_row(LONG)] * 3)
    with pytest.raises(InvalidInput, match="record 0: the key has"):
        log.append("planes", arrow, key="tailnum")
    log.append("planes", _row(LONGEST), key="tailnum")
    log.append("planes", _row(LONG), key="tailnum", operation="delete")


@pytest.mark.parametrize("count", [1, 200], ids=["one by one", "by columns"])
def test_distribution_rejects_a_row_with_a_key_beyond_the_limit_and_takes_its_delete(count: int) -> None:
    fields = [f'{{"tailnum":"{key}","seats":1}}' for key in ("short", LONG, LONG)]
    operations = ["put", "put", "delete"]
    given = pa.table(
        {
            "record_id": [f"w:{number}" for number in range(3 * count)],
            "timestamp_ms": [0] * 3 * count,
            "table": ["planes"] * 3 * count,
            "key": pa.nulls(3 * count, pa.string()),
            "operation": operations * count,
            "fields": fields * count,
        }
    )
    found = typed_records(given, PLANES, key=("tailnum",))
    assert {each.reason for each in found.rejected} == {REFUSED}
    assert (len(found.rejected), found.records.num_rows) == (count, 2 * count)


@pytest.fixture
def old_table(monkeypatch: pytest.MonkeyPatch) -> KeyedTable:
    """Make a table with a key of 600 KB, as a release without the limit for the key size writes it."""
    table = KeyedTable(MemoryStore("planes")).create()
    with monkeypatch.context() as before, table.writer() as writer:
        before.setattr(records, "require_short_keys", lambda *_: None)
        writer.put([_row("a"), _row(HUGE), _row("z")])
        writer.flush()
    return table


def test_a_region_with_an_old_huge_key_is_merged_and_its_delete_is_accepted(old_table: KeyedTable) -> None:
    old_table.merge()
    assert set(seats(old_table)) == {"a", HUGE, "z"}
    assert max(len(str(each)) for each in old_table.snapshot.splits.values()) < 10_000
    with old_table.writer() as writer:
        writer.delete(HUGE)
        writer.flush()
    old_table.sort()
    old_table.merge()
    assert set(seats(old_table)) == {"a", "z"}


def test_the_manifests_of_generations_hold_no_whole_key(old_table: KeyedTable) -> None:
    old_table.sort()
    region = region_of(old_table.snapshot.table_id)
    manifest = read_latest(old_table.store, region)
    assert manifest is not None
    for each in manifest.flushed_generations:
        key = keys.generation_file_key(region, each.path, "_manifest.json")
        assert len(old_table.store.get(key).data) < 10_000


def test_a_region_that_cannot_be_merged_is_not_closed_and_takes_what_cures_it() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as writer:
        writer.put(_row("a"))
        writer.flush()
        writer.put(_row("b"))
    region = region_of(table.snapshot.table_id)
    manifest = read_latest(table.store, region)
    assert manifest is not None
    key = keys.generation_file_key(region, manifest.flushed_generations[0].path, "_manifest.json")
    sound = table.store.get(key).data
    table.store.put(key, b"{}", Overwrite())
    before = table.snapshot
    fields = first_specs([{"transform": "bucket", "source": "tailnum", "n": 2}], PLANES)[-1].fields
    with pytest.raises(Corrupt, match=region):
        repartition.change_regions(table.log, fields)
    with table.writer() as writer:
        writer.delete("b")
    table.store.put(key, sound, Overwrite())
    repartition.change_regions(table.log, fields)
    assert set(seats(table)) == {"a"}
    with pytest.raises(RegionClosed):
        RegionWriter.open(table.store, before, clock=table.clock, ids=table.ids)


def test_an_error_of_a_merge_names_region_and_generation() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as writer:
        writer.put(_row("a"))
        writer.flush()
    work = merge.plan(table.store, table.snapshot)[0]
    narrow = replace(work.context, schema=pa.schema([("tailnum", pa.string())]))
    with pytest.raises(InvalidInput, match=f"merging region {work.region}, generations 1 to 1: ") as raised:
        merge.execute(table.store, replace(work, context=narrow), ids=SeededIds(1), now_ms=0)
    assert raised.value.context["generations"] == [1]


def test_a_merge_that_lacks_memory_is_unavailable_and_blames_no_record() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as writer:
        writer.put([_row("a"), _row("b")])
        writer.flush()
    (work,) = merge.plan(table.store, table.snapshot)
    rows = pa.table({"a": [1, 2]})

    def attempt(part: pa.Table) -> None:
        pa.allocate_buffer(2**60 * part.num_rows)

    named = f"merging region {work.region}, generations 1 to 1: Cannot allocate memory"
    with pytest.raises(Unavailable, match=named), naming_works(work):
        list(refused(rows, attempt))


REQUIRED = pa.schema([PLANES.field("tailnum"), pa.field("seats", pa.int64(), nullable=False), PLANES.field("model")])
TWO = first_specs([{"transform": "bucket", "source": "tailnum", "n": 2}], PLANES)[-1].fields
NASTY = "\x1b[2J\n" + "n" * 5000


def lenient(table: KeyedTable) -> RegionWriter:
    return lenient_writer.lenient(table.store, table.snapshot, clock=table.clock, ids=table.ids)


@pytest.fixture
def stuck() -> KeyedTable:
    """Make a table with unmerged patches whose rows do not exist. The patches do not have all required columns."""
    table = KeyedTable(MemoryStore("planes")).create(REQUIRED)
    with lenient(table) as writer:
        writer.put([_row("a"), _row("b")])
        writer.flush()
        writer.put([_row("c"), _row("d")])
        writer.patch(
            [{"tailnum": "a", "model": "A"}, {"tailnum": NASTY, "model": "X"}, {"tailnum": "no", "model": "Y"}]
        )
        writer.flush()
    return table


def test_an_error_of_a_merge_names_generation_row_and_key_and_what_it_says_cures_it(stuck: KeyedTable) -> None:
    region = region_of(stuck.snapshot.table_id)
    named = f"merging region {region}, generations 1 to 2: generation 2, record 3, key "
    with pytest.raises(InvalidInput, match=named) as raised:
        stuck.merge()
    assert (raised.value.context["generation"], raised.value.context["row"]) == (2, 3)
    assert "'seats'" in str(raised.value)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 1000
    with stuck.writer() as writer:
        writer.delete([NASTY, "no"])
        writer.flush()
    stuck.merge()
    assert set(seats(stuck)) == {"a", "b", "c", "d"}


@pytest.mark.parametrize("merged", [False, True])
def test_a_closed_region_that_cannot_be_merged_is_cured_by_quarantining_its_rows(
    stuck: KeyedTable, merged: bool
) -> None:
    before = stuck.snapshot
    repartition.close_regions(stuck.store, before, successor=2, clock=stuck.clock, ids=stuck.ids)
    with pytest.raises(RegionClosed):
        stuck.writer()
    with pytest.raises(InvalidInput, match="generation 2, record 3"):
        repartition.change_regions(stuck.log, TWO)
    found = repartition.change_regions(stuck.log, () if merged else TWO, quarantine=True)
    assert found.config.region_spec.id == 2
    assert seats(stuck) == dict.fromkeys("abcd", 1)
    ((_, entry),) = read_entries(stuck.store)
    assert isinstance(entry, QuarantinedRows)
    assert (entry.source, entry.by, entry.rows.num_rows) == ("merge", region_of(before.table_id), 2)
    assert set(entry.rows.column("tailnum").to_pylist()) == {NASTY, "no"}
    assert "'seats'" in entry.reason
    with stuck.routing_writer() as writer:
        writer.put([_row("no")])
    assert seats(stuck) == dict.fromkeys(["a", "b", "c", "d", "no"], 1)
    assert fsck(stuck.store, clock=stuck.clock, deep=True).clean


def test_what_is_quarantined_leaves_the_base_row_of_its_key(stuck: KeyedTable) -> None:
    with stuck.writer() as writer:
        writer.delete([NASTY, "no"])
        writer.flush()
    stuck.merge()
    with lenient(stuck) as writer:
        writer.delete("a")
        writer.patch({"tailnum": "a", "model": "B"})
        writer.put(_row("e"))
        writer.flush()
    with pytest.raises(InvalidInput, match="generation 4, record 1, key tailnum='a'"):
        stuck.merge()
    repartition.change_regions(stuck.log, TWO, quarantine=True)
    assert set(seats(stuck)) == {"a", "b", "c", "d", "e"}
    ((_, entry),) = read_entries(stuck.store)
    assert isinstance(entry, QuarantinedRows)
    assert entry.rows.num_rows == 2


def test_a_key_of_17_mb_that_cannot_be_merged_is_named_cut_and_quarantined(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "k" * 17_000_000
    table = KeyedTable(MemoryStore("planes")).create(REQUIRED)
    with monkeypatch.context() as before, lenient(table) as writer:
        before.setattr(records, "require_short_keys", lambda *_: None)
        writer.put(_row("a"))
        writer.patch({"tailnum": key, "model": "X"})
        writer.flush()
    repartition.close_regions(table.store, table.snapshot, successor=2, clock=table.clock, ids=table.ids)
    with pytest.raises(InvalidInput, match="generation 1, record 1, key tailnum='kkk") as raised:
        table.merge()
    assert len(str(raised.value)) < 1000
    repartition.change_regions(table.log, TWO, quarantine=True)
    assert set(seats(table)) == {"a"}
    ((_, entry),) = read_entries(table.store)
    assert isinstance(entry, QuarantinedRows)
    assert entry.rows.column("tailnum").to_pylist() == [key]


def test_a_record_without_a_key_is_named_and_quarantined() -> None:
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as writer:
        writer.put([_row("a"), _row("b")])
        writer.flush()
    (work,) = merge.plan(table.store, table.snapshot)
    (opened,) = (generation.read(table.store, work.region, each) for each in work.generations)
    held = wal.read(table.store, work.region, opened.entries[0])
    rows = held.entry.records
    rows = rows.set_column(rows.schema.get_field_index("tailnum"), "tailnum", pa.array(["a", None]))
    broken = arrow_files.encode_wal_entry(replace(held.entry, records=rows))
    table.store.put(keys.wal_entry_key(work.region, held.id), broken, Overwrite())
    with pytest.raises(InvalidInput, match="generation 1, record 1, key tailnum=None"):
        table.merge()
    repartition.change_regions(table.log, TWO, quarantine=True)
    assert seats(table) == {"a": 1}


def test_a_closed_region_with_a_key_of_17_mb_from_before_the_limit_is_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """An early 0.1 release wrote full-length key bounds, and closed the region before the generation was merged."""
    key = "k" * 17_000_000
    table = KeyedTable(MemoryStore("planes")).create()
    with monkeypatch.context() as before, table.writer() as writer:
        before.setattr(records, "require_short_keys", lambda *_: None)
        writer.put([_row("a"), _row(key)])
        writer.flush()
    region = region_of(table.snapshot.table_id)
    manifest = read_latest(table.store, region)
    assert manifest is not None
    (flushed,) = manifest.flushed_generations
    uncut = replace(generation.read(table.store, region, flushed), max_key={"tailnum": key})
    where = keys.generation_file_key(region, flushed.path, "_manifest.json")
    table.store.put(where, region_manifest.encode_generation(uncut), Overwrite())
    repartition.close_regions(table.store, table.snapshot, successor=2, clock=table.clock, ids=table.ids)
    repartition.change_regions(table.log, TWO)
    assert set(seats(table)) == {"a", key}
    with table.routing_writer() as writer:
        writer.delete(key)
        writer.flush()
    table.merge()
    assert set(seats(table)) == {"a"}
