"""Data frames of pandas and lazy frames of Polars as what gives a stream of Arrow data.

Neither library is imported: a frame exists only where its owner has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.repeated import repeated
from storage_core.rows.exact import exact_array
from storage_core.rows.times import has_times

_NO_ONE_TYPE = "holds values of no one type, or of a type that a table lacks. Convert it to one type"


def is_frame(rows: object) -> bool:
    """Return whether the rows are a data frame of pandas or a lazy frame of Polars."""
    return _is_a(rows, "pandas", "DataFrame") or _is_a(rows, "polars", "LazyFrame")


def collected(rows: Any) -> Any:
    """Return a data frame of pandas as a table and a lazy frame of Polars as a data frame; other rows as they are.

    An index of pandas that has no name and only whole numbers, which count the rows of some frame, is left out. Missing
    values of pandas are null. Raises `InvalidInput` for any other index, and naming a column whose values are of no one
    type, or not kept exactly.
    """
    if _is_a(rows, "polars", "LazyFrame"):
        return rows.collect()
    return _of_pandas(rows) if _is_a(rows, "pandas", "DataFrame") else rows


def _is_a(rows: object, library: str, kind: str) -> bool:
    found = getattr(sys.modules.get(library), kind, None)
    return isinstance(found, type) and isinstance(rows, found)


def _of_pandas(frame: Any) -> pa.Table:
    if frame.index.name is not None or frame.index.nlevels > 1 or frame.index.dtype.kind not in "iu":
        raise InvalidInput(
            "the data frame has an index, which is not a column of a table: reset_index() makes it one, "
            "reset_index(drop=True) leaves it out"
        )
    names = [str(each) for each in frame.columns]
    if twice := sorted(repeated(names)):
        raise InvalidInput(f"the columns {twice} occur more than once; pass each column once", columns=twice)
    columns = [_column(frame.iloc[:, index], name) for index, name in enumerate(names)]
    return pa.Table.from_arrays(columns, names=names)


def _column(series: Any, name: str) -> pa.Array | pa.ChunkedArray:
    try:
        column = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"column {quoted(name)} of the data frame {_NO_ONE_TYPE}.", column=name) from error
    if series.dtype.kind != "O" or not has_times(column.type):
        return column
    # Arrow takes a time for the type of the first one, and cuts what that lacks.
    values = [None if missing is True else each for each, missing in zip(series, series.isna(), strict=True)]
    try:
        return exact_array(values, _type_of(values, column.type), name)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"column {quoted(name)} of the data frame: {error}.", column=name) from error


def _type_of(values: Sequence[object], type_: pa.DataType) -> pa.DataType:
    """The type of times, which is that of instants where one of them has a zone."""
    if not pa.types.is_timestamp(type_):
        return type_
    zoned = any(getattr(each, "tzinfo", None) is not None for each in values)
    return cast("pa.DataType", pa.timestamp("us", "UTC" if zoned else None))
