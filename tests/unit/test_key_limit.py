"""Keys have a stated limit at every door, and a region that an earlier release let a longer one into goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from storage_core.errors import Corrupt, InvalidInput, RegionSealed
from storage_core.formats import keys
from storage_core.objectstore.contract import Overwrite
from storage_core.objectstore.memory import MemoryStore
from storage_core.raw_log.raw_log import RawLog
from storage_core.raw_log.read import typed
from storage_core.region import merge, records, reshape
from storage_core.region.manifest import read_latest, region_of
from storage_core.region.spec import first_specs
from storage_core.region.writer import RegionWriter
from storage_core.rows.key_limit import MAX_KEY_BYTES
from storage_core.table import Table
from storage_core.testkit.ids import SeededIds
from storage_core.testkit.keyed_table import PLANES, KeyedTable, seats

LONG = "k" * (MAX_KEY_BYTES + 1)
LONGEST = "k" * MAX_KEY_BYTES
HUGE = "é" * 300_000
REFUSED = f"column 'tailnum': a value of {MAX_KEY_BYTES + 1} bytes; in the key at most {MAX_KEY_BYTES} are kept"


def _row(key: str) -> dict[str, object]:
    return {"tailnum": key, "seats": 1}


def _doors(table: KeyedTable) -> tuple[dict[str, Callable[[str], object]], Callable[[], None]]:
    """The ways in, and what closes them."""
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
    with pytest.raises(InvalidInput, match=f"record 0: a key of {MAX_KEY_BYTES + 1} bytes; at most {MAX_KEY_BYTES}"):
        log.append("planes", _row(LONG), key="tailnum")
    arrow = pa.Table.from_pylist([_row(LONG)] * 3)
    with pytest.raises(InvalidInput, match="record 0: a key of"):
        log.append("planes", arrow, key="tailnum")
    log.append("planes", _row(LONGEST), key="tailnum")
    log.append("planes", _row(LONG), key="tailnum", operation="delete")


@pytest.mark.parametrize("count", [1, 200], ids=["one by one", "by columns"])
def test_dealing_rejects_a_row_with_a_key_beyond_the_limit_and_takes_its_delete(count: int) -> None:
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
    found = typed(given, PLANES, key=("tailnum",))
    assert {each.reason for each in found.rejected} == {REFUSED}
    assert (len(found.rejected), found.records.num_rows) == (count, 2 * count)


@pytest.fixture
def old_table(monkeypatch: pytest.MonkeyPatch) -> KeyedTable:
    """A table into which a release without the limit let a key of 600 KB."""
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


def test_a_region_that_cannot_be_merged_is_not_sealed_and_takes_what_cures_it() -> None:
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
        reshape.change_regions(table.log, fields)
    with table.writer() as writer:
        writer.delete("b")
    table.store.put(key, sound, Overwrite())
    reshape.change_regions(table.log, fields)
    assert set(seats(table)) == {"a"}
    with pytest.raises(RegionSealed):
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
