"""Values of an answer of DuckDB that Arrow data cannot have: long decimals, and times outside of its range."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.rows.decimals import TOO_LONG, too_long
from storage_core.rows.nested_faults import Mask, wrong_values

_ADVICE = "Cast it in the query, for example to VARCHAR."


def with_own_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch if each of its values is that of the query. Raises `InvalidInput` naming a column of another."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if too_long(column) is not None:
            raise InvalidInput(f"column {quoted(name)}: {TOO_LONG}, {column.type}. {_ADVICE}", column=name)
        if wrong_values(column, _infinite) is not None:
            raise InvalidInput(
                f"column {quoted(name)}: an infinite date or time is not a value. {_ADVICE}", column=name
            )
        if wrong_values(column, _beyond_a_day) is not None:
            raise InvalidInput(f"column {quoted(name)}: 24:00:00 is not a time of a day. {_ADVICE}", column=name)
    return batch


def _beyond_a_day(values: pa.Array) -> Mask | None:
    if not pa.types.is_time64(values.type):
        return None
    most = 86_400 * (10**6 if values.type.unit == "us" else 10**9)
    wrong = np.asarray(pc.greater_equal(values.cast(pa.int64()), most).fill_null(False))  # noqa: FBT003
    return wrong if wrong.any() else None


def _infinite(values: pa.Array) -> Mask | None:
    if pa.types.is_date32(values.type):
        ticks, most = values.cast(pa.int32()), 2**31 - 1
    elif pa.types.is_timestamp(values.type):
        ticks, most = values.cast(pa.int64()), 2**63 - 1
    else:
        return None
    least, greatest = (each.as_py() for each in pc.min_max(ticks).values())
    if least is None or (least > -most and greatest < most):
        return None
    return np.asarray(pc.is_in(ticks, pa.array([-most, most], ticks.type)))
