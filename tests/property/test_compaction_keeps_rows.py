"""Compaction never changes rows, checked in plain Python without our kernels (MC-1 to MC-4, lesson 62)."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.compact.execute import execute
from storage_core.compact.pending_work import group_by_window
from storage_core.compact.planner import choose
from storage_core.log.actions import Add
from storage_core.maintain.audit import audit
from storage_core.split.read import read_split
from storage_core.split.writer import sort_and_write
from storage_core.store.memory import MemoryStore
from tests.support.events import HOUR_SECONDS, SCHEMA, context, events, instant, snapshot
from tests.support.ids import SeededIds
from tests.support.merge_plan import plan
from tests.support.scale import scaled

Row = Mapping[str, Any]

OPTIONAL = [name for name in SCHEMA.names if name != "at"]
TEXTS = st.one_of(
    st.none(), st.sampled_from(["", "a", "B", "é", "\ue000", "\U0001f600", "10", "9"]), st.text(max_size=5)
)
SECONDS = st.one_of(st.none(), st.integers(-2 * HOUR_SECONDS, 2 * HOUR_SECONDS), st.sampled_from([-1e-6, 0.0, 3600.0]))
FLOATS = st.one_of(st.none(), st.floats(), st.sampled_from([math.nan, -0.0, 0.0, math.inf, -math.inf]))
INTEGERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
ROWS = st.fixed_dictionaries({"at": SECONDS, "service": TEXTS, "host": TEXTS, "count": INTEGERS, "value": FLOATS})
INPUTS = st.lists(st.tuples(st.lists(ROWS, max_size=12), st.sets(st.sampled_from(OPTIONAL))), min_size=1, max_size=5)


def _without(rows: Sequence[Row], columns: set[str]) -> pa.Table:
    kept = pa.schema([field for field in SCHEMA if field.name not in columns])
    return events([{name: row[name] for name in kept.names} for row in rows], kept)


def _cell(value: Any) -> Any:
    """Return the bits of a float, so that zeros keep their sign and NaN equals NaN. Values of other types are kept."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack(">d", value)
    return value


def _multiset(rows: Sequence[Row]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(_cell(row.get(name)) for name in SCHEMA.names) for row in rows)


def _sort_key(row: Row) -> tuple[Any, ...]:
    def text(value: str | None) -> tuple[bool, bytes]:
        return value is None, (value or "").encode()

    at: datetime | None = row.get("at")
    newest_first = 0 if at is None else -((at - _epoch()) // timedelta(microseconds=1))
    return text(row.get("service")), text(row.get("host")), at is None, newest_first


def _epoch() -> datetime:
    zero = instant(0)
    assert zero is not None
    return zero


def _stored(store: MemoryStore, adds: Sequence[Add]) -> list[Row]:
    return [row for add in adds for row in read_split(store, add).to_pylist()]


@settings(max_examples=scaled(75))
@given(INPUTS)
def test_any_inputs_become_the_same_rows_sorted_in_one_split_per_window(
    inputs: list[tuple[list[Row], set[str]]],
) -> None:
    store, ids = MemoryStore("property"), SeededIds(1)
    written: list[Row] = []
    before: list[Add] = []
    for rows, absent in inputs:
        table = _without(rows, absent)
        written.extend(table.to_pylist())
        before.extend(sort_and_write(store, table, context=context(), ids=ids, now_ms=1))
    live = {add.path: add for add in before}
    for operation in plan(snapshot(before)):
        result = execute(store, operation, ids=ids, now_ms=2)
        for remove in result.removes:
            del live[remove.path]
        live.update({add.path: add for add in result.adds})
        assert len(result.adds) == 1
        columns = {name for add in operation.inputs for name in read_split(store, add).column_names}
        assert set(read_split(store, result.adds[0]).column_names) == columns
    after = list(live.values())
    assert _multiset(_stored(store, after)) == _multiset(written)
    windows = [add.windowStart for add in after]
    assert len(windows) == len(set(windows))
    for add in after:
        stored = _stored(store, [add])
        assert [_sort_key(row) for row in stored] == sorted(_sort_key(row) for row in stored)
    assert group_by_window(choose(snapshot(after))) == []
    assert audit(store, snapshot(after)).violations == ()
