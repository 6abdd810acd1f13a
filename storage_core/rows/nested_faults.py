"""A check of the values inside of a column, at any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.rows.vectors import Mask

Offsets = npt.NDArray[np.int64]
Check = Callable[[pa.Array], Mask | None]
"""Returns which values of an array without inner values are wrong, or None if none is."""


def wrong_values(column: pa.ChunkedArray | pa.Array, check: Check) -> Mask | None:
    """Return per value of the column whether it contains a wrong value, or None if none does."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    found = [_wrong(each, check) for each in chunks]
    if all(each is None for each in found):
        return None
    pairs = zip(chunks, found, strict=True)
    return np.concatenate([np.zeros(len(chunk), np.bool_) if each is None else each for chunk, each in pairs])


def _wrong(values: pa.Array, check: Check) -> Mask | None:
    kinds, type_ = pa.types, values.type
    if kinds.is_dictionary(type_):
        inside = _wrong(values.dictionary, check)
        return None if inside is None else _some(inside[np.asarray(values.indices.fill_null(0))], values)
    if not kinds.is_nested(type_):
        return check(values)
    children = list(_children(values))
    found = [each for each in (_of_child(values, *child, check) for child in children) if each is not None]
    return _some(np.logical_or.reduce(found), values) if found else None


def _children(values: pa.Array) -> Iterator[tuple[pa.Array, Offsets | None]]:
    """Yield the arrays inside, with the offsets of the values in them. Without offsets there is one for each value."""
    kinds, type_ = pa.types, values.type
    if kinds.is_struct(type_):
        for index in range(type_.num_fields):
            yield values.field(index), None
    elif kinds.is_map(type_):
        yield values.keys, np.asarray(values.offsets)
        yield values.items, np.asarray(values.offsets)
    elif kinds.is_list(type_) or kinds.is_large_list(type_):
        yield values.values, np.asarray(values.offsets)
    elif kinds.is_fixed_size_list(type_):
        first = values.offset * type_.list_size
        yield values.values, first + type_.list_size * np.arange(len(values) + 1)


def _of_child(values: pa.Array, child: pa.Array, offsets: Offsets | None, check: Check) -> Mask | None:
    if offsets is None:
        return _wrong(child, check)
    if not len(values):
        return None
    inside = _wrong(child.slice(offsets[0], offsets[-1] - offsets[0]), check)
    if inside is None:
        return None
    parents = np.repeat(np.arange(len(values)), np.diff(offsets))
    found = np.zeros(len(values), np.bool_)
    found[parents[inside]] = True
    return found


def _some(found: Mask, values: pa.Array) -> Mask | None:
    """The wrong values that are not null, or None if there are none."""
    found = found & np.asarray(values.is_valid())
    return found if found.any() else None
