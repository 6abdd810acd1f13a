"""Golden metadata about the table and the history (lineage) of a split. Damaged metadata is not trusted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_core.base.errors import Corrupt
from storage_core.compact.execute import execute
from storage_core.data.rows.schema import to_schema_string
from storage_core.log.actions import Add
from storage_core.split.metadata import (
    PREFIX,
    FileOrigin,
    Lineage,
    MergedRange,
    add_of,
    describe,
    read_origin,
    require_checksum,
    with_checksum,
    write_origin,
)
from storage_core.split.read import open_split
from storage_core.split.writer import sort_and_write
from storage_core.store.memory import MemoryStore
from tests.support.events import CONFIG, SCHEMA, TABLE_ID, context, events, snapshot
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.merge_plan import plan

ORIGIN = FileOrigin(
    table_id="5b0f3c1e-2f3a-4d52-9a52-0f6c2f7d9a11",
    table_schema='{"type":"struct","fields":[]}',
    configuration={"tidemark.primaryKey": '["id"]'},
    planned_version=7,
    lineage=Lineage(
        operation="merge",
        operation_id="00112233-4455-6677-8899-aabbccddeeff",
        replaces={"splits/all/b.parquet": 2, "splits/all/a.parquet": 1},
        merged=MergedRange(region="99112233-4455-6677-8899-aabbccddeeff", after=3, generation=5),
    ),
)
GOLDEN = {
    "tidemark.table_id": "5b0f3c1e-2f3a-4d52-9a52-0f6c2f7d9a11",
    "tidemark.table_schema": '{"type":"struct","fields":[]}',
    "tidemark.configuration": '{"tidemark.primaryKey":"[\\"id\\"]"}',
    "tidemark.planned_version": "7",
    "tidemark.operation": "merge",
    "tidemark.operation_id": "00112233-4455-6677-8899-aabbccddeeff",
    "tidemark.replaces": '{"splits/all/a.parquet":1,"splits/all/b.parquet":2}',
    "tidemark.merged": '{"after":3,"generation":5,"region":"99112233-4455-6677-8899-aabbccddeeff"}',
}
ADD = Add(
    path="splits/0/a.parquet",
    size=10,
    modificationTime=20,
    numRecords=3,
    numMergeOps=1,
    windowStart=0,
    windowSeconds=3600,
    sortSchema="timestamp/V2",
    sourceId="s",
    partitionId="p",
    docMappingRef="r",
    minRowKey='["a"]',
    maxRowKey='["b"]',
    minValues={"a": "\u00e9"},
    maxValues={"a": "z"},
    nullCounts={"a": 0},
    columnRegexes={"a": "^(z|é)$"},
)


def test_the_origin_of_a_split_has_the_golden_text() -> None:
    assert write_origin(ORIGIN) == GOLDEN
    assert read_origin(GOLDEN, "here") == ORIGIN


def test_the_checksum_has_the_golden_value_and_covers_every_entry() -> None:
    entries = with_checksum(GOLDEN)
    assert entries[PREFIX + "seal"] == "08672b9ae0daebe6"
    require_checksum({**entries, "of somebody else": "x"}, "here")
    for name in GOLDEN:
        with pytest.raises(Corrupt, match="here"):
            require_checksum({**entries, name: entries[name] + " "}, "here")
        with pytest.raises(Corrupt, match="here"):
            require_checksum({key: text for key, text in entries.items() if key != name}, "here")


def test_a_split_of_an_older_release_has_no_origin() -> None:
    assert read_origin({"tidemark.table_id": "x", "tidemark.path": "y"}, "here") is None


@pytest.mark.parametrize(
    "entry",
    [
        {"tidemark.configuration": "[]"},
        {"tidemark.planned_version": "soon"},
        {"tidemark.operation": "guess"},
        {"tidemark.replaces": '{"a": "many"}'},
        {"tidemark.merged": '{"region": "r"}'},
        {"tidemark.replaces": "[" * 100_000},
    ],
    ids=str,
)
def test_an_origin_that_cannot_be_read_is_corrupt_and_named(entry: dict[str, str]) -> None:
    with pytest.raises(Corrupt, match="the-split"):
        read_origin({**GOLDEN, **entry}, "the-split")


def test_the_action_comes_back_from_what_it_was_described_as() -> None:
    metadata = describe(ADD, table_id="t", schema_string="{}")
    assert add_of(metadata, ADD.path, size=10, modification_ms=20) == ADD
    with pytest.raises(Corrupt, match="other"):
        add_of(metadata, "splits/0/other.parquet", size=10, modification_ms=20)
    bare = Add(path="splits/all/b.parquet", size=1, modificationTime=2)
    assert add_of(describe(bare, table_id="t", schema_string="{}"), bare.path, size=1, modification_ms=2) == bare


def test_a_written_split_carries_its_table() -> None:
    store = MemoryStore("origins")
    where = replace(context(), planned_version=4)
    (add,) = sort_and_write(store, events([{"at": 1, "service": "s"}]), context=where, ids=SeededIds(1), now_ms=1)
    metadata = open_split(store, add, whole=False).metadata
    require_checksum(metadata, add.path)
    assert read_origin(metadata, add.path) == FileOrigin(
        table_id=TABLE_ID,
        table_schema=to_schema_string(SCHEMA),
        configuration=CONFIG.to_configuration(),
        planned_version=4,
        lineage=Lineage(),
    )


def test_the_output_of_a_compaction_names_its_inputs_with_their_rows() -> None:
    store = MemoryStore("origins")
    adds = [
        add
        for seed in (1, 2)
        for add in sort_and_write(
            store, events([{"at": seed, "service": "s"}] * seed), context=context(), ids=SeededIds(seed), now_ms=1
        )
    ]
    (operation,) = plan(snapshot(adds))
    (output,) = execute(store, operation, ids=SeededIds(3), now_ms=1).adds
    origin = read_origin(open_split(store, output, whole=False).metadata, output.path)
    assert origin is not None
    assert origin.lineage.operation == "compact"
    assert origin.lineage.replaces == {add.path: add.numRecords for add in adds}


def test_the_outputs_of_a_merge_name_every_split_that_left_also_one_that_was_deleted_whole() -> None:
    table = KeyedTable(MemoryStore("origins")).create()
    for name in ("a", "b", "c"):
        with table.writer() as writer:
            writer.put({"tailnum": name, "seats": 1})
            writer.flush()
        table.merge()
    before = {path: add.numRecords for path, add in table.snapshot.splits.items()}
    with table.writer() as writer:
        writer.delete(["a", "b"])
        writer.put({"tailnum": "c", "seats": 2})
        writer.flush()
    table.merge()
    outputs = table.snapshot.splits.values()
    origins = [read_origin(open_split(table.store, add, whole=False).metadata, add.path) for add in outputs]
    lineages = [each.lineage for each in origins if each is not None]
    assert {path: rows for each in lineages for path, rows in each.replaces.items()} == before
    assert {(each.operation, each.merged and (each.merged.after, each.merged.generation)) for each in lineages} == {
        ("merge", (3, 4))
    }
    assert len({each.operation_id for each in lineages}) == 1
