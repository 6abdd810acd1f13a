"""Values of a column as keys that compare by one machine comparison in the order of values.

Numbers numerically, −0.0 = 0.0, NaN greatest and equal to itself, false before true, strings by UTF-8 bytes, dates and
timestamps as instants. Booleans, integers, floats, dates and timestamps become int64; decimals and strings stay, for
Arrow compares them that way.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.rows.bound_text import decode_column
from storage_core.rows.codes import Mask, Unsigned

# Above the key of infinity; whatever bits a NaN has, it is one value.
NAN_KEY = 2**63 - 1

_SIGN = np.uint64(1 << 63)
_GREATEST = 2**64 - 1
_LEADING_BYTES = 8
_DAY = 86_400_000_000
_LAST_DAY = (2**63 - 1) // _DAY


def sortable(values: pa.Array) -> pa.Array:
    """Return one key per value, null where the value is; of a type without an order all keys are null.

    Dates and timestamps become microseconds since the epoch in UTC, which holds the years 1 to 9999.
    """
    kinds, type_ = pa.types, values.type
    if kinds.is_boolean(type_) or kinds.is_integer(type_):
        return values.cast(pa.int64())
    if kinds.is_floating(type_):
        return _like(values, float_keys(values.cast(pa.float64()).fill_null(0.0).to_numpy()))
    if kinds.is_date(type_) or kinds.is_timestamp(type_):
        return values.cast(pa.timestamp("us", tz=getattr(type_, "tz", None))).view(pa.int64())
    if kinds.is_decimal(type_) or kinds.is_string(type_):
        return values
    return pa.nulls(len(values), pa.int64())


def bound_keys(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return the keys of bounds of one column as the log writes them; null where there is none to go by."""
    return sortable(decode_column(texts, type_))


def has_leading_keys(type_: pa.DataType) -> bool:
    """Return whether `leading_keys` takes values of this type."""
    kinds = pa.types
    numbers = kinds.is_boolean(type_) or kinds.is_integer(type_) or kinds.is_floating(type_)
    return bool(numbers or kinds.is_date(type_) or kinds.is_timestamp(type_) or kinds.is_string(type_))


def leading_keys(values: pa.Array) -> Unsigned:
    """Return a word per value, of which no greater value has a smaller one: of a text that of its first eight bytes.

    Null is greatest. Of numbers, dates and timestamps it is also that of their `sortable` key.
    """
    if pa.types.is_string(values.type):
        keys = _leading_bytes(values)
    elif pa.types.is_date32(values.type):
        days = values.view(pa.int32()).fill_null(0).to_numpy().astype(np.int64)
        keys = (np.clip(days, -_LAST_DAY, _LAST_DAY) * _DAY).view(np.uint64) ^ _SIGN
    else:
        keys = sortable(values).fill_null(0).to_numpy().view(np.uint64) ^ _SIGN
    if values.null_count:
        keys[values.is_null().to_numpy(zero_copy_only=False)] = _GREATEST
    return keys


def unless_false(compared: pa.Array) -> Mask:
    """Return the outcome of a comparison of keys where one that is unknown may hold."""
    mask: Mask = compared.fill_null(fill_value=True).to_numpy(zero_copy_only=False)
    return mask


def float_keys(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the int64 key of each double: the bits, turned so that they order as the numbers do."""
    bits = (values + 0.0).view(np.int64)  # -0.0 + 0.0 is 0.0
    keys = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    keys[np.isnan(values)] = NAN_KEY
    return keys


def _leading_bytes(values: pa.Array) -> Unsigned:
    keys = np.zeros(len(values), np.uint64)
    _, offsets, content = values.buffers()
    if content is None or not content.size:
        return keys
    data = np.frombuffer(content, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[values.offset :][: len(values) + 1].astype(np.int64)
    for number in range(_LEADING_BYTES):
        places = ends[:-1] + number
        found = np.where(places < ends[1:], data.take(places, mode="clip"), np.uint8(0))
        keys = keys << np.uint64(8) | found
    return keys


def _like(values: pa.Array, keys: npt.NDArray[np.int64]) -> pa.Array:
    if not values.null_count:
        return pa.array(keys)
    return pa.array(keys, mask=values.is_null().to_numpy(zero_copy_only=False))
