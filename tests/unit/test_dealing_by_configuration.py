"""Dealing minds the settings of the table: its merged maps, and its late rows."""

from __future__ import annotations

import pyarrow as pa

from storage_core.config import TableConfig
from storage_core.objectstore.memory import MemoryStore
from storage_core.raw_log.limits import RawLimits
from storage_core.raw_log.raw_log import RawLog
from storage_core.raw_log.records import RawRecord
from storage_core.testkit.clock import ManualClock
from storage_core.testkit.dealing import Board
from storage_core.testkit.ids import SeededIds
from storage_core.testkit.keyed_table import KeyedTable

TAGGED = pa.schema([pa.field("n", pa.int64(), nullable=False), ("tags", pa.map_(pa.string(), pa.int64()))])


def given(name: str, schema: pa.Schema, config: TableConfig) -> Board:
    store = MemoryStore(name)
    KeyedTable(store).create(schema, config)
    return Board([MemoryStore("raw")], {name: store})


def write(board: Board, *records: RawRecord, clock: ManualClock | None = None, seed: int = 1) -> None:
    limits = RawLimits(segment_ms=1_000)
    with RawLog(board.stores, clock=clock or ManualClock(), ids=SeededIds(seed), limits=limits) as log:
        log.append_many(records)


def test_the_entries_that_a_dealt_patch_gives_are_laid_over_those_of_the_table() -> None:
    board = given("users", TAGGED, TableConfig(primary_key=("n",), map_columns={"tags": "merge"}))
    KeyedTable(board.tables["users"]).writer().put({"n": 1, "tags": {"a": 1, "b": 1}})
    write(
        board,
        RawRecord(table="users", operation="patch", fields={"n": 1, "tags": {"b": 2, "c": 2}}),
        RawRecord(table="users", operation="patch", fields={"n": 2, "tags": {"x": 1}}),
        RawRecord(table="users", operation="patch", fields={"n": 2, "tags": None}),
    )
    board.deal()
    tags = {n: row["tags"] for n, row in board.rows("users").items()}
    assert tags == {1: [("a", 1), ("b", 2), ("c", 2)], 2: None}
