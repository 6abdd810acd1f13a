"""Ids of columns, and of what is inside of them, as Parquet files have them for readers that find fields by these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

FIELD_ID: Final = "PARQUET:field_id"

_INNER_IDS: Final = 2**30
"""From here on fields inside of columns have ids; those of columns are small."""

_INNER_BITS: Final = 12


def inner_ids(column: int) -> Iterator[int]:
    """Yield the ids for what is inside of the column of an id, in the order in which one reads its type."""
    first = _INNER_IDS + (column << _INNER_BITS)
    return iter(range(first, first + (1 << _INNER_BITS)))


def inside(type_: pa.DataType) -> list[pa.Field]:
    """Return the fields of a structure, of a list or a map those that it has in Parquet, of other types none."""
    kinds = pa.types
    if kinds.is_map(type_):
        return [type_.key_field.with_name("key"), type_.item_field.with_name("value")]
    if kinds.is_struct(type_):
        return [type_.field(place) for place in range(type_.num_fields)]
    is_list = kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_)
    return [type_.value_field.with_name("element")] if is_list else []


def identified(field: pa.Field, column: int) -> pa.Field:
    """Return the field with the id of a column, and all that is inside with ids of its own."""
    return _with_id(field, column, inner_ids(column))


def lacks_ids(field: pa.Field) -> bool:
    """Return whether a field of a file has an id, and something inside of it has none."""
    return _has_id(field) and not all(_have_ids(each) for each in inside(field.type))


def _has_id(field: pa.Field) -> bool:
    return FIELD_ID.encode() in (field.metadata or {})


def _have_ids(field: pa.Field) -> bool:
    return _has_id(field) and all(map(_have_ids, inside(field.type)))


def _with_id(field: pa.Field, number: int, ids: Iterator[int]) -> pa.Field:
    inner = [_with_id(each, next(ids), ids) for each in inside(field.type)]
    return field.with_type(_of(field.type, inner)).with_metadata({FIELD_ID: str(number)})


def _of(type_: pa.DataType, inner: list[pa.Field]) -> pa.DataType:
    kinds = pa.types
    if kinds.is_map(type_):
        return pa.map_(*inner)
    if kinds.is_struct(type_):
        return pa.struct(inner)
    if kinds.is_fixed_size_list(type_):
        return pa.list_(*inner, type_.list_size)
    if kinds.is_large_list(type_):
        return pa.large_list(*inner)
    return pa.list_(*inner) if inner else type_
