"""The distribution of a raw log applies the table's settings for merged map columns and late rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.formats.arrow_files import QuarantinedRows
from storage_core.data.rows.windows import LateMetrics
from storage_core.data.settings.table import LateData, LatePolicy, TableConfig
from storage_core.log.log import TransactionLog
from storage_core.store.memory import MemoryStore
from storage_core.write.late_rows import entry_keys, read_entries
from storage_core.write.raw_log.read import FEW
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from storage_core.write.region.spec import first_specs
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_of
from tests.support.distribution import LATER_MS, Board
from tests.support.fault_store import Crash, CrashFault, FaultStore
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

TAGGED = pa.schema([pa.field("n", pa.int64(), nullable=False), ("tags", pa.map_(pa.string(), pa.int64()))])


def given(name: str, schema: pa.Schema, config: TableConfig) -> Board:
    store = MemoryStore(name)
    KeyedTable(store).create(schema, config)
    return Board([MemoryStore("raw")], {name: store})


def write(board: Board, *records: RawRecord, clock: ManualClock | None = None, seed: int = 1) -> None:
    limits = RawLimits(segment_ms=1_000)
    with RawLog(board.stores, clock=clock or ManualClock(), ids=SeededIds(seed), limits=limits) as log:
        log.append_many(records)


def test_the_entries_that_a_distributed_patch_gives_are_laid_over_those_of_the_table() -> None:
    board = given("users", TAGGED, TableConfig(primary_key=("n",), map_columns={"tags": "merge"}))
    KeyedTable(board.tables["users"]).writer().put({"n": 1, "tags": {"a": 1, "b": 1}})
    write(
        board,
        RawRecord(table="users", operation="patch", fields={"n": 1, "tags": {"b": 2, "c": 2}}),
        RawRecord(table="users", operation="patch", fields={"n": 2, "tags": {"x": 1}}),
        RawRecord(table="users", operation="patch", fields={"n": 2, "tags": None}),
    )
    board.distribute()
    tags = {n: row["tags"] for n, row in board.rows("users").items()}
    assert tags == {1: [("a", 1), ("b", 2), ("c", 2)], 2: None}


EVENTS = pa.schema([pa.field("n", pa.int64(), nullable=False), ("at", pa.timestamp("us", tz="UTC"))])
HOUR_MS = 3_600_000


@pytest.mark.parametrize("type_", [pa.timestamp("ns", "UTC"), pa.timestamp("ns")], ids=str)
@pytest.mark.parametrize("rows", [1, FEW], ids=["one", "many"])
def test_a_moment_in_nanoseconds_is_distributed_exactly_or_refused_before_it_is_appended(
    type_: pa.DataType, rows: int
) -> None:
    whole = 1_700_000_000_123_456_000
    board = given("a", EVENTS, TableConfig())
    with RawLog(board.stores, clock=ManualClock(), ids=SeededIds(1)) as log:
        with pytest.raises(InvalidInput, match="column 'at', row 0: a time has digits below the microsecond"):
            log.append("a", pa.table({"n": [7] * rows, "at": pa.array([whole + 789] * rows, type_)}))
        log.append("a", pa.table({"n": [1_000], "at": pa.array([whole], type_)}))
    tally = board.distribute().tables["a"]
    assert [*board.numbers("a")] == [1_000]
    assert not tally.rejected


ON_TIME = {"n": 1, "at": "2023-11-14T22:00:00Z"}
OLD = "2023-11-14T20:00:00Z"


def late_table(policy: LatePolicy, *, keyed: bool = False, regions: int = 0) -> Board:
    fields = [{"transform": "bucket", "source": "n", "n": regions}] if regions else []
    config = TableConfig(
        time_column="at",
        primary_key=("n",) if keyed else (),
        region_specs=first_specs(fields, EVENTS),
        late_data=LateData(policy=policy, acceptance_ms=HOUR_MS),
    )
    board = given("rows", EVENTS, config)
    late = [RawRecord(table="rows", fields={"n": n, "at": OLD}) for n in (2, 3)]
    write(board, RawRecord(table="rows", fields=ON_TIME), *late, RawRecord(table="rows", fields={"n": 4}))
    return board


def numbers(board: Board, *, keyed: bool) -> list[object]:
    return sorted(board.rows("rows"), key=str) if keyed else [*board.numbers("rows")]


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append"])
@pytest.mark.parametrize(
    ("policy", "taken", "kept", "counted"),
    [
        ("quarantine", [1, 4], 2, LateMetrics(quarantined=2)),
        ("drop", [1, 4], 0, LateMetrics(dropped=2)),
        ("accept", [1, 2, 3, 4], 0, LateMetrics(accepted=2)),
    ],
)
def test_late_rows_are_judged_by_when_they_were_written_to_the_raw_log(
    policy: LatePolicy, taken: list[object], kept: int, counted: LateMetrics, *, keyed: bool
) -> None:
    board = late_table(policy, keyed=keyed)
    done = board.distribute().tables["rows"]
    assert (numbers(board, keyed=keyed), done.rows, done.late) == (taken, len(taken), counted)
    entries = [entry for _, entry in read_entries(board.tables["rows"])]
    assert sum(sum(entry.reasons.values()) for entry in entries) == kept
    for entry in entries:
        assert isinstance(entry, QuarantinedRows)
        assert (entry.reason, entry.by, entry.arrived_ms) == ("late", "distribute", START_MS)
        assert entry.source.startswith("events/")
    metrics = next(TransactionLog(board.tables["rows"]).history()).metrics
    assert metrics["rows_late_quarantined"] == counted.quarantined


def test_what_is_distributed_again_quarantines_the_same_late_rows_once() -> None:
    start = late_table("quarantine", keyed=True, regions=2)
    counting = FaultStore(copy_of(start.tables["rows"], "rows"))
    Board(start.stores, {"rows": counting}, seed=2).distribute()
    for number, each in enumerate(counting.trace):
        if each.request.kind == "put":
            store = copy_of(start.tables["rows"], "rows")
            crashing = FaultStore(store)
            crashing.at(number, CrashFault.AFTER)
            with pytest.raises(Crash):
                Board(start.stores, {"rows": crashing}, seed=2).distribute()
            again = Board(start.stores, {"rows": store}, seed=3, clock=ManualClock(LATER_MS + 10**9))
            again.distribute()
            assert sorted(again.rows("rows"), key=str) == [1, 4]
            assert len(entry_keys(store)) == 1


def test_a_delete_is_never_late() -> None:
    board = late_table("quarantine", keyed=True)
    write(board, RawRecord(table="rows", operation="delete", fields={"n": 1, "at": OLD}), seed=2)
    assert board.distribute().tables["rows"].late == LateMetrics(quarantined=2)
    assert list(board.rows("rows")) == [4]
