"""Late data on every path: each row is visible, in quarantine or dropped, as the policy requires, and never twice.

Times are near the bound for late rows, at window edges, before 1970, in several zones, or null. If a batch has rows of
several windows, the writer splits the batch by window before the write. The smallest and the largest time of each split
lie in its window (lesson 29).
"""

from __future__ import annotations

import datetime as dt
import json
import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.formats.arrow_files import QuarantinedRows
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.rows.windows import LateMetrics
from storage_core.data.settings.table import LateData, LatePolicy, TableConfig
from storage_core.log.actions import Metadata
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.ingest.batch import execute, plan
from storage_core.write.ingest.landing import LandingSpec, discover
from storage_core.write.late_rows import read_entries
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled

MINUTE_US = 60_000_000
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
ZONES = ("UTC", "Asia/Kolkata", "America/St_Johns", None)

Row = tuple[int | None, int]


@dataclass(frozen=True, slots=True)
class Case:
    """Rows (microseconds since the epoch and an ID), the policy, and the arrival time."""

    rows: list[Row]
    policy: LatePolicy
    acceptance_ms: int
    arrived_ms: int
    zone: str | None

    @property
    def late_data(self) -> LateData:
        return LateData(policy=self.policy, acceptance_ms=self.acceptance_ms)

    @property
    def late(self) -> list[Row]:
        """Return the late rows. This function applies the plain definition to one row at a time."""
        bound = (self.arrived_ms - self.acceptance_ms) * 1000
        return [row for row in self.rows if row[0] is not None and row[0] < bound]

    @property
    def metrics(self) -> LateMetrics:
        counts = {"accept": "accepted", "quarantine": "quarantined", "drop": "dropped"}
        return LateMetrics(**{counts[self.policy]: len(self.late)})

    @property
    def visible(self) -> Counter[Row]:
        return Counter(self.rows) - (Counter() if self.policy == "accept" else Counter(self.late))

    @property
    def kept(self) -> Counter[Row]:
        return Counter(self.late if self.policy == "quarantine" else [])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Choose an arrival time in or after 1970. Some bounds for late rows therefore lie before 1970."""
    arrived_ms = draw(st.sampled_from([1, 90_000, 1_431_857_103_517]))
    acceptance_ms = draw(st.sampled_from([0, 1, 60_000, 3_600_000]))
    bound = (arrived_ms - acceptance_ms) * 1000
    near = st.integers(-2, 2).map(lambda ticks: bound + ticks)
    steps = st.tuples(st.integers(-3, 3), st.integers(-1, 1))
    edge = steps.map(lambda step: _edge(bound) + step[0] * MINUTE_US + step[1])
    far = st.integers(-(10**15), 10**15)
    times = draw(st.lists(st.one_of(st.none(), near, edge, far), max_size=12))
    return Case(
        rows=[(time, number) for number, time in enumerate(times)],
        policy=draw(st.sampled_from(["accept", "quarantine", "drop"])),
        acceptance_ms=acceptance_ms,
        arrived_ms=arrived_ms,
        zone=draw(st.sampled_from(ZONES)),
    )


def _edge(time: int) -> int:
    return time - time % MINUTE_US


def schema_of(zone: str | None, *, nullable: bool = True) -> pa.Schema:
    kind = pa.timestamp("us", "UTC" if zone else None)
    return pa.schema([pa.field("at", kind, nullable=nullable), pa.field("id", pa.int64(), nullable=False)])


def arrow_of(case: Case) -> pa.Table:
    """Return the rows as a caller passes them, with times in the caller's zone."""
    times, ids = [time for time, _ in case.rows], [number for _, number in case.rows]
    columns = [pa.array(times, pa.timestamp("us", case.zone)), pa.array(ids, pa.int64())]
    return pa.Table.from_arrays(columns, names=["at", "id"])


def found_in(rows: pa.Table) -> Counter[Row]:
    times = rows.column("at").cast(pa.int64()).to_pylist()
    return Counter(zip(times, rows.column("id").to_pylist(), strict=True))


def kept_in(store: MemoryStore | MeteredStore) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for _, entry in read_entries(store):
        assert isinstance(entry, QuarantinedRows)
        found += found_in(entry.rows)
    return found


