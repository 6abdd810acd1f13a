"""Rows as commands show them: the values of a map by their keys, where JSON can name these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from storage_core.rows.calendar import as_text

Row = dict[str, object]


def shown_rows(rows: pa.Table | pa.RecordBatch) -> list[Row]:
    """Return the rows with the values of `shown`, and columns that hold something beyond the calendar as text."""
    found = as_text(rows)
    return [shown(row, found.schema) for row in found.to_pylist()]


def shown(row: Mapping[str, object], schema: pa.Schema) -> Row:
    """Return the row with its maps, at any depth, as dictionaries where their keys are text, and else as pairs.

    Pairs is also a map that has a key twice, of which a dictionary would lose one.
    """
    nested = {field.name: field.type for field in schema if kinds.is_nested(field.type)}
    return {name: _shown(value, nested[name]) if name in nested else value for name, value in row.items()}


def _shown(value: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if kinds.is_map(type_):
        pairs = value.items() if isinstance(value, Mapping) else value
        listed = [(_shown(key, type_.key_type), _shown(item, type_.item_type)) for key, item in pairs]
        named = dict(listed) if kinds.is_string(type_.key_type) else None
        return listed if named is None or len(named) < len(listed) else named
    if kinds.is_struct(type_):
        return {field.name: _shown(value[field.name], field.type) for field in type_.fields}
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        return [_shown(each, type_.value_type) for each in value]
    return value
