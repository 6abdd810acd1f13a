"""Arrow's extension types: a UUID is its text or its 16 bytes, and other values are what they are stored as."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from storage_core.rows.leaves import Change, leaf_types, with_changed_leaves

_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_HYPHENS = (8, 13, 18, 23)
_UUID_CHARACTERS = 36


def held_as(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values of an extension type in a new table; any other type as it is."""
    if isinstance(type_, pa.UuidType | pa.Bool8Type):
        return pa.string() if isinstance(type_, pa.UuidType) else pa.bool_()
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def without_extension_types(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Return the column without extension types, at any depth. UUIDs become text where the target has text."""
    leaves = leaf_types(column.type)
    if not any(isinstance(each, pa.BaseExtensionType) for each in leaves):
        return column
    wanted = leaf_types(target)
    if len(wanted) != len(leaves):
        wanted = leaves  # types that are refused whatever their leaves are
    changes = [_change(leaf, to) for leaf, to in zip(leaves, wanted, strict=True)]
    kind = with_changed_leaves(pa.nulls(0, column.type), iter(changes)).type
    return pa.chunked_array([with_changed_leaves(each, iter(changes)) for each in column.chunks], kind)


def uuid_text(values: pa.Array) -> pa.Array:
    """Return UUIDs, which are given as 16 bytes, as text: 8-4-4-4-12 hexadecimal digits in lower case."""
    count = len(values)
    data = np.frombuffer(values.buffers()[1] or b"", np.uint8)[values.offset * 16 : (values.offset + count) * 16]
    text = np.full((count, _UUID_CHARACTERS), ord("-"), np.uint8)
    digits = np.stack([_DIGITS[data >> 4], _DIGITS[data & 15]], axis=-1).reshape(count, 32)
    text[:, [place for place in range(_UUID_CHARACTERS) if place not in _HYPHENS]] = digits
    offsets = np.arange(count + 1, dtype=np.int32) * _UUID_CHARACTERS
    nulls = None if not values.null_count else pa.array(np.asarray(values.is_valid(), np.bool_)).buffers()[1]
    return pa.Array.from_buffers(pa.string(), count, [nulls, pa.py_buffer(offsets), pa.py_buffer(text)])


def _change(leaf: pa.DataType, wanted: pa.DataType) -> Change | None:
    if isinstance(leaf, pa.UuidType) and pa.types.is_string(wanted):
        return lambda values: uuid_text(values.storage)
    if isinstance(leaf, pa.Bool8Type) and pa.types.is_boolean(wanted):
        return lambda values: values.storage.cast(wanted)
    return (lambda values: values.storage) if isinstance(leaf, pa.BaseExtensionType) else None
