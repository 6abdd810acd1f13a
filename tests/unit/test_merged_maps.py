"""Map columns whose entries are merged by patches: the effect of each operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.change.definition import check_definition
from storage_core.data.rows.keys import union
from storage_core.data.settings.table import TableConfig
from storage_core.store.memory import MemoryStore
from storage_core.table import Table
from storage_core.write.region.writer import RegionWriter
from tests.support.keyed_table import KeyedTable

MAP = pa.map_(pa.string(), pa.int64())
SCHEMA = pa.schema([pa.field("k", pa.string(), nullable=False), ("attrs", MAP), ("labels", MAP), ("n", pa.int64())])
MERGE = TableConfig(primary_key=("k",), map_columns={"attrs": "merge", "labels": "replace"})

Act = Callable[[RegionWriter], object]
Entries = list[tuple[str, int | None]] | None


def put(attrs: object) -> Act:
    return lambda writer: writer.put({"k": "a", "attrs": attrs})


def patch(attrs: object) -> Act:
    return lambda writer: writer.patch({"k": "a", "attrs": attrs})


def reset(attrs: object) -> Act:
    return lambda writer: writer.reset({"k": "a", "attrs": attrs})


def delete(writer: RegionWriter) -> None:
    writer.delete("a")


CASES: list[tuple[list[Act], Entries]] = [
    ([patch({"a": 1}), patch({"b": 2})], [("a", 1), ("b", 2)]),
    ([put({"a": 1}), patch({"b": 2})], [("a", 1), ("b", 2)]),
    ([reset({"a": 1}), patch({"b": 2})], [("a", 1), ("b", 2)]),
    ([put({"a": 1, "b": 1}), patch({"a": 5})], [("a", 5), ("b", 1)]),
    ([put({"a": 1}), patch({"a": None})], [("a", None)]),
    ([put({"a": 1}), patch({})], [("a", 1)]),
    ([put(None), patch({"b": 2})], [("b", 2)]),
    ([put(None), patch({})], []),
    ([put({"a": 1}), patch(None)], None),
    ([put({"a": 1}), patch(None), patch({"b": 2})], [("b", 2)]),
    ([put({"a": 1}), put({"b": 2})], [("b", 2)]),
    ([patch({"a": 1}), put({"b": 2})], [("b", 2)]),
    ([put({"a": 1}), reset({"b": 2})], [("b", 2)]),
    ([put({"a": 1}), delete, patch({"b": 2})], [("b", 2)]),
]


@pytest.mark.parametrize("merged_after", ["nothing", "each", "all"])
@pytest.mark.parametrize(("acts", "expected"), CASES)
def test_a_merged_map_is_what_its_operations_say_wherever_they_meet(
    acts: Sequence[Act], expected: Entries, merged_after: str
) -> None:
    table = KeyedTable(MemoryStore("t")).create(SCHEMA, MERGE)
    with table.writer() as writer:
        for act in acts:
            act(writer)
            if merged_after == "each":
                writer.flush()
                table.merge()
        writer.flush()
    if merged_after == "all":
        table.merge()
    assert table.rows()["a"]["attrs"] == expected


def test_a_map_that_is_not_declared_is_replaced() -> None:
    table = KeyedTable(MemoryStore("t")).create(SCHEMA, MERGE)
    with table.writer() as writer:
        writer.put({"k": "a", "labels": {"a": 1}, "n": 1})
        writer.patch({"k": "a", "labels": {"b": 2}})
    assert table.rows()["a"] == {"k": "a", "attrs": None, "labels": [("b", 2)], "n": 1}


def test_rows_of_an_arrow_table_merge_or_clear_each_for_itself() -> None:
    table = KeyedTable(MemoryStore("t")).create(SCHEMA, MERGE)
    with table.writer() as writer:
        writer.put([{"k": key, "attrs": {"a": 1}, "n": 7} for key in "xyz"])
        maps = pa.array([{"b": 2}, None, {}], MAP)
        writer.patch(
            pa.Table.from_arrays([pa.array(["x", "y", "z"]), maps, pa.array([8, None, 9])], ["k", "attrs", "n"])
        )
    found = {key: (row["attrs"], row["n"]) for key, row in table.rows().items()}
    assert found == {"x": ([("a", 1), ("b", 2)], 8), "y": (None, None), "z": ([("a", 1)], 9)}


def test_a_table_keeps_what_its_maps_do(tmp_path: object) -> None:
    uri = f"{tmp_path}/t"
    Table.create(uri, SCHEMA, primary_key="k", map_columns={"attrs": "merge"})
    table = Table.open(uri)
    assert table.snapshot.metadata.configuration["tidemark.mapColumns"] == '{"attrs":"merge"}'
    assert table.config.merged_maps == ("attrs",)
    with table.writer() as writer:
        writer.patch({"k": "a", "attrs": {"a": 1}})
        writer.patch({"k": "a", "attrs": {"b": 2}})
    assert (table.get("a") or {})["attrs"] == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("schema", "modes", "message"),
    [
        (SCHEMA, {"n": "merge"}, "'n' is not a map, its type is int64"),
        (SCHEMA, {"nobody": "replace"}, "unknown column 'nobody'"),
        (SCHEMA, {"attrs": "add"}, "is 'add'. Give replace or merge"),
        (pa.schema([("k", pa.string()), ("m", pa.map_(pa.list_(pa.string()), MAP))]), {"m": "merge"}, "have no order"),
        (SCHEMA.append(pa.field("merge:attrs", MAP)), {"attrs": "merge"}, "has the name that records use"),
    ],
)
def test_what_cannot_be_merged_is_refused(schema: pa.Schema, modes: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_definition(schema, TableConfig(primary_key=("k",), map_columns=modes))  # type: ignore[arg-type]


def test_settings_of_maps_that_are_no_object_are_refused() -> None:
    with pytest.raises(InvalidInput, match="expected a JSON object"):
        TableConfig.from_configuration({"tidemark.mapColumns": "[]"})


def test_the_union_keeps_the_order_in_which_keys_came_first() -> None:
    maps = pa.chunked_array([pa.array([None, [("q", 1), ("p", 2)], [("p", 3)], [], [("r", 4), ("r", 5)]], MAP)])[1:]
    assert union(maps, pa.array([0, 0, 1, 3]).to_numpy(), 4).to_pylist() == [
        [("q", 1), ("p", 3)], [], [], [("r", 5)],
    ]  # fmt: skip


def test_maps_come_back_from_get_as_they_were_put(tmp_path: Path) -> None:
    ranges = pa.map_(pa.list_(pa.int64()), pa.string())
    inner = pa.struct([("deep", MAP)])
    schema = pa.schema([("k", pa.string()), ("attrs", MAP), ("inner", inner), ("ranges", ranges)])
    table = Table.create(str(tmp_path / "t"), schema, primary_key="k")
    rows = [
        {"k": "a", "attrs": {"a": 1, "b": None}, "inner": {"deep": {"x": 2}}, "ranges": None},
        {"k": "b", "attrs": {}, "inner": None, "ranges": [([1, 2], "no key of a dictionary")]},
    ]
    with table.writer() as writer:
        for row in rows:
            writer.put(row)
    assert table.get_many(["a", "b"]) == rows
    put_again = table.get("a")
    assert put_again is not None
    with table.writer() as writer:
        writer.put(put_again)
    assert table.get("a") == rows[0]
