from __future__ import annotations

import pyarrow as pa
import pytest

from storage_core.errors import InvalidInput
from storage_core.rows.incoming import table_of

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
        ({"wings": 2}, r"unknown columns \['wings'\]"),
        ({"key": 1}, "column 'key': a value does not fit the type string"),
        ({"seats": "many"}, "column 'seats'"),
        ({"seats": 2**31}, "column 'seats'"),
        ({"seats": 2**70}, "column 'seats'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(row: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        table_of([{"key": "a"}, row], SCHEMA)
