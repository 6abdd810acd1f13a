"""Records, flushes, sorts, merges and compactions happen in any order.

The base of the table equals the model, a dictionary, and has one live row per key.

The test compares only the base of the table. The test reads at level `snapshot`, because reads at `snapshot` do not
fold duplicates. Keys are composite, with texts and decimals. A table has windows over a key column, or no windows. In
one map column of the table, a patch adds its entries to the existing map.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput
from storage_core.compact import execute as compaction
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action
from storage_core.read.changes import changes
from storage_core.read.fetching import FetchPlan
from storage_core.read.table_read import splits_source
from storage_core.read.verified_files import VerifiedFiles
from storage_core.store.memory import MemoryStore
from tests.support import merge_plan
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled

SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("amount", pa.decimal128(20, 3), nullable=False),
        ("n", pa.int64()),
        ("text", pa.string()),
        ("attrs", pa.map_(pa.string(), pa.decimal128(20, 3))),
    ]
)
NULLS: dict[str, Any] = {"n": None, "text": None, "attrs": None}
KEY = ("name", "amount", "at")
START = dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC)
Key = tuple[str, Decimal, dt.datetime]
Step = tuple[str, Any]

KEYS = st.tuples(
    st.sampled_from(["", "a", "é", "e\u0301", "\ue000", "\U0001f600", "10", "9"]),
    st.sampled_from([Decimal("-1.000"), Decimal("0.000"), Decimal("0.001"), Decimal("12345678901234567.890")]),
    st.sampled_from([START, START + dt.timedelta(seconds=61)]),
)
ATTRS = st.dictionaries(
    st.sampled_from(["", "é", "e\u0301"]),
    st.none() | st.sampled_from([Decimal("0.001"), Decimal("-1.000")]),
    max_size=2,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | st.integers(-3, 3),
        "text": st.none() | st.sampled_from(["", "x", "é"]),
        "attrs": st.none() | ATTRS,
    },
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.tuples(KEYS, FIELDS), min_size=1, max_size=6)),
        st.tuples(st.just("reset"), st.lists(st.tuples(KEYS, FIELDS), min_size=1, max_size=2)),
        st.tuples(st.just("patch"), st.lists(st.tuples(KEYS, FIELDS), min_size=1, max_size=3)),
        st.tuples(st.just("delete"), st.lists(KEYS, min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["flush", "sort", "merge", "merge", "compact", "checkpoint"]), st.none()),
    ),
    max_size=25,
)


class Model:
    """A table, and a dictionary that records the same changes as the table."""

    def __init__(self, *, windowed: bool) -> None:
        config = TableConfig(
            primary_key=KEY,
            time_column="at" if windowed else None,
            window_seconds=60 if windowed else None,
            map_columns={"attrs": "merge"},
        )
        self.table = KeyedTable(MemoryStore("base")).create(SCHEMA, config)
        self.rows: dict[Key, dict[str, Any]] = {}
        self.flushed: dict[Key, dict[str, Any]] = {}
        self.merged: dict[Key, dict[str, Any]] = {}

    def run(self, steps: Sequence[Step]) -> None:
        with self.table.writer() as writer:
            for name, values in [*steps, ("flush", None), ("merge", None)]:
                match name:
                    case "put":
                        writer.put([_row(key, fields) for key, fields in values])
                        self.rows |= {key: {**NULLS, **fields} for key, fields in values}
                    case "reset":
                        writer.reset([_row(key, fields) for key, fields in values])
                        self.rows |= {key: {**NULLS, **fields} for key, fields in values}
                    case "patch":
                        writer.patch([_row(key, fields) for key, fields in values])
                        for key, fields in values:
                            self.rows[key] = _patched(self.rows.get(key, NULLS), fields)
                    case "delete":
                        writer.delete(values)
                        for key in values:
                            self.rows.pop(key, None)
                    case "flush":
                        writer.flush()
                        self.flushed = {key: dict(row) for key, row in self.rows.items()}
                    case "sort":
                        self.table.sort()
                    case "merge":
                        self.table.merge()
                        self.merged = self.flushed
                    case "compact":
                        self.compact()
                    case _:
                        self.table.log.checkpoint(self.table.snapshot)
                self.check()

    def compact(self) -> None:
        snapshot = self.table.snapshot
        actions: list[Action] = []
        for operation in merge_plan.plan(snapshot):
            actions += compaction.execute(self.table.store, operation, ids=self.table.ids, now_ms=1).actions
        if actions:
            self.table.log.commit(snapshot, actions, operation="COMPACT")

    def check(self) -> None:
        snapshot = self.table.snapshot
        found = [(_key(row), _fields(row)) for row in self.table.base_rows(snapshot)]
        assert Counter(key for key, _ in found) == Counter(self.merged.keys()), "one live row per key"
        assert dict(found) == self.merged
        assert snapshot.rows == len(self.merged)
        for add in snapshot.splits.values():
            assert add.visible_rows > 0, "a split without a live row is removed"

    def check_history(self) -> None:
        """Apply all changes since the first version. Assert that the result is exactly the rows of the base."""
        log = self.table.log
        net: Counter[tuple[Any, ...]] = Counter()
        for row in changes(self.table.store, log.snapshot(version=0), log.snapshot()).read_all().to_pylist():
            whole = (_key(row), repr(_fields(row)))
            net[whole] += 1 if row["_change_type"] == "insert" else -1
            assert net[whole] in (0, 1)
        expected = {(key, repr(row)) for key, row in self.merged.items()}
        assert {row for row, times in net.items() if times} == expected


def _row(key: Key, fields: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(KEY, key, strict=True)), **fields}


def _patched(row: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    patched = {**row, **fields}
    if fields.get("attrs") is not None:
        patched["attrs"] = {**(row["attrs"] or {}), **fields["attrs"]}
    return patched


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    attrs = row["attrs"]
    return {"n": row["n"], "text": row["text"], "attrs": None if attrs is None else dict(attrs)}


def _key(row: dict[str, Any]) -> Key:
    return row["name"], row["amount"], row["at"]


@settings(max_examples=scaled(40), deadline=None)
@given(steps=STEPS, windowed=st.booleans())
def test_the_base_is_the_dictionary_with_one_live_row_per_key(steps: list[Step], windowed: bool) -> None:
    model = Model(windowed=windowed)
    model.run(steps)
    model.check_history()


@settings(max_examples=scaled(10), deadline=None)
@given(steps=STEPS)
def test_sql_over_the_splits_needs_no_deduplication(steps: list[Step]) -> None:
    model = Model(windowed=False)
    model.run(steps)
    snapshot = model.table.snapshot
    splits = list(snapshot.splits.values())
    wanted = FetchPlan(snapshot.schema, snapshot.schema.names)
    source = splits_source(model.table.store, splits, wanted, verified=VerifiedFiles())
    connection = source.opened()
    counted = 'select count(*) as live, count(distinct (name, amount, "at")) as different from t'
    assert connection.sql(counted).fetchall() == [(len(model.merged), len(model.merged))]


def test_a_key_without_a_value_is_refused_before_it_is_written() -> None:
    model = Model(windowed=False)
    with model.table.writer() as writer, pytest.raises(InvalidInput):
        writer.put([_row(("a", Decimal("1.000"), START), {}) | {"name": None}])
    model.check()
