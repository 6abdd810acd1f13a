"""Folding and applying records, compared with a dictionary (docs/architecture/ingestion.md, "Records")."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from storage_core.data.rows.fold import FIELDS, OPERATION, Operation, apply, fold, merging, record_schema

SCHEMA = pa.schema(
    [
        pa.field("a", pa.string(), nullable=False),
        ("f", pa.int64()),
        pa.field("b", pa.int64(), nullable=False),
        ("g", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.int64())),
    ]
)
KEY = ["a", "b"]
COLUMNS = ("f", "g", "m")
RECORDS = record_schema(SCHEMA)

Row = dict[str, Any]

ENTRIES = st.lists(st.tuples(st.sampled_from(["p", "q", "é"]), st.none() | st.integers(0, 3)), max_size=3)
VALUES = {
    "f": st.none() | st.integers(0, 3),
    "g": st.none() | st.lists(st.sampled_from(["x", "y"]), max_size=1),
    "m": st.none() | ENTRIES,
}
KEYS = {"a": st.sampled_from(["", "x", "\U00010000", "\uffff"]), "b": st.integers(0, 1)}
NAMES = ["f", "g", "a", "m", merging("m"), merging("m")]
LISTED = st.none() | st.lists(st.sampled_from(NAMES), unique=True)
RECORD = st.fixed_dictionaries({OPERATION: st.sampled_from([0, 1, 1, 2, 3]), FIELDS: LISTED, **KEYS, **VALUES})
ARRIVALS = st.lists(RECORD, max_size=10)
BASE = st.lists(st.fixed_dictionaries({**KEYS, **VALUES}), max_size=6, unique_by=lambda row: (row["a"], row["b"]))


def _records(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, RECORDS)


def _sort_key(row: Row) -> tuple[bytes, int]:
    return str(row["a"]).encode(), row["b"]


def _model(base: list[Row], records: list[Row]) -> list[Row]:
    """Return the content of a dictionary of rows after every record was applied in order."""
    rows = {_sort_key(row): row for row in base}
    for record in records:
        key = _sort_key(record)
        if record[OPERATION] == Operation.DELETE:
            rows.pop(key, None)
            continue
        listed = record[FIELDS]
        patched = rows.get(key, {}) if record[OPERATION] == Operation.PATCH else {}
        named = COLUMNS if listed is None else [name for name in COLUMNS if {name, merging(name)} & {*listed}]
        given = {name: record[name] for name in ("a", "b", *named)}
        if record[OPERATION] == Operation.PATCH and "m" in given and "m" not in (listed or COLUMNS):
            given["m"] = [*{**dict(patched.get("m") or ()), **dict(given["m"] or ())}.items()]
        rows[key] = dict.fromkeys(SCHEMA.names) | patched | given
    return [rows[key] for key in sorted(rows)]


@given(BASE, ARRIVALS)
def test_applying_folded_records_does_what_a_dictionary_does(base: list[Row], records: list[Row]) -> None:
    table = pa.Table.from_pylist(base, SCHEMA)
    applied = apply(table, fold(_records(records), KEY), KEY)
    assert applied.schema.equals(SCHEMA)
    assert applied.to_pylist() == _model(base, records)


@given(ARRIVALS)
def test_a_fold_has_one_record_per_key_ascending(records: list[Row]) -> None:
    keys = [_sort_key(row) for row in fold(_records(records), KEY).to_pylist()]
    assert keys == sorted({_sort_key(row) for row in records})


@given(ARRIVALS, st.data())
def test_folding_in_any_grouping_gives_the_same_records(records: list[Row], data: st.DataObject) -> None:
    whole = fold(_records(records), KEY)
    first, second = sorted(data.draw(st.tuples(*[st.integers(0, len(records))] * 2)))
    parts = [_records(rows) for rows in (records[:first], records[first:second], records[second:])]
    left = fold(pa.concat_tables([fold(pa.concat_tables(parts[:2]), KEY), parts[2]]), KEY)
    right = fold(pa.concat_tables([parts[0], fold(pa.concat_tables(parts[1:]), KEY)]), KEY)
    each = fold(pa.concat_tables([fold(part, KEY) for part in parts]), KEY)
    assert left.to_pylist() == right.to_pylist() == each.to_pylist() == whole.to_pylist()
    assert fold(whole, KEY).equals(whole)


@given(BASE, ARRIVALS, st.integers(0, 10))
def test_applying_in_two_steps_equals_applying_at_once(base: list[Row], records: list[Row], cut: int) -> None:
    table = pa.Table.from_pylist(base, SCHEMA)
    at_once = apply(table, fold(_records(records), KEY), KEY)
    step = apply(table, fold(_records(records[:cut]), KEY), KEY)
    assert apply(step, fold(_records(records[cut:]), KEY), KEY).to_pylist() == at_once.to_pylist()
