"""Late rows on every write path: accepted, quarantined or dropped before any acknowledgement."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import CommitUnknown, Corrupt, InvalidInput, Unavailable
from storage_core.data.formats import arrow_files
from storage_core.data.formats.arrow_files import QuarantinedRows, RejectedLines
from storage_core.data.formats.keys import quarantine_key
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.rows.windows import LateMetrics, LateRule
from storage_core.data.settings.table import LateData, LatePolicy, TableConfig
from storage_core.log.actions import Metadata
from storage_core.log.log import TransactionLog
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.late_rows import LateRowFilter, RowOrigin, read_entries, read_object, write_quarantine_entry
from tests.support.clock import START_MS, ManualClock
from tests.support.fault_store import FaultStore, PutFault
from tests.support.keyed_table import KeyedTable

METRICS: dict[LatePolicy, LateMetrics] = {
    "accept": LateMetrics(accepted=2),
    "quarantine": LateMetrics(quarantined=2),
    "drop": LateMetrics(dropped=2),
}
POLICIES: tuple[LatePolicy, ...] = ("accept", "quarantine", "drop")
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), pa.field("id", pa.int64(), nullable=False)])
KEYED = TableConfig(primary_key=("id",), time_column="at", late_data=LateData())


def at(minutes_ago: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(START_MS / 1000 - 60 * minutes_ago, dt.UTC)


def rows_of(*minutes: int | None) -> list[dict[str, object]]:
    return [{"at": None if ago is None else at(ago), "id": number} for number, ago in enumerate(minutes)]


def table_of(policy: LatePolicy) -> Table:
    """Make an append table whose clock stands still."""
    config = TableConfig(time_column="at", window_seconds=900, late_data=LateData(policy=policy))
    store = MeteredStore(MemoryStore("late"))
    log = TransactionLog(store, clock=ManualClock())
    metadata = Metadata(id="t", schemaString=to_schema_string(SCHEMA), configuration=config.to_configuration())
    return Table(store, log, log.create(metadata))


def quarantined(store: MemoryStore | MeteredStore) -> list[dict[str, object]]:
    return [
        row for _, each in read_entries(store) if isinstance(each, QuarantinedRows) for row in each.rows.to_pylist()
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_append_counts_its_late_rows_and_loses_none_unasked(policy: LatePolicy) -> None:
    table = table_of(policy)
    rows = rows_of(0, 61, None, 60, 5000, -90)
    done = table.append(rows)
    visible = table.scan().to_arrow().to_pylist()
    kept = {1, 4} if policy == "accept" else set()
    assert {row["id"] for row in visible} == {0, 2, 3, 5} | kept
    assert done.late == METRICS[policy]
    assert (done.rows, len(quarantined(table.store))) == (len(visible), 2 if policy == "quarantine" else 0)
    (entry, *_) = table.history()
    counted = {"rows_in": 6, "rows_out": len(visible), "splits_out": done.splits}
    assert entry.metrics == {**counted, **done.late.as_mapping()}


def test_an_append_of_late_rows_only_commits_nothing_and_keeps_them() -> None:
    table = table_of("quarantine")
    done = table.append(rows_of(61, 62))
    assert (done.version, done.commit_id, done.rows, done.late.quarantined) == (0, "", 0, 2)
    ((_, entry),) = read_entries(table.store)
    assert isinstance(entry, QuarantinedRows)
    assert (entry.source, entry.reason, entry.arrived_ms) == ("append", "late", START_MS)
    assert entry.rows.schema.equals(SCHEMA)
    assert entry.rows.to_pylist() == rows_of(61, 62)


def test_equal_appends_are_each_kept() -> None:
    table = table_of("quarantine")
    for _ in range(3):
        table.append(rows_of(61))
    assert len(quarantined(table.store)) == 3


def test_a_row_that_does_not_fit_quarantines_nothing() -> None:
    table = table_of("quarantine")
    with pytest.raises(InvalidInput):
        table.append([*rows_of(61), {"at": at(0), "id": "many"}])
    assert quarantined(table.store) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_region_writer_judges_puts_and_patches_and_never_deletes(policy: LatePolicy) -> None:
    store = MemoryStore("late")
    table = KeyedTable(store, clock=ManualClock()).create(SCHEMA, replace(KEYED, late_data=LateData(policy=policy)))
    with table.writer() as writer:
        writer.put(rows_of(0, 0, 61))
        writer.patch([{"id": 1, "at": at(500)}, {"id": 7}])
        writer.delete([0])
        metrics = writer.metrics
    found = {name: row["at"] for name, row in table.rows().items()}
    assert found == ({1: at(500), 2: at(61), 7: None} if policy == "accept" else {1: at(0), 7: None})
    assert metrics == METRICS[policy]
    kept = quarantined(store)
    assert sorted((row["_op"], row["_fields"], row["id"]) for row in kept) == (
        [(0, None, 2), (1, ["at"], 1)] if policy == "quarantine" else []
    )


def test_a_delete_in_a_table_whose_key_holds_the_time_is_never_late() -> None:
    schema = pa.schema([pa.field(each.name, each.type, nullable=False) for each in SCHEMA])
    config = TableConfig(primary_key=("id", "at"), time_column="at", window_seconds=900, late_data=LateData())
    clock = ManualClock()
    table = KeyedTable(MemoryStore("late"), clock=clock).create(schema, config)
    with table.writer() as writer:
        writer.put({"id": 1, "at": at(0)})
        clock.now += 2 * HOUR_MS
        writer.delete([(1, at(0))])
        writer.put({"id": 2, "at": at(0)})
        assert writer.metrics == LateMetrics(quarantined=1)
    assert table.rows() == {}


@pytest.mark.parametrize("fault", [PutFault.REFUSED, PutFault.DROPPED_THEN_UNKNOWN, PutFault.CONFLICT_WITH_NOTHING])
def test_nothing_is_acknowledged_when_late_rows_cannot_be_kept(fault: PutFault) -> None:
    store = FaultStore(MemoryStore("late"))
    table = KeyedTable(store, clock=ManualClock()).create(SCHEMA, KEYED)
    with table.writer() as writer:
        store.on_put("quarantine/", fault)
        with pytest.raises((Unavailable, CommitUnknown)):
            writer.put(rows_of(0, 61))
        assert writer.metrics == LateMetrics()
        assert table.rows() == {}
        writer.put(rows_of(0, 61))  # the writer still works
        assert writer.metrics == LateMetrics(quarantined=1)


def test_a_lost_reply_of_the_quarantine_keeps_the_rows_once() -> None:
    store = FaultStore(MemoryStore("late"))
    table = KeyedTable(store, clock=ManualClock()).create(SCHEMA, KEYED)
    with table.writer() as writer:
        store.on_put("quarantine/", PutFault.APPLIED_THEN_UNKNOWN)
        writer.put(rows_of(0, 61))
    assert [each.rows.num_rows for _, each in read_entries(store) if isinstance(each, QuarantinedRows)] == [1]


def test_a_closed_writer_quarantines_nothing() -> None:
    store = MemoryStore("late")
    writer = KeyedTable(store, clock=ManualClock()).create(SCHEMA, KEYED).writer()
    writer.close()
    with pytest.raises(InvalidInput, match="closed"):
        writer.put(rows_of(61))
    assert list(read_entries(store)) == []


def test_one_way_in_keeps_an_entry_per_window_where_it_asks_for_it() -> None:
    store = MemoryStore("late")
    rule = LateRule("at", LateData())
    late_filter = LateRowFilter(store, rule, RowOrigin(source="a.log", by="ingest", size=9), window_seconds=900)
    rows = pa.Table.from_pylist(rows_of(0, 61, 300, 62), SCHEMA)
    assert late_filter.admit(rows, START_MS).column("id").to_pylist() == [0]
    again = LateRowFilter(store, rule, RowOrigin(source="a.log", by="ingest", size=9), window_seconds=900)
    again.admit(pa.concat_tables([rows.slice(0, 2), rows.slice(2)]), START_MS)
    assert again.keys == late_filter.keys
    kept = [each for _, each in read_entries(store) if isinstance(each, QuarantinedRows)]
    assert sorted(each.rows.column("id").to_pylist() for each in kept) == [[1, 3], [2]]


EVERY_TYPE = pa.table(
    {
        "at": pa.array([at(1), None], pa.timestamp("us", "UTC")),
        "plain": pa.array([-62_135_596_800_000_000, 253_402_300_799_999_999], pa.timestamp("us")),
        "day": pa.array([dt.date(1969, 12, 31), None]),
        "price": pa.array([decimal.Decimal("-0.10"), decimal.Decimal("12345678901234567890.12")], pa.decimal128(38, 2)),
        "load": pa.array([float("inf"), -0.0]),
        "bytes": pa.array([b"\x00\xff", b""]),
        "tags": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
        "text": pa.array(["caf\u00e9 \U0001f600", '"q"\n']),
    }
)


def test_rows_come_back_exactly_as_they_came_in() -> None:
    store = MemoryStore("late")
    entry = QuarantinedRows(source="writer", reason="late", by="me", arrived_ms=5, rows=EVERY_TYPE)
    (found,) = read_object(store, write_quarantine_entry(store, entry).key)
    assert isinstance(found, QuarantinedRows)
    assert found.rows.equals(EVERY_TYPE)
    assert (found.source, found.size, found.by, found.arrived_ms) == ("writer", None, "me", 5)
    assert found.reasons == {"late": 2}


def test_lines_and_rows_are_told_apart() -> None:
    store = MemoryStore("late")
    lines = ({"line": 1, "reason": "x", "text": "", "encoding": "utf-8"}, {"line": 2, "reason": "x", "text": "a"})
    write_quarantine_entry(store, RejectedLines(source="a.log", size=7, rejected=lines))
    write_quarantine_entry(
        store, QuarantinedRows(source="a.log", size=7, reason="late", by="ingest", arrived_ms=5, rows=EVERY_TYPE)
    )
    kinds = {type(each): each.reasons for _, each in read_entries(store)}
    assert kinds == {RejectedLines: Counter(x=2), QuarantinedRows: {"late": 2}}


@pytest.mark.parametrize(
    "harm",
    [
        {"rows": "not base64"},
        {"rows": base64.b64encode(b"no stream").decode()},
        {"rows": None},
        {"count": 3},
        {"arrivedAt": None},
        {"formatVersion": "2"},
        {"formatVersion": 1},
        {"formatVersion": 3},
        {"formatVersion": 4},
    ],
)
def test_a_damaged_or_invented_entry_is_named(harm: dict[str, object]) -> None:
    store = MemoryStore("late")
    entry = QuarantinedRows(source="writer", reason="late", by="me", arrived_ms=5, rows=EVERY_TYPE)
    harmed = json.dumps({**json.loads(arrow_files.encode_quarantine(entry)), **harm}).encode()
    for key in (write_quarantine_entry(store, entry).key, quarantine_key("writer", arrow_files.id_of(harmed))):
        store.put(key, harmed, Overwrite())
        with pytest.raises(Corrupt, match=key):
            read_object(store, key)
