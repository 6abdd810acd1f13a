"""The types of columns as DuckDB's SQL writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

_NAMES: Final[Mapping[pa.DataType, str]] = {
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
}


def sql_type(type_: pa.DataType) -> str | None:
    """Return the name of a type; None for binary and nested ones."""
    if type_ in _NAMES:
        return _NAMES[type_]
    if pa.types.is_timestamp(type_):
        return "TIMESTAMPTZ" if type_.tz else "TIMESTAMP"
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    return None