def visible_in(snapshot: Snapshot, store: MemoryStore | MeteredStore) -> Counter[Row]:
    """Return all rows of the base. Assert that the times of each split lie in its window."""
    found: Counter[Row] = Counter()
    for add in snapshot.splits.values():
        rows = found_in(read_split(store, add))
        windows = {None if time is None else _edge(time) // 1_000_000 for time, _ in rows}
        assert windows == {add.windowStart}
        found += rows
    return found


def make_log(store: MeteredStore, case: Case) -> TransactionLog:
    log = TransactionLog(store, clock=ManualClock(case.arrived_ms), ids=SeededIds(1))
    config = TableConfig(time_column="at", window_seconds=60, late_data=case.late_data)
    schema = to_schema_string(schema_of(case.zone))
    log.create(Metadata(id="t", schemaString=schema, configuration=config.to_configuration()))
    return log


@settings(max_examples=scaled(40))
@given(case=cases())
def test_an_append_loses_nothing_and_straddles_no_window(case: Case) -> None:
    store = MeteredStore(MemoryStore("late"))
    log = make_log(store, case)
    table = Table(store, log, log.snapshot())
    done = table.append(arrow_of(case))
    assert (visible_in(table.snapshot, store), kept_in(store)) == (case.visible, case.kept)
    assert (done.rows, done.late) == (case.visible.total(), case.metrics)


@settings(max_examples=scaled(40))
@given(case=cases(), windowed=st.booleans())
def test_a_region_writer_and_its_merge_lose_nothing_and_straddle_no_window(case: Case, windowed: bool) -> None:
    rows = [row for row in case.rows if row[0] is not None] if windowed else case.rows
    case = Case(rows, case.policy, case.acceptance_ms, case.arrived_ms, case.zone)
    store = MemoryStore("late")
    config = TableConfig(
        primary_key=("id", "at") if windowed else ("id",),
        time_column="at",
        window_seconds=60 if windowed else None,
        late_data=case.late_data,
    )
    table = KeyedTable(store, clock=ManualClock(case.arrived_ms))
    table.create(schema_of(case.zone, nullable=not windowed), config)
    whole = arrow_of(case)
    with table.writer() as writer:
        writer.put(whole.slice(0, 4))
        if whole.num_rows > 4:
            writer.patch(whole.slice(4))
        assert writer.metrics == case.metrics
        assert Counter((_ticks(row["at"]), row["id"]) for row in table.rows().values()) == case.visible
        writer.flush()
    table.merge()
    if windowed:
        assert visible_in(table.snapshot, store) == case.visible
    assert Counter((_ticks(row["at"]), row["id"]) for row in table.base_rows()) == case.visible
    assert kept_in(store) == case.kept


def _ticks(time: object) -> int | None:
    if not isinstance(time, dt.datetime):
        return None
    return (time.replace(tzinfo=time.tzinfo or dt.UTC) - EPOCH) // dt.timedelta(microseconds=1)


def _text(time: int | None) -> str | None:
    return None if time is None else (EPOCH + dt.timedelta(microseconds=time)).replace(tzinfo=None).isoformat()


@settings(max_examples=scaled(20))
@given(case=cases(), crash=st.booleans(), only=st.booleans())
def test_a_batch_loses_nothing_and_straddles_no_window(case: Case, crash: bool, only: bool) -> None:
    """Each late row is kept exactly once.

    A run may die before its commit, or runs may process one window after another.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.ndjson"
        lines = [json.dumps({"at": _text(time), "id": number}) for time, number in case.rows]
        file.write_text("".join(f"{line}\n" for line in lines) + "no row\n")
        os.utime(file, ns=(0, case.arrived_ms * 1_000_000))
        store = MeteredStore(MemoryStore("late"))
        log = make_log(store, case)
        spec = LandingSpec(uri=folder, format="ndjson")
        late = LateMetrics()
        windows = sorted({None if time is None else _edge(time) // 1_000_000 for time, _ in case.rows}, key=str)
        runs: list[list[int | None] | None] = [*([[each] for each in windows[:2]] if only else []), None]
        for run in runs:
            for attempt in range(1 + crash):
                snapshot = log.snapshot()
                for work in plan(snapshot, spec, discover(spec), run):
                    now_ms = case.arrived_ms + 10**9 * attempt
                    done = execute(store, work, context=context_of(snapshot), ids=SeededIds(attempt), now_ms=now_ms)
                    if attempt == crash and done.actions:
                        log.commit(snapshot, done.actions, operation="INGEST")
                        late += done.late
        assert visible_in(log.snapshot(), store) == case.visible
        of_lines = [key for key, entry in read_entries(store) if not isinstance(entry, QuarantinedRows)]
        assert len(of_lines) == 1
        store.delete(of_lines)
        assert (kept_in(store), late) == (case.kept, case.metrics)
