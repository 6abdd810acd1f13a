from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.incoming import table_of

SCHEMA = pa.schema([pa.field("key", pa.string(), nullable=False), ("seats", pa.int32()), ("model", pa.string())])


def test_mappings_become_columns_of_the_tables_types_in_its_order() -> None:
    table = table_of([{"seats": 2, "key": "a"}, {"key": "b"}], SCHEMA)
    assert table.schema.equals(pa.schema([("key", pa.string()), ("seats", pa.int32())]))
    assert table.to_pylist() == [{"key": "a", "seats": 2}, {"key": "b", "seats": None}]
    assert table_of({"key": "a"}, SCHEMA).num_rows == 1
    assert table_of([], SCHEMA).equals(SCHEMA.empty_table())


def test_arrow_data_stays_as_it_is() -> None:
    table = pa.table({"whatever": [1]})
    assert table_of(table, SCHEMA) is table
    assert table_of(table.to_batches()[0], SCHEMA).equals(table)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"wings": 2}, "unknown column 'wings'"),
        (
            {"key": 1},
            r"^column 'key': a value does not fit the type string \(row 1\): 1 has the type int\. Convert it first$",
        ),
        ({"key": "\ud800"}, r"'\\ud800' has characters that UTF-8 does not have\. Leave them out$"),
        ({"seats": True}, r"True has the type bool\. Convert it first$"),
        ({"seats": "many"}, r"^column 'seats': .*\(row 1\): 'many' has the type str\. Convert it first$"),
        ({"seats": 2**31}, r"2147483648 is out of its range\. Use a column of a larger type$"),
        ({"seats": 2**70}, r"a whole number of 71 bits is out of its range\. Use a column of a larger type$"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(row: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        table_of([{"key": "a"}, row], SCHEMA)


NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.9),
        (pa.int64(), 404.7),
        (pa.int64(), True),
        (pa.int8(), Decimal("1.5")),
        (pa.int64(), math.nan),
        (pa.int64(), np.float64(1.5)),
        (pa.float32(), 1e300),
        (pa.float64(), 2**53 + 1),
        (pa.float64(), True),
        (pa.date32(), NOON),
        (pa.date32(), NOON.replace(tzinfo=None)),
        (pa.date32(), 5),
        (pa.timestamp("us"), NOON),
        (pa.timestamp("us", "UTC"), 5),
        (pa.decimal128(9, 2), Decimal("1.555")),
        (pa.list_(pa.int64()), [1, 1.5]),
        (pa.list_(pa.list_(pa.date32())), [[NOON]]),
        (pa.struct([("n", pa.int64())]), {"n": 1.5}),
        (pa.map_(pa.string(), pa.int64()), {"a": 1.5}),
        (pa.map_(pa.string(), pa.int64()), [("a", 1.5)]),
    ],
)
def test_a_python_value_that_a_column_would_change_is_refused_by_column_and_value(
    kind: pa.DataType, value: object
) -> None:
    schema = pa.schema([("c", kind)])
    with pytest.raises(InvalidInput, match="column 'c': a value does not fit"):
        table_of([{"c": None}, {"c": value}], schema)


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        (pa.int64(), 2.0, 2),
        (pa.int16(), np.int64(3), 3),
        (pa.int8(), Decimal(4), 4),
        (pa.float32(), 0.1, 0.10000000149011612),
        (pa.float32(), math.inf, math.inf),
        (pa.float64(), 7, 7.0),
        (pa.date32(), dt.datetime(2024, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None), dt.date(2024, 1, 1)),
        (pa.timestamp("us", "UTC"), NOON.replace(tzinfo=None), NOON),
        (pa.timestamp("us"), NOON.replace(tzinfo=None), NOON.replace(tzinfo=None)),
        (pa.list_(pa.int64()), (1, None), [1, None]),
        (pa.struct([("n", pa.int64())]), {"n": 1}, {"n": 1}),
        (pa.map_(pa.string(), pa.int64()), {"a": 1}, [("a", 1)]),
    ],
)
def test_a_python_value_that_a_column_can_hold_is_kept(kind: pa.DataType, given: object, kept: object) -> None:
    assert table_of([{"c": given}, {"c": None}], pa.schema([("c", kind)]))["c"].to_pylist() == [kept, None]


def test_what_is_not_rows_is_refused_with_what_to_give() -> None:
    for rows in (pd.Series(["a"]), "a", [1]):
        with pytest.raises(InvalidInput, match="Give mappings of columns to values, Arrow data or a data frame"):
            table_of(rows, SCHEMA)


_INNER = pa.struct([("a", pa.int32())])


@pytest.mark.parametrize(
    ("type_", "given", "path"),
    [
        (_INNER, {"a": 1, "z": 2}, "c.z"),
        (_INNER, {"A": 1}, "c.A"),
        (_INNER, [("a", 1), ("z", 2)], "c.z"),
        (_INNER, {b"a": 1}, "c.b'a'"),
        (pa.struct([("s", _INNER)]), {"s": {"z": 1}}, "c.s.z"),
        (pa.list_(_INNER), [{"a": 1}, {"z": 2}], "c.element.z"),
        (pa.list_(_INNER), ({"z": 2},), "c.element.z"),
        (pa.map_(pa.string(), _INNER), {"x": {"z": 2}}, "c.value.z"),
        (pa.map_(pa.string(), pa.list_(_INNER)), [("x", [{"z": 2}])], "c.value.element.z"),
        (pa.map_(_INNER, pa.int64()), [({"z": 2}, 1)], "c.key.z"),
    ],
    ids=str,
)
def test_a_field_that_a_struct_lacks_is_refused_by_its_path(type_: pa.DataType, given: object, path: str) -> None:
    with pytest.raises(InvalidInput, match="column 'c'") as refused:
        table_of([{"c": None}, {"c": given}], pa.schema([("c", type_)]))
    assert f"the struct has no field {path!r}. It has ['a'" in str(refused.value).replace("['s']", "['a']")
    assert "(row 1)" in str(refused.value)


def test_a_struct_may_lack_fields_and_may_come_as_pairs() -> None:
    type_ = pa.struct([("a", pa.int32()), ("b", pa.int32())])
    rows = table_of([{"c": {}}, {"c": {"b": 1}}], pa.schema([("c", type_)]))
    assert rows["c"].to_pylist() == [{"a": None, "b": None}, {"a": None, "b": 1}]
    pairs = table_of([{"c": [("a", 2)]}], pa.schema([("c", type_)]))
    assert pairs["c"].to_pylist() == [{"a": 2, "b": None}]
