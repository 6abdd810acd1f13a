"""The leaves of nested Arrow types: the values of lists, structs and maps that are not nested themselves, in order.

The leaves of a column of Parquet are its physical columns, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pyarrow as pa

Change: TypeAlias = Callable[[pa.Array], pa.Array]
"""Returns an array of the same length, nulls at the same places."""


def leaf_types(type_: pa.DataType) -> list[pa.DataType]:
    """Return the types of the leaves of a type. A type that is not nested is its own leaf."""
    kinds = pa.types
    if kinds.is_map(type_):
        return [*leaf_types(type_.key_type), *leaf_types(type_.item_type)]
    if kinds.is_struct(type_):
        return [leaf for each in type_.fields for leaf in leaf_types(each.type)]
    if _is_listed(type_):
        return leaf_types(type_.value_type)
    return [type_]


def with_changed_leaves(values: pa.Array, changes: Iterator[Change | None]) -> pa.Array:
    """Return the values with each leaf changed by the next of `changes`. None keeps a leaf as it is.

    Cost: no copy of what is kept.
    """
    kinds, type_ = pa.types, values.type
    if kinds.is_map(type_):
        keys, items = (with_changed_leaves(each, changes) for each in (values.keys, values.items))
        kind = pa.map_(type_.key_field.with_type(keys.type), type_.item_field.with_type(items.type))
        entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
        return _nested(kind, values, entries)
    if kinds.is_struct(type_):
        children = [with_changed_leaves(values.field(index), changes) for index in range(type_.num_fields)]
        fields = [
            old if old.type == new.type else old.with_type(new.type)
            for old, new in zip(type_.fields, children, strict=True)
        ]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask) if children else values
    if _is_listed(type_):
        inner = with_changed_leaves(values.values, changes)
        return _nested(_listed_of(type_, type_.value_field.with_type(inner.type)), values, inner)
    change = next(changes)
    return values if change is None else change(values)


def _nested(kind: pa.DataType, values: pa.Array, child: pa.Array) -> pa.Array:
    """An array like `values`, of which the whole child is another one."""
    own = 1 if pa.types.is_fixed_size_list(kind) else 2
    return pa.Array.from_buffers(
        kind, len(values), values.buffers()[:own], values.null_count, values.offset, children=[child]
    )


def _listed_of(type_: pa.DataType, field: pa.Field) -> pa.DataType:
    if pa.types.is_large_list(type_):
        return pa.large_list(field)
    return pa.list_(field, type_.list_size if pa.types.is_fixed_size_list(type_) else -1)


def _is_listed(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_))
