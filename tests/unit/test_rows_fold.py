"""Records of one key are merged correctly, for every pair of operations (docs/architecture/ingestion.md)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.fold import FIELDS, OPERATION, Operation, apply, fold, record_schema

SCHEMA = pa.schema([pa.field("k", pa.string(), nullable=False), ("f", pa.int64()), ("g", pa.int64())])

Record = tuple[Operation, str, dict[str, int | None]]


def put(key: str, f: int | None = None, g: int | None = None) -> Record:
    return Operation.PUT, key, {"f": f, "g": g}


def patch(key: str, **given: int | None) -> Record:
    return Operation.PATCH, key, given


def delete(key: str) -> Record:
    return Operation.DELETE, key, {}


def reset(key: str, f: int | None = None, g: int | None = None) -> Record:
    return Operation.RESET, key, {"f": f, "g": g}


def _records(*records: Record) -> pa.Table:
    rows = [
        {
            OPERATION: int(operation),
            FIELDS: list(given) if operation is Operation.PATCH else None,
            "k": key,
            **given,
        }
        for operation, key, given in records
    ]
    return pa.Table.from_pylist(rows, record_schema(SCHEMA))


def _folded(*records: Record) -> list[Record]:
    rows = fold(_records(*records), ["k"]).to_pylist()
    found: list[Record] = []
    for row in rows:
        operation = Operation(row[OPERATION])
        names = row[FIELDS] if operation is Operation.PATCH else [] if operation is Operation.DELETE else ["f", "g"]
        assert (row[FIELDS] is None) == (operation is not Operation.PATCH)
        assert all(row[name] is None for name in ("f", "g") if name not in names)
        found.append((operation, row["k"], {name: row[name] for name in names}))
    return found


def _applied(base: Sequence[dict[str, object]], *records: Record) -> list[dict[str, object]]:
    rows = apply(pa.Table.from_pylist(list(base), SCHEMA), fold(_records(*records), ["k"]), ["k"])
    assert rows.schema.equals(SCHEMA)
    return list(rows.to_pylist())


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        (put("a", 1, 2), put("a", 3), put("a", 3)),
        (put("a", 1, 2), patch("a", g=3), put("a", 1, 3)),
        (put("a", 1, 2), delete("a"), delete("a")),
        (put("a", 1, 2), reset("a", g=4), reset("a", g=4)),
        (patch("a", f=1), put("a", 3), put("a", 3)),
        (patch("a", f=1), patch("a", g=2), patch("a", f=1, g=2)),
        (patch("a", f=1), patch("a", f=None), patch("a", f=None)),
        (patch("a", f=1), delete("a"), delete("a")),
        (patch("a", f=1), reset("a", g=4), reset("a", g=4)),
        (delete("a"), put("a", 3, 4), reset("a", 3, 4)),
        (delete("a"), patch("a", f=1), reset("a", 1)),
        (delete("a"), delete("a"), delete("a")),
        (delete("a"), reset("a", 1), reset("a", 1)),
        (reset("a", 1, 2), put("a", 3), reset("a", 3)),
        (reset("a", 1, 2), patch("a", g=3), reset("a", 1, 3)),
        (reset("a", 1, 2), delete("a"), delete("a")),
        (reset("a", 1, 2), reset("a", 3), reset("a", 3)),
    ],
)
def test_two_records_of_a_key_become_the_one_that_does_both(first: Record, then: Record, expected: Record) -> None:
    assert _folded(first, then) == [expected]


def test_put_then_patch_folds_field_by_field() -> None:
    assert _applied([], put("a", 1, 2), patch("a", g=3)) == [{"k": "a", "f": 1, "g": 3}]


def test_delete_then_patch_leaves_only_the_fields_of_the_patch() -> None:
    assert _applied([{"k": "a", "f": 8, "g": 9}], delete("a"), patch("a", f=1)) == [{"k": "a", "f": 1, "g": None}]


def test_put_then_delete_leaves_nothing() -> None:
    assert _applied([], put("a", 1, 2), delete("a")) == []
    assert _applied([{"k": "a", "f": 8, "g": 9}], put("a", 1, 2), delete("a")) == []


def test_a_lone_delete_that_reaches_the_base_writes_nothing() -> None:
    assert _applied([], delete("a")) == []


def test_a_patch_over_the_base_keeps_the_other_fields_and_may_set_null() -> None:
    base = [{"k": "a", "f": 8, "g": 9}, {"k": "b", "f": 6, "g": 7}]
    assert _applied(base, patch("a", f=None)) == [{"k": "a", "f": None, "g": 9}, {"k": "b", "f": 6, "g": 7}]


def test_a_patch_without_a_base_row_is_a_put_of_its_fields() -> None:
    assert _applied([], patch("a", g=3)) == [{"k": "a", "f": None, "g": 3}]


def test_documents_in_arrival_order_leave_one_record_each_with_the_newest_values() -> None:
    arrivals = [put("a", 1, 1), put("c", 1, 1), patch("a", f=2), put("b", 5), patch("a", g=3), patch("c", f=7)]
    assert _folded(*arrivals) == [put("a", 2, 3), put("b", 5), put("c", 7, 1)]


def test_a_put_that_names_its_fields_sets_the_others_to_null() -> None:
    rows = [{OPERATION: 0, FIELDS: ["f"], "k": "a", "f": 1, "g": 99}, {OPERATION: 1, FIELDS: [], "k": "a", "f": 5}]
    (folded,) = fold(pa.Table.from_pylist(rows, record_schema(SCHEMA)), ["k"]).to_pylist()
    assert folded == {OPERATION: 0, FIELDS: None, "k": "a", "f": 1, "g": None}


def test_a_patch_that_names_nothing_at_all_gives_every_column() -> None:
    rows = [{OPERATION: 1, FIELDS: None, "k": "a", "f": 1, "g": None}]
    (folded,) = fold(pa.Table.from_pylist(rows, record_schema(SCHEMA)), ["k"]).to_pylist()
    assert folded[FIELDS] == ["f", "g"]


def test_no_records_change_nothing() -> None:
    assert _folded() == []
    base = [{"k": "b", "f": 1, "g": 1}, {"k": "a", "f": 1, "g": 1}]
    assert _applied(base) == sorted(base, key=lambda row: str(row["k"]))


def test_keys_of_several_columns_are_ordered_in_turn() -> None:
    schema = pa.schema([("b", pa.int64()), ("a", pa.string())])
    records = pa.table(
        {
            OPERATION: pa.array([0, 0, 0], pa.int8()),
            FIELDS: pa.nulls(3, pa.list_(pa.string())),
            "b": [2, 1, 1],
            "a": ["x", "y", "x"],
        }
    ).cast(record_schema(schema))
    assert [(row["a"], row["b"]) for row in fold(records, ["a", "b"]).to_pylist()] == [("x", 1), ("x", 2), ("y", 1)]


def test_a_key_without_a_value_is_refused() -> None:
    rows = [{OPERATION: 0, "k": "a"}, {OPERATION: 0, "k": None}]
    with pytest.raises(InvalidInput, match="'k' is null in row 1"):
        fold(pa.Table.from_pylist(rows, record_schema(SCHEMA)), ["k"])


def test_an_unknown_operation_is_refused() -> None:
    rows = pa.Table.from_pylist([{OPERATION: 4, "k": "a"}], record_schema(SCHEMA))
    with pytest.raises(InvalidInput, match=r"unknown operations \[4\].*3 RESET"):
        fold(rows, ["k"])


def test_an_unknown_field_is_refused() -> None:
    rows = pa.Table.from_pylist([{OPERATION: 1, FIELDS: ["h"], "k": "a"}], record_schema(SCHEMA))
    with pytest.raises(InvalidInput, match=r"fields \['h'\]"):
        fold(rows, ["k"])


def test_a_record_that_leaves_a_required_column_empty_is_refused_with_the_column() -> None:
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), pa.field("f", pa.int64(), nullable=False)])
    records = pa.Table.from_pylist([{OPERATION: 1, FIELDS: [], "k": "a"}], record_schema(schema))
    with pytest.raises(InvalidInput, match="'f' is required"):
        apply(schema.empty_table(), records, ["k"])


def test_record_columns_are_reserved_names() -> None:
    with pytest.raises(InvalidInput, match="reserved"):
        record_schema(pa.schema([(OPERATION, pa.int8())]))


def test_records_without_their_columns_are_refused() -> None:
    with pytest.raises(InvalidInput, match="lack the columns"):
        fold(pa.table({"k": ["a"]}), ["k"])
