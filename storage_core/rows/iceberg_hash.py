"""The hash of Iceberg's bucket transform: murmur3 (x86, 32 bits) with seed 0, of a value's bytes.

Integers, dates and timestamps are hashed as 64-bit integers, dates by days and timestamps by microseconds since 1970,
so that a promotion keeps the hash; decimals as the shortest big-endian two's complement of the unscaled value; strings
in UTF-8. `rows.murmur3` is Spark's, which mixes the last bytes of a text in another way.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from storage_core.rows.murmur3 import Hashes, decimal_bytes, hash_bytes, hash_long, text_bytes


def iceberg_hashes(column: pa.Array) -> Hashes:
    """Return the hash of each value, that of some other where there is none. No Python loop over rows."""
    kinds, type_ = pa.types, column.type
    seeds = np.zeros(len(column), np.uint32)
    if not len(column):
        return seeds
    if kinds.is_string(type_):
        return hash_bytes(*text_bytes(column), seeds, tail_by_bytes=False)
    if kinds.is_decimal128(type_):
        return hash_bytes(*decimal_bytes(column), seeds, tail_by_bytes=False)
    if kinds.is_timestamp(type_):
        column = column.cast(pa.timestamp("us", tz=type_.tz))
    numbers = column.cast(pa.int32()) if kinds.is_date32(type_) else column
    return hash_long(numbers.cast(pa.int64()).fill_null(0).to_numpy(), seeds)
