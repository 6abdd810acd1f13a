"""Values of an answer of DuckDB that Arrow data cannot have: long decimals, and times outside of its range."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.rows.codes import Mask
from storage_core.rows.decimals import TOO_LONG, find_long_decimals
from storage_core.rows.nested_faults import wrong_values

_ADVICE = "Cast it in the query, for example to VARCHAR."


def reject_changed_values(batch: pa.RecordBatch) -> None:
    """Raise `InvalidInput` for a column with a value that differs from the value of the query."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if find_long_decimals(column) is not None:
            raise InvalidInput(f"column {quoted(name)}: {TOO_LONG}, {column.type}. {_ADVICE}", column=name)
        if wrong_values(column, _infinite) is not None:
            raise InvalidInput(
                f"column {quoted(name)}: an infinite date or time is not a value. {_ADVICE}", column=name
            )
        if wrong_values(column, _beyond_a_day) is not None:
            raise InvalidInput(f"column {quoted(name)}: 24:00:00 is not a time of a day. {_ADVICE}", column=name)


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
