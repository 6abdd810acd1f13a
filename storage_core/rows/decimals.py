"""Decimals that have more digits than their type: Arrow holds them, and Parquet reads them back as other numbers."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.rows.nested_faults import wrong_values
from storage_core.rows.vectors import Mask

_WIDEST = 76  # digits, which any decimal of 128 bits has room in


TOO_LONG = "a decimal has more digits than its type"


def find_long_decimals(column: pa.ChunkedArray | pa.Array) -> Mask | None:
    """Return which values of a column contain a decimal with more digits than its type, or None if none does."""
    return wrong_values(column, _too_long)


def _too_long(values: pa.Array) -> Mask | None:
    type_ = values.type
    if not pa.types.is_decimal128(type_):
        return None
    most = Decimal(f"{10**type_.precision - 1}E{-type_.scale}")  # exact, whatever the context
    least, greatest = pc.min_max(values).values()
    if not least.is_valid or (least.as_py() >= -most and greatest.as_py() <= most):
        return None
    wide = values.cast(pa.decimal256(_WIDEST, type_.scale))
    return np.asarray(pc.greater(pc.abs(wide), pa.scalar(most, wide.type)).fill_null(False))  # noqa: FBT003  # which has no other name
