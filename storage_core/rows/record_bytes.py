"""How many bytes rows take in memory, row by row: what a page of a history is measured by.

A row has a place in the table's schema for each column, and is charged for all of it:

| Value | Bytes |
|---|---|
| any, also null, also inside others | 1, for whether it is there |
| of a fixed width | that width, at least 1 |
| text, binary | 8 and its length |
| list, map | 8 and what its elements take |
| vector | what its numbers take |
| struct | what its fields take |

Rows that are laid out anew as one table never take more than the sum (`pa.Table.nbytes`): a bit or an offset that a
column has once besides those of its rows is paid for by the bytes that each row is charged too much.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from storage_core.rows.vectors import is_vector

Bytes = npt.NDArray[np.int64]

_PRESENCE = 1
_OFFSET = 8


def row_bytes(rows: pa.Table) -> Bytes:
    """Return the bytes of each row. Works column by column; its time is that of one pass over offsets, not values."""
    total = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        if column.num_chunks:
            total += np.concatenate([_sizes(chunk) for chunk in column.chunks])
    return total


def _sizes(array: pa.Array) -> Bytes:
    type_ = array.type
    if not len(array):
        return np.zeros(0, np.int64)
    if kinds.is_string(type_) or kinds.is_binary(type_):
        return np.diff(_text_offsets(array)) + (_PRESENCE + _OFFSET)
    if kinds.is_list(type_) or kinds.is_map(type_):
        return _of_elements(array) + (_PRESENCE + _OFFSET)
    if is_vector(type_):
        return _each(array, _PRESENCE + type_.list_size * (_PRESENCE + type_.value_type.bit_width // 8))
    if kinds.is_struct(type_):
        return sum((_sizes(array.field(index)) for index in range(type_.num_fields)), _each(array, _PRESENCE))
    return _each(array, _PRESENCE + max(1, type_.bit_width // 8))


def _each(array: pa.Array, size: int) -> Bytes:
    return np.full(len(array), size, np.int64)


def _text_offsets(array: pa.Array) -> Bytes:
    offsets = np.frombuffer(array.buffers()[1], np.int32, count=len(array) + 1, offset=4 * array.offset)
    return offsets.astype(np.int64)


def _of_elements(array: pa.Array) -> Bytes:
    offsets = array.offsets.to_numpy().astype(np.int64)
    elements = _sizes(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    ends = np.append(0, np.cumsum(elements))
    sizes: Bytes = np.diff(ends[offsets - offsets[0]])
    return sizes
