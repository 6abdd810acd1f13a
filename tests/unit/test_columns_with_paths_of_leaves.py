"""A column whose name is the path of a nested leaf, as in flattened JSON, works like any other column."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from storage_core.base.clock import SystemClock
from storage_core.maintain.check import fsck
from storage_core.table import Table
from tests.support import upkeep

NAN = float("nan")
COLUMNS: Mapping[str, Mapping[str, pa.DataType]] = {
    "struct": {"a": pa.struct([("b", pa.string()), ("x", pa.float64())]), "a.b": pa.int64(), "a.x": pa.float64()},
    "reversed": {"a.b": pa.string(), "a": pa.struct([("c", pa.int8()), ("b", pa.string())])},
    "list": {"a": pa.list_(pa.bool_()), "a.list.element": pa.int64()},
    "map": {"m": pa.map_(pa.string(), pa.int64()), "m.key_value.key": pa.int64(), "m.key_value.value": pa.string()},
    "vector": {"v": pa.list_(pa.float32(), 2), "v.list.element": pa.int64()},
}


def _value(type_: pa.DataType, row: int) -> object:
    kinds = pa.types
    if kinds.is_struct(type_):
        return {field.name: _value(field.type, row) for field in type_}
    if kinds.is_map(type_):
        return [(_value(type_.key_type, row), _value(type_.item_type, row))]
    if kinds.is_list(type_) or kinds.is_fixed_size_list(type_):
        return [_value(type_.value_type, row)] * 2
    if kinds.is_floating(type_):
        return NAN if row % 3 == 1 and kinds.is_float64(type_) else float(row)
    if kinds.is_string(type_):
        return f"text {row:06d}"
    return row % 2 == 0 if kinds.is_boolean(type_) else row % 100


@pytest.mark.parametrize("name", COLUMNS)
def test_it_is_written_compacted_pruned_and_read(name: str, tmp_path: object) -> None:
    types = COLUMNS[name]
    flat = next(each for each in types if "." in each)
    at = pa.array(range(400), pa.timestamp("us", "UTC"))
    parts = [
        pa.table(
            {
                column: pa.array([_value(type_, n) for n in range(first, first + 400)], type_)
                for column, type_ in types.items()
            }
        ).append_column("at", at)
        for first in range(0, 2400, 400)
    ]
    table = Table.create(
        f"{tmp_path}/t",
        parts[0].schema,
        time_column="at",
        sort_schema=f"{flat}|timestamp/V2",
        settings={"bloom_filters": [flat]},
    )
    for part in parts:
        table.append(part)
    rows = pa.concat_tables(parts)
    _require(table, rows, flat)
    upkeep.compact(table)
    assert len(table.refresh().files()) == 1
    _require(table, rows, flat)
    assert fsck(table.store, clock=SystemClock(), deep=True).clean


def _require(table: Table, rows: pa.Table, flat: str) -> None:
    for columns in ([column] for column in rows.column_names):
        found = table.scan(columns).to_arrow()
        assert found.column_names == columns
        assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, rows.select(columns).to_pylist()))
    wanted = rows[flat][7].as_py()
    shown = repr(wanted) if isinstance(wanted, int) else f"'{wanted}'"
    assert table.scan(filter=f'"{flat}" = {shown}').to_arrow().num_rows == rows[flat].to_pylist().count(wanted)
    for column in (each for each in rows.column_names if pa.types.is_floating(rows.schema.field(each).type)):
        missing = sum(value != value for value in rows[column].to_pylist())  # noqa: PLR0124  # NaN
        assert table.sql(f'select count(*) as c from t where isnan("{column}")').to_arrow()["c"][0].as_py() == missing
