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
from storage_core.rows.codes import Mask

# Above the key of infinity; whatever bits a NaN has, it is one value.
NAN_KEY = 2**63 - 1


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


def _like(values: pa.Array, keys: npt.NDArray[np.int64]) -> pa.Array:
    if not values.null_count:
        return pa.array(keys)
    return pa.array(keys, mask=values.is_null().to_numpy(zero_copy_only=False))
